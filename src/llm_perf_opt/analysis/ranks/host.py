"""Ranks whose work and collectives are the host's own (gloo on a CPU): no device tells when it was busy.

What a trace tells: when the host was inside each collective, and when the working thread stood in a call of
``torch.distributed`` and so did nothing else. What it does not tell: how busy the cores were, and which ranks take part.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.analysis.intervals import intersect, union
from llm_perf_opt.analysis.rank_calls import HostCollectives, RankCalls
from llm_perf_opt.analysis.ranks.waiting import add_waiting
from llm_perf_opt.analysis.timeline.communication import OTHER, collective_name
from llm_perf_opt.model.summary.parallel import Collective, Communication, RankUse
from llm_perf_opt.model.timeline import Int64, Timeline

_ANNOTATION = re.compile(r"^(?:gloo|ucc|mpi):", re.IGNORECASE)
_CALL = re.compile(r"^_?c10d(?:_functional)?::", re.IGNORECASE)
_NOTE = (
    "The ranks talk on the host (gloo): their collectives are matched by kind and order. Exposed is the time in which the working "
    "thread stood in one; how busy the cores were meanwhile, and which ranks take part in each, is not recorded."
)


@dataclass(slots=True)
class HostRanks:
    """What such ranks say together."""

    ranks: list[RankUse]
    communication: Communication | None
    notes: list[str]


def host_collectives(
    timeline: Timeline, source: str, payloads: Sequence[tuple[str, int]] = ()
) -> HostCollectives | None:
    """Return the host's collectives in a trace of one rank; ``None`` where there are none, or the rank is not told.

    ``payloads``: kind and bytes of the program's calls in their order, where the trace recorded shapes.
    """
    rank, ranges, operators = timeline.facts.get("rank"), timeline.ranges, timeline.operators
    if not isinstance(rank, int) or isinstance(rank, bool) or not len(operators):
        return None
    is_collective = np.array([_ANNOTATION.match(name) is not None for name in timeline.names], bool)
    rows = np.flatnonzero(is_collective[ranges.name])
    if not len(rows):
        return None
    rows = rows[np.argsort(ranges.start_ns[rows], kind="stable")]
    kinds = [collective_name(timeline.names[name]) or OTHER for name in ranges.name[rows].tolist()]
    threads, counts = np.unique(operators.thread, return_counts=True)
    own = operators.thread == threads[counts.argmax()]
    begin, end = int(operators.start_ns[own].min()), int(operators.end_ns[own].max())
    is_call = np.array([_CALL.match(name) is not None for name in timeline.names], bool)
    inside = own & is_call[operators.name]
    size = timeline.facts.get("world_size")
    return HostCollectives(
        rank=rank,
        size=size if isinstance(size, int) else None,
        source=source,
        span_ns=end - begin,
        calls=RankCalls(rank, kinds, ranges.start_ns[rows], ranges.end_ns[rows], _bytes(kinds, payloads)),
        waiting=union(operators.start_ns[inside], operators.end_ns[inside]),
    )


def _bytes(kinds: Sequence[str], payloads: Sequence[tuple[str, int]]) -> Int64:
    """Give the n-th collective of a kind the payload of the program's n-th call of it; -1 where they are not as many."""
    found = np.full(len(kinds), -1, np.int64)
    for kind in set(kinds):
        mine = [row for row, one in enumerate(kinds) if one == kind]
        sizes = [size for one, size in payloads if one == kind]
        if len(mine) == len(sizes):
            found[mine] = sizes
    return found


def join_host_ranks(found: Sequence[HostCollectives]) -> HostRanks:
    """Make rows of the ranks, and one account of what they say to one another."""
    members = {one.rank: one for one in sorted(found, key=lambda one: (one.rank, one.source), reverse=True)}
    ordered = [members[rank] for rank in sorted(members)]
    if not ordered:
        return HostRanks([], None, [])
    notes = [_NOTE]
    size = max(one.size or 0 for one in ordered)
    if size > len(ordered):
        notes.append(
            f"{len(ordered)} of {size} ranks are known: waiting for the others counts as communication."
        )
    rows = [_row(one) for one in ordered]
    count = len(ordered)
    kinds = sorted({kind for one in ordered for kind in one.calls.kind})
    table = [_collective(kind, ordered) for kind in kinds]
    table.sort(key=lambda one: (-one.exposed_s, -one.total_s, one.name))
    total = sum(row.communication_s or 0.0 for row in rows) / count
    exposed = sum(row.exposed_communication_s or 0.0 for row in rows) / count
    span = sum(row.span_s or 0.0 for row in rows) / count
    talk = Communication(table, total, exposed, min(1.0, exposed / span) if span > 0 else None)
    notes += add_waiting([one.calls for one in ordered], rows, talk, noisy_ends=True)
    return HostRanks(rows, talk, notes)


def _row(one: HostCollectives) -> RankUse:
    running = union(one.calls.start_ns, one.calls.end_ns)
    return RankUse(
        rank=one.rank,
        span_s=one.span_ns / 1e9,
        communication_s=running.length_ns / 1e9,
        exposed_communication_s=intersect(running, one.waiting).length_ns / 1e9,
        source=one.source,
    )


def _collective(kind: str, members: Sequence[HostCollectives]) -> Collective:
    total = exposed = payload = 0
    calls, known = 0, True
    for one in members:
        mine = np.array([each == kind for each in one.calls.kind], bool)
        running = union(one.calls.start_ns[mine], one.calls.end_ns[mine])
        total += int((one.calls.end_ns[mine] - one.calls.start_ns[mine]).sum())
        exposed += intersect(running, one.waiting).length_ns
        calls += int(mine.sum())
        known &= bool((one.calls.bytes[mine] >= 0).all())
        payload += int(one.calls.bytes[mine].sum())
    count = len(members)
    return Collective(
        name=kind,
        count=round(calls / count),
        bytes=payload / count if known else None,
        total_s=total / count / 1e9,
        exposed_s=exposed / count / 1e9,
        bus_bytes_per_s=None,
        algorithm_bytes_per_s=payload / (total / 1e9) if known and total > 0 else None,
    )
