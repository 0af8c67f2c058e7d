"""Quantised checkpoints through the static stage: floors and MBU from what is stored, packages named, nothing silent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_perf_opt.analysis.roofline.what_if import what_if
from llm_perf_opt.config.schema import InferConfig, ModelConfig, Weights
from llm_perf_opt.hardware.catalogue import load_catalogue
from llm_perf_opt.reporting.static_page import render_static_report
from llm_perf_opt.summary.static import StaticDocument
from llm_perf_opt.workloads.counting.static_run import StaticCounter
from llm_perf_opt.workloads.models.model_types import loading_problem, reason_not_quantised
from llm_perf_opt.workloads.registry import load_adapter
from tests.text_facts import mentions

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 8192,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
H100 = "NVIDIA H100 SXM5 80GB"
A100 = "NVIDIA A100 SXM4 80GB"


def checkpoint(folder: Path, quantization: dict[str, Any] | None) -> Path:
    folder.mkdir(exist_ok=True)
    document = LLAMA if quantization is None else {**LLAMA, "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def count(folder: Path, quantization: dict[str, Any] | None, **options: Any) -> StaticDocument:
    model = ModelConfig(adapter="hf_causal_lm", path=str(checkpoint(folder, quantization)))
    adapter = load_adapter(model, InferConfig())
    counter = StaticCounter(adapter, torch.bfloat16, **options)
    return counter.document(adapter.default_shapes())


def test_a_quantised_checkpoint_moves_what_it_stores(tmp_path: Path) -> None:
    plain, four = count(tmp_path, None), count(tmp_path, GPTQ)
    wide, small = plain.static, four.static
    assert wide.quantisation is None
    assert small.quantisation is not None
    assert small.params == wide.params
    assert small.phases["decode"].flops == wide.phases["decode"].flops
    assert small.phases["decode"].kv_bytes == wide.phases["decode"].kv_bytes
    saved = small.quantisation.params * 2 - small.quantisation.weight_bytes
    assert small.phases["decode"].weight_bytes == wide.phases["decode"].weight_bytes - saved
    assert small.resident_bytes["weights"] == wide.resident_bytes["weights"] - saved
    assert four.resident[0].weights_bytes == small.resident_bytes["weights"]


def test_other_devices_are_priced_at_the_stored_size_and_the_computed_type(tmp_path: Path) -> None:
    rows = {
        name: {
            row.device: row
            for row in reversed(
                what_if(count(tmp_path, config).static, load_catalogue(), dtype="bfloat16", focus=())
            )
        }
        for name, config in (("plain", None), ("gptq", GPTQ), ("fp8", FP8))
    }
    assert {name: rows[name][H100].dtype for name in rows} == {
        "plain": "bfloat16",
        "gptq": "int4",
        "fp8": "float8",
    }
    steps = {name: rows[name][H100].tpot_floor_s or 0.0 for name in rows}
    assert steps["gptq"] < steps["fp8"] < steps["plain"]
    # A device without fp8 products widens the weights: it still has a floor.
    assert rows["fp8"][A100].ttft_floor_s is not None
    assert rows["gptq"][A100].ttft_floor_s is not None


def test_the_same_model_in_sixteen_bits_is_found_again_from_the_quantised_one(tmp_path: Path) -> None:
    static = count(tmp_path, GPTQ).static
    wide = count(tmp_path, None).static
    rows = what_if(static, load_catalogue(), dtype="bfloat16", focus=[H100])
    again = next(
        row
        for row in rows
        if (row.device, row.dtype, row.batch_size) == (H100, "bfloat16", 1)
        and row.context_tokens == rows[0].context_tokens
    )
    own = what_if(wide, load_catalogue(), dtype="bfloat16", focus=())
    expected = next(row for row in own if row.device == H100)
    assert again.tpot_floor_s == pytest.approx(expected.tpot_floor_s, rel=0.02)


def test_an_unknown_method_gives_no_bytes_and_a_note(tmp_path: Path) -> None:
    document = count(tmp_path, {"quant_method": "spqr"})
    static = document.static
    assert static.phases["decode"].flops is not None
    assert static.phases["decode"].weight_bytes is None
    assert "weights" not in static.resident_bytes
    assert document.resident == []
    assert any(mentions(note, "MBU", "spqr") for note in document.notes)
    assert what_if(static, load_catalogue(), dtype="bfloat16") == []


def test_a_run_that_is_not_quantised_is_counted_as_it_runs(tmp_path: Path) -> None:
    document = count(tmp_path, GPTQ, not_quantised="random weights")
    assert document.static.quantisation is None
    assert (
        document.static.phases["decode"].weight_bytes
        == count(tmp_path, None).static.phases["decode"].weight_bytes
    )
    assert any(mentions(note, "gptq", "random weights") for note in document.notes)


@pytest.mark.parametrize("source", ["key", "checkpoint"])
def test_a_cache_in_eight_bits_is_half_the_bytes(source: str, tmp_path: Path) -> None:
    plain = count(tmp_path, None).static
    if source == "key":
        small = count(tmp_path, None, cache_dtype="float8").static
    else:
        group = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}
        scheme = {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "config_groups": {"g": group},
        }
        small = count(tmp_path, {**scheme, "kv_cache_scheme": {"num_bits": 8, "type": "float"}}).static
        assert small.quantisation is not None
        assert small.quantisation.cache_dtype == "float8"
    assert plain.kv_bytes_per_token is not None
    assert small.kv_bytes_per_token == plain.kv_bytes_per_token / 2
    assert small.phases["decode"].kv_bytes == plain.phases["decode"].kv_bytes / 2
    assert small.resident_bytes["kv_cache"] == plain.resident_bytes["kv_cache"] / 2


def test_the_packages_that_loading_needs_are_named(tmp_path: Path) -> None:
    absent = {"quant_method": "hqq"}
    problem = loading_problem(ModelConfig(path=str(checkpoint(tmp_path, absent))))
    assert problem is not None
    assert problem.severity == "skip"
    assert "hqq" in problem.message
    assert "pip install hqq" in problem.fix
    assert (
        loading_problem(ModelConfig(path=str(checkpoint(tmp_path, absent)), weights=Weights.random)) is None
    )
    assert loading_problem(ModelConfig(path=str(checkpoint(tmp_path, None)))) is None
    assert loading_problem(ModelConfig(path=str(checkpoint(tmp_path, {"quant_method": "mxfp4"})))) is None


def test_what_runs_is_distinguished_from_what_is_stored(tmp_path: Path) -> None:
    fp8 = ModelConfig(path=str(checkpoint(tmp_path, FP8)))
    assert reason_not_quantised(fp8, "cpu", measured=False) is None
    assert "widens fp8" in (reason_not_quantised(fp8, "cpu", measured=True) or "")
    assert reason_not_quantised(fp8, "cuda:0", measured=True) is None
    random = ModelConfig(path=str(tmp_path), weights=Weights.random)
    assert "random weights" in (reason_not_quantised(random, "cuda:0", measured=True) or "")


def test_the_page_shows_how_weights_are_stored(tmp_path: Path) -> None:
    page = render_static_report(count(tmp_path, GPTQ))
    plain = render_static_report(count(tmp_path, None))
    for fact in ("gptq", "int4"):
        assert mentions(page, fact) and not mentions(plain, fact)
