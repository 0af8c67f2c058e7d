"""``llm-perf-opt doctor --self-test``: run every check, print the results, write the bundle."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import LlmPerfError
from llm_perf_opt.core.units import timestamp
from llm_perf_opt.core.version import __version__
from llm_perf_opt.self_test.checks import (
    collective_checks,
    engine_checks,
    ncu_checks,
    nsys_checks,
    torch_checks,
)
from llm_perf_opt.self_test.judge import Outcome, failed, judge_probe

SCHEMA = 1
_MARKS = {"passed": "passed", "failed": "FAILED", "not possible": "not possible here"}
CLAIMS = {
    "device": "run.device=auto takes the device that is there",
    "host clock": "every wall-clock time",
    "device events": "times of probes and phases on a device",
    "profiler operators": "operator tables of the torch profiler",
    "profiler FLOPs": "FLOPs by operator",
    "profiler ranges": "phases in torch traces",
    "profiler kernels": "kernel counts and their phases in torch traces",
    "memory released": "stages that load the model one after the other",
    "telemetry": "power, clocks, energy per token",
    "probe against catalogue": "MFU, MBU and floors",
    "nsys ranges": "phases in nsys captures",
    "nsys kernels": "kernel counts and their phases in nsys captures",
    "nsys graph kernels": "kernels inside CUDA graphs (cuda_graph_trace=node)",
    "nsys graph ranges": "captures of programs with CUDA graphs",
    "nsys cudaProfilerApi ranges": "captures limited to the measured passes",
    "nsys cudaProfilerApi kernels": "kernel counts of captures limited to the measured passes",
    "ncu": "the choice of sections and metrics",
    "ncu kernels": "kernels chosen by range",
    "ncu outer range": "kernels of a phase, whose ranges contain others",
    "counters": "FLOPs, intensity and classes of kernels",
    "engine eager": "times and tokens of the engine",
    "engine memory released": "captures after other stages of a run",
    "engine graphs": "model.cuda_graphs=true",
    "engine compile": "model.compile=true",
    "collective": "runs with several ranks",
}
"""Check → what of a report rests on it."""


def run_self_test(device: str, *, report: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Run all checks on a device; return the document that ``--json`` prints."""
    began, started = time.monotonic(), timestamp()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="llm-perf-opt-self-test-") as scratch:
        for title, group in _groups(device, Path(scratch)):
            report(title)
            try:
                outcomes += group()
            except LlmPerfError as error:
                outcomes.append(failed(title, error.message, error.hint))
    for outcome in outcomes:
        outcome.claim = CLAIMS.get(outcome.name, "")
    counted = Counter(outcome.status for outcome in outcomes)
    return {
        "schema": SCHEMA,
        "version": __version__,
        "started": started,
        "seconds": round(time.monotonic() - began, 1),
        "device": device,
        "passed": counted["passed"],
        "failed": counted["failed"],
        "not_possible": counted["not possible"],
        "checks": [asdict(outcome) for outcome in outcomes],
    }


def _groups(device: str, scratch: Path) -> list[tuple[str, Callable[[], list[Outcome]]]]:
    def folder(name: str) -> Path:
        made = scratch / name
        made.mkdir()
        return made

    return [
        ("torch: clocks, profiler, memory, telemetry", lambda: torch_checks(device, folder("torch"))),
        ("engine: llama_tiny", lambda: engine_checks(device, folder("engine"))),
        ("two ranks", lambda: collective_checks(device, folder("collective"))),
        ("probe", lambda: [_probe(device)]),
        ("nsys", lambda: nsys_checks(device, folder("nsys"))),
        ("ncu", lambda: ncu_checks(device, folder("ncu"))),
    ]


def _probe(device: str) -> Outcome:
    from llm_perf_opt.hardware.resolve import resolve_hardware

    return judge_probe(resolve_hardware(device))


def render(result: Mapping[str, Any]) -> str:
    """Lay the result out as text."""
    lines = [f"self-test of {result['device']} (llm-perf-opt {result['version']}, {result['seconds']} s)", ""]
    for check in result["checks"]:
        lines.append(f"{_MARKS[check['status']]:<18} {check['name']}: {check['said']}")
        if check["fix"] and check["status"] != "passed":
            lines.append(f"{'':<18} fix: {check['fix']}")
        if check["claim"] and check["status"] != "passed":
            lines.append(f"{'':<18} depends on it: {check['claim']}")
    lines += [
        "",
        f"{result['passed']} passed, {result['failed']} failed, {result['not_possible']} not possible here",
    ]
    return "\n".join(lines)
