"""Several ranks of one program: their captures as one, and who waits for whom.

Clocks of ranks may differ. A collective ends at about the same time on every rank that takes part, so the ends of the
collectives they share tell the difference, and the beginnings then tell who came last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from llm_perf_opt.analysis.facts import Capture
from llm_perf_opt.analysis.ranks.names import ranks_in_names
from llm_perf_opt.analysis.timeline.communication import CollectiveRows, bus_factor
from llm_perf_opt.analysis.timeline.merge import merge_facts_of_ranks
from llm_perf_opt.analysis.timeline.time_axis import TimeAxis
from llm_perf_opt.core import units
from llm_perf_opt.model.parallel import Communication, RankUse
from llm_perf_opt.model.timeline import Int64, Timeline

_TOGETHER_NS = 5_000
"""Ranks that enter a collective this close to one another did not wait."""
_STRAGGLER = 0.5
"""A rank that causes more than this share of the waiting (and more than its turn) holds the others up."""


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
    members: dict[int, _Member] = {}
    for one in sorted(known, key=lambda one: (one.rank, str(one.capture.path))):
        if one.rank in members:
            found.notes.append(
                f"Rank {one.rank} was given twice: {members[one.rank].capture.path.name} is used, "
                f"{one.capture.path.name} is left out."
            )
            continue
        members[one.rank] = one
    ordered = [members[rank] for rank in sorted(members)]
    found.notes += _missing(ordered)
    facts = merge_facts_of_ranks({one.rank: one.capture.facts for one in ordered})
    found.ranks = [_rank_row(one) for one in ordered]
    if facts.axis is not None and facts.axis.communication is not None:
        found.notes += _add_waiting(ordered, found.ranks, facts.axis.communication)
    merged = replace(ordered[0].capture, facts=facts, covers_run=False)
    used = {id(one.capture) for one in known}
    found.joined = len(ordered)
    found.captures = [merged, *(one for one in captures if id(one) not in used)]
    return found


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
        _add_waiting(members, rows, axis.communication)
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


# --- who waits for whom ------------------------------------------------------------------------------------


def _add_waiting(members: Sequence[_Member], rows: list[RankUse], communication: Communication) -> list[str]:
    """Match the collectives of the ranks and write down the waiting; say what could not be matched."""
    talking = [one for one in members if len(one.collectives)]
    if len(talking) < 2:
        return []
    matched, left_out = _match(talking)
    notes = []
    if left_out:
        notes.append(
            f"{left_out} collective calls have no partner in the other ranks' captures and were left out of the waiting."
        )
    if not matched:
        return notes
    begin, end, kinds = _table(talking, matched)
    one_clock = all(one.timeline is talking[0].timeline for one in talking)
    shift = np.median(end - end[:, :1], axis=0).astype(np.int64) * (not one_clock)
    if int(np.abs(shift).max()) > 0:
        begin, end = begin - shift, end - shift
        worst = int(np.abs(shift).max())
        if worst > 1_000_000:
            notes.append(
                f"The clocks of the ranks differ by up to {units.seconds(worst / 1e9)}; they were aligned by the ends of "
                f"{len(kinds)} collectives."
            )
    last = begin.max(axis=1)
    waits = np.clip(np.minimum(last[:, None], end) - begin, 0, None)
    late = begin.argmax(axis=1)
    caused = np.where(waits.max(axis=1) > _TOGETHER_NS, waits.sum(axis=1), 0)
    ranks = [one.rank for one in talking]
    _fill_rows(rows, ranks, waits, late, caused)
    _fill_collectives(communication, kinds, ranks, waits, end - begin, late, caused, _sizes(talking, matched))
    return notes


def _match(members: Sequence[_Member]) -> tuple[list[tuple[int, ...]], int]:
    """Pair the n-th collective of every kind over all ranks; return rows of each, and how many have no partner."""
    places: list[dict[tuple[str, int], int]] = []
    for one in members:
        seen: Counter[str] = Counter()
        start = one.timeline.ops.start_ns[one.collectives.op]
        own: dict[tuple[str, int], int] = {}
        for row in np.argsort(start, kind="stable").tolist():
            kind = one.collectives.kind[row]
            own[kind, seen[kind]] = row
            seen[kind] += 1
        places.append(own)
    common = set(places[0]).intersection(*places[1:])
    matched = [tuple(own[key] for own in places) for key in sorted(common, key=lambda key: places[0][key])]
    return matched, sum(len(own) for own in places) - len(matched) * len(places)


def _table(members: Sequence[_Member], matched: list[tuple[int, ...]]) -> tuple[Int64, Int64, list[str]]:
    """Begin and end of every matched collective (rows) on every rank (columns), and its kind."""
    begin = np.empty((len(matched), len(members)), np.int64)
    end = np.empty_like(begin)
    for column, one in enumerate(members):
        ops = one.collectives.op[[row[column] for row in matched]]
        origin = int(one.timeline.ops.start_ns[0])
        begin[:, column] = one.timeline.ops.start_ns[ops] - origin
        end[:, column] = one.timeline.ops.end_ns[ops] - origin
    first = members[0].collectives
    return begin, end, [first.kind[row[0]] for row in matched]


def _sizes(members: Sequence[_Member], matched: list[tuple[int, ...]]) -> Int64:
    first = members[0].collectives
    return first.bytes[[row[0] for row in matched]]


def _fill_rows(rows: list[RankUse], ranks: list[int], waits: Int64, late: Int64, caused: Int64) -> None:
    others = max(1, len(ranks) - 1)
    by_rank = {row.rank: row for row in rows}
    for column, rank in enumerate(ranks):
        mine = (late == column) & (caused > 0)
        row = by_rank[rank]
        row.waits_s = float(waits[:, column].sum()) / 1e9
        row.last_in = int(mine.sum())
        row.causes_wait_s = float(caused[mine].sum()) / others / 1e9


def _fill_collectives(
    communication: Communication,
    kinds: list[str],
    ranks: list[int],
    waits: Int64,
    lengths: Int64,
    late: Int64,
    caused: Int64,
    sizes: Int64,
) -> None:
    names = np.array(kinds)
    for one in communication.collectives:
        mine = names == one.name
        if not mine.any():
            continue
        one.wait_s = float(waits[mine].sum()) / len(ranks) / 1e9
        one.last_rank = _most_waited_for(late[mine], caused[mine], ranks)
        moving = float((lengths[mine] - waits[mine]).sum()) / len(ranks) / 1e9
        if one.bytes is not None and moving > 0 and (sizes[mine] >= 0).all():
            one.algorithm_bytes_per_s = float(sizes[mine].sum()) / moving
            if one.group_size is not None:
                one.bus_bytes_per_s = one.algorithm_bytes_per_s * bus_factor(one.name, one.group_size)
    communication.wait_s = float(waits.sum()) / len(ranks) / 1e9
    total = float(caused.sum())
    slowest = _most_waited_for(late, caused, ranks)
    if slowest is None or total <= 0:
        return
    share = float(caused[late == ranks.index(slowest)].sum()) / total
    if share > max(_STRAGGLER, 1.2 / len(ranks)):
        communication.straggler = slowest
        communication.straggler_share_ratio = share


def _most_waited_for(late: Int64, caused: Int64, ranks: list[int]) -> int | None:
    weight: Mapping[int, float] = {
        rank: float(caused[late == column].sum()) for column, rank in enumerate(ranks)
    }
    slowest = max(weight, key=lambda rank: (weight[rank], -rank))
    return slowest if weight[slowest] > 0 else None
