"""One experiment, from specification to verdict: started in a process (or two), watched, read back.

Every outcome of the process is a result, including a crash, lack of memory and a hang. Earlier measurements are kept.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from llm_perf_opt.analysis.statistics import (
    DROP_ERROR,
    Change,
    SequentialTest,
    over_processes,
    processes_needed,
)
from llm_perf_opt.core.console.signals import acknowledge_interruption, raise_if_interrupted
from llm_perf_opt.core.files import atomic_write_json, atomic_write_text
from llm_perf_opt.improve import costs
from llm_perf_opt.improve.costs import UnitPass
from llm_perf_opt.improve.measuring import (
    ANSWERS,
    CHECK,
    LEAST_PASS_S,
    LOGITS,
    OUT_OF_BUDGET,
    READY,
    SIDES,
    STOP,
    TURN,
    Failure,
    FailureKind,
    GivenUpError,
    HangWatch,
    Letter,
    PassLimit,
    PassReader,
    Spec,
    failure_of,
    new_folder,
    not_warm,
    read_passes,
    take_turns,
    units_of,
    worker_command,
)
from llm_perf_opt.improve.outputs import Answers, check_outputs, in_later_passes
from llm_perf_opt.process.launch import ProcessResult, run_process
from llm_perf_opt.remedies import data
from llm_perf_opt.remedies.data import Measured, OutputCheck
from llm_perf_opt.summary.codec import decode_file, read_json, save_json
from llm_perf_opt.summary.statistics import TrialVerdict

# Two processes that take turns, pass by pass: for settings that a process reads at start-up.
#
# The waiting side is stopped (SIGSTOP), so that spinning threads do not disturb the other one.


_LOOK_S = 0.01
_END_S = 20.0
"""How long a side may take to end by itself, with its files written."""


class _ClosingError(Exception):
    """Ends a process that is no longer needed."""


class _Sides:
    """Both processes, started and monitored in separate threads."""

    def __init__(self, spec: Spec, folder: Path, least_pass_s: float) -> None:
        self._folder, self._pool = folder, ThreadPoolExecutor(max_workers=len(SIDES))
        self._reader, self._limit = PassReader(folder), PassLimit(least_pass_s)
        self._asked, self._closing = 0, threading.Event()
        self._pids: dict[Letter, int] = {}
        # Time limits are applied by the caller: passes of a slow model may take long, a hang must end.
        self._running: dict[Letter, Future[ProcessResult]] = {
            letter: self._pool.submit(
                run_process,
                worker_command(folder, letter),
                log_dir=folder / "logs",
                name=letter,
                timeout_s=None,
                env=spec.environment.get(letter, {}),
                on_start=functools.partial(self._pids.__setitem__, letter),
                on_tick=self._leave_if_closing,
            )
            for letter in SIDES
        }

    def _leave_if_closing(self, _elapsed_s: float) -> None:
        if self._closing.is_set():
            raise _ClosingError

    def _check_running(self) -> None:
        """Raise with the reason if a process has ended unexpectedly."""
        for running in self._running.values():
            if running.done():
                failure = failure_of(running.result(), self._folder) or Failure("ended before its time")
                raise GivenUpError(failure.message, failure.kind)
        raise_if_interrupted()

    def wait_ready(self, limit_s: float, total_s: float | None = None) -> None:
        """Wait until both are warm; raise with the reason if one is not. ``total_s``: the remaining budget."""
        began = time.monotonic()
        while not all((self._folder / READY.format(letter)).is_file() for letter in SIDES):
            self._check_running()
            if total_s is not None and time.monotonic() - began > total_s:
                raise GivenUpError(OUT_OF_BUDGET, "budget")
            if time.monotonic() - began > limit_s:
                raise GivenUpError(not_warm(limit_s))
            time.sleep(_LOOK_S)
        self._limit.warm_after(time.monotonic() - began)
        for letter in SIDES:
            self._signal(letter, signal.SIGSTOP)

    def turn(self, letter: Letter, request: Mapping[str, Any]) -> UnitPass:
        """Let one side run a unit: wake it, wait for its line, stop it; raise with the reason if there is none."""
        self._asked += 1
        atomic_write_json(self._folder / TURN.format(letter), {"number": self._asked, **request})
        began = time.monotonic()
        self._signal(letter, signal.SIGCONT)
        while (done := self._reader.next()) is None:
            self._check_running()
            self._limit.check(time.monotonic() - began)
            time.sleep(_LOOK_S)
        self._signal(letter, signal.SIGSTOP)
        self._limit.took(time.monotonic() - began)
        return done

    def close(self, end_s: float) -> None:
        """Ask both to finish and write their files; processes still running after ``end_s`` are stopped."""
        atomic_write_text(self._folder / STOP, "")
        for letter in SIDES:
            self._signal(letter, signal.SIGCONT)
        deadline = time.monotonic() + end_s
        while not all(running.done() for running in self._running.values()) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        self._closing.set()
        self._pool.shutdown(wait=True)

    def _signal(self, letter: Letter, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if letter in self._pids and not self._running[letter].done():
                os.kill(self._pids[letter], number)


@contextlib.contextmanager
def _sides(spec: Spec, folder: Path, least_pass_s: float) -> Iterator[_Sides]:
    both = _Sides(spec, folder, least_pass_s)
    end_s = 0.0
    try:
        yield both
        end_s = _END_S
    except KeyboardInterrupt:
        acknowledge_interruption()  # both are being stopped; do not interrupt this
        raise
    finally:
        both.close(end_s)


def run_in_turns(spec: Spec, folder: Path, *, warm_up_s: float, least_pass_s: float) -> Failure | None:
    """Measure both sides, each in its own process; return why it failed, or ``None``."""
    began = time.monotonic()
    try:
        with _sides(spec, folder, least_pass_s) as both:
            both.wait_ready(2 * warm_up_s, spec.total_s)
            answers = _answers(folder)
            save_json(folder / CHECK, _check(folder, answers))
            # Different work: rejected when the answers are read.
            if set(answers["a"].tokens) == set(answers["b"].tokens):
                _measure(spec.within(time.monotonic() - began), folder, both)
    except GivenUpError as error:
        return error.failure
    return None


def _measure(spec: Spec, folder: Path, both: _Sides) -> None:
    groups = [read_json(folder / READY.format(letter))["groups"] for letter in SIDES]
    units = dict(zip(SIDES, units_of(groups), strict=True))

    def run(letter: Letter, unit: int, number: int) -> UnitPass:
        return both.turn(letter, {"unit": unit, "round": number, "batches": units[letter][unit]})

    take_turns(spec, len(units["a"]), run)


def _answers(folder: Path) -> dict[Letter, Answers]:
    return {letter: decode_file(folder / ANSWERS.format(letter), Answers) for letter in SIDES}


def _check(folder: Path, answers: dict[Letter, Answers]) -> Any:
    import numpy as np

    from llm_perf_opt.improve.worker import array_differences

    kept: dict[str, dict[str, Any]] = {}
    for letter in SIDES:
        path = folder / LOGITS.format(letter)
        with np.load(path) as file:
            kept[letter] = {name: list(file[name]) for name in file.files}
        path.unlink()
    return check_outputs(answers["a"], answers["b"], array_differences(kept["a"], kept["b"]))


WARM_UP_S = 240.0
"""Seconds for loading, compiling and the first answers of both sides; a remedy that is not warm by then is given up."""
_ANSWERS_FACTOR, _MOST_WARM_UP_S = 4.0, 3600.0
"""The answers themselves may take so many times the baseline's, and at most so long."""
_CONFIDENCE, _RESAMPLES = 0.95, 2000
_PAIRS_PER_PROCESS = 6
"""Fewest pairs of passes in each further process."""
PROCESS = "process-{}"
"""Folder of a further process in that of its experiment."""
How = Literal["one process", "own processes"]


@dataclass(slots=True)
class Outcome:
    """The result of an experiment."""

    measured: Measured | None
    check: OutputCheck | None
    answers: dict[str, Answers] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    total_change: float | None = None
    failure: str | None = None
    """Why it failed; what was measured before is there all the same."""
    failure_kind: FailureKind | None = None
    """Of a failed process; what is tried next depends on it."""
    how: How = "one process"
    seconds: float = 0.0
    page: Path | None = None
    """The comparison of both sides."""
    note: str | None = None
    """Why a gain of the test does not count; the reason of a dropped trial."""
    out_of_budget: bool = False
    """Whether the time of the search ended before anything was measured: it says nothing of the remedy."""


def run_experiment(
    spec: Spec,
    folder: Path,
    *,
    own_processes: bool = False,
    warm_up_s: float | None = None,
    least_pass_s: float = LEAST_PASS_S,
    with_page: bool = True,
) -> Outcome:
    """Measure both sides; with ``own_processes`` each in its own process, taking turns. ``with_page``: write a comparison page.

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
        failure = _run_in_one_process(
            spec, folder, HangWatch(folder, limit_s, least_pass_s, total_s=spec.total_s)
        )
    outcome = read_outcome(spec, folder)
    if failure is not None:
        outcome.failure, outcome.failure_kind = failure.message, failure.kind
    outcome.how = "own processes" if own_processes else "one process"
    limits = (limit_s, least_pass_s)
    if failure is None and outcome.measured is not None and outcome.measured.verdict == "gain":
        _repeat_in_processes(spec, folder, outcome, began, limits)
    outcome.seconds = time.monotonic() - began
    outcome.out_of_budget = outcome.failure_kind == "budget" and outcome.measured is None
    outcome.page = _compare(spec, folder) if with_page and outcome.failure is None else None
    return outcome


def _repeat_in_processes(
    spec: Spec, folder: Path, outcome: Outcome, began: float, limits: tuple[float, float]
) -> None:
    """Measure a shown gain in further processes; put their spread into its interval.

    Each process is used for several pairs. A process that the time budget cuts off is left out: fewer processes make the
    interval wider.
    """
    measured = outcome.measured
    if measured is None or spec.settings.processes < 2:
        return
    blocks = pairs_per_process(measured.blocks)
    levels: list[float] = []
    own = costs.as_log_ratio(measured.change_ratio, spec.metric)
    for number in itertools.count(2):
        if number > processes_needed([own, *levels], spec.settings.processes):
            break
        left_s = None if spec.total_s is None else spec.total_s - (time.monotonic() - began)
        if left_s is not None and left_s <= 0:
            break
        settings = replace(
            spec.settings, processes=1, most_blocks=blocks, seed=spec.settings.seed + 7919 * number
        )
        again = run_experiment(
            replace(spec, settings=settings, fixed=True, checks_text=False, total_s=left_s, more_s=0.0),
            folder / PROCESS.format(number),
            own_processes=outcome.how == "own processes",
            warm_up_s=limits[0],
            least_pass_s=limits[1],
            with_page=False,
        )
        if again.failure_kind == "budget" and again.measured is None:
            break
        if again.failure is not None and again.failure_kind != "budget":
            outcome.failure, outcome.failure_kind = (
                f"in process {number}: {again.failure}",
                again.failure_kind,
            )
            return
        if again.check is not None and again.check.tokens_equal is False and outcome.check is not None:
            outcome.check = again.check if outcome.check.tokens_equal else outcome.check
        level = costs.median_log_ratio(read_passes(folder / PROCESS.format(number)), spec.metric)
        levels += [] if level is None else [level]
    outcome.measured = with_processes(measured, levels, spec)


def pairs_per_process(blocks: int) -> int:
    """Return how many pairs each further process runs after a first one with so many."""
    return max(_PAIRS_PER_PROCESS, 2 * (blocks // 4))


def with_processes(measured: Measured, levels: list[float], spec: Spec) -> Measured:
    """Return a gain with the spread of processes in its interval; ``levels``: log ratios of the processes after the first.

    A gain that the processes do not show together becomes "not shown".
    """
    centre, *ends = (
        costs.as_log_ratio(each, spec.metric) for each in (measured.change_ratio, measured.low, measured.high)
    )
    first = Change(centre, min(ends), max(ends))
    over = over_processes(first, [centre, *levels], spec.alpha)
    low, high = sorted(costs.as_change(end, spec.metric) for end in (over.low, over.high))
    shown = over.high < math.log1p(-spec.settings.least_gain_ratio)
    return replace(
        measured,
        change_ratio=costs.as_change(over.estimate, spec.metric),
        low=low,
        high=min(high, math.e**4),
        verdict="gain" if shown else "not shown",
        processes=1 + len(levels),
        process_changes=[costs.as_change(each, spec.metric) for each in (centre, *levels)],
    )


def warm_up_limit_s(spec: Spec) -> float:
    """Return the time limit for warming up both sides: each sample is answered twice, once to warm up."""
    answers_s = (spec.answer_s or 0.0) * len(SIDES) * 2 * spec.settings.most_samples
    return min(WARM_UP_S + _ANSWERS_FACTOR * answers_s, _MOST_WARM_UP_S)


def _run_in_one_process(spec: Spec, folder: Path, watch: HangWatch) -> Failure | None:
    """Measure both sides in one process with the same environment; return the reason for a failure, or ``None``."""
    try:
        result = run_process(
            worker_command(folder, "both"),
            log_dir=folder / "logs",
            name="both",
            timeout_s=None,  # the watchdog limits each part of the work
            env=spec.environment.get("a", {}),
            on_tick=watch,
        )
    except GivenUpError as error:
        return error.failure
    return failure_of(result, folder)


def _compare(spec: Spec, folder: Path) -> Path | None:
    """Write the comparison of both sides, with all its metrics; ``None`` where a side left no timings."""
    from llm_perf_opt.compare.command import write_comparison
    from llm_perf_opt.compare.compare import compare, default_method
    from llm_perf_opt.compare.sides import load_side

    if not all((folder / letter).is_dir() for letter in SIDES):
        return None
    a, b = (load_side(folder / letter, letter.upper()) for letter in SIDES)
    a.overrides = [item for item in spec.a if item not in spec.b]
    b.overrides = [item for item in spec.b if item not in spec.a]
    result = compare(a, b, [], default_method(spec.settings.seed, _CONFIDENCE, _RESAMPLES))
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
        intervals=_other_intervals(passes, spec),
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
    a, b = (costs.medians(passes, letter, spec.metric) for letter in SIDES)
    return as_measured(test, verdict or test.verdict_at_the_end(), a, b, spec)


def as_measured(
    test: SequentialTest, verdict: TrialVerdict, a: float | None, b: float | None, spec: Spec
) -> Measured | None:
    """Return what a test found, with the medians of both sides; ``None`` without a pair."""
    error = max(spec.alpha, DROP_ERROR) if verdict in ("slower", "no gain") else spec.alpha
    change = test.change(error)
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


def _other_intervals(passes: list[UnitPass], spec: Spec) -> dict[str, tuple[float, float]]:
    """Return the intervals of the other metrics' changes: they are valid at every look, so also where this metric ended the test."""
    found: dict[str, tuple[float, float]] = {}
    for name in data.METRICS:
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
