"""The measured sequence every stage goes through: what it writes, what it says, and how it resumes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.config.schema import DatasetConfig
from llm_perf_opt.core.console.progress import SilentProgress
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.workloads.base import WorkloadConfig
from llm_perf_opt.workloads.measure import Measurement, measure, remarks, run_engine
from llm_perf_opt.workloads.outputs.config import OutputConfig, PredictionOutput, VisualizationOutput
from tests.text_facts import mentions
from tests.unit.small_workloads import samples, workload

STAGE = "direct_inference"


def small(prompts: list[str]) -> WorkloadConfig:
    dataset = DatasetConfig(adapter="prompts", prompts=prompts)
    return replace(workload("llama", max_new_tokens=3), dataset=dataset)


def measured(folder: Path, prompts: list[str], *, resume: bool = False) -> Measurement:
    output = OutputConfig(
        prediction=PredictionOutput(enable=True), visualization=VisualizationOutput(enable=False)
    )
    folder.mkdir(exist_ok=True)
    return measure(small(prompts), output, STAGE, folder, progress=SilentProgress(), resume=resume)


def test_timings_predictions_and_inputs_are_of_the_same_samples(tmp_path: Path) -> None:
    done = measured(tmp_path, ["one", "two"])
    assert [path.name for path in done.files] == ["timings.json", "predictions.jsonl"]
    timings = json.loads(done.files[0].read_text())
    ids = [sample.id for sample in done.samples]
    assert [entry["id"] for entry in timings["samples"]] == ids
    assert [entry["id"] for entry in done.inputs()["samples"]] == ids
    assert done.engine_run().result.problems == done.problems == []
    further = tmp_path / "further.json"
    assert done.stage_result(further).status == "ok"
    assert done.stage_result(further).artifacts == [*done.files, further]


def test_resuming_runs_only_what_has_no_prediction(tmp_path: Path) -> None:
    first = measured(tmp_path, ["one", "two"])
    again = measured(tmp_path, ["one", "two"], resume=True)
    assert again.run is None
    assert again.samples == first.samples
    assert again.files == first.files
    with pytest.raises(RuntimeError, match="nothing was measured"):
        again.engine_run()


def test_without_resume_everything_is_measured_again(tmp_path: Path) -> None:
    measured(tmp_path, ["one"])
    assert len(measured(tmp_path, ["one"]).engine_run().result.samples) == 1


def test_a_sample_that_cannot_be_used_degrades_the_stage_and_is_no_input(tmp_path: Path) -> None:
    done = measured(tmp_path, ["one", "many words " * 3000])
    assert len(done.samples) == 1
    assert len(done.problems) == 1
    result = done.stage_result()
    assert result.status == "degraded"
    assert mentions(result.reason, "1") and done.problems[0] in (result.reason or "")


def test_remarks_name_the_first_three() -> None:
    text = remarks(["first", "second", "third", "fourth", "fifth"])
    assert mentions(text, "5", "first", "second", "third", "2")
    assert not mentions(text, "fourth") and not mentions(text, "fifth")


def test_an_engine_alone_needs_no_output(tmp_path: Path) -> None:
    run = run_engine(
        workload("llama", max_new_tokens=2), samples("llama", tmp_path, 2), progress=SilentProgress()
    )
    assert len(run.result.samples) == 2
    with pytest.raises(InputError) as caught:
        run_engine(workload("llama"), [], progress=SilentProgress())
    assert mentions(caught.value.hint, "dataset.root", "dataset.sampling")
