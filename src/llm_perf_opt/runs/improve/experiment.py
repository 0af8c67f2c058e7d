"""One experiment, from specification to verdict: started in a process (or two), watched, read back.

Whatever happens to the process is a result: a crash, no memory, no end. What it measured before counts as measured.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from llm_perf_opt.analysis.improve import costs
from llm_perf_opt.analysis.improve.costs import UnitPass
from llm_perf_opt.analysis.improve.outputs import Answers
from llm_perf_opt.analysis.improve.sequential import SequentialTest
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.files import explain_os_errors
from llm_perf_opt.model.codec import decode_file, from_plain, read_json
from llm_perf_opt.model.improve import Measured, OutputCheck
from llm_perf_opt.process.launch import ProcessResult, run_process
from llm_perf_opt.runs.improve.spec import ANSWERS, CHECK, FAILURE, PASSES, SIDES, Spec

LOGGER = logging.getLogger("llm_perf_opt.improve")
WARM_UP_S = 240.0
"""Most seconds for loading, compiling and the first answers; a remedy that is not warm by then is given up."""
How = Literal["one process", "own processes"]


@dataclass(slots=True)
class Outcome:
    """What an experiment gave."""

    measured: Measured | None
    check: OutputCheck | None
    answers: dict[str, Answers] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    total_change: float | None = None
    failure: str | None = None
    """Why it failed; what was measured before is there all the same."""
    how: How = "one process"
    seconds: float = 0.0


def run_experiment(
    spec: Spec,
    folder: Path,
    *,
    own_processes: bool = False,
    warm_up_s: float = WARM_UP_S,
    on_line: Callable[[str], None] | None = None,
) -> Outcome:
    """Measure both sides; with ``own_processes`` each in one of its own, turn by turn."""
    with explain_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    spec.save(folder)
    began = time.monotonic()
    if own_processes:
        from llm_perf_opt.runs.improve.turns import run_in_turns

        failure = run_in_turns(spec, folder, warm_up_s=warm_up_s)
    else:
        result = run_process(
            worker_command(folder, "both"),
            log_dir=folder / "logs",
            name="both",
            timeout_s=warm_up_s + spec.limit_s * 1.5 + 30,
            on_line=on_line,
        )
        failure = failure_of(result, folder)
    outcome = read_outcome(spec, folder)
    outcome.failure = failure or outcome.failure
    outcome.how = "own processes" if own_processes else "one process"
    outcome.seconds = time.monotonic() - began
    return outcome


def worker_command(folder: Path, mode: str) -> list[str]:
    """Return the command line of a measuring process."""
    return [sys.executable, "-m", "llm_perf_opt.runs.improve.worker", str(folder), mode]


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


def read_outcome(spec: Spec, folder: Path) -> Outcome:
    """Read what was measured, in this process or an earlier one."""
    passes = read_passes(folder)
    check = decode_file(folder / CHECK, OutputCheck) if (folder / CHECK).is_file() else None
    answers: dict[str, Answers] = {
        letter: decode_file(folder / ANSWERS.format(letter), Answers)
        for letter in SIDES
        if (folder / ANSWERS.format(letter)).is_file()
    }
    return Outcome(
        measured=measure(passes, spec),
        check=check,
        answers=answers,
        metrics=costs.other_changes(passes, spec.metric),
        total_change=costs.total_change(passes, spec.metric),
    )


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


def measure(passes: list[UnitPass], spec: Spec) -> Measured | None:
    """Run the test over the passes, in their order; ``None`` without a pair."""
    test = SequentialTest(spec.rule())
    verdict = None
    for pair in costs.pairs(passes):
        block = costs.log_ratio(pair, spec.metric)
        if block is None:
            continue
        verdict = test.add(block)
        if verdict is not None:
            break
    change = test.change()
    a, b = (costs.medians(passes, letter, spec.metric) for letter in SIDES)
    if change is None or a is None or b is None:
        return None
    ends = sorted(costs.as_change(end, spec.metric) for end in (change.low, change.high))
    return Measured(
        change_ratio=costs.as_change(change.estimate, spec.metric),
        low=ends[0],
        high=min(ends[1], math.e**4),
        blocks=test.count,
        a=a,
        b=b,
        verdict=verdict or "not shown",
        confidence_ratio=1 - 2 * spec.alpha,
    )
