"""The telemetry stage on a real small model; GPUs are stand-ins that answer with values of our own making."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.analysis.summarise import Subject
from llm_perf_opt.captures.documents import read_telemetry
from llm_perf_opt.config.schema import (
    AppConfig,
    ArtifactsConfig,
    DatasetConfig,
    HardwareConfig,
    RunConfig,
    WorkloadCommandConfig,
)
from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.core.console.progress import LogProgress
from llm_perf_opt.hardware.sensors import sampler
from llm_perf_opt.hardware.sensors.gpu import NvmlSensor
from llm_perf_opt.reporting.report import report_html, report_markdown
from llm_perf_opt.runs.assemble import DeviceChoice, assemble, shown_sources
from llm_perf_opt.stages.base import StageContext
from llm_perf_opt.stages.telemetry import TelemetryConfig, TelemetryStage
from llm_perf_opt.summary import RunInfo, Summary
from tests.unit.hardware.sensors.stand_ins import H100, HOT, nvml
from tests.unit.small_workloads import infer_config, model_config

TOKENS, PROMPTS, REPEATS = 8, ["Short.", "A prompt of middling length."], 3


def context(root: Path, device: str = "cpu", **keys: Any) -> StageContext:
    config = AppConfig(
        run=RunConfig(repeats=REPEATS),
        artifacts=ArtifactsConfig(str(root)),
        model=model_config("llama"),
        infer=infer_config("llama", max_new_tokens=TOKENS),
        dataset=DatasetConfig(adapter="prompts", prompts=PROMPTS),
        hardware=HardwareConfig(probe=False),
        workload_command=WorkloadCommandConfig(),
        pipeline={"telemetry": TelemetryConfig(enable=True, **keys)},
        resolved_device=device,
    )
    return StageContext(config, Artifacts(root), LogProgress())


@pytest.fixture(autouse=True)
def one_registered_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are handed out for this stage whether or not it is installed."""
    from llm_perf_opt.core import artifacts

    monkeypatch.setattr(artifacts, "stage_types", lambda: {"telemetry": TelemetryStage})


def watched_by(monkeypatch: pytest.MonkeyPatch, *transcript: dict[str, Any]) -> Any:
    """Make the stage watch a GPU that plays these values while the model runs."""
    library = nvml(*transcript)
    monkeypatch.setattr(sampler, "find_sensor", lambda device: NvmlSensor(library, uuid=None, index=0))
    return library


def finished(root: Path, **keys: Any) -> Summary:
    TelemetryStage().run(context(root, **keys))
    return _summary(root)


def _summary(root: Path) -> Summary:
    facts = [TelemetryStage().facts(root)]
    run = RunInfo("run", "ok", "2026-01-01T00:00:00+00:00", 1.0, [])
    return assemble(Subject(run=run, sources=shown_sources(facts)), facts, DeviceChoice()).summary


def test_what_this_machine_reports_is_kept_and_the_rest_has_a_reason(tmp_path: Path) -> None:
    result = TelemetryStage().run(context(tmp_path, interval_s=0.01))
    assert result.status == "ok"
    assert {path.name for path in result.artifacts} == {"telemetry.json", "timings.json"}
    found = read_telemetry(tmp_path / "telemetry" / "telemetry.json")
    assert (found.new_tokens, found.samples) == (TOKENS * len(PROMPTS) * REPEATS, len(PROMPTS) * REPEATS)
    assert found.columns.time_s[-1] == pytest.approx(found.span_s)
    for name in ("clock_hz", "power_w", "temperature_c", "energy_j", "memory_bytes", "throttled"):
        shown = any(value is not None for value in getattr(found.columns, name))
        assert shown != (name in found.absent), name
    assert found.cost_s is not None
    assert set(found.memory) >= {"prefill", "decode", "all"} or "memory by phase" in found.absent


def telemetry_section(page: str) -> str:
    return page.partition('<section id="telemetry"')[2].partition("</section>")[0]


def test_a_throttled_gpu_reaches_summary_report_and_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = watched_by(monkeypatch, HOT)
    summary = finished(tmp_path, interval_s=0.01)
    shown = summary.telemetry
    assert shown is not None
    assert shown.throttled == ["hardware thermal slowdown", "software thermal slowdown"]
    assert shown.clock_hz is not None
    assert shown.clock_hz.median == 1.215e9
    assert library.calls[-1] == "shutdown"
    assert ("throttled" in {finding.id for finding in summary.findings}) == (shown.samples >= 10)
    page, text = report_html(summary), report_markdown(summary)
    for phrase in ("hardware thermal slowdown", "1215 MHz"):
        assert phrase in telemetry_section(page)
        assert phrase in text
    assert "<svg" in telemetry_section(page), "the clock over time"


def test_a_cool_gpu_is_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched_by(monkeypatch, H100)
    summary = finished(tmp_path, interval_s=0.01)
    assert summary.telemetry is not None
    assert (summary.telemetry.throttled, summary.telemetry.throttled_ratio) == ([], {})
    assert "throttled" not in {finding.id for finding in summary.findings}


def test_a_device_without_a_library_still_has_memory_and_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "find_sensor", lambda device: "no nvidia-ml-py")
    summary = finished(tmp_path)
    assert summary.telemetry is not None
    assert summary.telemetry.clock_hz is None
    assert any("no nvidia-ml-py" in note for note in summary.notes)
    assert telemetry_section(report_html(summary))


@pytest.mark.parametrize(("key", "value"), [("interval_s", 0.0), ("interval_s", 61.0), ("repeats", 0)])
def test_numbers_that_cannot_be_meant_are_refused(tmp_path: Path, key: str, value: float) -> None:
    (problem,) = TelemetryStage().check(context(tmp_path, **{key: value}))
    assert (problem.severity, problem.key) == ("error", f"pipeline.telemetry.{key}")


def test_a_missing_library_is_reported_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "missing_library", lambda device: "pynvml")
    problems = TelemetryStage().check(context(tmp_path, device="cuda:0"))
    assert [(problem.severity, problem.fix) for problem in problems if "nvidia-ml-py" in problem.message] == [
        ("degraded", 'pip install "llm-perf-opt[telemetry]"')
    ]


def test_a_file_cut_short_is_a_note(tmp_path: Path) -> None:
    TelemetryStage().run(context(tmp_path))
    path = tmp_path / "telemetry" / "telemetry.json"
    path.write_text(path.read_text()[:100])
    facts = TelemetryStage().facts(tmp_path)
    assert facts.telemetry is None
    assert any("telemetry.json" in note for note in facts.notes)
    assert facts.wall_clock is not None
