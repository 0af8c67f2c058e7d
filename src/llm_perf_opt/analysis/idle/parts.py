"""Why a device ran nothing: every gap of a device is split by what held it up, to the nanosecond.

The gap before an operation is explained by that operation's launch. Until the launching call begins, the thread that
makes it was doing something else; then it launches; and what is left, when the launch was over before the gap was,
the device had work in its queue and did not run it.

``queue``       the next operation had been launched: the gap is not the host's. Short ones are the time between
                kernels; long ones mean that something outside the capture held the stream.
``data``        the thread was in a range that loads or prepares input;
``allocation``  it was allocating or freeing device memory;
``communication`` it was in a collective of its own (gloo);
``sync``        it waited for the device, or the device ran dry because it had: a host that had not waited would have
                been ahead by as much as it waited, so that much of the launching and other work after a wait, up to
                the next one, counts as ``sync``;
``launch``      it was launching: inside the call, or in a gap so short that nothing but dispatch fits in;
``host``        it did something else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llm_perf_opt.analysis.idle.host_sets import HostSets, feeding_threads, host_sets, main_thread
from llm_perf_opt.analysis.intervals import (
    EMPTY,
    IntervalSet,
    complement,
    intersect,
    time_at,
    union,
    unite,
)
from llm_perf_opt.model.timeline import UNKNOWN, Int32, Int64, Timeline

Mask = npt.NDArray[np.bool_]

DISPATCH_NS = 500_000
"""A gap up to this long between two launches is dispatch: Python, operators and calls that lead to the next launch."""
LATENCY_NS = 100_000
"""A device that starts this long after the launching call returned still counts as launching; beyond, as queue."""
DRAINED_NS = 20_000
"""A gap that begins this close to a waiting call was caused by the wait: clocks of host and device differ a little."""
LONGEST_LEAD_NS = 20_000_000
"""A host can be ahead by what the queue of a device holds: about a thousand launches."""
HELD_NS = 1_000_000
"""Queued work that waits this long is held by something that the capture does not show."""
HELD_BEFORE = 0.05
"""Where at most this share of the device's work ran before, the hold is a backlog from before the capture."""

IDLE_PARTS = ("sync", "launch", "allocation", "data", "host", "queue")
COLLECTIVE_WAIT = "communication"


@dataclass(frozen=True, slots=True)
class Gaps:
    """Stretches in which one device ran nothing, in order."""

    start: Int64
    end: Int64
    launch: Int32
    """Row of the call that launched the operation after the gap; -1: not known, or nothing follows."""
    thread: Int64
    """Thread that launched it, else the one that launches most."""

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class Idle:
    """The idle time of one device, by part; the parts do not overlap and cover every gap."""

    gaps: Gaps
    parts: dict[str, IntervalSet]
    held: IntervalSet
    """Part of ``queue``: backlog from before the capture, in which the device could not have worked for it."""


def idle_of(timeline: Timeline, rows: Int64, busy: IntervalSet, low: int, high: int) -> Idle:
    """Split the time between ``low`` and ``high`` in which a device (its operations are ``rows``) ran nothing."""
    launch = timeline.ops.launch[rows]
    gaps = _gaps(timeline, rows, busy, low, high)
    sets = host_sets(timeline, feeding_threads(timeline, launch))
    calls = timeline.calls
    if len(calls):
        known = gaps.launch >= 0
        call = np.maximum(gaps.launch, 0)
        begins = np.where(known, np.clip(calls.start_ns[call], gaps.start, gaps.end), gaps.end)
        returns = np.where(known, np.clip(calls.end_ns[call], begins, gaps.end), gaps.end)
        ahead = known & (calls.end_ns[call] <= gaps.start)
    else:
        begins, returns, ahead = gaps.end, gaps.end, np.zeros(len(gaps), bool)
    queued = ahead | (gaps.end - returns > LATENCY_NS)
    queue = union(returns[queued], gaps.end[queued])
    launching = [union(begins, returns), union(returns[~queued], gaps.end[~queued])]
    parts = _host_parts(gaps, begins, sets)
    parts["launch"] = unite(parts["launch"], *launching)
    parts["queue"] = queue
    _blame_waits(parts, gaps, begins, sets.waiting)
    return Idle(gaps, parts, _held(queue, busy))


def _gaps(timeline: Timeline, rows: Int64, busy: IntervalSet, low: int, high: int) -> Gaps:
    start = np.concatenate(([low], busy.end)) if len(busy) else np.array([low])
    end = np.concatenate((busy.start, [high])) if len(busy) else np.array([high])
    follows = np.searchsorted(timeline.ops.start_ns[rows], end, side="left")
    nothing = follows >= len(rows)
    following = rows[np.minimum(follows, len(rows) - 1)]
    launch = np.where(nothing, UNKNOWN, timeline.ops.launch[following]).astype(np.int32)
    real = end > start
    start, end, launch = start[real], end[real], launch[real]
    usual = main_thread(timeline, timeline.ops.launch[rows])
    thread = np.full(len(start), UNKNOWN if usual is None else usual, np.int64)
    if len(timeline.calls):
        thread = np.where(launch >= 0, timeline.calls.thread[np.maximum(launch, 0)], thread)
    return Gaps(start, end, launch, thread)


def _host_parts(gaps: Gaps, begins: Int64, sets: HostSets) -> dict[str, IntervalSet]:
    """Split the time before each launching call by what its thread was doing."""
    short = gaps.end - gaps.start <= DISPATCH_NS
    plain = sets.explains.length_before(gaps.start) == sets.explains.length_before(begins)
    parts = {
        "launch": union(gaps.start[plain & short], begins[plain & short]),
        "host": union(gaps.start[plain & ~short], begins[plain & ~short]),
    }
    mixed = np.flatnonzero(~plain)
    rest = union(gaps.start[mixed], begins[mixed])
    for name, found in (
        ("data", sets.loading),
        ("allocation", sets.allocating),
        (COLLECTIVE_WAIT, sets.collective),
        ("sync", sets.waiting),
    ):
        parts[name] = intersect(rest, found)
        rest = complement(found, rest)
    dispatch = union(gaps.start[mixed][short[mixed]], begins[mixed][short[mixed]])
    parts["launch"] = unite(parts["launch"], intersect(rest, dispatch))
    parts["host"] = unite(parts["host"], complement(dispatch, rest))
    return parts


def _blame_waits(parts: dict[str, IntervalSet], gaps: Gaps, begins: Int64, waiting: IntervalSet) -> None:
    """Move to ``sync`` what a host that had not waited would have done while the device was still busy."""
    dry = np.flatnonzero(_touches(waiting, gaps.start) & (begins > gaps.start))
    if not len(dry):
        return
    work = unite(parts["launch"], parts["host"])
    start = gaps.start[dry]
    # Waiting beside an idle device is lost itself; only what was waited beside a busy one would have put the host ahead.
    waited = complement(parts["sync"], waiting).length_before(start + DRAINED_NS)
    done = work.length_before(start)
    until = np.append(done[1:], work.length_ns)
    hidden = _hidden(np.diff(waited, prepend=0), until - done)
    blamed = union(start, time_at(work, done + hidden))
    moved = [intersect(parts[name], blamed) for name in ("launch", "host")]
    for name in ("launch", "host"):
        parts[name] = complement(blamed, parts[name])
    parts["sync"] = unite(parts["sync"], *moved)


def _hidden(waited: Int64, work: Int64) -> Int64:
    """How much of the work after each wait a host that never waited would have done before.

    What it is ahead by and does not need after one wait it still has after the next, up to what a queue holds.
    """
    ahead, found = 0, []
    for more, needed in zip(waited.tolist(), work.tolist(), strict=True):
        ahead += more
        found.append(min(ahead, needed))
        ahead = min(ahead - found[-1], LONGEST_LEAD_NS)
    return np.array(found, np.int64)


def _touches(found: IntervalSet, at: Int64) -> Mask:
    return np.asarray(found.length_before(at + DRAINED_NS) > found.length_before(at - DRAINED_NS))


def _held(queue: IntervalSet, busy: IntervalSet) -> IntervalSet:
    long = queue.end - queue.start >= HELD_NS
    if not long.any():
        return EMPTY
    start, end = queue.start[long], queue.end[long]
    early = busy.length_before(start) <= HELD_BEFORE * busy.length_ns
    return union(start[early], end[early])
