"""One experiment, from specification to verdict: started in a process (or two), watched, read back.

Whatever happens to the process is a result: a crash, no memory, no end. What it measured before counts as measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from llm_perf_opt.analysis.improve import costs
from llm_perf_opt.analysis.improve.costs import UnitPass
from llm_perf_opt.analysis.improve.outputs import Answers
from llm_perf_opt.analysis.improve.sequential import DROP_ERROR, SequentialTest
from llm_perf_opt.core.files import explain_os_errors
from llm_perf_opt.model.codec import decode_file
from llm_perf_opt.model.improve import Measured, OutputCheck
from llm_perf_opt.process.launch import run_process
from llm_perf_opt.runs.improve.measuring.processes import failure_of, read_passes, worker_command
from llm_perf_opt.runs.improve.measuring.turns import run_in_turns
from llm_perf_opt.runs.improve.spec import ANSWERS, CHECK, SIDES, Spec

WARM_UP_S = 240.0
"""Most seconds for loading, compiling and the first answers; a remedy that is not warm by then is given up."""
_CONFIDENCE, _RESAMPLES = 0.95, 2000
_SLACK = 2.0
"""The last turn may begin just before the limit, and the files are written after it."""
How = Literal["one process", "own processes"]


@dataclass(slots=True)
class Outcome:
    """What an experiment gave."""

    measured: Measured | None
    check: OutputCheck | None
    answers: dict[str, Answers] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    total_change: float | None = None
    failure: str | None = None
    """Why it failed; what was measured before is there all the same."""
    how: How = "one process"
    seconds: float = 0.0
    page: Path | None = None
    """The comparison of both sides."""


def run_experiment(
    spec: Spec,
    folder: Path,
    *,
    own_processes: bool = False,
    warm_up_s: float = WARM_UP_S,
    on_line: Callable[[str], None] | None = None,
    with_page: bool = True,
) -> Outcome:
    """Measure both sides; with ``own_processes`` each in one of its own, turn by turn. ``with_page``: compare them in a page."""
    with explain_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    spec.save(folder)
    began = time.monotonic()
    if own_processes:
        failure = run_in_turns(spec, folder, warm_up_s=warm_up_s)
    else:
        result = run_process(
            worker_command(folder, "both"),
            log_dir=folder / "logs",
            name="both",
            timeout_s=warm_up_s + spec.longest_s * _SLACK,
            on_line=on_line,
        )
        failure = failure_of(result, folder)
    outcome = read_outcome(spec, folder)
    outcome.failure = failure or outcome.failure
    outcome.how = "own processes" if own_processes else "one process"
    outcome.seconds = time.monotonic() - began
    outcome.page = _compare(spec, folder) if with_page and outcome.failure is None else None
    return outcome


def _compare(spec: Spec, folder: Path) -> Path | None:
    """Write the comparison of both sides, with all its metrics; ``None`` where a side left no timings."""
    from llm_perf_opt.analysis.compare.compare import compare, default_method
    from llm_perf_opt.runs.compare.command import write_comparison
    from llm_perf_opt.runs.compare.sides import load_side

    if not all((folder / letter).is_dir() for letter in SIDES):
        return None
    a, b = (load_side(folder / letter, letter.upper()) for letter in SIDES)
    a.overrides = [item for item in spec.a if item not in spec.b]
    b.overrides = [item for item in spec.b if item not in spec.a]
    result = compare(a, b, [], default_method(spec.seed, _CONFIDENCE, _RESAMPLES))
    result.common_overrides = [item for item in spec.a if item in spec.b]
    return write_comparison(result, folder)[0]


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
        intervals=other_intervals(passes, spec),
        total_change=costs.total_change(passes, spec.metric),
    )


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
    verdict = verdict or test.verdict_at_the_end()
    error = max(spec.alpha, DROP_ERROR) if verdict in ("slower", "no gain") else spec.alpha
    change = test.change(error)
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
        verdict=verdict,
        confidence_ratio=1 - 2 * error,
    )


def other_intervals(passes: list[UnitPass], spec: Spec) -> dict[str, tuple[float, float]]:
    """Return the intervals of the other metrics' changes: they hold at every look, so also where this one ended the test."""
    found: dict[str, tuple[float, float]] = {}
    for name in costs.METRICS:
        test = SequentialTest(spec.rule())
        for pair in costs.pairs(passes):
            block = costs.log_ratio(pair, name)
            if block is not None:
                test.add(block)
        change = test.change(DROP_ERROR)
        if name != spec.metric and change is not None:
            low, high = sorted(costs.as_change(end, name) for end in (change.low, change.high))
            found[name] = (low, min(high, math.e**4))
    return found
