"""Count what ``torch.compile`` compiles, with where it fell: a compilation in a measured pass is no time of the model."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from llm_perf_opt.summary import Compilations

_WARM_UP = "warmup"


@dataclass(slots=True)
class CompilationLog:
    """Compilations of one engine; its passes say where they are."""

    phase: str = "other"
    """Phase that runs now."""
    warming_up: bool = False
    _found: list[tuple[str, float]] = field(default_factory=list)
    """Where (``warmup`` or the phase of a measured pass) and how long, in seconds."""
    _started: float | None = None

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Notice compilations of this pass; those of other engines in the process are not ours."""
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
            self._found.append((place, time.perf_counter() - self._started))
            self._started = None

    @property
    def count(self) -> int:
        """Compilations so far, wherever they fell."""
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
        )
