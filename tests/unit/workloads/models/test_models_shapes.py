"""Parameter counts, image tokens and static calls of every adapter and preset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from llm_perf_opt.config.schema import ImageMode, InferConfig, ModelConfig
from llm_perf_opt.workloads.base import ModelAdapter, PhaseShapes
from llm_perf_opt.workloads.registry import load_adapter
from tests.unit.small_workloads import infer_config, model_config, samples

CONF = Path(__file__).resolve().parents[4] / "src" / "llm_perf_opt" / "conf" / "model"


def ocr_preset(name: str) -> ModelAdapter:
    """Read an arch and an infer preset as the configuration mounts them."""
    arch = yaml.safe_load((CONF / "deepseek_ocr" / "arch" / f"{name}.yaml").read_text())
    infer = yaml.safe_load((CONF / "deepseek_ocr" / "infer" / f"{name}.yaml").read_text())
    infer["mode"] = ImageMode(infer["mode"])
    return load_adapter(ModelConfig(**arch), InferConfig(**infer))


def component_parameters(adapter: ModelAdapter) -> dict[str, int]:
    model = adapter.build("meta", torch.bfloat16)
    counts = {
        label: sum(p.numel() for p in model.get_submodule(path).parameters())
        for label, path in adapter.components().items()
    }
    return {**counts, "total": sum(p.numel() for p in model.parameters())}


def test_parameters_of_deepseek_ocr_per_component() -> None:
    """As published, less CLIP's patch convolution (602,112 parameters), which the model never uses."""
    assert component_parameters(ocr_preset("deepseek_ocr.default")) == {
        "sam": 95_569_152,
        "clip": 303_177_728 - 602_112,
        "projector": 2_622_720,
        "language_model": 2_769_255_680,
        "lm_head": 165_478_400,
        "total": 3_336_106_240 - 602_112,
    }


def test_parameters_of_deepseek_ocr2() -> None:
    counts = component_parameters(ocr_preset("deepseek_ocr2.default"))
    assert counts["total"] == 3_389_119_360
    assert counts["language_model"] == 2_769_255_680


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [
        ("llama3_8b", 8_030_261_248),
        ("llama3_70b", 70_553_706_496),
        ("qwen2_5_7b", 7_615_616_512),
        ("qwen3_30b_a3b", 30_532_122_624),
    ],
)
def test_parameters_of_text_presets(preset: str, parameters: int) -> None:
    """The published models' own counts."""
    adapter = load_adapter(ModelConfig(adapter="hf_causal_lm", config_name=preset), InferConfig())
    assert component_parameters(adapter)["total"] == parameters


@pytest.mark.parametrize("name", ["deepseek_ocr.tiny", "deepseek_ocr2.tiny"])
def test_tiny_presets_keep_the_structure(name: str) -> None:
    """Same classes and components as the real size, at less than 20 M parameters."""
    tiny, full = ocr_preset(name), ocr_preset(name.replace("tiny", "default"))
    assert tiny.components() == full.components()
    assert component_parameters(tiny)["total"] < 20_000_000
    kinds = [
        {type(module).__name__ for module in adapter.build("meta", torch.float32).modules()}
        for adapter in (tiny, full)
    ]
    assert kinds[0] == kinds[1]


@pytest.mark.parametrize("kind", ["v1", "v2", "llama", "qwen_moe"])
def test_static_calls_run_every_phase_on_meta(kind: str, tmp_path: Path) -> None:
    """At default shapes and at the shapes of a real, padded batch."""
    adapter = load_adapter(model_config(kind), infer_config(kind, batch_size=2))
    model = adapter.build("meta", torch.bfloat16)
    batch = adapter.prepare(samples(kind, tmp_path, 3), "cpu", torch.float32)
    for shapes in (adapter.default_shapes(), adapter.shapes(batch, batch.prompt_tokens + 5)):
        calls = adapter.static_calls(model, shapes)
        assert tuple(calls) == adapter.phases
        outputs: dict[str, Any] = {phase: call() for phase, call in calls.items()}
        vocabulary = adapter.text_config().vocab_size  # type: ignore[attr-defined]
        assert outputs["prefill"].logits.shape == (shapes.batch_size, 1, vocabulary)
        assert outputs["decode"].logits.shape == (shapes.batch_size, 1, vocabulary)
        assert outputs["decode"].past_key_values.get_seq_length() == shapes.context_tokens + 1
        if "vision" in outputs:
            features = outputs["vision"].pooler_output
            assert max(len(one) for one in features) == shapes.image_tokens
            assert all(one.device.type == "meta" for one in features)


def test_static_calls_accept_a_bare_grid() -> None:
    """The shortest description of a page: mode and grid."""
    adapter = ocr_preset("deepseek_ocr.tiny")
    calls = adapter.static_calls(
        adapter.build("meta", torch.float32),
        PhaseShapes(2, 915, 903, 1000, {"mode": "gundam", "grid": [2, 3]}),
    )
    features: Any = calls["vision"]()
    assert [len(one) for one in features.pooler_output] == [903, 903]


@pytest.mark.parametrize(("kind", "text"), [("v1", 8), ("v2", 8)])
def test_image_features_fill_the_placeholders(kind: str, text: int, tmp_path: Path) -> None:
    """What the vision tower gives is exactly what the prompt reserves, for every page of a mixed batch."""
    adapter = load_adapter(model_config(kind), infer_config(kind))
    model = adapter.build("cpu", torch.float32)
    batch = adapter.prepare(samples(kind, tmp_path, 3), "cpu", torch.float32)
    with torch.no_grad():
        features: Any = adapter.vision(model, batch)
    assert [len(one) for one in features.pooler_output] == batch.facts["image_tokens"]
    placeholders = (batch.inputs["input_ids"] == adapter.model_config().image_token_id).sum(-1)  # type: ignore[attr-defined]
    assert placeholders.tolist() == batch.facts["image_tokens"]


def test_random_weights_follow_the_seed_and_stay_finite() -> None:
    def weights(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
        adapter = load_adapter(model_config("v1", seed=seed), infer_config("v1"))
        return dict(adapter.build("cpu", dtype).state_dict())

    before = torch.random.get_rng_state()
    first, again, other = weights(0), weights(0), weights(1)
    assert torch.equal(before, torch.random.get_rng_state()), "the caller's random numbers must not move"
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])
    assert all(value.isfinite().all() for value in first.values())
    halves = weights(0, torch.bfloat16)
    assert {value.dtype for value in halves.values() if value.is_floating_point()} == {torch.bfloat16}


def test_random_weights_keep_activations_near_one(tmp_path: Path) -> None:
    """Otherwise logits would be constant and tokens meaningless for any comparison."""
    adapter = load_adapter(model_config("v1"), infer_config("v1"))
    model = adapter.build("cpu", torch.float32)
    batch = adapter.prepare(samples("v1", tmp_path, 1), "cpu", torch.float32)
    with torch.no_grad():
        features = adapter.vision(model, batch)
        logits = adapter.prefill(model, batch, features, adapter.make_cache(model, batch, 4))  # type: ignore[attr-defined]
    assert 0.2 < float(logits.std()) < 5.0
