"""The most memory each phase had in use: an accelerator's allocator tells, on a CPU the kernel does."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Protocol

from llm_perf_opt.core.phases import REQUEST_PHASES, WHOLE
from llm_perf_opt.hardware.accelerator import Accelerator, open_accelerator

Peaks = dict[str, dict[str, int]]
"""Phase → ``peak_bytes`` and ``reserved_bytes``."""


class MemoryMeter(Protocol):
    """Peaks between two moments."""

    counts: Literal["allocator", "process"]

    def reset(self) -> None:
        """Forget the peak."""
        ...

    def peaks(self) -> tuple[int, int]:
        """Return the peak since then: in use, and held."""
        ...


class PhaseMemory:
    """Keeps the highest peak of every phase over all passes."""

    def __init__(self, meter: MemoryMeter) -> None:
        self.meter = meter
        self.found: Peaks = {}

    @contextlib.contextmanager
    def watch(self, phase: str) -> Iterator[None]:
        """Watch one phase; the device is idle before and after it."""
        if phase not in REQUEST_PHASES:
            yield
            return
        self.meter.reset()
        yield
        used, held = self.meter.peaks()
        for name in (phase, WHOLE):
            entry = self.found.setdefault(name, {"peak_bytes": used, "reserved_bytes": held})
            entry["peak_bytes"] = max(entry["peak_bytes"], used)
            entry["reserved_bytes"] = max(entry["reserved_bytes"], held)


class AllocatorMeter:
    """All that torch's allocator of an accelerator holds, weights included."""

    counts: Literal["allocator", "process"] = "allocator"

    def __init__(self, accelerator: Accelerator) -> None:
        """Watch a device whose allocator counts."""
        self._accelerator = accelerator

    def reset(self) -> None:
        """Begin a new peak at what is in use now."""
        self._accelerator.reset_peak()

    def peaks(self) -> tuple[int, int]:
        """Return the peaks of allocated and of reserved memory."""
        found = self._accelerator.peak_memory()
        if found is None:
            raise RuntimeError(f"the allocator of {self._accelerator.device} has ceased to count")
        return found.allocated_bytes, found.reserved_bytes


class ResidentMeter:
    """Memory of this process above what it had before the model was built."""

    counts: Literal["allocator", "process"] = "process"

    def __init__(self, proc: Path = Path("/proc/self")) -> None:
        """Take the memory of now as the ground level; :class:`OSError` where the kernel keeps no peak."""
        self._status, self._clear = proc / "status", proc / "clear_refs"
        gc.collect()
        self.reset()
        self._ground = self._high_water()

    def reset(self) -> None:
        """Make the kernel begin a new peak at the present size."""
        self._clear.write_text("5")

    def peaks(self) -> tuple[int, int]:
        """Return the peak above the ground level, and the whole."""
        whole = self._high_water()
        return max(0, whole - self._ground), whole

    def _high_water(self) -> int:
        for line in self._status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise OSError(f"{self._status} has no VmHWM")


def memory_meter(device: str) -> MemoryMeter | str:
    """Return the meter of a device; a text says why there is none. To be called before the model is built."""
    if device != "cpu":
        accelerator = open_accelerator(device)
        if accelerator.peak_memory() is None:
            return f"torch's allocator of {device} does not count what it holds"
        return AllocatorMeter(accelerator)
    try:
        return ResidentMeter()
    except OSError as error:
        return f"the kernel does not tell the peak of this process: {error}"
