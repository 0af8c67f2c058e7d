"""Nsight Systems and Nsight Compute on the known program, each with a time limit: both are known to hang."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from llm_perf_opt.captures.kineto.reader import read_kineto
from llm_perf_opt.captures.ncu.launches import NcuCapture, NcuLaunch
from llm_perf_opt.captures.ncu.reader import read_ncu
from llm_perf_opt.captures.nsys.sqlite import read_nsys_sqlite
from llm_perf_opt.core.errors import InputError, LlmPerfError, ToolError
from llm_perf_opt.process.launch import run_process
from llm_perf_opt.process.tools import counter_permission, find_tool, missing_tool
from llm_perf_opt.self_test.judge import (
    Outcome,
    failed,
    judge_clock,
    judge_device,
    judge_memory,
    judge_operators,
    judge_telemetry,
    judge_timeline,
    not_possible,
    passed,
)
from llm_perf_opt.self_test.known_work import EXPECTED_ADDITIONS, EXPECTED_SUM_KERNELS, SUM_RANGE
from llm_perf_opt.stages.ncu.probe import known_metrics, probe_ncu
from llm_perf_opt.stages.ncu.run import NcuRequest, run_ncu
from llm_perf_opt.stages.nsys.capture_set import export_sqlite
from llm_perf_opt.stages.nsys.command import graph_trace
from llm_perf_opt.stages.nsys.probe import can_isolate, probe_nsys
from llm_perf_opt.stages.nsys.run import CaptureRequest, capture
from llm_perf_opt.stages.workload import Workload, workload_environment
from llm_perf_opt.workloads.engine.nvtx import backend_name

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
            why = done.tail(1) if done.ended == "exit" else f"ended by {done.ended}"
            outcomes.append(
                failed(
                    name,
                    f"the known program did not come to it: {why}",
                    "see the end of its output",
                    tail=done.tail(8),
                )
            )
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
    try:
        return _captured(device, folder, str(executable), limit_s)
    except LlmPerfError as error:
        return [failed(name, error.message, error.hint)]


def _captured(device: str, folder: Path, executable: str, limit_s: float) -> list[Outcome]:
    name = "nsys ranges"
    tool = probe_nsys(executable)
    request = CaptureRequest(
        executable=executable,
        base=folder / "run",
        workload=_program(device, folder),
        trace="cuda,nvtx" if device.startswith("cuda") else "nvtx",
        cuda_graph_trace=graph_trace("node", tool.flags),
        timeout_s=limit_s,
        isolate=can_isolate(),
    )
    done = capture(request, scratch=folder / "scratch", log_dir=folder)
    facts = {"version": tool.version_text, "attempts": done.attempts, "ended": done.process.ended}
    if done.fault is not None or not done.reports:
        words = done.fault.message if done.fault is not None else "no report was written"
        return [
            failed(name, words, done.fault.fix if done.fault else None, **facts, tail=done.process.tail(8))
        ]
    database, exported = export_sqlite(executable, done.reports[0], log_dir=folder)
    if database is None:
        return [failed(name, "the report could not be exported", None, **facts, tail=exported.tail(8))]
    none = None if device.startswith("cuda") else f"nsys sees kernels of NVIDIA GPUs, and this is {device}"
    outcomes = judge_timeline("nsys", read_nsys_sqlite(database), kernels=none)
    for outcome in outcomes:
        outcome.facts |= facts
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
        return [failed("ncu", error.message, error.hint)]
    words = f"{tool.version_text}: {len(tool.sections)} sections, {len(metrics)} metrics of {', '.join(chips[-1:]) or 'no chip'}"
    answers = (
        passed("ncu", words) if tool.sections and metrics else failed("ncu", words, "does ncu run by hand?")
    )
    return [answers, *_counters(device, folder, str(executable))]


def _counters(device: str, folder: Path, executable: str) -> list[Outcome]:
    name = "counters"
    permission = counter_permission()
    if not device.startswith("cuda"):
        return [not_possible(name, f"{device} has no counters that ncu reads")]
    if permission.allowed is False:
        return [not_possible(name, permission.reason, permission.fix)]
    request = NcuRequest(
        executable=executable,
        folder=folder,
        workload=_program(device, folder),
        nvtx_include=(f"{SUM_RANGE}/",),
        use_nvtx=True,
        metrics=(_TIME, *_ADDITIONS),
        timeout_s=_NCU_LIMIT_S,
    )
    try:
        done = run_ncu(request)
        if done.report is None:
            words = done.fault.message if done.fault is not None else "no report was written"
            return [failed(name, words, done.fault.fix if done.fault else None, tail=done.process.tail(8))]
        return judge_counters(read_ncu(done.report))
    except InputError as error:
        return [not_possible(name, error.message, error.hint)]
    except ToolError as error:
        return [failed(name, error.message, error.hint)]


def judge_counters(captured: NcuCapture) -> list[Outcome]:
    """Every sum was profiled, took time, and did as many additions as it has elements."""
    launches = captured.launches
    words = f"{len(launches)} of {EXPECTED_SUM_KERNELS} sums profiled"
    count = passed if len(launches) == EXPECTED_SUM_KERNELS else failed
    outcomes = [count("ncu kernels", words)]
    timed = [value for launch in launches if (value := _value(launch, _TIME)) is not None]
    additions = {sum(_value(launch, metric) or 0.0 for metric in _ADDITIONS) for launch in launches}
    words = f"{sorted(additions)} additions a launch, {EXPECTED_ADDITIONS} expected; {len(timed)} launches with a time"
    right = (
        additions == {EXPECTED_ADDITIONS} and len(timed) == len(launches) and all(one > 0 for one in timed)
    )
    judged = passed("counters", words) if right else failed("counters", words, "send the bundle")
    return [*outcomes, judged]


def _value(launch: NcuLaunch, metric: str) -> float | None:
    found = launch.metrics.get(metric)
    return found.value if found is not None else None


def _program(device: str, folder: Path) -> Workload:
    argv = (sys.executable, "-m", MODULE, "work", device)
    return Workload(argv=argv, cwd=folder / "work", env=workload_environment())
