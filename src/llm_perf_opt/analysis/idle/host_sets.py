"""What the threads that feed devices were doing, as sets of intervals: waiting, launching, allocating, loading data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llm_perf_opt.analysis.idle.host_names import (
    is_allocation_call,
    is_data_frame,
    is_data_loading,
    is_rank_wait,
    is_sync_call,
)
from llm_perf_opt.analysis.intervals import IntervalSet, union, unite
from llm_perf_opt.ingest.linking import distinct_of_sorted
from llm_perf_opt.model.timeline import HostCalls, HostSpans, Int32, Int64, Ranges, Timeline

Mask = npt.NDArray[np.bool_]
_FEEDS = 0.01
"""A thread feeds a device when it launches this share of its work."""


@dataclass(frozen=True, slots=True)
class HostSets:
    """The host's doings that explain an idle device, of the threads that feed it."""

    waiting: IntervalSet
    """In a call that waits for the device."""
    allocating: IntervalSet
    loading: IntervalSet
    """In a range that prepares the model's input."""
    collective: IntervalSet
    """In a collective of the host itself (gloo)."""
    explains: IntervalSet
    """All of them."""


def feeding_threads(timeline: Timeline, launch: Int32) -> Int64:
    """Threads that launch a noticeable share of these operations; all threads with calls when none is known to."""
    known = launch[launch >= 0]
    if not len(known):
        return np.unique(timeline.calls.thread)
    threads, count = _launches_by_thread(timeline, known)
    return threads[count >= _FEEDS * len(known)]


def main_thread(timeline: Timeline, launch: Int32) -> int | None:
    """The thread that launches most of these operations; ``None`` when the capture does not tell."""
    known = launch[launch >= 0]
    if not len(known):
        return int(timeline.calls.thread[0]) if len(timeline.calls) else None
    threads, count = _launches_by_thread(timeline, known)
    return int(threads[int(count.argmax())])


def _launches_by_thread(timeline: Timeline, launches: Int32) -> tuple[Int64, Int64]:
    """Threads that launch anything, and how often. Calls are ordered by thread, so their rows tell it."""
    threads = distinct_of_sorted(timeline.calls.thread)
    ends = np.searchsorted(timeline.calls.thread, threads, side="right")
    upto = np.array([int((launches < end).sum()) for end in ends.tolist()], np.int64)
    count = np.diff(upto, prepend=0)
    return threads[count > 0], count[count > 0]


def named(names: list[str], used: Int32, test: Callable[[str], bool]) -> Mask:
    """Mark the names of ``used`` that pass a test; each distinct name is looked at once."""
    marked = np.zeros(len(names) + 1, bool)
    for index in np.flatnonzero(np.bincount(used, minlength=1)).tolist():
        marked[index] = test(names[index])
    return marked


def host_sets(timeline: Timeline, threads: Int64) -> HostSets:
    """Gather what explains idle time on these threads."""
    waiting = _spans(timeline, timeline.calls, threads, is_sync_call)
    allocating = _spans(timeline, timeline.calls, threads, is_allocation_call)
    loading = unite(
        _spans(timeline, timeline.ranges, threads, is_data_loading),
        _spans(timeline, timeline.operators, threads, is_data_loading),
        _spans(timeline, timeline.frames, frame_threads(timeline, threads), is_data_frame),
    )
    collective = unite(
        _spans(timeline, timeline.ranges, threads, is_rank_wait),
        _spans(timeline, timeline.operators, threads, is_rank_wait),
    )
    return HostSets(waiting, allocating, loading, collective, unite(waiting, allocating, loading, collective))


def frame_threads(timeline: Timeline, threads: Int64) -> Int64:
    """Threads of the Python frames that belong to these. Some profilers number Python's threads apart: one is then meant."""
    known = np.unique(timeline.frames.thread)
    return known if len(known) == 1 else threads


def _spans(
    timeline: Timeline, rows: HostCalls | Ranges | HostSpans, threads: Int64, test: Callable[[str], bool]
) -> IntervalSet:
    marked = named(timeline.names, rows.name, test)
    found = np.flatnonzero(marked[rows.name]) if marked.any() else np.empty(0, np.int64)
    found = found[np.isin(rows.thread[found], threads)]
    return union(rows.start_ns[found], rows.end_ns[found])
