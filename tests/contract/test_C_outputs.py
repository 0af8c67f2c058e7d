"""Contract C: outputs belong to stages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from PIL import Image

import llm_perf_opt
from llm_perf_opt.config.schema import DatasetConfig, InferConfig, ModelConfig
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.workloads.base import Sample, WorkloadConfig
from llm_perf_opt.workloads.outputs.config import (
    OutputConfig,
    PredictionOutput,
    VisualizationOutput,
    check_output,
    model_output_options,
    resolve_output_dir,
)
from llm_perf_opt.workloads.outputs.records import Outcome
from llm_perf_opt.workloads.outputs.writer import OutputWriter, read_predictions

CONF = Path(llm_perf_opt.__file__).parent / "conf"
MARKED = "<|ref|>title<|/ref|><|det|>[[0, 0, 999, 499]]<|/det|>\n# Hi<｜end▁of▁sentence｜>"


def output(**extra: Any) -> OutputConfig:
    return OutputConfig(
        prediction=PredictionOutput(enable=True), extra={"deepseek_ocr": extra} if extra else {}
    )


def workload(**model: Any) -> WorkloadConfig:
    return WorkloadConfig(ModelConfig(**model), InferConfig(), DatasetConfig(), "cpu", 1, 8)


def samples(folder: Path, count: int, reference: str | None = "Hi") -> list[Sample]:
    made = []
    for number in range(count):
        path = folder / f"page {number}.png"
        Image.new("RGB", (200, 100), "white").save(path)
        made.append(Sample(id=path.name, path=path, reference=reference, sha256=str(number)))
    return made


def run(
    config: OutputConfig, stage_dir: Path, requests: list[Sample], work: WorkloadConfig | None = None
) -> list[Path]:
    with OutputWriter(config, "torch_profiler", stage_dir, work or workload()) as writer:
        for sample in requests:
            writer.add(
                Outcome(
                    sample, MARKED, prompt_tokens=9, image_tokens=5, new_tokens=3, timings={"ttft_s": 0.1}
                )
            )
        return writer.finish()


@pytest.mark.contract("C1")
def test_C1_the_keys_are_typed_and_belong_to_a_stage() -> None:
    node = OmegaConf.structured(OutputConfig)
    node.prediction.enable = True
    node.prediction.save_dir = None
    node.visualization.save_dir = "/abs"
    node.extra = {"deepseek_ocr": {"prediction": {"strip_special_tokens": True}}}
    value = OmegaConf.to_object(node)
    assert isinstance(value, OutputConfig)
    assert value.prediction == PredictionOutput(enable=True, save_dir=None)
    assert model_output_options(value.extra, "deepseek_ocr").prediction.strip_special_tokens is True
    with pytest.raises(
        ConfigError, match=r"pipeline\.direct_inference\.output\.extra\.deepseek_ocr\.visualisation"
    ) as caught:
        check_output(output(visualisation={}), "direct_inference", "deepseek_ocr")
    assert "did you mean" in (caught.value.hint or "")


@pytest.mark.contract("C2")
@pytest.mark.parametrize(
    ("save_dir", "expected"),
    [
        ("pred", "stage/pred"),
        ("a/b", "stage/a/b"),
        (".", "stage"),
        ("./x/../y", "stage/y"),
        (None, "stage/default"),
        (" ", "stage/default"),
    ],
)
def test_C2_relative_directories_are_below_the_stage(
    tmp_path: Path, save_dir: str | None, expected: str
) -> None:
    assert resolve_output_dir(save_dir, "default", tmp_path / "stage") == tmp_path / expected


@pytest.mark.contract("C2")
def test_C2_absolute_directories_are_honoured(tmp_path: Path) -> None:
    assert (
        resolve_output_dir(str(tmp_path / "else where"), "default", Path("/stage")) == tmp_path / "else where"
    )


@pytest.mark.contract("C2")
def test_C2_leaving_the_stage_directory_is_refused() -> None:
    config = OutputConfig(prediction=PredictionOutput(save_dir="../other"))
    with pytest.raises(ConfigError) as caught:
        check_output(config, "torch_profiler", "deepseek_ocr")
    assert caught.value.data["key"] == "pipeline.torch_profiler.output.prediction.save_dir"


@pytest.mark.contract("C2")
def test_C2_null_while_enabled_means_pred_and_viz(tmp_path: Path) -> None:
    config = OutputConfig(PredictionOutput(True, None), VisualizationOutput(True, None))
    run(config, tmp_path / "stage", samples(tmp_path, 1))
    assert (tmp_path / "stage" / "pred" / "predictions.jsonl").is_file()
    assert (tmp_path / "stage" / "viz" / "predictions.md").is_file()


@pytest.mark.contract("C2")
def test_C2_a_dot_means_the_stage_directory_itself(tmp_path: Path) -> None:
    config = OutputConfig(PredictionOutput(True, "."), VisualizationOutput(True, "."))
    run(config, tmp_path / "stage", samples(tmp_path, 1))
    names = {path.name for path in (tmp_path / "stage").iterdir()}
    assert names == {"predictions.jsonl", "predictions.md", "predictions.html", "images"}


@pytest.mark.contract("C3")
@pytest.mark.parametrize("strip", [False, True])
def test_C3_strip_special_tokens(tmp_path: Path, strip: bool) -> None:
    run(output(prediction={"strip_special_tokens": strip}), tmp_path / "s", samples(tmp_path, 1))
    (record,) = read_predictions(tmp_path / "s" / "pred" / "predictions.jsonl")
    assert record["raw_text"] == MARKED
    assert record["text"] == ("title[[0, 0, 999, 499]]\n# Hi" if strip else MARKED)
    assert record["clean_text"] == "# Hi"


@pytest.mark.contract("C3")
@pytest.mark.parametrize(("limit", "shown"), [(2, 2), (None, 5), (0, 0), (99, 5)])
def test_C3_max_images(tmp_path: Path, limit: int | None, shown: int) -> None:
    run(output(visualization={"max_images": limit}), tmp_path / "s", samples(tmp_path, 5))
    folder = tmp_path / "s" / "viz" / "images"
    assert len(list(folder.iterdir()) if folder.is_dir() else []) == shown
    assert (tmp_path / "s" / "viz" / "predictions.html").read_text().count("<article") == shown
    assert len(list(read_predictions(tmp_path / "s" / "pred" / "predictions.jsonl"))) == 5


@pytest.mark.contract("C3")
def test_C3_thumbnail_width(tmp_path: Path) -> None:
    run(output(visualization={"thumbnail_width": 50}), tmp_path / "s", samples(tmp_path, 1))
    (path,) = (tmp_path / "s" / "viz" / "images").iterdir()
    assert Image.open(path).size == (50, 25)


@pytest.mark.contract("C3")
@pytest.mark.parametrize(
    "extra",
    [
        {"visualization": {"max_image": 3}},
        {"visualization": {"max_images": -1}},
        {"visualization": {"max_images": True}},
        {"visualization": {"thumbnail_width": 0}},
        {"visualization": {"thumbnail_width": "wide"}},
        {"prediction": {"strip_special_tokens": "yes"}},
        {"prediction": 3},
        {"predictions": {}},
    ],
)
def test_C3_unknown_and_impossible_options_are_refused(extra: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"output\.extra\.deepseek_ocr"):
        check_output(output(**extra), "torch_profiler", "deepseek_ocr")


@pytest.mark.contract("C3")
def test_C3_options_follow_the_model_and_its_family() -> None:
    extra = {"deepseek_ocr": {"visualization": {"max_images": 3}}, "other": {"anything": 1}}
    assert model_output_options(extra, "deepseek_ocr2").visualization.max_images == 3
    assert model_output_options(extra, "hf_causal_lm").visualization.max_images == 16


@pytest.mark.contract("C4")
def test_C4_files_and_their_content(tmp_path: Path) -> None:
    files = run(output(), tmp_path / "s", samples(tmp_path, 2))
    relative = {str(path.relative_to(tmp_path / "s")) for path in files}
    assert {"pred/predictions.jsonl", "viz/predictions.md", "viz/predictions.html"} < relative
    assert all(path.is_file() for path in files)
    record = next(read_predictions(tmp_path / "s" / "pred" / "predictions.jsonl"))
    assert record["image"] == str(tmp_path / "page 0.png")
    assert record["tokens"] == {"prompt": 9, "image": 5, "new": 3}
    assert record["timings"] == {"ttft_s": 0.1}
    assert record["prompt"] == InferConfig().prompt
    assert record["edit_distance_ratio"] == 0.0
    assert record["boxes"] == [{"label": "title", "box_px": [0, 0, 200, 49]}]
    markdown = (tmp_path / "s" / "viz" / "predictions.md").read_text()
    linked = markdown.split("](")[1].split(")")[0]
    assert (tmp_path / "s" / "viz" / linked).is_file()


@pytest.mark.contract("C4")
def test_C4_without_a_reference_the_distance_is_null(tmp_path: Path) -> None:
    run(output(), tmp_path / "s", samples(tmp_path, 1, reference=None))
    (record,) = read_predictions(tmp_path / "s" / "pred" / "predictions.jsonl")
    assert record["edit_distance_ratio"] is None


@pytest.mark.contract("C4")
def test_C4_nothing_enabled_leaves_nothing(tmp_path: Path) -> None:
    config = OutputConfig(PredictionOutput(enable=False), VisualizationOutput(enable=False))
    assert run(config, tmp_path / "s", samples(tmp_path, 1)) == []
    assert not (tmp_path / "s").exists()


@pytest.mark.contract("C4")
def test_C4_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    requests = samples(tmp_path, 3)
    run(output(), tmp_path / "s", requests[:2])
    with OutputWriter(output(), "torch_profiler", tmp_path / "s", workload()) as writer:
        left = writer.pending(requests)
        assert [sample.id for sample in left] == ["page 2.png"]
        for sample in [*left, *left]:
            writer.add(Outcome(sample, MARKED))
        writer.finish()
    path = tmp_path / "s" / "pred" / "predictions.jsonl"
    assert [record["id"] for record in read_predictions(path)] == [sample.id for sample in requests]
    assert (tmp_path / "s" / "viz" / "predictions.html").read_text().count("<article") == 3


@pytest.mark.contract("C4")
def test_C4_another_workload_is_not_resumed(tmp_path: Path) -> None:
    requests = samples(tmp_path, 1)
    run(output(), tmp_path / "s", requests)
    for other in (
        workload(seed=1),
        replace(workload(), max_new_tokens=9),
        replace(workload(), device="cuda:0"),
    ):
        with OutputWriter(output(), "torch_profiler", tmp_path / "s", other) as writer:
            assert writer.pending(requests) == requests


@pytest.mark.contract("C4")
def test_C4_random_weights_are_reported_at_the_top_even_when_resumed(tmp_path: Path) -> None:
    requests = samples(tmp_path, 1)
    for _ in range(2):
        with OutputWriter(output(), "torch_profiler", tmp_path / "s", workload()) as writer:
            for sample in writer.pending(requests):
                writer.describe(weights="random", dtype="float32")
                writer.add(Outcome(sample, "x"))
            writer.finish()
        for name in ("predictions.md", "predictions.html"):
            assert "Random weights" in (tmp_path / "s" / "viz" / name).read_text()


@pytest.mark.contract("C6")
def test_C6_outputs_of_a_capture_can_be_sent_to_the_workload_directory(tmp_path: Path) -> None:
    scratch = tmp_path / "run" / "tmp" / "workload" / "torch_profiler"
    config = OutputConfig(PredictionOutput(True, str(scratch)), VisualizationOutput(True, str(scratch)))
    run(config, tmp_path / "run" / "torch_profiler", samples(tmp_path, 1))
    assert (scratch / "predictions.jsonl").is_file()
    assert (scratch / "predictions.md").is_file()
    assert not (tmp_path / "run" / "torch_profiler").exists()


@pytest.mark.contract("C7")
def test_C7_presets_are_at_their_mounts_with_the_documented_values() -> None:
    general = OmegaConf.load(CONF / "output" / "torch" / "default.yaml")
    assert OmegaConf.to_container(general) == {
        "prediction": {"enable": False, "save_dir": "pred"},
        "visualization": {"enable": True, "save_dir": "viz"},
    }
    model = OmegaConf.load(CONF / "model" / "deepseek_ocr" / "output" / "torch" / "default.yaml")
    assert OmegaConf.to_container(model) == {
        "prediction": {"strip_special_tokens": False},
        "visualization": {"max_images": 16, "thumbnail_width": 480},
    }
    merged = OmegaConf.merge(OmegaConf.structured(OutputConfig), general, {"extra": {"deepseek_ocr": model}})
    value = OmegaConf.to_object(merged)
    assert isinstance(value, OutputConfig)
    check_output(value, "torch_profiler", "deepseek_ocr")
    assert model_output_options(value.extra, "deepseek_ocr") == model_output_options({}, "deepseek_ocr")
