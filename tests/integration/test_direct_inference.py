"""The direct_inference stage with a real (very small) model: the engine's answers become files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.config.schema import (
    AppConfig,
    ArtifactsConfig,
    DatasetConfig,
    GeneratedConfig,
    HardwareConfig,
    ImageMode,
    InferConfig,
    ModelConfig,
    RunConfig,
    RunMode,
    SamplingConfig,
    WorkloadCommandConfig,
)
from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.core.console.progress import LogProgress
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.stages.base import StageContext
from llm_perf_opt.stages.direct_inference import NAME, DirectInferenceConfig, DirectInferenceStage
from llm_perf_opt.workloads.engine import driver
from llm_perf_opt.workloads.engine import engine as engine_module
from llm_perf_opt.workloads.outputs.config import OutputConfig, PredictionOutput, VisualizationOutput
from llm_perf_opt.workloads.outputs.writer import read_predictions

ARCH: dict[str, Any] = {
    "vision_config": {
        "sam_config": {
            "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_dim": 64,
            "global_attn_indexes": [1], "window_size": 14, "output_channels": 16, "downsample_channels": [16, 32],
            "image_size": 1024, "patch_size": 16,
        },
        "encoder_config": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
    },
    "text_config": {
        "vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "moe_intermediate_size": 16,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "n_routed_experts": 8,
        "n_shared_experts": 2, "num_experts_per_tok": 2, "max_position_embeddings": 1024, "bos_token_id": 0,
        "eos_token_id": 1,
    },
}  # fmt: skip


def context(tmp_path: Path, stage: DirectInferenceConfig | None = None, **changes: Any) -> StageContext:
    views = {"mode": ImageMode.custom, "base_size": 192, "image_size": 128}
    infer = InferConfig(**{**views, "max_new_tokens": 4, "warmup_rounds": 0, **changes.pop("infer", {})})
    generated = GeneratedConfig(pages=3, max_side=256, cache_dir=str(tmp_path / "cache"))
    config = AppConfig(
        run=changes.pop("run", RunConfig()),
        artifacts=ArtifactsConfig(str(tmp_path / "run")),
        model=changes.pop("model", ModelConfig(arch=ARCH)),
        infer=infer,
        dataset=changes.pop("dataset", DatasetConfig(generated=generated)),
        hardware=HardwareConfig(),
        workload_command=WorkloadCommandConfig(),
        pipeline={NAME: stage or DirectInferenceConfig(enable=True)},
    )
    assert not changes
    return StageContext(config, Artifacts(tmp_path / "run"), LogProgress())


def predictions(tmp_path: Path) -> list[dict[str, Any]]:
    return list(read_predictions(tmp_path / "run" / NAME / "pred" / "predictions.jsonl"))


def test_a_run_leaves_predictions_gallery_and_timings(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    stage = DirectInferenceStage()
    assert stage.check(ctx) == []
    planned = {Path(line.removeprefix("write ")) for line in stage.plan(ctx) if line.startswith("write ")}
    assert not (tmp_path / "run" / NAME).exists(), "check and plan write nothing"
    result = stage.run(ctx)
    assert result.status == "ok"
    assert planned <= set(result.artifacts)
    assert all(path.is_file() for path in result.artifacts)
    records = predictions(tmp_path)
    assert len(records) == 3
    for record in records:
        assert record["tokens"]["new"] == 4
        assert record["tokens"]["image"] > 0
        assert record["timings"]["ttft_s"] == pytest.approx(
            record["timings"]["vision_s"] + record["timings"]["prefill_s"]
        )
        assert record["timings"]["tpot_s"] == pytest.approx(record["timings"]["decode_s"] / 3)
        assert 0 < record["edit_distance_ratio"] <= 1
        assert (record["weights"], record["dtype"], record["device"]) == ("random", "float32", "cpu")
    timings = json.loads((tmp_path / "run" / NAME / "timings.json").read_text())
    assert [len(entry["repeats"]) for entry in timings["samples"]] == [1, 1, 1]
    inputs = result.inputs
    assert inputs is not None
    assert [entry["sha256"] for entry in inputs["samples"]] == [record["sha256"] for record in records]
    page = (tmp_path / "run" / NAME / "viz" / "predictions.html").read_text()
    assert "Random weights" in page
    assert page.count("<article") == 3


def test_a_second_run_has_nothing_left_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = DirectInferenceStage().run(context(tmp_path))
    before = {path: path.read_bytes() for path in first.artifacts}

    def refuse(*_: object) -> None:
        raise AssertionError("the model is built although everything is there")

    monkeypatch.setattr(engine_module.Engine, "__init__", refuse)
    second = DirectInferenceStage().run(context(tmp_path))
    assert second.status == "ok"
    assert {path: path.read_bytes() for path in second.artifacts} == before


def test_an_interrupted_run_shows_what_it_has_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = driver._Run.measure
    calls: list[int] = []

    def interrupted(self: Any, number: int, group: Any, *, first: bool) -> None:
        calls.append(number)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(self, number, group, first=first)

    with monkeypatch.context() as patch:
        patch.setattr(driver._Run, "measure", interrupted)
        with pytest.raises(KeyboardInterrupt):
            DirectInferenceStage().run(context(tmp_path))
    assert len(predictions(tmp_path)) == 1
    assert "Interrupted" in (tmp_path / "run" / NAME / "viz" / "predictions.md").read_text()
    DirectInferenceStage().run(context(tmp_path))
    names = [record["id"] for record in predictions(tmp_path)]
    assert len(names) == len(set(names)) == 3
    assert "Interrupted" not in (tmp_path / "run" / NAME / "viz" / "predictions.md").read_text()


def test_a_damaged_page_degrades_the_stage_and_is_named(tmp_path: Path) -> None:
    from PIL import Image

    folder = tmp_path / "data" / "images"
    folder.mkdir(parents=True)
    Image.new("RGB", (60, 80), "white").save(folder / "good.png")
    (folder / "bad.png").write_bytes(b"\x89PNG nonsense")
    result = DirectInferenceStage().run(context(tmp_path, dataset=DatasetConfig(root=str(tmp_path / "data"))))
    assert result.status == "degraded"
    assert "bad.png" in (result.reason or "")
    assert [record["id"] for record in predictions(tmp_path)] == ["good.png"]
    assert "bad.png" in (tmp_path / "run" / NAME / "viz" / "predictions.html").read_text()


def test_batches_and_repeats(tmp_path: Path) -> None:
    stage = DirectInferenceConfig(enable=True, repeats=2)
    DirectInferenceStage().run(context(tmp_path, stage, infer={"batch_size": 2}))
    assert [record["batch_size"] for record in predictions(tmp_path)] == [2, 2, 1]
    timings = json.loads((tmp_path / "run" / NAME / "timings.json").read_text())
    assert [len(entry["repeats"]) for entry in timings["samples"]] == [2, 2]


def test_text_prompts_go_through_the_same_stage(tmp_path: Path) -> None:
    model = ModelConfig(adapter="hf_causal_lm", config_name="llama_tiny", arch={"num_hidden_layers": 2})
    dataset = DatasetConfig(adapter="prompts", prompts=["What is slow?", "Why | `so`?"])
    DirectInferenceStage().run(context(tmp_path, model=model, dataset=dataset))
    records = predictions(tmp_path)
    assert [record["prompt"] for record in records] == ["What is slow?", "Why | `so`?"]
    assert all(record["image"] is None and record["edit_distance_ratio"] is None for record in records)
    assert "<img" not in (tmp_path / "run" / NAME / "viz" / "predictions.html").read_text()


def test_light_mode_is_one_sample_once(tmp_path: Path) -> None:
    stage = DirectInferenceConfig(enable=True, repeats=3)
    dataset = DatasetConfig(
        generated=GeneratedConfig(pages=3, max_side=256, cache_dir=str(tmp_path / "cache")),
        sampling=SamplingConfig(num_epochs=2),
    )
    DirectInferenceStage().run(context(tmp_path, stage, dataset=dataset, run=RunConfig(mode=RunMode.light)))
    assert len(predictions(tmp_path)) == 1
    timings = json.loads((tmp_path / "run" / NAME / "timings.json").read_text())
    assert [len(entry["repeats"]) for entry in timings["samples"]] == [1]


def test_outputs_can_be_switched_off(tmp_path: Path) -> None:
    output = OutputConfig(PredictionOutput(enable=False), VisualizationOutput(enable=False))
    result = DirectInferenceStage().run(context(tmp_path, DirectInferenceConfig(enable=True, output=output)))
    assert [path.name for path in result.artifacts] == ["timings.json"]
    assert [path.name for path in (tmp_path / "run" / NAME).iterdir()] == ["timings.json"]


@pytest.mark.parametrize(
    ("stage", "key"),
    [
        (
            DirectInferenceConfig(output=OutputConfig(extra={"deepseek_ocr": {"x": 1}})),
            "output.extra.deepseek_ocr.x",
        ),
        (
            DirectInferenceConfig(output=OutputConfig(PredictionOutput(save_dir="../x"))),
            "output.prediction.save_dir",
        ),
    ],
)
def test_wrong_settings_are_found_before_any_work(
    tmp_path: Path, stage: DirectInferenceConfig, key: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        DirectInferenceStage().check(context(tmp_path, stage))
    assert caught.value.data["key"] == f"pipeline.{NAME}.{key}"


def test_zero_repeats_are_a_problem_with_the_key(tmp_path: Path) -> None:
    (problem,) = DirectInferenceStage().check(context(tmp_path, DirectInferenceConfig(repeats=0)))
    assert (problem.severity, problem.key) == ("error", f"pipeline.{NAME}.repeats")


def test_a_missing_data_set_is_found_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        DirectInferenceStage().check(context(tmp_path, dataset=DatasetConfig(root=str(tmp_path / "nowhere"))))


def test_importing_the_stage_is_cheap() -> None:
    program = (
        "import sys, llm_perf_opt.stages.direct_inference\n"
        "print([name for name in ('torch', 'transformers', 'PIL', 'numpy', 'jinja2', 'polars') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout.strip() == "[]"
