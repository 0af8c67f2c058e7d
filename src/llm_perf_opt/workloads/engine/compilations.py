"""Count compilations by ``torch.compile`` and where they happen: a compilation in a measured pass is not model time."""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from llm_perf_opt.summary import Compilations, CompiledFunction

_WARM_UP = "warmup"
_CLOCK_S = 0.01
"""The callback comes a little before or after torch's own note."""
_MOST_FUNCTIONS = 100
_MOST_TEXT = 400


@dataclass(slots=True)
class CompilationLog:
    """Compilations of one engine; its passes give their location."""

    phase: str = "other"
    """Phase that runs now."""
    warming_up: bool = False
    _found: list[tuple[str, float]] = field(default_factory=list)
    """Where (``warmup`` or the phase of a measured pass) and how long, in seconds."""
    _started: float | None = None
    _spans: list[tuple[str, float, float]] = field(default_factory=list)
    """Where, and from when to when by the clock of the day, which torch notes down too."""

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Record compilations of this pass; those of other engines in the process are ignored."""
        from torch._dynamo.callback import callback_handler

        callback_handler.register_start_callback(self._begin)
        callback_handler.register_end_callback(self._end)
        try:
            yield
        finally:
            # torch._dynamo.reset() forgets callbacks too.
            if self._begin in callback_handler.start_callbacks:
                callback_handler.remove_start_callback(self._begin)
            if self._end in callback_handler.end_callbacks:
                callback_handler.remove_end_callback(self._end)

    def _begin(self, *_: Any) -> None:
        self._started = time.perf_counter()

    def _end(self, *_: Any) -> None:
        if self._started is not None:
            place = _WARM_UP if self.warming_up else self.phase
            took = time.perf_counter() - self._started
            self._found.append((place, took))
            self._spans.append((place, time.time() - took, time.time()))
            self._started = None

    @property
    def count(self) -> int:
        """Compilations so far, in any pass."""
        return len(self._found)

    def summary(self) -> Compilations:
        """Return the counts so far."""
        warm = [seconds for place, seconds in self._found if place == _WARM_UP]
        measured = [(place, seconds) for place, seconds in self._found if place != _WARM_UP]
        return Compilations(
            warmup=len(warm),
            warmup_s=sum(warm),
            measured=len(measured),
            measured_s=sum(seconds for _, seconds in measured),
            phases=dict(Counter(place for place, _ in measured)),
            functions=self._functions(),
        )

    def _functions(self) -> list[CompiledFunction]:
        """Return the compilations that torch recorded inside ours, with their causes."""
        from torch._dynamo.utils import get_compilation_metrics

        found = []
        for one in get_compilation_metrics():
            began = one.start_time
            place = next(
                (
                    where
                    for where, start, end in self._spans
                    if began and start - _CLOCK_S <= began <= end + _CLOCK_S
                ),
                None,
            )
            if place is not None and one.co_name is not None:
                found.append(_function(one, place))
        return found[-_MOST_FUNCTIONS:]


def _function(noted: Any, where: str) -> CompiledFunction:
    cause = getattr(noted, "recompile_reason", None)  # not recorded by releases before 2.6
    return CompiledFunction(
        place=f"{noted.co_name} ({noted.co_filename}:{noted.co_firstlineno})",
        compile_id=noted.compile_id,
        seconds=noted.entire_frame_compile_time_s,
        where=where,
        recompile_cause=_first_line(cause) if cause else None,
        break_causes=[_explanation(one) for one in sorted(noted.restart_reasons or ())],
    )


def _first_line(text: str) -> str:
    return re.sub(r"^\d+/\d+: ", "", text.strip().splitlines()[0])[:_MOST_TEXT]


def _explanation(text: str) -> str:
    found = re.search(r"Explanation: (.+)", text)
    return (found[1] if found else text.strip().splitlines()[0])[:_MOST_TEXT]
