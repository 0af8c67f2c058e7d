"""Clocks that cannot be right: every gap and every share rests on them, so what is wrong with them is said."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llm_perf_opt.analysis.intervals import EMPTY, IntervalSet, complement, union, unite
from llm_perf_opt.core import units
from llm_perf_opt.ingest.linking import by_stream
from llm_perf_opt.model.timeline import Int64, Timeline

_EARLY_NS = 20_000
"""Clocks of host and device are aligned to some microseconds; a kernel this long before its launch shows that they are not."""
_ENOUGH = 0.01
"""Share of launches (or calls) from which a clock is doubted: one odd event is not a clock."""
_OVERLAP_NS = 5_000
"""Dependent launches may begin this much before the end of the kernel they depend on."""
_ENOUGH_OVERLAPS = 0.05
_SILENT_NS = 10_000_000_000
_SILENT_TIMES = 10
"""A silence must be this many times as long as all that was recorded to be taken for a jump."""


@dataclass(frozen=True, slots=True)
class ClockDoubts:
    """What is wrong with the clocks of a capture."""

    silence: IntervalSet
    """Stretches in which neither host nor device recorded anything, and which are far longer than what they recorded."""
    notes: list[str]


def clock_doubts(timeline: Timeline) -> ClockDoubts:
    """Look for clocks that jump ahead, jump back, or differ between host and device."""
    silence = _silence(timeline)
    notes = []
    if len(silence):
        notes.append(
            f"For {units.seconds(silence.length_ns / 1e9)} neither host nor device recorded anything, far longer than all that "
            "was recorded: a clock jumped, or nothing was done. That time is left out."
        )
    return ClockDoubts(silence, [*notes, *_early(timeline), *(_back(timeline) or _overlaps(timeline))])


def _silence(timeline: Timeline) -> IntervalSet:
    ops, calls, operators = timeline.ops, timeline.calls, timeline.operators
    if not len(ops):
        return EMPTY
    first = min(int(each.start_ns.min(initial=int(ops.start_ns[0]))) for each in (ops, calls, operators))
    last = max(int(each.end_ns.max(initial=int(ops.end_ns[0]))) for each in (ops, calls, operators))
    starts = np.concatenate(([first], ops.start_ns, [last]))
    if np.diff(starts).max() < _SILENT_NS:
        return EMPTY  # nearly every capture: nothing is united for it
    seen = unite(*(union(each.start_ns, each.end_ns) for each in (ops, calls, operators)))
    gaps = complement(seen, union(np.array([first]), np.array([last])))
    long = gaps.end - gaps.start >= max(_SILENT_NS, 1)
    silence = union(gaps.start[long], gaps.end[long])
    recorded = last - first - silence.length_ns
    return silence if silence.length_ns >= _SILENT_TIMES * recorded else EMPTY


def _early(timeline: Timeline) -> list[str]:
    """Operations that begin before the call that launched them."""
    ops, calls = timeline.ops, timeline.calls
    known = np.flatnonzero(ops.launch >= 0)
    if not len(known):
        return []
    ahead = calls.start_ns[ops.launch[known]] - ops.start_ns[known]
    early = ahead > _EARLY_NS
    if early.sum() < _ENOUGH * len(known):
        return []
    return [
        f"{int(early.sum())} of {len(known)} device operations begin before the call that launched them, by up to "
        f"{units.seconds(int(ahead.max()) / 1e9)}: the clocks of host and device differ, so what the host did in a gap is "
        "uncertain."
    ]


def _back(timeline: Timeline) -> list[str]:
    """Calls of one thread that cross one another: a thread does one thing after the other, or one inside the other."""
    calls = timeline.calls
    if len(calls) < 2:
        return []
    crossing = _crossing(calls.thread, calls.start_ns, calls.end_ns)
    if crossing < max(3, _ENOUGH * len(calls)):
        return []
    return [
        f"{crossing} of {len(calls)} calls cross another of the same thread: a clock jumped back, or threads were mixed up. Times "
        "that overlap count once, and what the host did is uncertain."
    ]


def _overlaps(timeline: Timeline) -> list[str]:
    """Operations of one stream that overlap: a stream runs them in order. Graphs may have branches, and are not asked."""
    ops = timeline.ops
    known = np.flatnonzero(ops.launch >= 0)
    if not len(known):
        return []
    alone = known[np.bincount(ops.launch[known])[ops.launch[known]] == 1]
    alone = alone[by_stream(ops.device[alone], ops.stream[alone])]
    start, end = ops.start_ns[alone], ops.end_ns[alone]
    same = (ops.stream[alone][1:] == ops.stream[alone][:-1]) & (
        ops.device[alone][1:] == ops.device[alone][:-1]
    )
    overlapping = int((same & (start[1:] < end[:-1] - _OVERLAP_NS)).sum())
    if overlapping < max(3, _ENOUGH_OVERLAPS * len(alone)):
        return []
    return [
        f"{overlapping} of {len(alone)} device operations begin before the one before them on their stream has ended: a clock jumped "
        "back, or streams were mixed up. Times that overlap count once."
    ]


def _crossing(thread: Int64, start: Int64, end: Int64) -> int:
    """Count calls that begin inside an earlier one of their thread and end after it; rows are ordered by thread and start."""
    same = thread[1:] == thread[:-1]
    inside = same & (start[1:] < end[:-1]) & (end[1:] > end[:-1])
    return int(inside.sum())
