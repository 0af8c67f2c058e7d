"""The torch profiler stage on a real small model: what it writes, and the effect of every key."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from llm_perf_opt.analysis.facts import Facts
from llm_perf_opt.captures.documents import read_profile
from llm_perf_opt.captures.kineto.reader import KinetoCapture, read_kineto
from llm_perf_opt.captures.timings import load_timings
from llm_perf_opt.config.schema import (
    AppConfig,
    ArtifactsConfig,
    DatasetConfig,
    HardwareConfig,
    RunConfig,
    RunMode,
    WorkloadCommandConfig,
)
from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.core.console.progress import LogProgress
from llm_perf_opt.stages.base import StageContext
from llm_perf_opt.stages.torch_profiler.config import (
    Activity,
    RankBy,
    TorchProfilerConfig,
    representative_tokens,
    usable_activities,
)
from llm_perf_opt.stages.torch_profiler.stage import TorchProfilerStage, representative_batch
from tests.text_facts import mentions
from tests.unit.small_workloads import infer_config, model_config

TOKENS = 5


def context(
    root: Path, *, run: dict[str, Any] | None = None, device: str = "cpu", **keys: Any
) -> StageContext:
    """Build a context by hand: no Hydra, no other stage."""
    config = AppConfig(
        run=RunConfig(**{"repeats": 2, **(run or {})}),
        artifacts=ArtifactsConfig(str(root)),
        model=model_config("llama"),
        infer=infer_config("llama", max_new_tokens=TOKENS),
        dataset=DatasetConfig(
            adapter="prompts",
            prompts=["Short.", "A prompt of middling length, as they come.", "The longest of " * 9],
        ),
        hardware=HardwareConfig(probe=False),
        workload_command=WorkloadCommandConfig(),
        pipeline={"torch_profiler": TorchProfilerConfig(enable=True, **keys)},
        resolved_device=device,
    )
    return StageContext(config, Artifacts(root), LogProgress())


@pytest.fixture(autouse=True)
def one_registered_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are handed out for this stage whether or not the others are installed."""
    from llm_perf_opt.core import artifacts

    monkeypatch.setattr(artifacts, "stage_types", lambda: {"torch_profiler": TorchProfilerStage})


class Run:
    """A finished stage, read back."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.folder = root / "torch_profiler"
        self.root = root
        self.result = TorchProfilerStage().run(context(root, **options))
        self.profile: dict[str, Any] = json.loads((self.folder / "profile.json").read_text())

    @cached_property
    def capture(self) -> KinetoCapture:
        return read_kineto(self.folder / "trace.json.gz")

    @cached_property
    def facts(self) -> Facts:
        return TorchProfilerStage().facts(self.root)

    def ranges(self) -> set[str]:
        return {self.capture.timeline.names[name] for name in self.capture.timeline.ranges.name}


@pytest.fixture(scope="module")
def default_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        from llm_perf_opt.core import artifacts

        patch.setattr(artifacts, "stage_types", lambda: {"torch_profiler": TorchProfilerStage})
        return Run(tmp_path_factory.mktemp("run"))


# --- what it leaves --------------------------------------------------------------------------------------


def test_files_and_status(default_run: Run) -> None:
    assert default_run.result.status == "ok"
    assert {path.name for path in default_run.result.artifacts} >= {
        "timings.json",
        "trace.json.gz",
        "profile.json",
    }
    assert all(
        path.is_file() and path.is_relative_to(default_run.folder) for path in default_run.result.artifacts
    )
    assert not (default_run.folder / "memory_trace.json.gz").exists()
    assert not (default_run.folder / "operators.md").exists()  # reports are rendered from the summary


def test_scratch_is_cleaned_up(default_run: Run) -> None:
    assert list((default_run.root / "tmp" / "torch_profiler").iterdir()) == []
    assert default_run.result.inputs is not None
    assert default_run.result.inputs["count"] == 3


def test_reported_timings_come_from_passes_without_the_profiler(default_run: Run) -> None:
    document = json.loads((default_run.folder / "timings.json").read_text())
    assert [len(sample["repeats"]) for sample in document["samples"]] == [2, 2, 2]
    clock = load_timings(default_run.folder / "timings.json")
    assert clock.timings.decode_s is not None and clock.timings.decode_s.n == 6
    # The profiled pass is none of them: its own time is kept apart.
    assert default_run.profile["profiled_s"] > 0


def test_the_profiler_is_off_while_timings_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from llm_perf_opt.workloads.engine.engine import Engine

    states: list[bool] = []
    run_prepared = Engine.run_prepared

    def watched(self: Engine, *args: Any, **kwargs: Any) -> Any:
        states.append(torch.autograd._profiler_enabled())
        return run_prepared(self, *args, **kwargs)

    monkeypatch.setattr(Engine, "run_prepared", watched)
    Run(tmp_path, profile_memory=True)
    measured, rest = states[:6], states[6:]
    assert not any(measured)
    assert rest == [False, True, True]  # logits checked, profiled, memory


def test_the_trace_has_phases_modules_and_operators(default_run: Run) -> None:
    assert {"prefill", "decode", "decode_step"} <= default_run.ranges()
    assert any(name.startswith("module:") for name in default_run.ranges())
    assert {"prefill", "decode"} <= {operator.phase for operator in default_run.facts.operators}
    steps = [
        name
        for name in default_run.capture.timeline.ranges.name
        if default_run.capture.timeline.names[name] == "decode_step"
    ]
    assert len(steps) == TOKENS - 1


def test_the_trace_is_what_perfetto_reads(default_run: Run) -> None:
    import gzip

    with gzip.open(default_run.folder / "trace.json.gz") as stream:
        document = json.load(stream)
    complete = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    assert complete and all({"name", "pid", "tid", "ts", "dur"} <= set(event) for event in complete)


def test_the_representative_pass_is_the_middle_prompt(default_run: Run) -> None:
    lengths = [
        sample["prompt_tokens"]
        for sample in json.loads((default_run.folder / "timings.json").read_text())["samples"]
    ]
    assert default_run.profile["prompt_tokens"] == sorted(lengths)[1]
    assert len(default_run.profile["sample_ids"]) == 1


def test_cuda_without_cuda_is_dropped_with_a_note(default_run: Run) -> None:
    assert default_run.profile["options"]["activities"] == ["cpu"]
    assert any(mentions(note, "cuda") for note in default_run.profile["notes"])


def test_operators_are_read_back(default_run: Run) -> None:
    assert read_profile(default_run.folder / "profile.json").operators == []  # the trace has them
    assert default_run.facts.operators[0].self_device_s is None  # no device in the trace: not zero


# --- every key -------------------------------------------------------------------------------------------


def test_knobs_of_the_trace(tmp_path: Path) -> None:
    run = Run(
        tmp_path,
        record_shapes=True,
        with_stack=True,
        record_modules=False,
        active_passes=2,
        rep_max_new_tokens=3,
        with_flops=True,
        max_operators=None,
    )
    facts = run.capture.facts
    assert facts["record_shapes"] == 1 and facts["with_stack"] == 1 and facts["with_flops"] == 1
    assert facts["events_by_category"]["python_function"] > 0
    assert not any(name.startswith("module:") for name in run.ranges())
    names = [run.capture.timeline.names[name] for name in run.capture.timeline.ranges.name]
    assert (names.count("prefill"), names.count("decode_step")) == (2, 2 * 2)
    assert run.profile["new_tokens"] == 3
    assert run.profile["flops_by_operator"]["aten::mm"] > 0
    assert run.profile["operators_by_shape"] == []


def test_defaults_leave_costly_options_out(default_run: Run) -> None:
    facts = default_run.capture.facts
    assert "python_function" not in facts["events_by_category"]
    assert not facts.get("record_shapes") and not facts.get("with_stack") and not facts.get("profile_memory")
    assert default_run.profile["flops_by_operator"] == {}


def test_memory_has_its_own_pass(tmp_path: Path) -> None:
    run = Run(tmp_path, profile_memory=True)
    assert (run.folder / "memory_trace.json.gz").is_file()
    memory = TorchProfilerStage().facts(run.root).memory
    assert run.profile["device"] == "cpu" and memory["all"].peak_bytes > 0
    assert list(memory) == ["prefill", "decode", "all"]
    assert max(memory[phase].peak_bytes for phase in ("prefill", "decode")) <= memory["all"].peak_bytes
    assert not run.capture.facts.get("profile_memory")  # never in the trace that is read for time


def test_without_a_kept_trace_the_operators_remain(tmp_path: Path) -> None:
    run = Run(tmp_path, export_trace=False)
    assert not (run.folder / "trace.json.gz").exists()
    assert run.profile["trace"] is None and run.profile["operators"]


def test_operators_by_shape(tmp_path: Path) -> None:
    run = Run(tmp_path, group_by_input_shape=True, max_operators=40)
    rows = run.profile["operators_by_shape"]
    assert len(rows) == 40
    shapes = [row["shapes"] for row in rows if row["name"] == "aten::mm"]
    assert len(shapes) > 1 and all(len(shape[0]) == 2 for shape in shapes)
    times = [row["self_cpu_s"] for row in rows]
    assert times == sorted(times, reverse=True)


def test_ranking_and_limit(tmp_path: Path) -> None:
    run = Run(tmp_path, rank_by=RankBy.calls, max_operators=3)
    for phase in ("prefill", "decode"):
        calls = [row.calls for row in run.facts.operators if row.phase == phase]
        assert len(calls) == 3 and calls == sorted(calls, reverse=True)


@pytest.mark.parametrize("passes", [0, 2])
def test_start_up_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: int) -> None:
    from llm_perf_opt.workloads.engine.engine import Engine

    lengths: list[Any] = []
    run_prepared = Engine.run_prepared

    def watched(self: Engine, batch: Any, **kwargs: Any) -> Any:
        lengths.append(kwargs.get("max_new_tokens"))
        return run_prepared(self, batch, **kwargs)

    monkeypatch.setattr(Engine, "run_prepared", watched)
    Run(tmp_path, start_up_passes=passes)
    assert [length for length in lengths if length is not None] == [2] * passes + [TOKENS]


def test_light_mode_is_one_pass_of_one_sample_without_extras(tmp_path: Path) -> None:
    run = Run(
        tmp_path,
        run={"mode": RunMode.light, "repeats": 4},
        record_shapes=True,
        with_stack=True,
        profile_memory=True,
    )
    document = json.loads((run.folder / "timings.json").read_text())
    assert [len(sample["repeats"]) for sample in document["samples"]] == [1]
    assert not (run.folder / "memory_trace.json.gz").exists()
    assert not run.capture.facts.get("record_shapes") and not run.capture.facts.get("with_stack")


@pytest.mark.contract("E2")
def test_E2_decode_length_of_the_profiled_pass(tmp_path: Path) -> None:
    app = context(tmp_path).config
    assert representative_tokens(TorchProfilerConfig(), app) == TOKENS
    app.run = replace(app.run, representative_max_new_tokens=3)
    assert representative_tokens(TorchProfilerConfig(), app) == 3
    assert representative_tokens(TorchProfilerConfig(rep_max_new_tokens=2), app) == 2


def test_activities_on_a_gpu_are_kept(tmp_path: Path) -> None:
    app = context(tmp_path, device="cuda:0").config
    assert usable_activities(TorchProfilerConfig(), app) == (("cpu", "cuda"), [])


@pytest.mark.parametrize(
    ("device", "names", "traced"),
    [
        ("xpu:1", ("cpu", "xpu"), True),
        ("npu:0", ("cpu", "privateuse1"), True),
        ("mps", ("cpu",), False),
        ("cpu", ("cpu",), False),
    ],
)
@pytest.mark.parametrize("wanted", [Activity.cuda, Activity.accelerator])
def test_the_activity_of_any_accelerator_has_torchs_name(
    tmp_path: Path, device: str, names: tuple[str, ...], traced: bool, wanted: Activity
) -> None:
    app = context(tmp_path, device=device).config
    found, notes = usable_activities(TorchProfilerConfig(activities=[Activity.cpu, wanted]), app)
    assert found == names
    assert len(notes) == (not traced)
    assert all(mentions(note, wanted.value, device) for note in notes)


def test_an_activity_without_a_tracer_is_dropped() -> None:
    from llm_perf_opt.stages.torch_profiler.passes import supported_activities

    kept, notes = supported_activities(("cpu", "privateuse1"))
    assert kept == ("cpu",) and "no tracer" in notes[0]


def test_the_report_has_the_operators_as_ranked_and_cut(tmp_path: Path) -> None:
    for number, kept in enumerate((True, False)):
        run = Run(tmp_path / str(number), rank_by=RankBy.calls, max_operators=2, export_trace=kept)
        operators = [row for row in run.facts.operators if row.phase is not None]
        assert [row.phase for row in operators] == ["prefill", "prefill", "decode", "decode"]
        for first, second in (operators[:2], operators[2:]):
            assert first.calls >= second.calls
        # Nothing derived is written beside a trace that is kept.
        assert bool(run.profile["operators"]) is not kept


# --- before the run --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "at_fault"),
    [
        ({"activities": [Activity.cuda]}, "activities"),
        ({"activities": []}, "activities"),
        ({"active_passes": 0}, "active_passes"),
        ({"start_up_passes": -1}, "start_up_passes"),
        ({"rep_max_new_tokens": 0}, "rep_max_new_tokens"),
        ({"max_operators": 0}, "max_operators"),
    ],
)
def test_check_refuses_what_cannot_be_meant(tmp_path: Path, keys: dict[str, Any], at_fault: str) -> None:
    (problem,) = TorchProfilerStage().check(context(tmp_path, **keys))
    assert problem.severity == "error" and problem.key == f"pipeline.torch_profiler.{at_fault}"


def test_check_and_plan_write_nothing(tmp_path: Path) -> None:
    stage, root = TorchProfilerStage(), tmp_path / "run"
    there = context(root, profile_memory=True)
    assert stage.check(there) == []
    plan = stage.plan(there)
    for name in ("timings.json", "trace.json.gz", "profile.json", "memory_trace.json.gz", "predictions.md"):
        assert any(line.startswith("write ") and line.endswith(name) for line in plan), name
    assert any(mentions(line, str(TOKENS), "cpu") for line in plan if not line.startswith("write "))
    assert list(root.iterdir()) == []


@pytest.mark.contract("A5")
def test_A5_a_stand_alone_stage_writes_to_its_own_directory(default_run: Run) -> None:
    assert sorted(path.name for path in default_run.root.iterdir()) == ["tmp", "torch_profiler"]


@pytest.mark.contract("B3")
@pytest.mark.parametrize("preset", ["min", "default", "max"])
def test_B3_presets_are_complete_and_typed(repository: Path, preset: str) -> None:
    path = repository / "src/llm_perf_opt/conf/profiling/torch" / f"torch-profiler.{preset}.yaml"
    values = yaml.safe_load(path.read_text())
    config = OmegaConf.to_object(
        OmegaConf.merge(OmegaConf.structured(TorchProfilerConfig), OmegaConf.create(values))
    )
    assert isinstance(config, TorchProfilerConfig)
    own = {"enable", "output"}
    assert set(values) == set(TorchProfilerConfig.__dataclass_fields__) - own
    if preset == "default":
        assert config == TorchProfilerConfig()
    assert config.with_stack == config.profile_memory == config.record_shapes == (preset == "max")


def test_representative_batch_of_equal_prompts_is_the_first(default_run: Run) -> None:
    class Fake:
        def __init__(self, tokens: int, name: str) -> None:
            self.prompt_tokens, self.ids = tokens, [name]

    class Answer:
        def __init__(self, name: str) -> None:
            self.sample = type("S", (), {"id": name})()

    class Result:
        batches = [Fake(9, "a"), Fake(9, "b")]
        samples = [Answer("a"), Answer("b")]

    assert representative_batch(Result())[0].id == "a"  # type: ignore[arg-type]
