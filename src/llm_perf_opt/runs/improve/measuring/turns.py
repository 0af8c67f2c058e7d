"""Two processes that take turns, pass by pass: for settings that a process reads when it starts.

The side that waits is stopped (SIGSTOP), so that threads which spin while they wait do not disturb the other one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from llm_perf_opt.analysis.improve.costs import UnitPass
from llm_perf_opt.analysis.improve.outputs import Answers, check_outputs
from llm_perf_opt.core.console.signals import raise_if_interrupted, settle_interruption
from llm_perf_opt.core.files import atomic_write_json, atomic_write_text
from llm_perf_opt.model.codec import decode_file, read_json, save_json
from llm_perf_opt.process.launch import ProcessResult, run_process
from llm_perf_opt.runs.improve.measuring.alternate import GivenUpError, take_turns, units_of
from llm_perf_opt.runs.improve.measuring.processes import (
    PassLimit,
    PassReader,
    failure_of,
    not_warm,
    worker_command,
)
from llm_perf_opt.runs.improve.spec import (
    ANSWERS,
    CHECK,
    LOGITS,
    READY,
    SIDES,
    STOP,
    TURN,
    Letter,
    Spec,
)

_LOOK_S = 0.01
_END_S = 20.0
"""How long a side may take to end by itself, with its files written."""


class _ClosingError(Exception):
    """Ends a process that nobody waits for."""


class _Sides:
    """Both processes, started and watched in threads of their own."""

    def __init__(self, spec: Spec, folder: Path, least_pass_s: float) -> None:
        self._folder, self._pool = folder, ThreadPoolExecutor(max_workers=len(SIDES))
        self._reader, self._limit = PassReader(folder), PassLimit(least_pass_s)
        self._asked, self._closing = 0, threading.Event()
        self._pids: dict[Letter, int] = {}
        # Their time is limited by whoever waits for them: a slow model's passes may take long, one that hangs may not.
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
        """Raise why a process is over that should not be."""
        for running in self._running.values():
            if running.done():
                raise GivenUpError(failure_of(running.result(), self._folder) or "ended before its time")
        raise_if_interrupted()

    def wait_ready(self, limit_s: float) -> None:
        """Wait until both are warm; raise why one is not."""
        began = time.monotonic()
        while not all((self._folder / READY.format(letter)).is_file() for letter in SIDES):
            self._check_running()
            if time.monotonic() - began > limit_s:
                raise GivenUpError(not_warm(limit_s))
            time.sleep(_LOOK_S)
        self._limit.warm_after(time.monotonic() - began)
        for letter in SIDES:
            self._signal(letter, signal.SIGSTOP)

    def turn(self, letter: Letter, request: Mapping[str, Any]) -> UnitPass:
        """Let one side run a unit: wake it, wait for its line, stop it; raise why there is none."""
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
        """Tell both to end and write their files; what has not ended by itself after ``end_s`` is stopped."""
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
        settle_interruption()  # both are ended now, which it is not to cut short
        raise
    finally:
        both.close(end_s)


def run_in_turns(spec: Spec, folder: Path, *, warm_up_s: float, least_pass_s: float) -> str | None:
    """Measure both sides, each in its own process; return why it failed, or ``None``."""
    try:
        with _sides(spec, folder, least_pass_s) as both:
            both.wait_ready(2 * warm_up_s)
            answers = _answers(folder)
            save_json(folder / CHECK, _check(folder, answers))
            # Other work: who reads the answers refuses it.
            if set(answers["a"].tokens) == set(answers["b"].tokens):
                _measure(spec, folder, both)
    except GivenUpError as error:
        return str(error)
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

    from llm_perf_opt.runs.improve.measuring.side import array_differences

    kept: dict[str, dict[str, Any]] = {}
    for letter in SIDES:
        path = folder / LOGITS.format(letter)
        with np.load(path) as file:
            kept[letter] = {name: list(file[name]) for name in file.files}
        path.unlink()
    return check_outputs(answers["a"], answers["b"], array_differences(kept["a"], kept["b"]))
