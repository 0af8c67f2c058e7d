"""Who owns idle time: what the thread that feeds a device was inside of, by name.

Names are looked up at points of the longest stretches, not for every nanosecond: a part that is made of a million
short gaps has one cause, and a hundred of them tell it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from llm_perf_opt.analysis.idle.host_names import (
    is_bookkeeping,
    is_compiling,
    is_data_frame,
    is_data_loading,
    is_rank_wait,
    is_tokenising,
)
from llm_perf_opt.analysis.idle.open_spans import Open, OpenSpans
from llm_perf_opt.analysis.intervals import IntervalSet, intersect
from llm_perf_opt.model.summary.parallel import IdleOwner, OwnerKind
from llm_perf_opt.model.timeline import Int64, Timeline

_MOST_STRETCHES = 64
_MANY_PIECES = 8192
_POINTS = 8
"""Points looked at in each stretch: a name that holds a quarter of one is not missed."""
_FRAMES_SHOWN = 8
_BETWEEN_KERNELS_NS = 20_000


@dataclass(frozen=True, slots=True)
class Stretches:
    """Pieces of idle time of one part, and the thread that owns each."""

    start: Int64
    end: Int64
    thread: Int64

    def longest(self) -> Stretches:
        """Keep the longest ones."""
        order = np.argsort(-(self.end - self.start), kind="stable")[:_MOST_STRETCHES]
        return Stretches(self.start[order], self.end[order], self.thread[order])


def stretches(part: IntervalSet, window: IntervalSet, gap_start: Int64, gap_thread: Int64) -> Stretches:
    """Cut a part to a window; each piece belongs to the thread of the gap it lies in."""
    pieces = intersect(_longest_pieces(part), window)
    if not len(pieces) and len(part) > _MANY_PIECES:
        pieces = intersect(part, window)
    if not len(pieces) or not len(gap_start):
        empty = np.empty(0, np.int64)
        return Stretches(empty, empty, empty)
    gap = np.maximum(np.searchsorted(gap_start, pieces.start, side="right") - 1, 0)
    return Stretches(pieces.start, pieces.end, gap_thread[gap])


def _longest_pieces(part: IntervalSet) -> IntervalSet:
    """Of a very large set only the longest intervals: no more are looked at anyway."""
    if len(part) <= _MANY_PIECES:
        return part
    longest = np.sort(np.argpartition(part.start - part.end, _MANY_PIECES)[:_MANY_PIECES])
    return IntervalSet(part.start[longest], part.end[longest])


def joined(parts: list[Stretches]) -> Stretches:
    """Put the stretches of several devices together."""
    return Stretches(
        np.concatenate([one.start for one in parts]),
        np.concatenate([one.end for one in parts]),
        np.concatenate([one.thread for one in parts]),
    )


@dataclass(slots=True)
class HostActivity:
    """Who owns idle time; threads are looked at when asked for."""

    timeline: Timeline
    open: OpenSpans = field(init=False)

    def __post_init__(self) -> None:
        self.open = OpenSpans(self.timeline)

    def owner(self, part: str, pieces: Stretches) -> IdleOwner | None:
        """Return who owns most of these stretches; ``None`` when there are none."""
        if not len(pieces.start):
            return None
        longest = pieces.longest()
        if part == "queue":
            mean_ns = (longest.end - longest.start).mean()
            return IdleOwner("between kernels" if mean_ns <= _BETWEEN_KERNELS_NS else "queued work")
        seconds: Counter[tuple[OwnerKind, str | None, int]] = Counter()
        for start, end, thread in zip(
            longest.start.tolist(), longest.end.tolist(), longest.thread.tolist(), strict=True
        ):
            for at in _points(start, end):
                what, name = self._who(part, thread, at)
                seconds[what, name, thread] += (end - start) // _POINTS + 1
        (what, name, thread), most = seconds.most_common(1)[0]
        return IdleOwner(what, name, self.thread_label(thread), min(1.0, most / sum(seconds.values())))

    def frames(self, thread: int, at: int) -> list[str]:
        """Return the Python functions open at a time, outermost first; the innermost ones when there are many."""
        return self.open.frames_at(thread, at)[:_FRAMES_SHOWN][::-1]

    def thread_label(self, thread: int) -> str | None:
        """Name a thread as the capture does."""
        listed = self.timeline.facts.get("threads")
        if isinstance(listed, list) and 0 <= thread < len(listed) and isinstance(listed[thread], dict):
            entry = listed[thread]
            name = entry.get("name")
            return str(name) if name else f"process {entry.get('pid')}, thread {entry.get('tid')}"
        return f"thread {thread & 0xFFFFFF}" if thread >= 0 else None

    def _who(self, part: str, thread: int, at: int) -> tuple[OwnerKind, str | None]:
        """Name the owner of a moment by the part it belongs to and what was open."""
        told = [(kind, name) for kind, name in self.open.at(thread, at) if not is_bookkeeping(name)]
        if part == "data":
            name = _first(told, is_data_loading) or next(
                (frame for frame in self.open.frames_at(thread, at) if is_data_frame(frame)), None
            )
            return ("tokenising" if name is not None and is_tokenising(name) else "data loading"), name
        if part == "communication":
            return "collective wait", _first(told, is_rank_wait)
        outside_calls = next((name for kind, name in told if kind != "call"), None)
        if part == "sync":
            return "synchronisation", outside_calls or (told[0][1] if told else None)
        if part == "allocation":
            return "allocation", outside_calls or (told[0][1] if told else None)
        if part == "launch":
            return "launch calls", outside_calls
        return self._host(told)

    def _host(self, told: Open) -> tuple[OwnerKind, str | None]:
        if any(is_compiling(name) for _, name in told):
            return "compilation", _first(told, is_compiling)
        if not told:
            return ("python" if len(self.timeline.operators) else "not recorded"), None
        kind, name = told[0]
        if kind == "frame":
            return "python", name
        return ("range" if kind == "range" else "operator"), name


def _points(start: int, end: int) -> list[int]:
    step = (end - start) / _POINTS
    return [int(start + step * (number + 0.5)) for number in range(_POINTS)]


def _first(told: Open, test: Callable[[str], bool]) -> str | None:
    return next((name for _, name in told if test(name)), None)
