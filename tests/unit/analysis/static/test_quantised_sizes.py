"""Bytes of quantised checkpoints against the tensors themselves: transformers' own modules, and files as libraries write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from llm_perf_opt.analysis.static.counts import ModelTree
from llm_perf_opt.analysis.static.quantised import quantise, read_scheme
from llm_perf_opt.workloads.counting.counter import model_tree
from tests.unit.static_support import meta_model, small_config

DENSE = {"hidden_size": 256, "intermediate_size": 384, "num_attention_heads": 4, "head_dim": 64}
EXPERTS = {
    **DENSE,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "norm_topk_prob": True,
}
GPT_OSS = {**DENSE, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16}

Tensors = dict[str, torch.Tensor]


def tree_of(kind: str, **changes: Any) -> ModelTree:
    return model_tree(meta_model(small_config(kind, **changes)))


def stored(tree: ModelTree, config: Mapping[str, Any]) -> float:
    scheme = read_scheme(config, head=tree.head, element_bytes=2)
    assert scheme.reason is None
    return quantise(tree, scheme)[0].weight_bytes()


def module_bytes(model: torch.nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())


@pytest.mark.parametrize("scale_fmt", ["float", "ue8m0"])
@pytest.mark.parametrize("block", [[128, 128], [64, 32], None])
@pytest.mark.parametrize("skipped", [None, ["lm_head", "model.layers.1", "self_attn.o_proj"]])
def test_fp8_is_what_transformers_makes_of_the_model(
    block: list[int] | None, skipped: list[str] | None, scale_fmt: str
) -> None:
    from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear
    from transformers.utils.quantization_config import FineGrainedFP8Config

    config = {
        "quant_method": "fp8",
        "weight_block_size": block,
        "modules_to_not_convert": skipped,
        "scale_fmt": scale_fmt,
        "activation_scheme": "static" if block is None else "dynamic",
    }
    model = meta_model(small_config("llama", **DENSE))
    tree = model_tree(model)
    replace_with_fp8_linear(model, skipped or ["lm_head"], FineGrainedFP8Config(**config), pre_quantized=True)
    assert stored(tree, config) == module_bytes(model)
    assert stored(tree, config) < tree.weight_bytes()


def test_fp8_takes_stacked_experts_too() -> None:
    from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear
    from transformers.utils.quantization_config import FineGrainedFP8Config

    config = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    model = meta_model(small_config("qwen3_moe", **EXPERTS))
    tree = model_tree(model)
    replace_with_fp8_linear(model, ["lm_head"], FineGrainedFP8Config(**config), pre_quantized=True)
    assert stored(tree, config) == module_bytes(model)


@pytest.mark.parametrize(
    ("config", "block"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, [128, 128]),
        ({"quant_method": "fp8", "weight_block_size": None}, None),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, None),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "float-quantized",
                "config_groups": {
                    "all": {
                        "targets": ["Linear"],
                        "weights": {
                            "num_bits": 8,
                            "type": "float",
                            "strategy": "block",
                            "block_structure": [128, 64],
                        },
                    }
                },
            },
            [128, 64],
        ),
    ],
)
def test_the_block_of_a_scale_is_kept(config: dict[str, object], block: list[int] | None) -> None:
    tree = model_tree(meta_model(small_config("llama", **DENSE)))
    scheme = read_scheme(config, head=tree.head, element_bytes=2)
    assert scheme.reason is None and quantise(tree, scheme)[1].block == block


def test_mxfp4_is_what_transformers_makes_of_the_model() -> None:
    from transformers.integrations.mxfp4 import Mxfp4GptOssExperts

    config = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    model = meta_model(small_config("gpt_oss", **GPT_OSS))
    tree = model_tree(model)
    with torch.device("meta"):
        experts = Mxfp4GptOssExperts(model.config)
    blocks = [tensor for tensor in experts.parameters() if tensor.dtype is torch.uint8]
    # The library makes the scales when it loads: one byte for the 16 of each block.
    packed = sum(tensor.numel() + tensor.numel() // 16 for tensor in blocks)
    scheme = read_scheme(config, head=tree.head, element_bytes=2)
    found = quantise(tree, scheme)[1]
    assert packed > 0
    assert found.weight_bytes == 3 * packed
    assert found.dtype == "float4"
    assert found.compute_dtype is None
    assert found.bytes_per_param == pytest.approx(17 / 32)


def _gptq(rows: int, columns: int) -> Tensors:
    groups = -(-columns // 128)
    return {
        "qweight": torch.zeros(columns * 4 // 32, rows, dtype=torch.int32),
        "qzeros": torch.zeros(groups, rows * 4 // 32, dtype=torch.int32),
        "scales": torch.zeros(groups, rows, dtype=torch.float16),
        "g_idx": torch.zeros(columns, dtype=torch.int32),
    }


def _awq(rows: int, columns: int) -> Tensors:
    groups = -(-columns // 128)
    return {
        "qweight": torch.zeros(columns, rows // 8, dtype=torch.int32),
        "qzeros": torch.zeros(groups, rows // 8, dtype=torch.int32),
        "scales": torch.zeros(groups, rows, dtype=torch.float16),
    }


def _nf4(rows: int, columns: int) -> Tensors:
    blocks = rows * columns // 64
    return {
        "weight": torch.zeros(rows * columns // 2, 1, dtype=torch.uint8),
        "weight.absmax": torch.zeros(blocks, dtype=torch.uint8),
        "weight.nested_absmax": torch.zeros(-(-blocks // 256)),
        "weight.nested_quant_map": torch.zeros(256),
        "weight.quant_map": torch.zeros(16),
    }


def _int8(rows: int, columns: int) -> Tensors:
    return {"weight": torch.zeros(rows, columns, dtype=torch.int8), "SCB": torch.zeros(rows)}


def _packed(rows: int, columns: int) -> Tensors:
    return {
        "weight_packed": torch.zeros(rows, columns // 8, dtype=torch.int32),
        "weight_scale": torch.zeros(rows, columns // 64, dtype=torch.bfloat16),
        "weight_zero_point": torch.zeros(rows // 8, columns // 64, dtype=torch.int32),
    }


def _w8a8(rows: int, columns: int) -> Tensors:
    return {
        "weight": torch.zeros(rows, columns, dtype=torch.float8_e4m3fn),
        "weight_scale": torch.zeros(rows, 1, dtype=torch.bfloat16),
    }


def _nvfp4(rows: int, columns: int) -> Tensors:
    return {
        "weight_packed": torch.zeros(rows, columns // 2, dtype=torch.uint8),
        "weight_scale": torch.zeros(rows, columns // 16, dtype=torch.float8_e4m3fn),
        "weight_global_scale": torch.zeros(1),
        "input_global_scale": torch.zeros(1),
    }


def _compressed(name: str, weights: dict[str, Any], inputs: dict[str, Any] | None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": name,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*layers.1.*"],
    }


CASES: dict[str, tuple[dict[str, Any], Callable[[int, int], Tensors], str, str | None, tuple[str, ...]]] = {
    "gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {r"-:.*layers\.1\.": {}}},
        _gptq,
        "int4",
        None,
        ("layers.1.",),
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": ["model.layers.1"]},
        _awq,
        "int4",
        None,
        ("layers.1.",),
    ),
    "nf4": (
        {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
        },
        _nf4,
        "float4",
        None,
        (),
    ),
    "llm.int8": (
        {"load_in_8bit": True, "llm_int8_skip_modules": ["lm_head", "down_proj"]},
        _int8,
        "int8",
        "int8",
        ("down_proj",),
    ),
    "packed": (
        _compressed(
            "pack-quantized",
            {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64, "symmetric": False},
            None,
        ),
        _packed,
        "int4",
        None,
        ("layers.1.",),
    ),
    "fp8 dynamic": (
        _compressed(
            "float-quantized",
            {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
            {"num_bits": 8, "type": "float", "dynamic": True},
        ),
        _w8a8,
        "float8",
        "float8",
        ("layers.1.",),
    ),
    "nvfp4": (
        _compressed(
            "nvfp4-pack-quantized",
            {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
            {"num_bits": 4, "type": "float", "dynamic": "local"},
        ),
        _nvfp4,
        "float4",
        "float4",
        ("layers.1.",),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_sizes_are_those_of_the_checkpoints_own_tensors(case: str, tmp_path: Path) -> None:
    config, write, dtype, computed, kept = CASES[case]
    model = meta_model(small_config("llama", **DENSE))
    tree = model_tree(model)
    tensors: Tensors = {}
    for name, param in model.named_parameters():
        owner = name.removesuffix(".weight")
        is_linear = isinstance(model.get_submodule(owner), torch.nn.Linear)
        if not is_linear or owner == "lm_head" or any(part in name for part in kept):
            tensors[name] = torch.zeros(param.shape, dtype=torch.bfloat16)
        else:
            tensors |= {f"{owner}.{key}": value for key, value in write(*param.shape).items()}
    file = tmp_path / "model.safetensors"
    save_file(tensors, file)
    header = int.from_bytes(file.read_bytes()[:8], "little") + 8
    scheme = read_scheme(config, head=tree.head, element_bytes=2)
    sized, found = quantise(tree, scheme)
    assert sized.weight_bytes() == file.stat().st_size - header
    assert (found.dtype, found.compute_dtype) == (dtype, computed)
    assert sized.total_params() == tree.total_params()


@pytest.mark.parametrize(
    ("kind", "data", "per_param"),
    [
        ("Int8WeightOnlyConfig", {}, 1 + 2 / 256),
        ("Int4WeightOnlyConfig", {"group_size": 64}, 0.5 + 4 / 64),
        ("Float8WeightOnlyConfig", {}, 1 + 4 / 256),
    ],
)
def test_torchao_sizes_follow_the_type(kind: str, data: dict[str, Any], per_param: float) -> None:
    tree = tree_of("llama", **{**DENSE, "intermediate_size": 256})
    config = {"quant_method": "torchao", "quant_type": {"default": {"_type": kind, "_data": data}}}
    found = quantise(tree, read_scheme(config, head=tree.head, element_bytes=2))[1]
    assert found.bytes_per_param == pytest.approx(per_param)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"quant_method": "spqr"}, "quant_method=spqr"),
        ({"bits": 4}, "unnamed"),
        ({"quant_method": "gptq", "bits": 5}, "bits=5"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version=gemv"),
        ({"quant_method": "bitsandbytes"}, "load_in_4bit"),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "UIntXConfig"}}}, "UIntXConfig"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "config_groups"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
        ({"quant_method": "mxfp4"}, "module"),
    ],
)
def test_what_is_not_known_is_reported_and_gives_no_size(config: dict[str, Any], expected: str) -> None:
    tree = tree_of("llama", **DENSE)
    sized, found = quantise(tree, read_scheme(config, head=tree.head, element_bytes=2))
    assert found.reason is not None
    assert expected in found.reason
    assert found.weight_bytes is None
    assert sized == tree


def test_experts_are_counted_in_four_bits_where_the_checkpoint_lists_them_one_by_one() -> None:
    tree = tree_of("qwen3_moe", **EXPERTS)
    config = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    whole = quantise(tree, read_scheme(config, head=tree.head, element_bytes=2))[1]
    left_out = {**config, "dynamic": {r"-:.*experts\.\d+\.down_proj": {}}}
    without = quantise(tree, read_scheme(left_out, head=tree.head, element_bytes=2))[1]
    down = sum(param.numel for param in tree.params if param.name.endswith("experts.down_proj"))
    assert whole.params is not None
    assert without.params == whole.params - down


def test_the_cache_scheme_of_a_checkpoint_is_read() -> None:
    config = _compressed("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}, None)
    assert read_scheme(config, head=None, element_bytes=2).cache_dtype is None
    config["kv_cache_scheme"] = {"num_bits": 8, "type": "float"}
    assert read_scheme(config, head=None, element_bytes=2).cache_dtype == "float8"


@pytest.mark.parametrize(
    ("config", "dtype", "per_param"),
    [
        ({"quant_algo": "FP8"}, "float8", lambda matrices, numel: numel + 8 * matrices),
        (
            {"quant_algo": "NVFP4", "group_size": 16},
            "float4",
            lambda matrices, numel: numel / 2 + numel / 16 + 8 * matrices,
        ),
    ],
)
def test_modelopt_sizes_are_those_of_its_tensors(config: dict[str, Any], dtype: str, per_param: Any) -> None:
    """``weight``, ``weight_scale`` (per 16 values in NVFP4, with ``weight_scale_2``) and ``input_scale``."""
    tree = tree_of("llama", **DENSE)
    config = {"quant_method": "modelopt", "ignore": ["lm_head", "*layers.1*"], **config}
    sized, found = quantise(tree, read_scheme(config, head=tree.head, element_bytes=2))
    kept = [p for p in sized.params if p.stored_bytes is not None]
    assert kept and not any("layers.1" in p.name or "lm_head" in p.name for p in kept)
    numel = sum(p.numel for p in kept)
    assert found.dtype == dtype and found.compute_dtype == dtype
    assert found.weight_bytes == per_param(len(kept), numel)


def test_modelopt_of_an_older_release_and_of_mixed_precision() -> None:
    tree = tree_of("llama", **DENSE)
    linear = sorted({p.module for p in tree.params if "layers.0" in p.module and len(p.shape) == 2})
    layers = {name: {"quant_algo": "NVFP4" if "mlp" in name else "FP8", "group_size": 16} for name in linear}
    config = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "kv_cache_quant_algo": "FP8",
        "quantized_layers": layers,
    }
    scheme = read_scheme(config, head=tree.head, element_bytes=2)
    assert scheme.cache_dtype == "float8"
    sized, _ = quantise(tree, scheme)
    ratios = {p.module: p.stored_bytes / p.numel for p in sized.params if p.stored_bytes is not None}
    assert set(ratios) == set(linear)
    assert all((ratio < 0.75) == ("mlp" in module) for module, ratio in ratios.items())
    unknown = read_scheme({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, head=None, element_bytes=2)
    assert unknown.reason is not None and "W4A8_AWQ" in unknown.reason
