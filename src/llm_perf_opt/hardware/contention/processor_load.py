"""How much of the processor other programs use while something is measured.

A ceiling measured beside other work is too low. The load average cannot tell: it looks a minute back and counts this
program's own work too. So the processor's own account of its time is read before and after, and what was ours taken off.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

UNDER_LOAD_RATIO = 0.10
"""Share of the processor's time from which other programs count as a load; a quiet machine has one or two percent."""

_BUSY_LOAD_PER_CORE = 0.75
_WORKING_COLUMNS = (0, 1, 2, 5, 6, 7)
"""user, nice, system, irq, softirq and steal of a line of ``/proc/stat``; idle and waiting for disks are left out."""


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """Where the processor's time went, up to one moment."""

    all_s: float
    """Work of all programs on the cores this one may use, other tenants of the machine included."""
    own_s: float
    """Work of this process, all threads."""
    clock_s: float
    cores: int


def processor_time(stat: Path = Path("/proc/stat")) -> ProcessorTime | None:
    """Read the account; ``None`` on a system that keeps none."""
    try:
        lines = stat.read_text(encoding="ascii").splitlines()
        tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    usable = {f"cpu{core}" for core in os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else None
    ticks = cores = 0
    for line in lines:
        name, *columns = line.split()
        if not name.startswith("cpu") or name == "cpu" or (usable is not None and name not in usable):
            continue
        ticks += sum(int(columns[place]) for place in _WORKING_COLUMNS if place < len(columns))
        cores += 1
    return ProcessorTime(ticks * tick_s, time.process_time(), time.monotonic(), cores) if cores else None


def other_load_ratio(before: ProcessorTime | None, after: ProcessorTime | None) -> float | None:
    """Return the share of the processor's time that others took between two readings; ``None`` when not known."""
    if before is None or after is None or after.clock_s <= before.clock_s:
        return None
    others_s = (after.all_s - before.all_s) - (after.own_s - before.own_s)
    return min(1.0, max(0.0, others_s / ((after.clock_s - before.clock_s) * after.cores)))


def machine_is_idle(look_s: float = 0.2) -> bool:
    """Tell whether nobody else uses the processor right now; this takes ``look_s``. ``False`` when not known."""
    before = processor_time()
    time.sleep(look_s)
    ratio = other_load_ratio(before, processor_time())
    return ratio is not None and ratio <= UNDER_LOAD_RATIO


def machine_is_busy(cores: int) -> bool:
    """Tell whether the processor was in use in the last minute, by whomever: for systems without an account."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > _BUSY_LOAD_PER_CORE * cores
