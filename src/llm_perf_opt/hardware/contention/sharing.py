"""Who else used a device while it was measured: other programs on the processor cores, other processes on the GPU."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from llm_perf_opt.core import units
from llm_perf_opt.hardware.contention.gpu_programs import (
    Programs,
    gpu_programs,
    has_library,
    is_own,
    numbers_are_the_drivers,
    query_tool,
)
from llm_perf_opt.hardware.contention.processor_load import (
    UNDER_LOAD_RATIO,
    ProcessorTime,
    other_load_ratio,
    processor_time,
)

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_WHOLE_NAME = re.compile(r"(GPU|MIG)-\S+")
_LEAST_WATCHED_S = 0.5
"""The processor's account has ticks of a hundredth of a second: less is too short to tell."""


@dataclass(frozen=True, slots=True)
class Use:
    """What was seen of others."""

    others_ratio: float | None = None
    """Share of the processor's time, or of the looks at a GPU at which others were there; ``None``: not known."""
    words: str | None = None
    """What they did; ``None``: nothing worth saying."""


class CpuWatch:
    """Tells how much of the cores other programs used since it was made."""

    def __init__(self) -> None:
        self._before = processor_time()
        self._children_s = _children_s()

    def use(self) -> Use:
        """Look again; programs this process started and waited for count as its own."""
        after = processor_time()
        if self._before is None or after is None or after.clock_s - self._before.clock_s < _LEAST_WATCHED_S:
            return Use()
        own_s = after.own_s + _children_s() - self._children_s
        ratio = other_load_ratio(self._before, ProcessorTime(after.all_s, own_s, after.clock_s, after.cores))
        if ratio is None or ratio <= UNDER_LOAD_RATIO:
            return Use(ratio)
        return Use(ratio, f"other processes used {units.percent(ratio)} of the processor")


@dataclass(slots=True)
class _Seen:
    """What the looks at one GPU told."""

    looks: int = 0
    with_others: int = 0
    most: int = 0
    """Others at one look."""
    anybody: bool = False
    """Whether any process was listed, be it our own."""
    others: Programs = field(default_factory=dict)


class GpuWatch:
    """Tells at which looks other processes were on GPUs: when it is made, whenever it is asked to look, and in the end."""

    def __init__(self, *names: str, root: int | None = None) -> None:
        """``root``: the process whose programs are this run's; by default this one."""
        self._root = root
        self._lock = threading.Lock()
        self._seen = {name: _Seen() for name in names}
        self._known: dict[str, Programs] | None = None
        if not numbers_are_the_drivers():
            # Which of the numbers is ours cannot be told: whoever is there before us is another.
            there = gpu_programs(names) if not _uses_gpu() else {}
            self._known = {name: programs for name, programs in there.items() if programs is not None}
        self.look()

    @property
    def looks_cheaply(self) -> bool:
        """Whether a look starts no program, and so may be taken while something is measured."""
        return has_library()

    def look(self) -> None:
        """Look once more; from any thread."""
        with self._lock:
            for name, programs in gpu_programs(list(self._seen)).items():
                others = None if programs is None else self._others(name, programs)
                if others is None:
                    continue
                seen = self._seen[name]
                seen.looks += 1
                seen.anybody |= bool(programs)
                seen.with_others += bool(others)
                seen.most = max(seen.most, len(others))
                seen.others.update(others)

    def use(self) -> Use:
        """Look a last time, and say what was seen."""
        self.look()
        # Drivers list nobody to some containers: there an empty list is no answer.
        told = [seen for seen in self._seen.values() if seen.looks and (self._known is None or seen.anybody)]
        ratios = [seen.with_others / seen.looks for seen in told]
        words = "; ".join(self._words(name, seen) for name, seen in self._seen.items() if seen.with_others)
        if not words and len(ratios) < len(self._seen):
            return Use()  # of one of them nothing is known
        return Use(max(ratios, default=None), words or None)

    def _others(self, name: str, programs: Programs) -> Programs | None:
        if self._known is None:
            return {pid: program for pid, program in programs.items() if not is_own(pid, self._root)}
        if name not in self._known:
            return None
        return {pid: program for pid, program in programs.items() if pid in self._known[name]}

    def _words(self, name: str, seen: _Seen) -> str:
        named = ", ".join(f"{program} {pid}".strip() for pid, program in list(seen.others.items())[:4])
        which = f"the GPU {name}" if len(self._seen) > 1 else "the GPU"
        who = f"{seen.most} other process{'es' if seen.most > 1 else ''}"
        return f"{who} ({named}) used {which}, seen at {seen.with_others} of {seen.looks} looks"


def _uses_gpu() -> bool:
    """Whether this process has a context on a GPU already: from an earlier run in the same process."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def _children_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def gpu_name(index: int) -> str:
    """Return the UUID of CUDA device ``index`` as this process sees it; without a driver's tool, its number."""
    return gpu_names([index])[0]


def gpu_names(indices: Iterable[int]) -> list[str]:
    """Return the UUIDs of CUDA devices as this process sees them; without a driver's tool, their numbers."""
    visible = _visible()
    chosen = [visible[index] if index < len(visible) else str(index) for index in indices]
    whole = [_WHOLE_NAME.fullmatch(name) is not None for name in chosen]
    listed = {} if all(whole) else _uuids()
    return [
        name if is_whole else listed.get(name, f"gpu {name}")
        for name, is_whole in zip(chosen, whole, strict=True)
    ]


def allotted_gpus() -> list[str]:
    """Return the GPUs that were given to this process (an engine sets ``CUDA_VISIBLE_DEVICES``) and are there."""
    visible = _visible()
    listed = _uuids() if visible else {}
    found = [part if _WHOLE_NAME.fullmatch(part) else listed.get(part) for part in visible]
    return sorted({name for name in found if name is not None})


def _visible() -> list[str]:
    return [part.strip() for part in os.environ.get(_VISIBLE, "").split(",") if part.strip()]


def _uuids() -> dict[str, str]:
    return {row[0]: row[1] for row in query_tool("index,uuid")}
