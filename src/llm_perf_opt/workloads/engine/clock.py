"""Time on the device: wall clock on CPU, CUDA events on a GPU. Reading the time never makes the GPU wait."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Clock(Protocol):
    """Marks in time on one device. ``synchronize`` before turning marks into seconds."""

    def mark(self) -> Any:
        """Note the moment when all work queued so far is done."""
        ...

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        ...

    def seconds(self, start: Any, end: Any) -> float:
        """Return the time between two marks."""
        ...


class CpuClock:
    """Operations end before the call returns, so the host's clock is exact."""

    def mark(self) -> float:
        """Return the host's clock."""
        return time.perf_counter()

    def synchronize(self) -> None:
        """Nothing is pending on a CPU."""

    def seconds(self, start: float, end: float) -> float:
        """Return the difference."""
        return end - start


class CudaClock:
    """Timing events in the current stream; a sync per token would drain the queue and slow what it measures."""

    def __init__(self, device: str) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        """Record an event."""
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def synchronize(self) -> None:
        """Wait for all streams of the device."""
        import torch

        torch.cuda.synchronize(self._device)

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Return the device time between two events."""
        return float(start.elapsed_time(end)) / 1e3


def clock_for(device: str) -> Clock:
    """Return the clock of a device."""
    return CudaClock(device) if device.startswith("cuda") else CpuClock()


def intervals(clock: Clock, marks: Sequence[Any]) -> list[float]:
    """Return the seconds between consecutive marks."""
    return [clock.seconds(start, end) for start, end in itertools.pairwise(marks)]
