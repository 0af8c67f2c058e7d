"""Original checkpoints load by their own tensor names; what cannot be meant is refused with a reason."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from llm_perf_opt.config.schema import InferConfig, ModelConfig, Weights
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.workloads.engine.engine import Engine
from llm_perf_opt.workloads.registry import load_adapter
from tests.text_facts import mentions
from tests.unit.small_workloads import ARCH_V1, SAM, TEXT, infer_config, model_config, samples, workload

SHARD = "model-00001-of-000001.safetensors"
RENAMES = (
    (r"^model\.vision_tower\.sam_encoder\.layers\.", "model.sam_model.blocks."),
    (r"^model\.vision_tower\.sam_encoder\.patch_embed\.projection\.", "model.sam_model.patch_embed.proj."),
    (r"^model\.vision_tower\.sam_encoder\.neck\.conv1\.", "model.sam_model.neck.0."),
    (r"^model\.vision_tower\.sam_encoder\.neck\.layer_norm1\.", "model.sam_model.neck.1."),
    (r"^model\.vision_tower\.sam_encoder\.neck\.conv2\.", "model.sam_model.neck.2."),
    (r"^model\.vision_tower\.sam_encoder\.neck\.layer_norm2\.", "model.sam_model.neck.3."),
    (r"^model\.vision_tower\.sam_encoder\.proj\.conv1\.", "model.sam_model.net_2."),
    (r"^model\.vision_tower\.sam_encoder\.proj\.conv2\.", "model.sam_model.net_3."),
    (r"^model\.vision_tower\.sam_encoder\.", "model.sam_model."),
    (r"^(model\.sam_model\.blocks\.\d+\.)layer_norm", r"\1norm"),
    (r"^model\.vision_tower\.vision_encoder\.encoder\.", "model.vision_model.transformer."),
    (r"^model\.vision_tower\.vision_encoder\.", "model.vision_model."),
    (r"^model\.multi_modal_projector\.", "model.projector.layers."),
    (r"^model\.view_separator$", "model.view_seperator"),
    (r"^model\.language_model\.", "model."),
)


def vendor_tensors(native: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rename tensors as the published checkpoint names them: fused CLIP qkv, one tensor per expert, a dead convolution."""
    tensors: dict[str, torch.Tensor] = {}
    for name, value in native.items():
        for pattern, replacement in RENAMES:
            name = re.sub(pattern, replacement, name)
        if name.endswith("mlp.experts.gate_up_proj"):
            for expert, both in enumerate(value):
                gate, up = both.chunk(2)
                tensors[name.replace("gate_up_proj", f"{expert}.gate_proj.weight")] = gate
                tensors[name.replace("gate_up_proj", f"{expert}.up_proj.weight")] = up
        elif name.endswith("mlp.experts.down_proj"):
            for expert, down in enumerate(value):
                tensors[name.replace("down_proj", f"{expert}.down_proj.weight")] = down
        else:
            tensors[name] = value
    for name in [name for name in tensors if "vision_model" in name and "self_attn.q_proj" in name]:
        parts = [tensors.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        tensors[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
    width = SAM["downsample_channels"][-1]
    tensors["model.vision_model.embeddings.patch_embedding.weight"] = torch.zeros(width, 3, 14, 14)
    return {name: value.contiguous().clone() for name, value in tensors.items()}


def vendor_config() -> dict[str, Any]:
    """A config.json in the published form: language fields twice, nothing about SAM or CLIP but their heads."""
    language = {**TEXT, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "topk_method": "greedy", "use_mla": False,
                "q_lora_rank": None, "kv_lora_rank": None, "v_head_dim": 0, "torch_dtype": "bfloat16"}  # fmt: skip
    return {
        **language,
        "model_type": "deepseek_vl_v2",
        "architectures": ["DeepseekOCRForCausalLM"],
        "auto_map": {
            "AutoConfig": "modeling_deepseekocr.DeepseekOCRConfig",
            "AutoModel": "modeling_deepseekocr.DeepseekOCRForCausalLM",
        },
        "candidate_resolutions": [[1024, 1024]],
        "global_view_pos": "head",
        "tile_tag": "2D",
        "language_config": language,
        "vision_config": {
            "image_size": 1024,
            "model_type": "vision",
            "width": {"clip-l-14-224": {"heads": 2, "layers": 2, "width": 32}},
        },
    }


def write_shard(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """One shard and its index, as published."""
    save_file(tensors, folder / SHARD, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": dict.fromkeys(tensors, SHARD)})
    )


@pytest.fixture(scope="module")
def reference() -> Engine:
    """The in-memory model whose weights the checkpoint holds."""
    return Engine(workload("v1", ignore_eos=True, no_repeat_ngram_size=3))


@pytest.fixture
def checkpoint(reference: Engine, tmp_path: Path) -> Path:
    """A small checkpoint under the published names."""
    folder = tmp_path / "ckpt with space"
    folder.mkdir()
    write_shard(folder, vendor_tensors(reference.model.state_dict()))
    (folder / "config.json").write_text(json.dumps(vendor_config()))
    reference.adapter.tokenizer().backend.save(str(folder / "tokenizer.json"))  # type: ignore[attr-defined]
    return folder


def real(path: Path, **changes: Any) -> ModelConfig:
    """The default architecture stays mounted below, as it is when a user only sets model.path."""
    return model_config("v1", path=str(path), **changes)


def test_vendor_checkpoint_gives_the_same_outputs(
    reference: Engine, checkpoint: Path, tmp_path: Path
) -> None:
    """Every tensor finds its place (a missing or unexpected one is an error), and the answers are equal."""
    load = workload("v1", ignore_eos=True, no_repeat_ngram_size=3, model={"path": str(checkpoint)})
    loaded = Engine(load)
    assert loaded.adapter.weights() == "real"
    theirs, ours = dict(loaded.model.named_parameters()), dict(reference.model.named_parameters())
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in ours)
    requests = samples("v1", tmp_path, 2)
    assert loaded.run_sample(requests)[1].token_ids == reference.run_sample(requests)[1].token_ids


def test_vendor_checkpoint_dimensions_come_from_its_tensors(checkpoint: Path) -> None:
    adapter = load_adapter(ModelConfig(path=str(checkpoint), arch={}), infer_config("v1"))
    config = adapter.model_config()  # type: ignore[attr-defined]
    sam = config.vision_config.sam_config
    assert {key: getattr(sam, key) for key in SAM} == SAM
    assert config.text_config.layer_types == ["full_attention"] * TEXT["num_hidden_layers"]
    assert config.text_config.max_position_embeddings == TEXT["max_position_embeddings"]
    meta = adapter.build("meta", torch.bfloat16)
    assert sum(p.numel() for p in meta.parameters()) > 0


def test_saved_by_transformers_loads_too(reference: Engine, tmp_path: Path) -> None:
    folder = tmp_path / "native"
    reference.model.save_pretrained(folder)
    reference.adapter.tokenizer().backend.save(str(folder / "tokenizer.json"))  # type: ignore[attr-defined]
    loaded = Engine(workload("v1", ignore_eos=True, no_repeat_ngram_size=3, model={"path": str(folder)}))
    requests = samples("v1", tmp_path, 1)
    assert loaded.run_sample(requests)[1].token_ids == reference.run_sample(requests)[1].token_ids


def build(config: ModelConfig) -> torch.nn.Module:
    return load_adapter(config, infer_config("v1")).build("cpu", torch.float32)


def test_truncated_safetensors_is_named(checkpoint: Path) -> None:
    file = next(checkpoint.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(InputError, match="cut-off") as caught:
        build(real(checkpoint))
    assert str(file) in str(caught.value)


def test_missing_shard_is_named(checkpoint: Path) -> None:
    other = checkpoint / "model-00002-of-000002.safetensors"
    index = json.loads((checkpoint / "model.safetensors.index.json").read_text())
    index["weight_map"]["lm_head.weight"] = other.name
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=other.name):
        build(real(checkpoint))


def test_missing_tokenizer_is_named(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"no tokenizer\.json"):
        build(real(checkpoint))


def test_damaged_tokenizer_is_named(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        build(real(checkpoint))


def test_wrong_model_type_is_refused(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text(json.dumps({**vendor_config(), "model_type": "llama"}))
    with pytest.raises(InputError) as caught:
        build(real(checkpoint))
    assert caught.value.data["path"] == str(checkpoint)
    assert mentions(caught.value.message, "'llama'", "DeepSeek-OCR") and mentions(
        caught.value.hint, "model=hf_causal_lm"
    )


def test_checkpoint_of_another_architecture_is_refused(checkpoint: Path) -> None:
    """A config that claims to be DeepSeek-OCR over tensors that are not."""
    write_shard(checkpoint, {"model.embed_tokens.weight": torch.zeros(8, 8)})
    with pytest.raises(InputError, match=r"model\.sam_model") as caught:
        build(real(checkpoint))
    assert caught.value.data["path"] == str(checkpoint)


@pytest.mark.parametrize("change", ["missing", "unexpected", "mismatched"])
def test_tensors_that_do_not_fit_are_listed(reference: Engine, checkpoint: Path, change: str) -> None:
    tensors = vendor_tensors(reference.model.state_dict())
    if change == "missing":
        del tensors["model.norm.weight"]
    elif change == "unexpected":
        tensors["model.layers.0.self_attn.q_norm.weight"] = torch.zeros(3)
    else:
        tensors["model.norm.weight"] = torch.zeros(7)
    write_shard(checkpoint, tensors)
    with pytest.raises(InputError, match="norm"):
        build(real(checkpoint))


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not valid JSON"), ("[]", "not a JSON object"), ('{"model_type": "deepseek_vl_v2"}', "lacks")],
)
def test_damaged_config_is_named(checkpoint: Path, content: str, message: str) -> None:
    (checkpoint / "config.json").write_text(content)
    with pytest.raises(InputError, match=message):
        build(real(checkpoint))


def test_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a directory"):
        build(real(tmp_path / "absent"))
    with pytest.raises(InputError, match=r"no config\.json"):
        build(real(tmp_path))


def test_real_weights_need_a_path() -> None:
    with pytest.raises(ConfigError, match=r"model\.weights=real"):
        load_adapter(ModelConfig(arch=ARCH_V1, weights=Weights.real), InferConfig())


def test_text_checkpoint_loads_with_its_own_tokenizer(tmp_path: Path) -> None:
    """A causal LM saved by transformers: same answers from the directory, arch overrides refused."""
    from transformers import PreTrainedTokenizerFast

    made = Engine(workload("llama", ignore_eos=True))
    folder = tmp_path / "llama"
    made.model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=made.adapter._tokenizer.backend).save_pretrained(folder)  # type: ignore[attr-defined]
    config = ModelConfig(adapter="hf_causal_lm", path=str(folder))
    loaded = Engine(workload("llama", ignore_eos=True), load_adapter(config, infer_config("llama")))
    request = samples("llama", tmp_path, 1)
    made_ids = made.prepare(request).inputs["input_ids"].tolist()[0]
    assert loaded.prepare(request).inputs["input_ids"].tolist()[0] == made_ids[1:], (
        "the saved tokenizer adds no begin token"
    )
    for ours, theirs in zip(made.model.parameters(), loaded.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    with pytest.raises(ConfigError) as refused:
        load_adapter(
            ModelConfig(adapter="hf_causal_lm", path=str(folder), arch={"num_hidden_layers": 1}),
            InferConfig(),
        )
    assert refused.value.data["key"] == "model.arch"
    for file in [*folder.glob("tokenizer*"), *folder.glob("special*")]:
        file.unlink()
    broken = load_adapter(ModelConfig(adapter="hf_causal_lm", path=str(folder)), InferConfig())
    with pytest.raises(InputError) as caught:
        broken.prepare(request, "cpu", torch.float32)
    assert mentions(caught.value.message, "tokenizer", str(folder))


def test_chat_template_is_used_when_there_is_one(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    made = Engine(workload("llama"))
    folder = tmp_path / "chat"
    made.model.save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made.adapter._tokenizer.backend)  # type: ignore[attr-defined]
    tokenizer.chat_template = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}{% endfor %}{% if add_generation_prompt %} [you]{% endif %}"
    tokenizer.save_pretrained(folder)
    request = samples("llama", tmp_path, 1)[0]
    config = ModelConfig(adapter="hf_causal_lm", path=str(folder))
    with_template = load_adapter(config, InferConfig(chat_template=True))
    without = load_adapter(config, InferConfig(chat_template=False))
    assert with_template.text(with_template.prompt_ids(request)) == f"[user] {request.prompt} [you]"  # type: ignore[attr-defined]
    assert without.text(without.prompt_ids(request)) == request.prompt  # type: ignore[attr-defined]
