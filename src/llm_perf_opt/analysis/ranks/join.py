"""Several ranks of one program: their captures as one, and who waits for whom (:mod:`.waiting`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from llm_perf_opt.analysis.facts import Capture
from llm_perf_opt.analysis.rank_calls import RankCalls
from llm_perf_opt.analysis.ranks.names import ranks_in_names, without_rank
from llm_perf_opt.analysis.ranks.waiting import add_waiting
from llm_perf_opt.analysis.timeline.communication import CollectiveRows
from llm_perf_opt.analysis.timeline.merge import merge_facts_of_ranks
from llm_perf_opt.analysis.timeline.time_axis import TimeAxis
from llm_perf_opt.model.summary.parallel import RankUse
from llm_perf_opt.model.timeline import Timeline


@dataclass(slots=True)
class Ranks:
    """What several ranks say together."""

    captures: list[Capture]
    """One capture that stands for all ranks, and those that belong to none."""
    ranks: list[RankUse] = field(default_factory=list)
    joined: int = 1
    """Captures of ranks that were made one."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Member:
    rank: int
    capture: Capture
    timeline: Timeline
    axis: TimeAxis

    @property
    def collectives(self) -> CollectiveRows:
        return self.axis.collectives


def _member(capture: Capture, by_name: int | None) -> _Member | None:
    """A capture as a rank's; ``None`` when its rank is not known or it has no time axis."""
    rank, timeline, axis = rank_of(capture, by_name), capture.found, capture.facts.axis
    if rank is None or axis is None or not isinstance(timeline, Timeline) or not capture.facts.budget:
        return None
    return _Member(rank, capture, timeline, axis)


def rank_of(capture: Capture, by_name: int | None) -> int | None:
    """Return the rank of a capture: as it says itself, else by its file's name."""
    said = capture.found.facts.get("rank")
    if isinstance(said, int) and not isinstance(said, bool) and 0 <= said < 10**9:
        return said
    return by_name


def join_ranks(captures: Sequence[Capture]) -> Ranks:
    """Make one capture of the captures of several ranks; captures without ranks, or of one rank, stay as they are."""
    by_name = ranks_in_names([one.path for one in captures])
    known = [member for one in captures if (member := _member(one, by_name[one.path])) is not None]
    found = Ranks(list(captures))
    if len({one.rank for one in known}) < 2:
        found.ranks = _single(known) or _devices_as_ranks(captures)
        return found
    used = {id(one.capture) for one in known}
    found.captures = [one for one in captures if id(one) not in used]
    longest = -1.0
    for group in reversed(_groups(known)):
        joined, rows, notes = _join_group(group)
        found.captures.insert(0, joined)
        found.notes += notes
        found.joined = max(found.joined, len(rows))
        span = sum(row.span_s or 0.0 for row in rows)
        if span > longest:
            found.ranks, longest = rows, span
    return found


def _groups(known: Sequence[_Member]) -> list[list[_Member]]:
    """Return captures that belong together: one group, or one per captured range where every rank has a file of each."""
    by_name: dict[str, list[_Member]] = {}
    for one in known:
        by_name.setdefault(without_rank(one.capture.path), []).append(one)
    ranks = {tuple(sorted(one.rank for one in group)) for group in by_name.values()}
    each_once = len(ranks) == 1 and len(set(next(iter(ranks)))) == len(next(iter(ranks))) > 1
    return list(by_name.values()) if each_once else [list(known)]


def _join_group(known: Sequence[_Member]) -> tuple[Capture, list[RankUse], list[str]]:
    """Make one capture of those of several ranks; return it, their rows, and what a reader must know."""
    notes: list[str] = []
    members: dict[int, _Member] = {}
    for one in sorted(known, key=lambda one: (one.rank, str(one.capture.path))):
        if one.rank in members:
            notes.append(
                f"Rank {one.rank} was given twice: {members[one.rank].capture.path.name} is used, "
                f"{one.capture.path.name} is left out."
            )
            continue
        members[one.rank] = one
    ordered = [members[rank] for rank in sorted(members)]
    notes += _missing(ordered)
    facts = merge_facts_of_ranks({one.rank: one.capture.facts for one in ordered})
    rows = [_rank_row(one) for one in ordered]
    if facts.axis is not None and facts.axis.communication is not None:
        # Processes of one capture have one clock.
        one_clock = len({one.capture.path for one in ordered}) == 1
        calls = _calls(ordered, one_clock=one_clock)
        notes += add_waiting(calls, rows, facts.axis.communication, one_clock=one_clock)
    return replace(ordered[0].capture, facts=facts, covers_run=False), rows, notes


def _devices_as_ranks(captures: Sequence[Capture]) -> list[RankUse]:
    """Several devices of one capture that talk to one another are ranks, numbered as the devices are."""
    for one in captures:
        axis, timeline = one.facts.axis, one.found
        if axis is None or axis.communication is None or not isinstance(timeline, Timeline):
            continue
        numbers = np.unique(timeline.ops.device[axis.collectives.op]).tolist()
        if len(numbers) < 2:
            continue
        members = [_Member(number, one, timeline, _of_device(axis, timeline, number)) for number in numbers]
        rows = [_rank_row(member) for member in members]
        add_waiting(_calls(members, one_clock=True), rows, axis.communication, one_clock=True)
        return rows
    return []


def _of_device(axis: TimeAxis, timeline: Timeline, device: int) -> TimeAxis:
    rows = axis.collectives
    mine = np.flatnonzero(timeline.ops.device[rows.op] == device)
    own = CollectiveRows(
        rows.op[mine], [rows.kind[row] for row in mine.tolist()], rows.bytes[mine], rows.group_size[mine]
    )
    return replace(axis, devices=[one for one in axis.devices if one.device == device], collectives=own)


def _single(members: Sequence[_Member]) -> list[RankUse]:
    """The row of the only rank, where the capture belongs to a group of several."""
    return [_rank_row(one) for one in members if (_world_size(one.timeline) or 1) > 1][:1]


def _world_size(timeline: Timeline) -> int | None:
    size = timeline.facts.get("world_size")
    return size if isinstance(size, int) and not isinstance(size, bool) else None


def _missing(members: Sequence[_Member]) -> list[str]:
    size = max(_world_size(one.timeline) or 0 for one in members)
    notes = []
    if size > len(members):
        notes.append(
            f"{len(members)} of {size} ranks were given: waiting for the other {size - len(members)} counts as communication, "
            "and a rank that is last among these may not be last of all."
        )
    counts = {one.rank: _steps(one.timeline) for one in members}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"rank {rank}: {count}" for rank, count in counts.items())
        notes.append(
            f"The ranks hold different numbers of steps ({listed}): their times are not of the same work."
        )
    return notes


def _steps(timeline: Timeline) -> int:
    steps = timeline.facts.get("profiler_steps")
    return steps if isinstance(steps, int) else 0


def _rank_row(member: _Member) -> RankUse:
    devices = member.axis.devices
    count = max(1, len(devices))

    def mean(name: str) -> float:
        return sum(getattr(one, name) or 0.0 for one in devices) / count

    exposed, copies = mean("exposed_communication_s"), mean("copy_s")
    return RankUse(
        rank=member.rank,
        device=devices[0].device if len(devices) == 1 else None,
        span_s=mean("span_s"),
        busy_ratio=mean("busy_ratio"),
        idle_s=mean("idle_s"),
        communication_s=mean("communication_s"),
        exposed_communication_s=exposed,
        compute_s=max(0.0, mean("busy_s") - exposed - copies),
        source=member.capture.path.name,
    )


def _calls(members: Sequence[_Member], *, one_clock: bool) -> list[RankCalls]:
    """Return the collectives of the ranks, each on its rank's own clock unless they have one."""
    found = []
    for one in members:
        rows, ops = one.collectives, one.timeline.ops
        origin = int(ops.start_ns[0]) if len(ops) and not one_clock else 0
        start, end = ops.start_ns[rows.op] - origin, ops.end_ns[rows.op] - origin
        found.append(RankCalls(one.rank, rows.kind, start, end, rows.bytes))
    return found
