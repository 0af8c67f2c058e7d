"""The suite that ships for stages, applied to the built-in ones; and what the orchestrator does for any of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from llm_perf_opt.config.compose import typed_config
from llm_perf_opt.config.hydra_bridge.compose import compose_raw, register_schema
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core import stage as registry
from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.core.console.progress import LogProgress
from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.core.stage import Problem, StageConfig, StageResult, stage_types
from llm_perf_opt.process.tools import find_tools
from llm_perf_opt.runs.execute import execute
from llm_perf_opt.runs.manifest import StageRecord, new_manifest, write_manifest
from llm_perf_opt.stages.base import Stage, StageContext
from llm_perf_opt.testing.stages import StageConformance
from tests.nsys_support import recording_nsys
from tests.serving_stub import ServingStub
from tests.support import QUICK, copy_writable, files_below

BUILT_IN = ("static_analysis", "torch_profiler", "direct_inference", "telemetry", "nsys", "ncu", "serve")


def compose(*overrides: str) -> AppConfig:
    raw = compose_raw(overrides)
    return typed_config(raw, overrides)


def only(name: str) -> list[str]:
    return [f"pipeline.{stage}.enable={'true' if stage == name else 'false'}" for stage in stage_types()]


def run(config: AppConfig, root: Path, *overrides: str):  # type: ignore[no-untyped-def]
    return execute(
        config,
        Artifacts.for_run(root),
        LogProgress(),
        command=["test"],
        overrides=overrides,
        resolved_yaml="test: true\n",
    )


@pytest.mark.contract("B16", "B18")  # telemetry samples NVML
def test_built_in_stages_register_through_entry_points_like_any_other() -> None:
    assert set(BUILT_IN) <= set(stage_types())
    orders = [kind.order for kind in stage_types().values()]
    assert orders == sorted(orders)


class TestStaticAnalysis(StageConformance):
    stage = "static_analysis"
    overrides = QUICK


class TestTorchProfiler(StageConformance):
    stage = "torch_profiler"
    overrides = QUICK


class TestDirectInference(StageConformance):
    stage = "direct_inference"
    overrides = QUICK


class TestTelemetry(StageConformance):
    stage = "telemetry"
    overrides = QUICK


@pytest.mark.needs("nsys")
class TestNsys(StageConformance):
    """The first run is captured; the second is given the same report."""

    stage = "nsys"

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def tool(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        recorder = recording_nsys(tmp_path_factory.mktemp("recorder"), find_tools("nsys")[0])
        cls.overrides = (
            *QUICK, "pipeline.nsys.gating_nvtx=false", f"pipeline.nsys.executable={recorder}",
        )  # fmt: skip


class TestNcu(StageConformance):
    """Without a GPU the stage is skipped: its facts are proved on a capture that was made with one."""

    stage = "ncu"
    overrides = QUICK

    @pytest.fixture
    def finished(self, tmp_path: Path, shared_data: Path) -> Path:
        root = tmp_path / "run"
        copy_writable(shared_data / "rtx5090-deepseek-ocr" / "ncu", root / "ncu")
        artifacts = Artifacts.for_run(root)
        manifest = new_manifest(artifacts, ["test"])
        manifest.status, manifest.stages = "ok", {"ncu": StageRecord("ok")}
        write_manifest(artifacts, manifest)
        return root

    def test_a_second_run_leaves_the_same_files(self, finished: Path) -> None:
        before = files_below(finished / "ncu")
        assert self.run_stage(finished).manifest.stages["ncu"].status == "skipped"
        (earlier,) = finished.glob("earlier-*")
        assert files_below(earlier / "ncu") == before
        assert not (finished / "ncu").exists()


@pytest.mark.needs("serving")
class TestServe(StageConformance):
    """A server that already runs; started ones are in tests/unit/stages/serve and tests/integration."""

    stage = "serve"

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def server(cls) -> Iterator[None]:
        with ServingStub() as stub:
            cls.overrides = (
                *QUICK, "pipeline.serve.engine=attach", f"pipeline.serve.url={stub.url}", "pipeline.serve.concurrency=[2]",
                "pipeline.serve.requests=4", "pipeline.serve.certify=false",
            )  # fmt: skip
            yield


def test_every_built_in_stage_is_in_the_suite() -> None:
    suites = (
        TestStaticAnalysis,
        TestTorchProfiler,
        TestDirectInference,
        TestTelemetry,
        TestNsys,
        TestNcu,
        TestServe,
    )
    assert {suite.stage for suite in suites} == set(BUILT_IN)


@pytest.mark.contract("A4")
def test_a_disabled_stage_leaves_no_directory(tmp_path: Path) -> None:
    outcome = run(
        compose(*only("static_analysis"), *QUICK, "hardware.probe=false"),
        tmp_path / "run",
    )
    assert outcome.exit_code == 0
    assert [p.name for p in (tmp_path / "run").iterdir() if p.is_dir()] == ["static_analysis"]


@pytest.mark.parametrize("name", ["nsys", "ncu"])
def test_a_missing_tool_is_a_typed_skip_with_the_fix(name: str, tmp_path: Path) -> None:
    config = compose(*only(name), *QUICK, f"pipeline.{name}.executable=/nowhere/{name}")
    outcome = run(config, tmp_path / "run")
    record = outcome.manifest.stages[name]
    assert record.status == "skipped"
    assert record.reason
    assert record.fix
    assert not (tmp_path / "run" / name).exists()
    assert outcome.exit_code == 0


@dataclass
class ProbeConfig(StageConfig):
    depth: int = 3
    """How deep."""


class ProbeStage(Stage):
    """A profiler nobody thought of when the orchestrator was written."""

    name: ClassVar[str] = "power_probe"
    order: ClassVar[int] = 15
    title: ClassVar[str] = "power probe"
    config_type: ClassVar[type[StageConfig]] = ProbeConfig
    behaviour: ClassVar[str] = "ok"

    def check(self, context: StageContext) -> list[Problem]:
        return [Problem("skip", "no power meter", "plug one in")] if self.behaviour == "skip" else []

    def plan(self, context: StageContext) -> list[str]:
        return ["read the meter"]

    def run(self, context: StageContext) -> StageResult:
        config = context.stage_config(self.name, ProbeConfig)
        path = context.artifacts.out_dir(self.name) / "watts.txt"
        path.write_text(str(config.depth))
        if self.behaviour == "bug":
            raise ZeroDivisionError("watts by zero")
        if self.behaviour == "tool":
            raise ToolError("the meter fell off", hint="screw it on")
        if self.behaviour == "interrupt":
            raise KeyboardInterrupt
        return StageResult("ok", artifacts=[path])


class _EntryPoint:
    value = "tests.contract:ProbeStage"
    dist = None

    def __init__(self, kind: type[Stage]) -> None:
        self.name, self._kind = kind.name, kind

    def load(self) -> type[Stage]:
        return self._kind


@pytest.fixture
def plugged_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[ProbeStage]]:
    from llm_perf_opt.config import compose as compose_module
    from llm_perf_opt.config import store

    real = registry.entry_points

    def both(group: str) -> list[object]:
        return [
            *real(group=group),
            *([_EntryPoint(ProbeStage)] if group == registry.ENTRY_POINT_GROUP else []),
        ]

    caches = (stage_types, store.schema_node, register_schema, compose_module.known_keys)
    monkeypatch.setattr(registry, "entry_points", both)
    for cached in caches:
        cached.cache_clear()
    yield ProbeStage
    monkeypatch.undo()
    for cached in caches:
        cached.cache_clear()
    register_schema()


QUIET = (
    "pipeline.torch_profiler.enable=false",
    "pipeline.power_probe.enable=true",
    "hardware.probe=false",
    "infer.mode=tiny",
)


@pytest.mark.contract("B16")
def test_B16_a_new_profiler_is_one_class_and_its_keys_appear_by_themselves(
    plugged_in: type[ProbeStage], tmp_path: Path
) -> None:
    config = compose("pipeline.static_analysis.enable=false", *QUIET, "pipeline.power_probe.depth=7")
    outcome = run(config, tmp_path / "run")
    assert outcome.manifest.stages["power_probe"].status == "ok"
    assert outcome.manifest.stages["power_probe"].artifacts == ["power_probe/watts.txt"]
    assert (tmp_path / "run" / "power_probe" / "watts.txt").read_text() == "7"


@pytest.mark.parametrize(
    ("behaviour", "expected", "fix"),
    [("bug", "ZeroDivisionError: watts by zero", "run.log"), ("tool", "the meter fell off", "screw it on")],
)
def test_a_failing_stage_does_not_cost_the_others_their_results(
    plugged_in: type[ProbeStage],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    behaviour: str,
    expected: str,
    fix: str,
) -> None:
    monkeypatch.setattr(plugged_in, "behaviour", behaviour)
    outcome = run(
        compose("pipeline.static_analysis.enable=true", "pipeline.direct_inference.enable=false", *QUIET),
        tmp_path / "run",
    )
    assert outcome.exit_code == 1
    assert outcome.manifest.status == "failed"
    record = outcome.manifest.stages["power_probe"]
    assert record.status == "failed"
    assert expected in (record.reason or "")
    assert fix in (record.fix or "")
    assert outcome.manifest.stages["static_analysis"].status == "ok"


def test_ctrl_c_in_a_stage_keeps_what_was_done_and_exits_130(
    plugged_in: type[ProbeStage], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(plugged_in, "behaviour", "interrupt")
    config = compose("pipeline.static_analysis.enable=true", *QUIET, "pipeline.direct_inference.enable=true")
    outcome = run(config, tmp_path / "run")
    assert outcome.exit_code == 130
    assert outcome.manifest.status == "interrupted"
    statuses = {name: record.status for name, record in outcome.manifest.stages.items()}
    assert statuses == {"static_analysis": "ok", "power_probe": "failed", "direct_inference": "skipped"}
    assert outcome.manifest.stages["power_probe"].artifacts == ["power_probe/watts.txt"]


def test_a_skip_is_typed_and_starts_nothing(
    plugged_in: type[ProbeStage], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(plugged_in, "behaviour", "skip")
    outcome = run(compose("pipeline.static_analysis.enable=false", *QUIET), tmp_path / "run")
    assert (outcome.manifest.stages["power_probe"].status, outcome.exit_code) == ("skipped", 0)
    assert not (tmp_path / "run" / "power_probe").exists()
