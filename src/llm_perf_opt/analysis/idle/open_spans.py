"""What is open on a host thread at a single time: calls, operators, ranges, and Python frames where nothing else is.

Made for some hundred questions about a capture of millions of rows: nothing is built for rows that nobody asks about.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from llm_perf_opt.analysis.idle.host_names import is_bookkeeping
from llm_perf_opt.ingest.linking import enclosing, innermost
from llm_perf_opt.model.timeline import HostCalls, HostSpans, Int32, Int64, Timeline

Open = list[tuple[str, str]]
"""Innermost first: (``call``, ``operator``, ``range`` or ``frame``; its name)."""

_CALLS_NEST = 4
"""A runtime call is made of few driver calls."""
_FRAME_NS = 20_000
"""Shorter Python functions do not explain a wait."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of one thread, and how far what began so far reaches."""

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
        """Return what is open on a thread, innermost first; frames only where there is nothing else to tell."""
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
        """Frames of a thread. Some profilers number Python's threads apart: a single one is then the one meant."""
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
