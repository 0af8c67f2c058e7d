"""The specification file of an experiment: written by the search, read by the measuring process."""

from __future__ import annotations

import json
import logging
import random
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from llm_perf_opt.analysis.statistics import SequentialTest
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.files import explain_os_errors, refuse_link
from llm_perf_opt.improve.costs import UnitPass, log_ratio, recompiles
from llm_perf_opt.process.launch import ProcessResult
from llm_perf_opt.remedies.data import SPEC, Metric, SearchSettings
from llm_perf_opt.summary.codec import decode_file, from_plain, read_json, save_json
from llm_perf_opt.summary.statistics import StoppingRule

PASSES = "passes.jsonl"
"""One line per pass, written when it is over: a crash loses nothing that was measured."""
FAILURE = "failure.json"
ANSWERS = "answers-{}.json"
LOGITS = "logits-{}.npz"
CHECK = "output.json"
READY = "ready-{}.json"
"""A side in a process of its own writes it once it is warm."""
TURN = "turn-{}.json"
"""Asks a waiting side for its next unit."""
STOP = "stop"
"""A file of this name in the folder tells a waiting process to end."""
Letter = Literal["a", "b"]
SIDES: tuple[Letter, Letter] = ("a", "b")


@dataclass(slots=True)
class Spec:
    """Both configurations and how to compare them."""

    a: list[str]
    """All overrides of A: the baseline, and what is kept already."""
    b: list[str]
    metric: Metric
    settings: SearchSettings
    alpha: float
    """Share of the family error."""
    limit_s: float
    """Measuring ends after this time, unless a gain is in sight by then."""
    more_s: float = 0.0
    """Further time to show a gain that is in sight."""
    widest_ratio: float | None = None
    """How narrow the interval of a gain must be, in shares of it."""
    patch: str | None = None
    """``package.module:function``, called with B's model once it is built."""
    checks_text: bool = True
    """Whether distances to references and perplexity are computed."""
    environment: dict[str, dict[str, str]] = field(default_factory=dict)
    """Side → environment variables that its process needs."""
    answer_s: float | None = None
    """What one answer of the baseline takes; ``None``: not known."""
    fixed: bool = False
    """Measure as many pairs as the settings allow, whatever the first ones show."""
    total_s: float | None = None
    """The whole experiment ends after this time, loading and warming up included; ``None``: it has no such limit."""

    def within(self, used_s: float) -> Spec:
        """Return a copy with measuring time limited to ``total_s`` minus loading and warm-up."""
        if self.total_s is None:
            return self
        left_s = max(0.0, self.total_s - used_s)
        limit_s = min(self.limit_s, left_s)
        return replace(self, limit_s=limit_s, more_s=min(self.more_s, left_s - limit_s))

    def rule(self) -> StoppingRule:
        """Return the stopping rule."""
        return self.settings.rule(self.alpha, self.widest_ratio, fixed=self.fixed)

    @property
    def longest_s(self) -> float:
        """Return the most time that measuring may take."""
        return self.limit_s + self.more_s

    def time_is_over(self, used_s: float, test: SequentialTest) -> bool:
        """Return whether measuring ends."""
        return used_s >= (self.longest_s if test.in_sight() else self.limit_s)

    def overrides(self, side: Letter) -> list[str]:
        """Return the overrides of one side."""
        return self.a if side == "a" else self.b

    def save(self, folder: Path) -> Path:
        """Write the specification into the experiment's folder."""
        return save_json(folder / SPEC, self)


def new_folder(folder: Path) -> None:
    """Make the folder of an experiment, without files of an earlier one.

    Otherwise passes of two experiments would be mixed, and old ready or stop files would be misread.
    """
    with explain_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # Folders with these names are ours only next to a specification.
        if (folder / SPEC).is_file():
            for made in (*SIDES, *(each.name for each in folder.glob("process-[0-9]*"))):
                refuse_link(folder / made)
                if (folder / made).is_dir():
                    shutil.rmtree(folder / made)
        of_sides = (name.format(letter) for name in (ANSWERS, LOGITS, READY, TURN) for letter in SIDES)
        for name in (PASSES, FAILURE, CHECK, STOP, *of_sides):
            (folder / name).unlink(missing_ok=True)


def load_spec(folder: Path) -> Spec:
    """Read the specification."""
    return decode_file(folder / SPEC, Spec)


# The order of an experiment: which side runs which unit of work next, and when to stop.


_RunUnit = Callable[[Letter, int, int], UnitPass]
"""Side, unit and round → what one pass of that unit took."""


FailureKind = Literal["memory", "budget", "other"]
"""Too little memory, the end of the time budget, or anything else."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an experiment failed: a message, and the kind for later decisions."""

    message: str
    kind: FailureKind = "other"


class GivenUpError(RuntimeError):
    """Measuring cannot continue; the message has the reason."""

    def __init__(self, message: str, kind: FailureKind = "other") -> None:
        super().__init__(message)
        self.failure = Failure(message, kind)


def take_turns(
    spec: Spec, unit_count: int, run: _RunUnit, clock: Callable[[], float] = time.monotonic
) -> SequentialTest:
    """Run the sides next to each other, A B B A or B A A B at random, until the test has a verdict; return it."""
    test, chance, began = SequentialTest(spec.rule()), random.Random(spec.settings.seed), clock()
    done: list[UnitPass] = []
    first: Letter = "a"
    turn = 0
    # Two pairs are one draw: the order of the second follows from the first, so the test never stops between them.
    while turn % 2 or not spec.time_is_over(clock() - began, test):
        unit, number = turn % unit_count, turn // unit_count
        # The second of two pairs has the opposite order, so that drift affects both sides equally.
        first = chance.choice(SIDES) if turn % 2 == 0 else _other_side(first)
        both = {letter: run(letter, unit, number) for letter in (first, _other_side(first))}
        done.extend(both.values())
        for letter in SIDES:
            if (why := recompiles(done, letter)) is not None:
                raise GivenUpError(why)
        block = log_ratio((both["a"], both["b"]), spec.metric)
        if block is None:
            raise GivenUpError(f"the metric '{spec.metric}' was not measured")
        turn += 1
        if test.add(block) is not None:
            break
    return test


def units_of(groups: Sequence[Sequence[Sequence[str]]]) -> list[list[list[int]]]:
    """Return the units of each side, as indices of its batches; a batch is given by the names of its samples.

    A batch is a unit where all sides have the same batches; otherwise all of a side's batches are one.
    """
    if all(side == groups[0] for side in groups):
        return [[[index] for index in range(len(groups[0]))] for _ in groups]
    return [[list(range(len(side)))] for side in groups]


def _other_side(letter: Letter) -> Letter:
    return "b" if letter == "a" else "a"


# Measuring processes: start, failure reasons and output files.


LOGGER = logging.getLogger("llm_perf_opt.improve")
OUT_OF_MEMORY = "out of memory"
_KILLED = "killed by the system (signal 9): it probably does not fit in memory"
OUT_OF_BUDGET = "the time budget ended before it was measured"
_OVERTIME_RATIO = 0.05
"""Share of an experiment's time that it may take longer, to end a pass that has begun and to write its files."""
LEAST_PASS_S, _PASS_FACTOR = 60.0, 20.0
"""A pass may take so many times the longest one before, and at least so long; the first as long as warming up took."""


def worker_command(folder: Path, mode: str) -> list[str]:
    """Return the command line of a measuring process."""
    return [sys.executable, "-m", "llm_perf_opt.improve.worker", str(folder), mode]


def failure_of(result: ProcessResult, folder: Path) -> Failure | None:
    """Return why a measuring process failed; ``None``: it succeeded."""
    if result.ok:
        return None
    if (folder / FAILURE).is_file():
        found = read_json(folder / FAILURE)
        side = f"side {str(found['mode']).upper()}: " if found["mode"] in SIDES else ""
        kind: FailureKind = "memory" if found["kind"] == OUT_OF_MEMORY else "other"
        return Failure(f"{side}{found['kind']}: {found['message']}", kind)
    if result.ended == "signal" and result.returncode == -9:
        return Failure(_KILLED, "memory")
    if result.ended == "signal":
        return Failure(f"crashed (signal {-(result.returncode or 0)})")
    lines = result.tail(1)
    return Failure(f"ended with exit code {result.returncode}: {lines[-300:]}")


def not_warm(limit_s: float) -> str:
    """Return the message that a side was not warm in time."""
    return f"did not come to an end: loading, compiling and warming up took more than {limit_s:.0f} s"


class PassLimit:
    """Time limit of the next pass, derived from earlier ones."""

    def __init__(self, least_s: float = LEAST_PASS_S) -> None:
        self._least_s, self._warm_up_s, self._longest_s = least_s, 0.0, 0.0

    def warm_after(self, seconds: float) -> None:
        """Record the warm-up time, which covers the same work."""
        self._warm_up_s = seconds

    def took(self, seconds: float) -> None:
        """Record a finished pass."""
        self._longest_s = max(self._longest_s, seconds)

    def check(self, seconds: float) -> None:
        """Raise :class:`GivenUpError` when the current pass takes too long."""
        known_s = _PASS_FACTOR * self._longest_s if self._longest_s else self._warm_up_s
        limit_s = max(self._least_s, known_s)
        if seconds > limit_s:
            raise GivenUpError(f"did not come to an end: a pass took more than {limit_s:.0f} s")


class HangWatch:
    """Watchdog, called regularly while a process measures both sides: raises :class:`GivenUpError` if it hangs.

    Until the answers exist, the warm-up limit applies; then each written pass resets the timer.
    """

    def __init__(
        self,
        folder: Path,
        warm_up_s: float,
        least_pass_s: float,
        clock: Callable[[], float] = time.monotonic,
        total_s: float | None = None,
    ) -> None:
        self._folder, self._warm_up_s, self._clock = folder, warm_up_s, clock
        self._limit = PassLimit(least_pass_s)
        self._warm, self._size, self._since = False, 0, clock()
        self._deadline = None if total_s is None else clock() + total_s * (1 + _OVERTIME_RATIO)

    def __call__(self, _elapsed_s: float) -> None:
        """Check once."""
        now = self._clock()
        if self._deadline is not None and now > self._deadline:
            raise GivenUpError(OUT_OF_BUDGET, "budget")
        if not self._warm:
            if (self._folder / CHECK).is_file():
                self._limit.warm_after(now - self._since)
                self._warm, self._since = True, now
            elif now - self._since > self._warm_up_s:
                raise GivenUpError(not_warm(self._warm_up_s))
            return
        path = self._folder / PASSES
        size = path.stat().st_size if path.is_file() else 0
        if size != self._size:
            self._limit.took(now - self._since)
            self._size, self._since = size, now
        self._limit.check(now - self._since)


class PassReader:
    """Reads the passes one by one, as other processes write them."""

    def __init__(self, folder: Path) -> None:
        self._path, self._offset = folder / PASSES, 0

    def next(self) -> UnitPass | None:
        """Return the next pass; ``None``: its line is not complete yet."""
        if not self._path.is_file():
            return None
        with self._path.open("rb") as stream:
            stream.seek(self._offset)
            line = stream.readline()
        if not line.endswith(b"\n"):
            return None
        self._offset += len(line)
        return from_plain(UnitPass, json.loads(line))


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
