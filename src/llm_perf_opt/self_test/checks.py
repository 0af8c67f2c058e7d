"""Profilers, tools and the engine on known work, each with a time limit: nsys and ncu are known to hang."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llm_perf_opt.captures.kineto.reader import read_kineto
from llm_perf_opt.captures.ncu.launches import NcuCapture, NcuLaunch
from llm_perf_opt.captures.ncu.reader import read_ncu
from llm_perf_opt.captures.nsys.export import open_export
from llm_perf_opt.captures.nsys.sqlite import read_nsys_sqlite
from llm_perf_opt.config.devices import cuda_device_count
from llm_perf_opt.core.errors import InputError, LlmPerfError, ToolError
from llm_perf_opt.process.launch import ProcessResult, run_process
from llm_perf_opt.process.tools import counter_permission, find_tool, missing_tool
from llm_perf_opt.self_test.judge import (
    Outcome,
    broken,
    failed,
    judge_clock,
    judge_collective,
    judge_device,
    judge_engine,
    judge_graph_kernels,
    judge_memory,
    judge_operators,
    judge_release,
    judge_telemetry,
    judge_timeline,
    not_possible,
    passed,
)
from llm_perf_opt.self_test.known_work import (
    ENGINE_MODES,
    EXPECTED_ADDITIONS,
    EXPECTED_SUM_KERNELS,
    LEAST_PRODUCT_KERNELS,
    RANKS,
    ROUND_RANGE,
    SUM_RANGE,
)
from llm_perf_opt.stages.ncu.probe import device_metrics, known_metrics, probe_ncu
from llm_perf_opt.stages.ncu.run import NcuRequest, run_ncu
from llm_perf_opt.stages.nsys.capture_set import export_sqlite
from llm_perf_opt.stages.nsys.command import graph_trace
from llm_perf_opt.stages.nsys.probe import can_isolate, probe_nsys
from llm_perf_opt.stages.nsys.run import CaptureRequest, capture
from llm_perf_opt.stages.workload import Workload, workload_environment
from llm_perf_opt.workloads.devices import missing_compiler
from llm_perf_opt.workloads.engine.nvtx import PROFILER_RANGE, backend_name

# Checks that need torch: in a process of its own, because ``doctor`` itself never loads it.


MODULE = "llm_perf_opt.self_test.program"
TRACE = "profile.json"
_LIMIT_S = 180.0
_PARTS = {
    "device": "device",
    "clock": "host clock",
    "profiler": "profiler operators",
    "memory": "memory released",
    "telemetry": "telemetry",
}
"""Part of the program → the check it is for."""


def torch_checks(device: str, folder: Path) -> list[Outcome]:
    """Run the known program and evaluate every part it reached."""
    done = run_process(
        [sys.executable, "-m", MODULE, "look", device, str(folder)],
        log_dir=folder,
        name="look",
        timeout_s=_LIMIT_S,
        env=workload_environment(),
    )
    parts = _read_parts(done.stdout)
    outcomes: list[Outcome] = []
    for part, name in _PARTS.items():
        if part in parts:
            outcomes += _judge(part, parts[part], device, folder)
        else:
            outcomes.append(_not_reached(name, done))
    return outcomes


def _read_parts(text: str) -> dict[str, dict[str, Any]]:
    """Return part → facts of what the program printed; other lines are library messages."""
    found = {}
    for line in text.splitlines():
        if line.startswith('{"part": '):
            facts = json.loads(line)
            found[str(facts.pop("part"))] = facts
    return found


def _judge(part: str, facts: dict[str, Any], device: str, folder: Path) -> list[Outcome]:
    if part == "device":
        return [judge_device(facts, device)]
    if part == "clock":
        return judge_clock(facts)
    if part == "memory":
        return [judge_memory(facts)]
    if part == "telemetry":
        return [judge_telemetry(facts)]
    return [*judge_operators(facts), *_judge_trace(folder / TRACE, device)]


def _judge_trace(trace: Path, device: str) -> list[Outcome]:
    if not trace.is_file():
        return [not_possible("profiler ranges", "the profiler wrote no trace")]
    try:
        timeline = read_kineto(trace).timeline
    except InputError as error:
        return [failed("profiler ranges", f"its trace cannot be read: {error.message}", error.hint)]
    return judge_timeline(
        "profiler", timeline, kernels="the CPU launches no kernels" if device == "cpu" else None
    )


# Runs of the engine, and two ranks that add up.


_ENGINE_LIMIT_S = 420.0
"""For all modes together; compiling alone takes a minute on a slow host."""


def engine_checks(device: str, folder: Path, modes: tuple[str, ...] = tuple(ENGINE_MODES)) -> list[Outcome]:
    """Run ``llama_tiny`` in every mode this device has."""
    impossible: dict[str, Outcome] = {}
    for mode in modes:
        if mode == "graphs" and not device.startswith("cuda"):
            impossible[mode] = not_possible(f"engine {mode}", f"{device} has no CUDA graphs")
        if mode == "compile" and (missing := missing_compiler(device)) is not None:
            impossible[mode] = not_possible(f"engine {mode}", missing)
    possible = [mode for mode in modes if mode not in impossible]
    done = run_process(
        [sys.executable, "-m", MODULE, "engine", device, *possible],
        log_dir=folder,
        name="engine",
        timeout_s=_ENGINE_LIMIT_S,
        env=workload_environment(),
    )
    parts = _read_parts(done.stdout)
    eager = parts.get("engine eager", {}).get("tokens")
    outcomes: list[Outcome] = []
    for mode in modes:
        name = f"engine {mode}"
        if mode in impossible:
            outcomes.append(impossible[mode])
        elif name in parts:
            outcomes.append(judge_engine(name, parts[name], eager))
            if mode == "eager":
                outcomes.append(judge_release("engine memory released", parts[name].get("release")))
        else:
            outcomes.append(_not_reached(name, done))
    return outcomes


def collective_checks(device: str, folder: Path, count: int | None = None) -> list[Outcome]:
    """Let two ranks add up by NCCL, where there are two GPUs."""
    name = "collective"
    if not device.startswith("cuda"):
        return [not_possible(name, f"NCCL is for NVIDIA GPUs, and this is {device}")]
    found = cuda_device_count() if count is None else count
    if found < RANKS:
        return [not_possible(name, f"needs {RANKS} GPUs, found {found}")]
    ranks = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}")
    done = run_process(
        [sys.executable, *ranks, "-m", MODULE, "collective", device],
        log_dir=folder,
        name="collective",
        timeout_s=_LIMIT_S,
        env=workload_environment(),
    )
    parts = [facts for part, facts in _read_parts(done.stdout).items() if part.startswith("collective ")]
    return [judge_collective(parts) if parts else _not_reached(name, done)]


def _not_reached(name: str, done: ProcessResult) -> Outcome:
    why = done.tail(1) if done.ended == "exit" else f"ended by {done.ended}"
    return broken(
        name,
        f"the known program did not come to it: {why}",
        "see the end of its output",
        tail=done.tail(8),
    )


_NSYS_LIMIT_S = 180.0
_NCU_LIMIT_S = 300.0
_ADDITIONS = tuple(f"smsp__sass_thread_inst_executed_op_{kind}_pred_on.sum" for kind in ("fadd", "ffma"))
_TIME = "gpu__time_duration.sum"


def nsys_checks(device: str, folder: Path, limit_s: float = _NSYS_LIMIT_S) -> list[Outcome]:
    """Capture the known program, export it, and count what our own reader finds in it."""
    name = "nsys ranges"
    executable = find_tool("nsys")
    if executable is None:
        missing = missing_tool("nsys")
        return [not_possible(name, missing.message, missing.hint)]
    if device == "cpu" and backend_name() is None:
        return [not_possible(name, "no NVTX library is installed", "pip install nvidia-nvtx")]
    outcomes = _captured(device, folder / "work", str(executable), limit_s, _WORK)
    for way in (_GRAPH, _PROFILED):
        if device.startswith("cuda"):
            outcomes += _captured(device, folder / way.mode, str(executable), limit_s, way)
        else:
            outcomes.append(not_possible(f"{way.name} kernels", f"{device} is no NVIDIA GPU"))
    return outcomes


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to capture the known program."""

    name: str
    mode: str
    capture_range: str = "none"


_WORK = _Way("nsys", "work")
_GRAPH = _Way("nsys graph", "graph")
_PROFILED = _Way("nsys cudaProfilerApi", "profiled", "cudaProfilerApi")


def _captured(device: str, folder: Path, executable: str, limit_s: float, way: _Way) -> list[Outcome]:
    try:
        return _capture_and_judge(device, folder, executable, limit_s, way)
    except LlmPerfError as error:
        return [broken(f"{way.name} ranges", error.message, error.hint)]


def _capture_and_judge(
    device: str, folder: Path, executable: str, limit_s: float, way: _Way
) -> list[Outcome]:
    name = f"{way.name} ranges"
    folder.mkdir(parents=True, exist_ok=True)
    tool = probe_nsys(executable)
    gated = way.capture_range != "none"
    program = _program(device, folder, way.mode)
    request = CaptureRequest(
        executable=executable,
        base=folder / "run",
        workload=replace(program, env={**program.env, PROFILER_RANGE: "1"}) if gated else program,
        trace="cuda,nvtx" if device.startswith("cuda") else "nvtx",
        cuda_graph_trace=graph_trace("node", tool.flags),
        capture_range=way.capture_range,
        capture_range_end="stop" if gated else None,
        timeout_s=limit_s,
        isolate=can_isolate(),
    )
    done = capture(request, scratch=folder / "scratch", log_dir=folder)
    facts = {"version": tool.version_text, "attempts": done.attempts, "ended": done.process.ended}
    if done.fault is not None or not done.reports:
        message = done.fault.message if done.fault is not None else "no report was written"
        return [
            broken(name, message, done.fault.fix if done.fault else None, **facts, tail=done.process.tail(8))
        ]
    database, exported = export_sqlite(executable, done.reports[0], log_dir=folder)
    if database is None:
        return [broken(name, "the report could not be exported", None, **facts, tail=exported.tail(8))]
    none = None if device.startswith("cuda") else f"nsys sees kernels of NVIDIA GPUs, and this is {device}"
    timeline = read_nsys_sqlite(database)
    outcomes = (
        [judge_graph_kernels(f"{way.name} kernels", timeline)]
        if way is _GRAPH
        else judge_timeline(way.name, timeline, kernels=none)
    )
    for outcome in outcomes:
        outcome.facts |= facts
    with open_export(database) as export:
        # Names only: the rows of an export hold the environment of what was watched.
        outcomes[0].facts["schema"] = export.schema_version
        outcomes[0].facts["tables"] = {name: list(table.columns) for name, table in export.tables.items()}
    return outcomes


def ncu_checks(device: str, folder: Path) -> list[Outcome]:
    """Ask ncu what it knows; on CUDA, read counters of kernels whose work is known."""
    executable = find_tool("ncu")
    if executable is None:
        missing = missing_tool("ncu")
        return [not_possible("ncu", missing.message, missing.hint)]
    try:
        tool = probe_ncu(executable)
        chips = tool.default_chips
        metrics = known_metrics(executable, chips[-1:])
    except ToolError as error:
        return [broken("ncu", error.message, error.hint)]
    message = f"{tool.version_text}: {len(tool.sections)} sections, {len(metrics)} metrics of {', '.join(chips[-1:]) or 'no chip'}"
    answers = (
        passed("ncu", message)
        if tool.sections and metrics
        else failed("ncu", message, "does ncu run by hand?")
    )
    answers.facts = {"version": tool.version_text, "chips": sorted(tool.chips), "sets": sorted(tool.sets)}
    answers.facts["sections"] = sorted(tool.sections)
    if device.startswith("cuda"):
        answers.facts["device_metrics"] = sorted(device_metrics(executable))
    outcomes = [answers, *_counters(device, folder / "inner", str(executable), SUM_RANGE)]
    if device.startswith("cuda") and outcomes[-1].status != "not possible":
        outcomes += _counters(device, folder / "outer", str(executable), ROUND_RANGE)
    else:
        outcomes.append(not_possible("ncu outer range", outcomes[-1].said, outcomes[-1].fix))
    return outcomes


def _counters(device: str, folder: Path, executable: str, label: str) -> list[Outcome]:
    """Profile the kernels inside one of the ranges."""
    name = "counters" if label == SUM_RANGE else "ncu outer range"
    folder.mkdir(parents=True, exist_ok=True)
    permission = counter_permission()
    if not device.startswith("cuda"):
        return [not_possible(name, f"{device} has no counters that ncu reads")]
    if permission.allowed is False:
        return [not_possible(name, permission.reason, permission.fix)]
    request = NcuRequest(
        executable=executable,
        folder=folder,
        workload=_program(device, folder),
        nvtx_include=(f"{label}/",),
        use_nvtx=True,
        metrics=(_TIME, *_ADDITIONS) if label == SUM_RANGE else (_TIME,),
        timeout_s=_NCU_LIMIT_S,
    )
    try:
        done = run_ncu(request)
        if done.report is None:
            message = done.fault.message if done.fault is not None else "no report was written"
            return [broken(name, message, done.fault.fix if done.fault else None, tail=done.process.tail(8))]
        captured = read_ncu(done.report)
        return judge_counters(captured) if label == SUM_RANGE else [judge_outer_range(name, captured)]
    except InputError as error:
        return [not_possible(name, error.message, error.hint)]
    except ToolError as error:
        return [broken(name, error.message, error.hint)]


def judge_counters(captured: NcuCapture) -> list[Outcome]:
    """Every sum was profiled, took time, and did as many additions as it has elements."""
    launches = captured.launches
    message = f"{len(launches)} of {EXPECTED_SUM_KERNELS} sums profiled"
    count = passed if len(launches) == EXPECTED_SUM_KERNELS else failed
    outcomes = [count("ncu kernels", message)]
    timed = [value for launch in launches if (value := _value(launch, _TIME)) is not None]
    additions = {sum(_value(launch, metric) or 0.0 for metric in _ADDITIONS) for launch in launches}
    message = f"{sorted(additions)} additions a launch, {EXPECTED_ADDITIONS} expected; {len(timed)} launches with a time"
    right = (
        additions == {EXPECTED_ADDITIONS} and len(timed) == len(launches) and all(one > 0 for one in timed)
    )
    judged = passed("counters", message) if right else failed("counters", message, "send the bundle")
    return [*outcomes, judged]


def judge_outer_range(name: str, captured: NcuCapture) -> Outcome:
    """A filter on the range around the others must find the kernels inside those."""
    found, least = len(captured.launches), EXPECTED_SUM_KERNELS + LEAST_PRODUCT_KERNELS
    message = f"{found} kernels below the outer range profiled, at least {least} expected"
    return passed(name, message) if found >= least else failed(name, message, "send the bundle")


def _value(launch: NcuLaunch, metric: str) -> float | None:
    found = launch.metrics.get(metric)
    return found.value if found is not None else None


def _program(device: str, folder: Path, mode: str = "work") -> Workload:
    argv = (sys.executable, "-m", MODULE, mode, device)
    return Workload(argv=argv, cwd=folder / "work", env=workload_environment())
