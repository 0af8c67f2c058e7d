"""Checks that need torch: in a process of its own, because ``doctor`` itself never loads it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.ingest.kineto.reader import read_kineto
from llm_perf_opt.process.launch import run_process
from llm_perf_opt.runs.self_test.judge import (
    judge_clock,
    judge_device,
    judge_memory,
    judge_operators,
    judge_telemetry,
    judge_timeline,
)
from llm_perf_opt.runs.self_test.outcome import Outcome, failed, not_possible
from llm_perf_opt.vendor.workload import workload_environment

MODULE = "llm_perf_opt.runs.self_test.program"
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
    """Run the known program and judge every part it came to."""
    done = run_process(
        [sys.executable, "-m", MODULE, "look", device, str(folder)],
        log_dir=folder,
        name="look",
        timeout_s=_LIMIT_S,
        env=workload_environment(),
    )
    parts = read_parts(done.stdout)
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


def read_parts(text: str) -> dict[str, dict[str, Any]]:
    """Return part → facts of what the program printed; other lines are libraries' chatter."""
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
