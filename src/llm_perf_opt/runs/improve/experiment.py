"""One experiment, from specification to verdict: started in a process (or two), watched, read back.

Whatever happens to the process is a result: a crash, no memory, no end. What it measured before counts as measured.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from llm_perf_opt.analysis.improve import costs
from llm_perf_opt.analysis.improve.costs import UnitPass
from llm_perf_opt.analysis.improve.outputs import Answers, in_later_passes
from llm_perf_opt.analysis.improve.sequential import DROP_ERROR, SequentialTest
from llm_perf_opt.model.codec import decode_file
from llm_perf_opt.model.improve import Measured, OutputCheck
from llm_perf_opt.process.launch import run_process
from llm_perf_opt.runs.improve.measuring.alternate import GivenUpError
from llm_perf_opt.runs.improve.measuring.processes import (
    LEAST_PASS_S,
    HangWatch,
    failure_of,
    read_passes,
    worker_command,
)
from llm_perf_opt.runs.improve.measuring.turns import run_in_turns
from llm_perf_opt.runs.improve.spec import ANSWERS, CHECK, SIDES, Spec, new_folder

WARM_UP_S = 240.0
"""Seconds for loading, compiling and the first answers of both sides; a remedy that is not warm by then is given up."""
_ANSWERS_FACTOR, _MOST_WARM_UP_S = 4.0, 3600.0
"""The answers themselves may take so many times the baseline's, and at most so long."""
_CONFIDENCE, _RESAMPLES = 0.95, 2000
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
    warm_up_s: float | None = None,
    least_pass_s: float = LEAST_PASS_S,
    with_page: bool = True,
) -> Outcome:
    """Measure both sides; with ``own_processes`` each in one of its own, turn by turn. ``with_page``: compare them in a page.

    What is not warm after ``warm_up_s`` (by default what the baseline's answers allow), or in the same pass for
    ``least_pass_s`` and much longer than in any before it, is given up.
    """
    new_folder(folder)
    spec.save(folder)
    began = time.monotonic()
    limit_s = warm_up_limit_s(spec) if warm_up_s is None else warm_up_s
    if own_processes:
        failure = run_in_turns(spec, folder, warm_up_s=limit_s, least_pass_s=least_pass_s)
    else:
        failure = _run_in_one_process(spec, folder, HangWatch(folder, limit_s, least_pass_s))
    outcome = read_outcome(spec, folder)
    outcome.failure = failure or outcome.failure
    outcome.how = "own processes" if own_processes else "one process"
    outcome.seconds = time.monotonic() - began
    outcome.page = _compare(spec, folder) if with_page and outcome.failure is None else None
    return outcome


def warm_up_limit_s(spec: Spec) -> float:
    """Return how long both sides may take to be warm: a slow model answers each sample twice, once to warm up."""
    answers_s = (spec.answer_s or 0.0) * len(SIDES) * 2 * spec.most_samples
    return min(WARM_UP_S + _ANSWERS_FACTOR * answers_s, _MOST_WARM_UP_S)


def _run_in_one_process(spec: Spec, folder: Path, watch: HangWatch) -> str | None:
    """Let one process measure both sides, which then have the same environment; return why it failed, or ``None``."""
    try:
        result = run_process(
            worker_command(folder, "both"),
            log_dir=folder / "logs",
            name="both",
            timeout_s=None,  # the watch limits each part of the work
            env=spec.environment.get("a", {}),
            on_tick=watch,
        )
    except GivenUpError as error:
        return str(error)
    return failure_of(result, folder)


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
    if check is not None:
        check = in_later_passes(check, costs.first_others(passes))
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
