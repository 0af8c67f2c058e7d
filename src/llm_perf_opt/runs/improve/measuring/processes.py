"""Measuring processes: how they are started, why they failed, what they left."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path

from llm_perf_opt.analysis.improve.costs import UnitPass
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.model.codec import from_plain, read_json
from llm_perf_opt.process.launch import ProcessResult
from llm_perf_opt.runs.improve.measuring.alternate import GivenUpError
from llm_perf_opt.runs.improve.spec import CHECK, FAILURE, PASSES, SIDES

LOGGER = logging.getLogger("llm_perf_opt.improve")
OUT_OF_MEMORY = "out of memory"
_KILLED = "killed by the system (signal 9): the memory probably does not hold it"
LEAST_PASS_S, _PASS_FACTOR = 60.0, 20.0
"""A pass may take so many times the longest one before, and at least so long; the first as long as warming up took."""


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
    if result.ended == "signal" and result.returncode == -9:
        return _KILLED
    if result.ended == "signal":
        return f"crashed (signal {-(result.returncode or 0)})"
    lines = result.tail(1)
    return f"ended with exit code {result.returncode}: {lines[-300:]}"


def lacks_memory(failure: str | None) -> bool:
    """Return whether a failure (:func:`failure_of`) is one of too little memory."""
    return failure is not None and (OUT_OF_MEMORY in failure or _KILLED in failure)


def not_warm(limit_s: float) -> str:
    """Say that a side was not warm in time."""
    return f"did not come to an end: loading, compiling and warming up took more than {limit_s:.0f} s"


class PassLimit:
    """How long the next pass may take, by those before it."""

    def __init__(self, least_s: float = LEAST_PASS_S) -> None:
        self._least_s, self._warm_up_s, self._longest_s = least_s, 0.0, 0.0

    def warm_after(self, seconds: float) -> None:
        """Take note of how long warming up took: the same work was done in it."""
        self._warm_up_s = seconds

    def took(self, seconds: float) -> None:
        """Take note of a pass that is over."""
        self._longest_s = max(self._longest_s, seconds)

    def check(self, seconds: float) -> None:
        """Raise :class:`GivenUpError` when a pass that is not over has taken too long."""
        known_s = _PASS_FACTOR * self._longest_s if self._longest_s else self._warm_up_s
        limit_s = max(self._least_s, known_s)
        if seconds > limit_s:
            raise GivenUpError(f"did not come to an end: a pass took more than {limit_s:.0f} s")


class HangWatch:
    """Called now and then while a process measures both sides: raises :class:`GivenUpError` when it no longer goes on.

    Until the answers are there it has the time for warming up; then each pass that is written is a sign of life.
    """

    def __init__(
        self,
        folder: Path,
        warm_up_s: float,
        least_pass_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._warm_up_s, self._clock = folder, warm_up_s, clock
        self._limit = PassLimit(least_pass_s)
        self._warm, self._size, self._since = False, 0, clock()

    def __call__(self, _elapsed_s: float) -> None:
        """Look once."""
        now = self._clock()
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
        """Return the next pass; ``None``: its line is not there yet, or not whole."""
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
