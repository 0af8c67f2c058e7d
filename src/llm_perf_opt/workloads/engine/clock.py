"""Time on the device: the host's clock on a CPU, events on an accelerator. Reading the time never makes it wait."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm_perf_opt.hardware.accelerator import Accelerator


class Clock:
    """Marks in time on one device. ``synchronize`` before turning marks into seconds.

    A mark is an event in the device's stream: a sync per token would drain the queue and slow what it measures.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    def mark(self) -> Any:
        """Note the moment when all work queued so far is done."""
        return self._accelerator.record(timed=True)

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        self._accelerator.synchronize()

    def seconds(self, start: Any, end: Any) -> float:
        """Return the time between two marks."""
        return self._accelerator.seconds(start, end)


def intervals(clock: Clock, marks: Sequence[Any]) -> list[float]:
    """Return the seconds between consecutive marks."""
    return [clock.seconds(start, end) for start, end in itertools.pairwise(marks)]
