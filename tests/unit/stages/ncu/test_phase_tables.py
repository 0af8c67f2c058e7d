"""Every phase is profiled with its own kernels: what nsys saw of it decides, and the plan shows it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.stages.ncu.plan import (
    AUTO,
    Captured,
    Forecast,
    make_forecast,
    phase_groups,
    range_filters,
    read_captured,
)
from llm_perf_opt.stages.ncu.stage import NcuStage
from llm_perf_opt.stages.ncu.targets import KernelTime, Target
from llm_perf_opt.workloads import memory_estimate
from tests.ncu_support import TOOLS, context, profiling_stand_in
from tests.needs import example_reports
from tests.text_facts import mentions
from tests.unit.nsys_exports import call, kernel, nvtx, write_export

NAMES = {1: "gemm<int>(int)", 2: "gemv<int>(int)", 3: "load<int>(int)", 9: "cudaLaunchKernel"}


def export(path: Path, *, prefill: str = "prefill", decode: str = "decode") -> Path:
    """Loading weights takes most of the process; prefill is gemm, decode is gemv."""
    launches = [(0, 3, 9000), (10_000, 1, 500), (20_000, 2, 40), (30_000, 2, 40), (40_000, 1, 5)]
    tables: dict[str, Any] = {
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            kernel(start + 50, start + 50 + time, number, name)
            for number, (start, name, time) in enumerate(launches, 1)
        ],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            call(start + 10, start + 20, number, 9) for number, (start, _, _) in enumerate(launches, 1)
        ],
        "NVTX_EVENTS": [
            nvtx(9_500, 12_000, prefill),
            nvtx(19_000, 35_000, decode),
            nvtx(39_000, 45_000, decode),
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_export(path, tables, strings=NAMES)


OWN_PROGRAM = "pipeline.workload.command=[/bin/true]"


def commands(run_dir: Path, *overrides: str, program: str = OWN_PROGRAM) -> dict[str, list[str]]:
    """Profiling commands of the plan by the report they write, relative to the stage's folder."""
    plan = NcuStage().plan(context(run_dir, program, *overrides))
    found = [
        shlex.split(line.removeprefix("run   ").replace("\\\n", " ")) for line in plan if "--export" in line
    ]
    return {str(Path(text[text.index("--export") + 1]).relative_to(run_dir / "ncu")): text for text in found}


def values(expected: list[str], option: str) -> list[str]:
    return [expected[place + 1] for place, word in enumerate(expected) if word == option]


def test_kernels_come_from_the_phase_and_not_from_the_process(tmp_path: Path) -> None:
    export(tmp_path / "run.sqlite")
    found = read_captured(tmp_path)
    assert list(found.tables) == ["prefill", "decode"]
    assert [each.name for each in found.tables["decode"]] == [NAMES[2], NAMES[1]]
    assert found.tables["decode"][0] == KernelTime(NAMES[2], 80.0, 2)
    assert found.ranges == {"prefill": ("prefill",), "decode": ("decode",)}


def test_the_plan_profiles_every_phase_with_its_own_top_kernel(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    export(run_dir / "nsys" / "run.sqlite")
    found = commands(run_dir, "run.top_n_kernels=1")
    assert set(found) == {"prefill/run", "decode/run"}
    for phase, own, other in (("prefill", "gemm", "gemv"), ("decode", "gemv", "gemm")):
        text = found[f"{phase}/run"]
        assert values(text, "--nvtx-include") == [f"{phase}/"]
        (pattern,) = values(text, "--kernel-name")
        assert own in pattern and other not in pattern and "load" not in pattern


def test_one_requested_range_gets_its_own_kernels_in_one_run(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    export(run_dir / "nsys" / "run.sqlite")
    found = commands(run_dir, "run.top_n_kernels=1", "pipeline.ncu.ncu_cli.nvtx.include=decode*")
    assert set(found) == {"run"}
    assert values(found["run"], "--nvtx-include") == ["regex:decode.*/"]
    assert "gemv" in values(found["run"], "--kernel-name")[0]


def test_all_phases_in_one_run_when_requested(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    export(run_dir / "nsys" / "run.sqlite")
    found = commands(run_dir, "pipeline.ncu.selection.per_phase=false")
    assert values(found["run"], "--nvtx-include") == ["prefill/", "decode/"]
    (pattern,) = values(found["run"], "--kernel-name")
    assert "gemm" in pattern and "gemv" in pattern and "load" not in pattern


def test_a_large_model_is_loaded_once_for_all_phases(tmp_path: Path) -> None:
    """As many launches as two runs, and the top kernel of each phase."""
    run_dir = tmp_path / "run"
    export(run_dir / "nsys" / "run.sqlite")
    large = ("run.top_n_kernels=1", "model.arch.hidden_size=8192", "model.arch.intermediate_size=28672")
    deep = ("model.arch.num_hidden_layers=64", "model.arch.num_attention_heads=64")
    found = commands(run_dir, *large, *deep, program="model=llama_tiny")
    assert set(found) == {"run"}
    assert values(found["run"], "--nvtx-include") == ["prefill/", "decode/"]
    (pattern,) = values(found["run"], "--kernel-name")
    assert "gemm" in pattern and "gemv" in pattern
    (both,) = values(found["run"], "--launch-count")
    small = commands(run_dir, "run.top_n_kernels=1", program="model=llama_tiny")
    assert set(small) == {"prefill/run", "decode/run"}
    assert sum(int(values(words, "--launch-count")[0]) for words in small.values()) == int(both)


@pytest.mark.parametrize(("available", "mode"), [(1e6, ["application"]), (1e15, []), (None, [])])
def test_application_replay_where_the_model_fills_the_memory(
    available: float | None, mode: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_estimate, "available_bytes", lambda device: available)
    found = commands(tmp_path / "run", program="model=llama_tiny")
    assert values(found["run"], "--replay-mode") == mode
    chosen = commands(tmp_path / "run", "pipeline.ncu.ncu_cli.replay_mode=range", program="model=llama_tiny")
    assert values(chosen["run"], "--replay-mode") == ["range"]


def test_without_a_capture_all_phases_are_looked_at_without_a_filter(tmp_path: Path) -> None:
    found = commands(tmp_path / "run", program="model=llama_tiny")
    assert values(found["run"], "--nvtx-include") == [
        "regex:vision.*/",
        "regex:encode.*/",
        "regex:prefill.*/",
        "regex:decode.*/",
    ]
    assert values(found["run"], "--kernel-name") == []


def test_without_a_capture_your_own_program_is_profiled_everywhere(tmp_path: Path) -> None:
    found = commands(tmp_path / "run")
    assert values(found["run"], "--nvtx-include") == []
    chosen = commands(tmp_path / "run", "pipeline.ncu.ncu_cli.nvtx.include=decode")
    assert values(chosen["run"], "--nvtx-include") == ["decode/"]


def test_ranges_of_other_engines_are_named_as_they_are(tmp_path: Path) -> None:
    export(
        tmp_path / "run.sqlite", prefill="execute_context_1_generation_0", decode="step[DECODE] next_token 7"
    )
    found = read_captured(tmp_path)
    (prefill,) = range_filters(found.ranges["prefill"])
    assert prefill == "regex:execute_context_[0-9]+_generation_[0-9]+/"
    assert range_filters(["step[DECODE] bs=4", "step[DECODE] bs=8"]) == ("regex:step.DECODE. bs.[0-9]+/",)


def test_a_capture_per_phase_and_a_damaged_one(tmp_path: Path) -> None:
    export(tmp_path / "run.decode.sqlite")
    (tmp_path / "run.prefill.sqlite").write_bytes(b"SQLite format 3\0cut")
    assert list(read_captured(tmp_path).tables) == ["prefill", "decode"]


@pytest.mark.parametrize("include", [AUTO, "decode*", None])
def test_a_table_without_phases_is_one_run(include: str | None) -> None:
    captured = Captured({"": [KernelTime("k", 1.0, 1)]})
    (group,) = phase_groups(include, captured, per_phase=True)
    assert group.phase == "" and group.tables == captured.tables and not group.warnings


def test_a_range_that_is_no_phase_of_the_capture_keeps_all_kernels_with_a_note() -> None:
    captured = Captured({"prefill": [KernelTime("k", 1.0, 1)], "decode": [KernelTime("l", 1.0, 1)]})
    (group,) = phase_groups("vision", captured, per_phase=True)
    assert group.include == ("vision/",) and set(group.tables) == {"prefill", "decode"}
    assert "prefill, decode" in group.warnings[0] and "vision/" in group.warnings[0]


def test_clock_and_cache_control_reach_the_command(tmp_path: Path) -> None:
    found = commands(
        tmp_path / "run", "pipeline.ncu.ncu_cli.clock_control=none", "pipeline.ncu.ncu_cli.cache_control=none"
    )
    assert values(found["run"], "--clock-control") == values(found["run"], "--cache-control") == ["none"]


@pytest.mark.needs("ncu example reports")
def test_a_run_per_phase_leaves_the_files_of_each(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    export(run_dir / "nsys" / "run.sqlite")
    tool = profiling_stand_in(tmp_path / "bin", TOOLS[-1], example_reports()[-1])
    run = context(run_dir, "pipeline.workload.command=[/bin/echo,hi]", f"pipeline.ncu.executable={tool}")
    result = NcuStage().run(run)
    # The stand-in profiles none of the targets, which is said for each phase.
    assert result.status == "degraded"
    prefill, _, decode = str(result.reason).partition("decode: ")
    assert mentions(prefill, "prefill", "1") and mentions(decode, "2")
    assert mentions(result.fix, "pipeline.ncu.ncu_cli.launch_count")
    assert set(result.exit_codes) >= {"ncu-prefill", "ncu-decode"}
    for phase in ("prefill", "decode"):
        folder = run_dir / "ncu" / phase
        assert {"run.ncu-rep", "raw.csv", "cmd.txt"} <= {path.name for path in folder.iterdir()}
        assert f"{phase}/" in (folder / "cmd.txt").read_text()
    assert (run_dir / "ncu" / "cmd.txt").read_text().count("--export") == 2
    targets = (run_dir / "ncu" / "targets.csv").read_text().splitlines()
    assert [line.split(",")[3] for line in targets[1:]] == ["prefill", "decode", "decode"]


# --- how long it takes ---


def test_a_forecast_is_kernels_times_passes_times_their_times() -> None:
    slow, fast = Target("slow", 0.9, 3, total_ns=3e6), Target("fast", 0.1, 100, total_ns=1e6)
    counted = make_forecast([slow, fast], 10, "per-launch-config", 2)
    assert counted is not None and (counted.least_launches, counted.most_launches) == (4, 103)
    assert counted.least_s == pytest.approx(10 * (2 * 1e-3 + 2 * 1e-5))
    assert "4 to 103 launches, 40 to 1,030 replays" in counted.text()
    limited = make_forecast([slow, fast], 10, None, 50)  # maybe all of them fast ones
    assert limited is not None and limited.least_launches == limited.most_launches == 50
    assert limited.least_s == pytest.approx(10 * 50 * 1e-5)
    every = make_forecast([slow, fast], 1, None, None)
    assert every is not None and every.least_s == pytest.approx(4e-3)


def test_without_captured_launches_there_is_no_forecast() -> None:
    assert make_forecast([], 10, None, 50) is None
    assert make_forecast([Target("x", 1.0, 0)], 10, None, 50) is None


def test_a_time_limit_that_cannot_be_kept_is_noted_with_what_fits() -> None:
    long = Forecast(10, 10, 40, least_s=100.0)
    assert "20 passes" in long.too_long(50.0) and "set=basic" in long.too_long(50.0)
    assert "2 passes" in long.too_long(5.0) and "set=basic" not in long.too_long(5.0)
    assert "top_n_kernels" in long.too_long(1.0)


@pytest.mark.parametrize(("limit", "noted"), [("1e-7", True), ("1000", False)])
def test_the_plan_shows_the_forecast(tmp_path: Path, limit: str, noted: bool) -> None:
    export(tmp_path / "nsys" / "run.sqlite")
    lines = NcuStage().plan(context(tmp_path, OWN_PROGRAM, f"pipeline.ncu.timeout_s={limit}"))
    costs = [line for line in lines if line.startswith("cost")]
    assert costs and all("replays" in line for line in costs)
    assert any(line.startswith("note") and "timeout_s" in line for line in lines) is noted


def test_replay_of_the_whole_program_has_no_forecast_by_kernel(tmp_path: Path) -> None:
    export(tmp_path / "nsys" / "run.sqlite")
    lines = NcuStage().plan(context(tmp_path, OWN_PROGRAM, "pipeline.ncu.ncu_cli.replay_mode=application"))
    costs = [line for line in lines if line.startswith("cost")]
    assert costs and all("runs of the program" in line and "replays" not in line for line in costs)
