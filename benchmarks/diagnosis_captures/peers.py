"""What other tools say of the same files: HolisticTraceAnalysis of torch traces, nsys-ai of nsys exports.

Each runs in a process of its own, in a folder of its own, because both write beside their input or at home.
A tool that fails has no answer, and that is what is said.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LIMIT_S = 120.0
MOST_LABELS = 3

HTA_PROGRAM = """
import json, logging, sys, warnings
logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files=dict(enumerate(sys.argv[2:])), trace_dir=sys.argv[1])
parts = analysis.get_temporal_breakdown(visualize=False)
overlap = analysis.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].mean()
idle = analysis.get_idle_time_breakdown(ranks=[0], visualize=False)[0]
waits = idle[idle["idle_category"] == "host_wait"]["idle_time"].sum() / max(idle["idle_time"].sum(), 1)
print("ANSWER" + json.dumps({
    "idle": parts["idle_time_pctg"].mean(), "compute": parts["compute_time_pctg"].mean(),
    "other": parts["non_compute_time_pctg"].mean(), "overlap": None if overlap != overlap else overlap,
    "host_wait": 100 * waits,
}, default=float))
"""


def ask_peer(python: Path, format_: str, files: Sequence[Path]) -> str:
    """Ask the tool that reads this format."""
    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(shutil.copy(path, folder)) for path in files]
        if format_ == "nsys":
            return _nsys_ai(python, Path(folder), copies)
        return _hta(python, Path(folder), copies)


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str] | None:
    environment = os.environ | {"HOME": str(folder)}
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=folder, env=environment
        )
    except subprocess.TimeoutExpired:
        return None


def _last_line(done: subprocess.CompletedProcess[str] | None) -> str:
    if done is None:
        return f"no answer within {LIMIT_S:.0f} s"
    lines = done.stderr.strip().splitlines() or done.stdout.strip().splitlines()
    return f"no answer ({lines[-1][:90]})" if lines else f"no answer (exit code {done.returncode})"


def _hta(python: Path, folder: Path, files: Sequence[Path]) -> str:
    done = _run([str(python), "-c", HTA_PROGRAM, str(folder), *map(str, files)], folder)
    if done is None or "ANSWER" not in done.stdout:
        return f"HTA: {_last_line(done)}"
    answer: dict[str, Any] = json.loads(done.stdout.split("ANSWER", 1)[1])
    overlapped = (
        "" if answer["overlap"] is None else f", {answer['overlap']:.0f} % of communication overlapped"
    )
    return (
        f"HTA: idle {answer['idle']:.0f} % (host wait {answer['host_wait']:.0f} % of streams' idle), compute "
        f"{answer['compute']:.0f} %, other kernels alone {answer['other']:.0f} %{overlapped}"
    )


def _nsys_ai(python: Path, folder: Path, files: Sequence[Path]) -> str:
    """It reads one export at a time: the first rank's."""
    command = [str(python.parent / "nsys-ai"), "diagnose", str(files[0]), "--format", "json"]
    done = _run(command, folder)
    start = done.stdout.find("{") if done is not None else -1
    if done is None or start < 0:
        return f"nsys-ai: {_last_line(done)}"
    try:
        findings = json.loads(done.stdout[start:])["findings"]
    except (ValueError, KeyError):
        return f"nsys-ai: {_last_line(done)}"
    serious = [one["label"] for one in findings if one.get("severity") in ("warning", "critical")]
    said = list({label.split(" (")[0]: label[:70] for label in reversed(serious)}.values())[::-1]
    path = [one["note"][:70] for one in findings if one.get("id", "").startswith("critical_path")]
    return "nsys-ai: " + ("; ".join([*path[:1], *said[:MOST_LABELS]]) or "nothing")
