"""Two processes that take turns, pass by pass: for settings that a process reads when it starts.

The side that waits is stopped (SIGSTOP), so that threads which spin while they wait do not disturb the other one.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from llm_perf_opt.analysis.improve.costs import log_ratio, pairs, recompiles
from llm_perf_opt.analysis.improve.outputs import Answers, check_outputs
from llm_perf_opt.analysis.improve.sequential import SequentialTest
from llm_perf_opt.core.console.signals import raise_if_interrupted
from llm_perf_opt.core.files import atomic_write_json, atomic_write_text
from llm_perf_opt.model.codec import decode_file, read_json, save_json
from llm_perf_opt.process.launch import ProcessResult, run_process
from llm_perf_opt.runs.improve.measuring.processes import failure_of, read_passes, worker_command
from llm_perf_opt.runs.improve.spec import (
    ANSWERS,
    CHECK,
    LOGITS,
    PASSES,
    READY,
    SIDES,
    STOP,
    TURN,
    Letter,
    Spec,
)

_LOOK_S = 0.01
_END_S = 20.0
_TURN_FACTOR, _LEAST_TURN_S = 20.0, 60.0
"""A turn may take so many times the longest one before, and at least so long."""


class _Sides:
    """Both processes, started and watched in threads of their own."""

    def __init__(self, spec: Spec, folder: Path, limit_s: float) -> None:
        self._folder, self._pool = folder, ThreadPoolExecutor(max_workers=len(SIDES))
        self._pids: dict[Letter, int] = {}
        self._running: dict[Letter, Future[ProcessResult]] = {
            letter: self._pool.submit(
                run_process,
                worker_command(folder, letter),
                log_dir=folder / "logs",
                name=letter,
                timeout_s=limit_s,
                env=spec.environment.get(letter, {}),
            )
            for letter in SIDES
        }

    def failure(self) -> str | None:
        """Say why a process is over that should not be."""
        for running in self._running.values():
            if running.done():
                return failure_of(running.result(), self._folder) or "ended before its time"
        return None

    def wait_ready(self, limit_s: float) -> str | None:
        """Wait until both are warm; return why one is not."""
        began = time.monotonic()
        while not all((self._folder / READY.format(letter)).is_file() for letter in SIDES):
            if (found := self.failure()) is not None:
                return found
            if time.monotonic() - began > limit_s:
                return f"did not come to an end: loading, compiling and warming up took more than {limit_s:.0f} s"
            raise_if_interrupted()
            time.sleep(_LOOK_S)
        for letter in SIDES:
            self._pids[letter] = int(read_json(self._folder / READY.format(letter))["pid"])
            self._signal(letter, signal.SIGSTOP)
        return None

    def turn(self, letter: Letter, request: Mapping[str, Any], done: int, limit_s: float) -> str | None:
        """Let one side run a unit: wake it, wait for its line, stop it; return why there was none."""
        atomic_write_json(self._folder / TURN.format(letter), dict(request))
        self._signal(letter, signal.SIGCONT)
        began = time.monotonic()
        while _lines(self._folder) <= done:
            if (found := self.failure()) is not None:
                return found
            if time.monotonic() - began > limit_s:
                return f"did not come to an end: a pass took more than {limit_s:.0f} s"
            raise_if_interrupted()
            time.sleep(_LOOK_S)
        self._signal(letter, signal.SIGSTOP)
        return None

    def close(self) -> None:
        """Tell both to end, and wait until they have."""
        atomic_write_text(self._folder / STOP, "")
        for letter in self._pids:
            self._signal(letter, signal.SIGCONT)
        deadline = time.monotonic() + _END_S
        while not all(running.done() for running in self._running.values()) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        for letter, running in self._running.items():
            if not running.done() and letter in self._pids:
                self._signal(letter, signal.SIGKILL)
        self._pool.shutdown(wait=True)

    def _signal(self, letter: Letter, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if not self._running[letter].done():
                os.kill(self._pids[letter], number)


@contextlib.contextmanager
def _sides(spec: Spec, folder: Path, limit_s: float) -> Iterator[_Sides]:
    both = _Sides(spec, folder, limit_s)
    try:
        yield both
    finally:
        both.close()


def run_in_turns(spec: Spec, folder: Path, *, warm_up_s: float) -> str | None:
    """Measure both sides, each in its own process; return why it failed, or ``None``."""
    with _sides(spec, folder, 2 * warm_up_s + 2 * spec.longest_s + _END_S) as both:
        if (failed := both.wait_ready(2 * warm_up_s)) is not None:
            return failed
        answers = _answers(folder)
        save_json(folder / CHECK, _check(folder, answers))
        if set(answers["a"].tokens) != set(answers["b"].tokens):
            return None  # other work: who reads the answers refuses it
        return _measure(spec, folder, both)


def _measure(spec: Spec, folder: Path, both: _Sides) -> str | None:
    units = _units(folder)
    test, chance, began = SequentialTest(spec.rule()), random.Random(spec.seed), time.monotonic()
    first: Letter = "a"
    turns = asked = 0
    longest_s = 0.0
    while not spec.time_is_over(time.monotonic() - began, test):
        unit, number = turns % len(units["a"]), turns // len(units["a"])
        first = chance.choice(SIDES) if turns % 2 == 0 else _other(first)
        for letter in (first, _other(first)):
            asked += 1
            request = {"number": asked, "unit": unit, "round": number, "batches": units[letter][unit]}
            started = time.monotonic()
            failed = both.turn(letter, request, asked - 1, max(_LEAST_TURN_S, _TURN_FACTOR * longest_s))
            if failed is not None:
                return failed
            longest_s = max(longest_s, time.monotonic() - started)
        turns += 1
        passes = read_passes(folder)
        if (again := next(filter(None, (recompiles(passes, letter) for letter in SIDES)), None)) is not None:
            return again
        block = log_ratio(pairs(passes)[-1], spec.metric)
        if block is None:
            return f"the metric '{spec.metric}' was not measured"
        if test.add(block) is not None:
            return None
    return None


def _units(folder: Path) -> dict[Letter, list[list[int]]]:
    """Return each side's units, as in one process: single batches where both have the same."""
    groups: dict[Letter, list[list[str]]] = {
        letter: read_json(folder / READY.format(letter))["groups"] for letter in SIDES
    }
    if groups["a"] == groups["b"]:
        return {letter: [[index] for index in range(len(groups["a"]))] for letter in SIDES}
    return {letter: [list(range(len(groups[letter])))] for letter in SIDES}


def _answers(folder: Path) -> dict[Letter, Answers]:
    return {letter: decode_file(folder / ANSWERS.format(letter), Answers) for letter in SIDES}


def _check(folder: Path, answers: dict[Letter, Answers]) -> Any:
    import numpy as np

    from llm_perf_opt.runs.improve.measuring.side import array_differences

    kept: dict[str, dict[str, Any]] = {}
    for letter in SIDES:
        path = folder / LOGITS.format(letter)
        with np.load(path) as file:
            kept[letter] = {name: list(file[name]) for name in file.files}
        path.unlink()
    return check_outputs(answers["a"], answers["b"], array_differences(kept["a"], kept["b"]))


def _lines(folder: Path) -> int:
    path = folder / PASSES
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def _other(letter: Letter) -> Letter:
    return "b" if letter == "a" else "a"
