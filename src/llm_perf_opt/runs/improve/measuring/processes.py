"""Measuring processes: how they are started, why they failed, what they left."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from llm_perf_opt.analysis.improve.costs import UnitPass
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.model.codec import from_plain, read_json
from llm_perf_opt.process.launch import ProcessResult
from llm_perf_opt.runs.improve.spec import FAILURE, PASSES, SIDES

LOGGER = logging.getLogger("llm_perf_opt.improve")


def worker_command(folder: Path, mode: str) -> list[str]:
    """Return the command line of a measuring process."""
    return [sys.executable, "-m", "llm_perf_opt.runs.improve.measuring.worker", str(folder), mode]


def failure_of(result: ProcessResult, folder: Path) -> str | None:
    """Say why a measuring process failed; ``None``: it did not."""
    if result.ok:
        return None
    if (folder / FAILURE).is_file():
        found = read_json(folder / FAILURE)
        side = f"side {str(found['mode']).upper()}: " if found["mode"] in SIDES else ""
        return f"{side}{found['kind']}: {found['message']}"
    if result.ended == "timeout":
        stage = "measuring" if (folder / PASSES).is_file() else "loading, compiling and warming up"
        return f"did not come to an end: {stage} took more than {result.seconds:.0f} s"
    if result.ended == "signal" and result.returncode == -9:
        return "killed by the system (signal 9): the memory probably does not hold it"
    if result.ended == "signal":
        return f"crashed (signal {-(result.returncode or 0)})"
    lines = result.tail(1)
    return f"ended with exit code {result.returncode}: {lines[-300:]}"


def read_passes(folder: Path) -> list[UnitPass]:
    """Read the passes; a last line that a crash cut off is left out."""
    path = folder / PASSES
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(from_plain(UnitPass, json.loads(line)))
        except (json.JSONDecodeError, InputError):
            LOGGER.warning("%s: a line that is not whole was left out", path)
    return found
