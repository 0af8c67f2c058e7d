"""Owners of idle time: the innermost named activity of the thread that feeds a device.

Names are looked up at points of the longest stretches, not for every nanosecond: a part that is made of a million
short gaps has one cause, and a hundred samples identify it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from llm_perf_opt.analysis.intervals import IntervalSet, intersect
from llm_perf_opt.analysis.timeline.idle import (
    ONE_OFF,
    is_allocation_call,
    is_bookkeeping,
    is_compiling,
    is_data_frame,
    is_data_loading,
    is_rank_wait,
    is_tokenising,
    is_warm_up,
)
from llm_perf_opt.analysis.timeline.one_off import is_preparing, is_preparing_frame
from llm_perf_opt.captures.timeline import HostCalls, HostSpans, Int32, Int64, Timeline
from llm_perf_opt.core.arrays import enclosing, innermost
from llm_perf_opt.summary.devices import IdleOwner, OwnerKind

# What is open on a host thread at a given time: calls, operators, ranges, and Python frames if nothing else is.
#
# Built for a few hundred queries on a capture of millions of rows: indexes are built only for queried threads.


Open = list[tuple[str, str]]
"""Innermost first: (``call``, ``operator``, ``range`` or ``frame``; its name)."""
_CALLS_NEST = 4
"""A runtime call is made of few driver calls."""
_FRAME_NS = 20_000
"""Shorter Python functions do not explain a wait."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of one thread, and the latest end so far."""

    start: Int64
    end: Int64
    name: Int32
    reach: Int64

    def open_at(self, at: int) -> list[int]:
        """Rows that hold a time, innermost first."""
        last = int(np.searchsorted(self.start, at, side="right"))
        first = int(np.searchsorted(self.reach[:last], at, side="left"))
        found = np.flatnonzero(self.end[first:last] >= at) + first
        return [int(row) for row in found[::-1].tolist()]


@dataclass(slots=True)
class OpenSpans:
    """Looks up what is open."""

    timeline: Timeline
    _operators: dict[int, _Rows] = field(default_factory=dict)
    _frames: dict[int, tuple[HostSpans, Int32]] = field(default_factory=dict)

    def at(self, thread: int, at: int) -> Open:
        """Return what is open on a thread, innermost first; frames only if there is nothing else."""
        found = [*self._operators_at(thread, at), *self._ranges_at(thread, at)]
        found.sort(key=lambda one: -one[0])
        stack: Open = [*self._calls_at(thread, at), *((kind, name) for _, kind, name in found)]
        if all(is_bookkeeping(name) for _, name in stack):
            return [("frame", name) for name in self.frames_at(thread, at)]
        return stack

    def frames_at(self, thread: int, at: int) -> list[str]:
        """Return the Python functions open at a time, innermost first."""
        if not len(self.timeline.frames):
            return []
        if thread not in self._frames:
            self._frames[thread] = self._frame_rows(thread)
        rows, parent = self._frames[thread]
        if not len(rows):
            return []
        row = int(innermost(rows.start_ns, rows.end_ns, parent, np.array([at], np.int64))[0])
        found = []
        while row >= 0:
            found.append(self.timeline.names[rows.name[row]])
            row = int(parent[row])
        return found

    def _frame_rows(self, thread: int) -> tuple[HostSpans, Int32]:
        """Frames of a thread. Some profilers number Python threads separately; a single one is then used."""
        frames = self.timeline.frames
        threads = np.unique(frames.thread)
        mine = int(threads[0]) if len(threads) == 1 else thread
        first, last = np.searchsorted(frames.thread, (mine, mine + 1))
        long = np.flatnonzero((frames.end_ns - frames.start_ns)[first:last] >= _FRAME_NS) + first
        rows = HostSpans(frames.start_ns[long], frames.end_ns[long], frames.thread[long], frames.name[long])
        return rows, enclosing(rows.end_ns)

    def _calls_at(self, thread: int, at: int) -> Open:
        calls = self.timeline.calls
        first, last = _bounds(calls, thread)
        behind = first + int(np.searchsorted(calls.start_ns[first:last], at, side="right"))
        rows = range(behind - 1, max(first, behind - _CALLS_NEST) - 1, -1)
        return [("call", self.timeline.names[calls.name[row]]) for row in rows if calls.end_ns[row] >= at]

    def _operators_at(self, thread: int, at: int) -> list[tuple[int, str, str]]:
        spans = self.timeline.operators
        if not len(spans):
            return []
        if thread not in self._operators:
            first, last = _bounds(spans, thread)
            end = spans.end_ns[first:last]
            self._operators[thread] = _Rows(
                spans.start_ns[first:last], end, spans.name[first:last], np.maximum.accumulate(end)
            )
        rows = self._operators[thread]
        names = self.timeline.names
        return [(int(rows.start[row]), "operator", names[rows.name[row]]) for row in rows.open_at(at)]

    def _ranges_at(self, thread: int, at: int) -> list[tuple[int, str, str]]:
        """Climb from the last range begun; its parent may be a process-wide one of another thread."""
        ranges = self.timeline.ranges
        first, last = (int(bound) for bound in np.searchsorted(ranges.thread, (thread, thread + 1)))
        row = first + int(np.searchsorted(ranges.start_ns[first:last], at, side="right")) - 1
        found: list[tuple[int, str, str]] = []
        while row >= first or (row >= 0 and found):
            if ranges.end_ns[row] >= at and ranges.start_ns[row] <= at:
                found.append((int(ranges.start_ns[row]), "range", self.timeline.names[ranges.name[row]]))
            row = int(ranges.parent[row])
        return found


def _bounds(table: HostCalls | HostSpans, thread: int) -> tuple[int, int]:
    first, last = np.searchsorted(table.thread, (thread, thread + 1))
    return int(first), int(last)


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
    """Of a very large set only the longest intervals, because no more are inspected."""
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
    """Owners of idle time; threads are indexed on demand."""

    timeline: Timeline
    open: OpenSpans = field(init=False)

    def __post_init__(self) -> None:
        self.open = OpenSpans(self.timeline)

    def owner(self, part: str, pieces: Stretches) -> IdleOwner | None:
        """Return the owner of most of these stretches; ``None`` when there are none."""
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
        """Name the owner of a point in time by the part it belongs to and what was open."""
        open_calls = [(kind, name) for kind, name in self.open.at(thread, at) if not is_bookkeeping(name)]
        if part == "data":
            name = _first(open_calls, is_data_loading) or next(
                (frame for frame in self.open.frames_at(thread, at) if is_data_frame(frame)), None
            )
            return ("tokenising" if name is not None and is_tokenising(name) else "data loading"), name
        if part == "communication":
            return "collective wait", _first(open_calls, is_rank_wait)
        outside_calls = next((name for kind, name in open_calls if kind != "call"), None)
        if part == "sync":
            return "synchronisation", outside_calls or (open_calls[0][1] if open_calls else None)
        if part == "allocation":
            return "allocation", outside_calls or (open_calls[0][1] if open_calls else None)
        if part == "launch":
            return "launch calls", outside_calls
        if part == ONE_OFF:
            return _once(open_calls, self.open.frames_at(thread, at))
        return self._host(open_calls)

    def _host(self, open_calls: Open) -> tuple[OwnerKind, str | None]:
        if any(is_compiling(name) for _, name in open_calls):
            return "compilation", _first(open_calls, is_compiling)
        if not open_calls:
            return ("python" if len(self.timeline.operators) else "not recorded"), None
        kind, name = open_calls[0]
        if kind == "frame":
            return "python", name
        return ("range" if kind == "range" else "operator"), name


def _once(open_calls: Open, frames: list[str]) -> tuple[OwnerKind, str | None]:
    warm_up = _first(open_calls, is_warm_up)
    if warm_up is not None:
        return "warm-up", warm_up
    preparing = _first(open_calls, is_preparing) or next(
        (frame for frame in frames if is_preparing_frame(frame)), None
    )
    if preparing is not None:
        return "compilation", preparing
    if any(kind == "call" and is_allocation_call(name) for kind, name in open_calls):
        return "allocation", next((name for kind, name in open_calls if kind != "call"), None)
    return "first use", next(
        (name for kind, name in open_calls if kind != "call"), open_calls[0][1] if open_calls else None
    )


def _points(start: int, end: int) -> list[int]:
    step = (end - start) / _POINTS
    return [int(start + step * (number + 0.5)) for number in range(_POINTS)]


def _first(open_calls: Open, test: Callable[[str], bool]) -> str | None:
    return next((name for _, name in open_calls if test(name)), None)
