"""Several ranks of one program: their captures as one, and waiting between ranks (:mod:`.waiting`)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np

from llm_perf_opt.analysis.facts import Capture, CaptureOrigin, Facts, HostCollectives, RankCalls
from llm_perf_opt.analysis.intervals import intersect, union
from llm_perf_opt.analysis.roofline.demand import RankRatios
from llm_perf_opt.analysis.roofline.launches import launches_of
from llm_perf_opt.analysis.roofline.limits import Limits, floor_time, limits_for
from llm_perf_opt.analysis.timeline.communication import OTHER, CollectiveRows, bus_factor, collective_name
from llm_perf_opt.analysis.timeline.merge import merge_facts_of_ranks
from llm_perf_opt.analysis.timeline.time_axis import TimeAxis
from llm_perf_opt.captures.timeline import DeviceOps, HostCalls, Int64, Ranges, Timeline, no_spans
from llm_perf_opt.core import units
from llm_perf_opt.core.arrays import distinct_values
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.summary import Hardware, Static, Summary
from llm_perf_opt.summary import RankUse as summary_RankUse
from llm_perf_opt.summary.devices import Collective, Communication, RankUse
from llm_perf_opt.summary.static import Split

# Waiting between ranks: the collectives of several ranks, matched by kind and order.
#
# Clocks of ranks may differ. A collective ends at about the same time on every rank that takes part, so the ends of the shared
# collectives give the clock offset, and the start times then identify the last rank.


_TOGETHER_NS = 5_000
"""Ranks that enter a collective this close to one another did not wait."""
_SCATTERS = 5
"""A difference of clocks is this many times what the ends scatter; less may be chance."""
_STRAGGLER = 0.5
"""A rank that causes more than this share of the waiting (and more than its turn) holds the others up."""


def _add_waiting(
    ranks: Sequence[RankCalls],
    rows: list[RankUse],
    communication: Communication,
    *,
    one_clock: bool = False,
    noisy_ends: bool = False,
) -> list[str]:
    """Match the collectives of the ranks and record the waiting; add notes on what could not be matched.

    ``noisy_ends``: a rank sees the end of a collective late when its cores are busy, so clocks are aligned only where
    the ends differ by more than their scatter.
    """
    talking = [one for one in ranks if len(one.kind)]
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
    begin = np.stack([one.start_ns[[row[n] for row in matched]] for n, one in enumerate(talking)], axis=1)
    end = np.stack([one.end_ns[[row[n] for row in matched]] for n, one in enumerate(talking)], axis=1)
    kinds = [talking[0].kind[row[0]] for row in matched]
    apart = end - end[:, :1]
    shift = np.median(apart, axis=0).astype(np.int64) * (not one_clock)
    if noisy_ends:
        scatter = np.median(np.abs(apart - shift), axis=0)
        shift = np.where(np.abs(shift) > _SCATTERS * scatter, shift, 0)
    if int(np.abs(shift).max()) > 0:
        begin, end = begin - shift, end - shift
        worst = int(np.abs(shift).max())
        if worst > _APART_NS:
            notes.append(
                "The captures of the ranks count time from different moments; they were aligned by the ends of "
                f"{len(kinds)} collectives."
            )
        elif worst > 1_000_000:
            notes.append(
                f"The clocks of the ranks differ by up to {units.seconds(worst / 1e9)}; they were aligned by the ends of "
                f"{len(kinds)} collectives."
            )
    last = begin.max(axis=1)
    waits = np.clip(np.minimum(last[:, None], end) - begin, 0, None)
    late = begin.argmax(axis=1)
    caused = np.where(waits.max(axis=1) > _TOGETHER_NS, waits.sum(axis=1), 0)
    numbers = [one.rank for one in talking]
    _fill_rows(rows, numbers, waits, late, caused)
    sizes = talking[0].bytes[[row[0] for row in matched]]
    _fill_collectives(communication, kinds, numbers, waits, end - begin, late, caused, sizes)
    return notes


def _match(ranks: Sequence[RankCalls]) -> tuple[list[tuple[int, ...]], int]:
    """Pair the n-th collective of every kind over all ranks; return rows of each, and how many have no partner."""
    places: list[dict[tuple[str, int], int]] = []
    for one in ranks:
        seen: Counter[str] = Counter()
        own: dict[tuple[str, int], int] = {}
        for row in np.argsort(one.start_ns, kind="stable").tolist():
            kind = one.kind[row]
            own[kind, seen[kind]] = row
            seen[kind] += 1
        places.append(own)
    common = set(places[0]).intersection(*places[1:])
    matched = [tuple(own[key] for own in places) for key in sorted(common, key=lambda key: places[0][key])]
    return matched, sum(len(own) for own in places) - len(matched) * len(places)


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


# Ranks whose work and collectives run on the host (gloo on a CPU): no device records when it was busy.
#
# A trace records when the host was inside each collective, and when the worker thread was blocked in a call of
# ``torch.distributed``. It does not record how busy the cores were, or which ranks take part.


_ANNOTATION = re.compile(r"^(?:gloo|ucc|mpi):", re.IGNORECASE)
_CALL = re.compile(r"^_?c10d(?:_functional)?::", re.IGNORECASE)
_NOTE = (
    "The ranks talk on the host (gloo): their collectives are matched by kind and order. Exposed is the time in which the working "
    "thread stood in one; how busy the cores were meanwhile, and which ranks take part in each, is not recorded."
)


@dataclass(slots=True)
class HostRanks:
    """The joined results of such ranks."""

    ranks: list[RankUse]
    communication: Communication | None
    notes: list[str]


def host_collectives(
    timeline: Timeline, source: str, payloads: Sequence[tuple[str, int]] = ()
) -> HostCollectives | None:
    """Return the host's collectives in a trace of one rank; ``None`` where there are none, or the rank is not reported.

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
    """Give the n-th collective of a kind the payload of the program's n-th call of it; -1 if their numbers differ."""
    found = np.full(len(kinds), -1, np.int64)
    for kind in set(kinds):
        mine = [row for row, one in enumerate(kinds) if one == kind]
        sizes = [size for one, size in payloads if one == kind]
        if len(mine) == len(sizes):
            found[mine] = sizes
    return found


def join_host_ranks(found: Sequence[HostCollectives]) -> HostRanks:
    """Build the rows of the ranks, and the waiting between them."""
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
    notes += _add_waiting([one.calls for one in ordered], rows, talk, noisy_ends=True)
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


# Which rank a file belongs to, by its name.


_RANK_IN_NAME = re.compile(r"(?:^|[^a-z0-9])(?:rank|worker)[-_.]?(\d{1,5})(?!\d)", re.IGNORECASE)
_PLACE_IN_NAME = re.compile(r"(?:^|[^a-z0-9])(?:tp|dp|ep|gpu)[-_.]?(\d{1,5})(?!\d)", re.IGNORECASE)


def rank_in_name(path: Path) -> int | None:
    """Return the rank in a file name; ``None`` if there is none."""
    found = _RANK_IN_NAME.findall(path.name) or _PLACE_IN_NAME.findall(path.name)
    return int(found[-1]) if found else None


def without_rank(path: Path) -> str:
    """Return a file's name without its rank: of captures of one range on several ranks it is the same."""
    return _RANK_IN_NAME.sub("", path.name)


def ranks_in_names(paths: Sequence[Path]) -> dict[Path, int | None]:
    """Return the rank of each file of one job by its name.

    Replicas count their own ranks from zero (``TP-0-DP-0``, ``TP-0-DP-1``): where the last number does not distinguish files
    and all numbers together do, the files are numbered in the order of these numbers.
    """
    alone = {path: rank_in_name(path) for path in paths}
    numbered = [path for path in alone if alone[path] is not None]
    places = {path: tuple(map(int, _PLACE_IN_NAME.findall(path.name))) for path in numbered}
    clash = len({alone[path] for path in numbered}) < len(numbered)
    if clash and all(places.values()) and len(set(places.values())) == len(numbered):
        in_order = sorted(numbered, key=lambda one: places[one])
        return alone | {path: rank for rank, path in enumerate(in_order)}
    return alone


# Whether several captures are ranks of one job. Otherwise they are rejected: sums over unrelated runs are meaningless.


_APART_NS = 5_000_000_000
"""Captures of one job overlap. Hosts keep their clocks within milliseconds of one another; this is far more."""
_EPOCH_NS = 10**18
"""Times since 1970 are larger than this (since 2001); smaller ones count from the start of a capture."""
_APART_HINT = (
    "ingest each file by itself (llm-perf-opt ingest --{option} FILE --out DIR); then two of them can be compared "
    "(llm-perf-opt compare DIR DIR)"
)


def capture_origin(path: Path, tool: str, timeline: Timeline) -> CaptureOrigin:
    """Return the origin recorded in a timeline."""
    ops, operators = timeline.ops, timeline.operators
    spans = [each for each in (ops, operators) if len(each)]
    base = timeline.facts.get("base_time_ns")
    offset = base if isinstance(base, int) and not isinstance(base, bool) else 0
    start = min((int(each.start_ns.min()) for each in spans), default=0) + offset
    end = max((int(each.end_ns.max()) for each in spans), default=0) + offset
    absolute = start > _EPOCH_NS
    used = distinct_values(ops.device).tolist()
    return CaptureOrigin(
        path=path,
        tool=tool,
        rank=_stated(timeline, "rank"),
        world_size=_stated(timeline, "world_size"),
        devices=frozenset(timeline.devices[one] for one in used if timeline.devices.get(one)),
        start_ns=start if absolute else None,
        end_ns=end if absolute else None,
    )


def _stated(timeline: Timeline, key: str) -> int | None:
    value = timeline.facts.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9 else None


def require_one_job(origins: Sequence[CaptureOrigin], option: str) -> None:
    """Raise for captures of one tool that are not the ranks of one job."""
    reason = _reason_apart(origins)
    if reason is not None:
        raise InputError(
            f"the captures given with --{option} are not the ranks of one job: {reason}",
            hint=_APART_HINT.format(option=option),
        )


def require_one_device(origins: Sequence[CaptureOrigin]) -> None:
    """Raise for captures of different tools that were taken on different device models."""
    known = [one for one in origins if one.devices]
    for one in known[1:]:
        if not one.devices & known[0].devices:
            raise InputError(
                f"the captures are not of one run: {known[0].path.name} is of {_listed(known[0].devices)}, "
                f"{one.path.name} of {_listed(one.devices)}",
                hint="ingest each by itself; then two of them can be compared (llm-perf-opt compare DIR DIR)",
            )


def _reason_apart(origins: Sequence[CaptureOrigin]) -> str | None:
    paths = list(dict.fromkeys(one.path for one in origins))
    if len(paths) < 2:
        return None
    by_name = ranks_in_names(paths)
    ranks = [one.rank if one.rank is not None else by_name[one.path] for one in origins]
    for one, rank in zip(origins, ranks, strict=True):
        if rank is None:
            return f"{one.path.name} does not state a rank, neither inside nor in its name"
    return _reason_ranks(origins, [rank for rank in ranks if rank is not None]) or _reason_runs(origins)


def _reason_ranks(origins: Sequence[CaptureOrigin], ranks: Sequence[int]) -> str | None:
    sizes = {one.world_size: one for one in origins if one.world_size is not None}
    if len(sizes) > 1:
        listed = ", ".join(f"{one.path.name} has {size}" for size, one in sizes.items())
        return f"the number of ranks differs ({listed})"
    size = next(iter(sizes), None)
    seen: dict[int, CaptureOrigin] = {}
    twice = None
    for one, rank in zip(origins, ranks, strict=True):
        if size is not None and rank >= size:
            return f"{one.path.name} is rank {rank}, and the job has {size} ranks"
        if rank in seen and twice is None:
            twice = f"{seen[rank].path.name} and {one.path.name} are both rank {rank}"
        seen.setdefault(rank, one)
    return twice if twice is not None and not _ranges_of_ranks(origins, ranks) else None


def _ranges_of_ranks(origins: Sequence[CaptureOrigin], ranks: Sequence[int]) -> bool:
    """Whether every rank has one file for each captured range, and no two ranges hold the same phase."""
    groups: dict[str, list[tuple[int, CaptureOrigin]]] = {}
    for one, rank in zip(origins, ranks, strict=True):
        groups.setdefault(without_rank(one.path), []).append((rank, one))
    members = {tuple(sorted(rank for rank, _ in group)) for group in groups.values()}
    if len(members) != 1 or len(set(next(iter(members)))) != len(next(iter(members))):
        return False
    phases = [frozenset[str]().union(*(one.phases for _, one in group)) for group in groups.values()]
    return all(phases) and sum(map(len, phases)) == len(frozenset[str]().union(*phases))


def _reason_runs(origins: Sequence[CaptureOrigin]) -> str | None:
    named = [one for one in origins if one.devices]
    for one in named[1:]:
        if not one.devices & named[0].devices:
            first = named[0]
            return f"{first.path.name} ran on {_listed(first.devices)}, {one.path.name} on {_listed(one.devices)}"
    timed = sorted(
        (one.start_ns, one.end_ns, one.path.name) for one in origins if one.start_ns and one.end_ns
    )
    if not timed:
        return None
    _, reach, last = timed[0]
    for start, end, name in timed[1:]:
        if start > reach + _APART_NS:
            return f"{name} begins {units.seconds((start - reach) / 1e9)} after {last} has ended"
        if end > reach:
            reach, last = end, name
    return None


def _listed(names: Iterable[str]) -> str:
    return " and ".join(sorted(names))


@dataclass(slots=True)
class Ranks:
    """The joined results of several ranks."""

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
    """Return the rank of a capture: as recorded in it, else from its file name."""
    recorded = capture.found.facts.get("rank")
    if isinstance(recorded, int) and not isinstance(recorded, bool) and 0 <= recorded < 10**9:
        return recorded
    return by_name


def join_ranks(captures: Sequence[Capture]) -> Ranks:
    """Join the captures of several ranks into one; captures without ranks, or of one rank, stay as they are."""
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
    """Join captures of several ranks; return the capture, the rows of the ranks, and notes for readers."""
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
        notes += _add_waiting(_calls(ordered), rows, facts.axis.communication, one_clock=one_clock)
    return replace(ordered[0].capture, facts=facts, covers_run=False), rows, notes


def _devices_as_ranks(captures: Sequence[Capture]) -> list[RankUse]:
    """Treat several devices of one capture that communicate as ranks, with the device numbers."""
    for one in captures:
        axis, timeline = one.facts.axis, one.found
        if axis is None or axis.communication is None or not isinstance(timeline, Timeline):
            continue
        numbers = np.unique(timeline.ops.device[axis.collectives.op]).tolist()
        if len(numbers) < 2:
            continue
        members = [_Member(number, one, timeline, _of_device(axis, timeline, number)) for number in numbers]
        rows = [_rank_row(member) for member in members]
        _add_waiting(_calls(members), rows, axis.communication, one_clock=True)
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
            f"The ranks have different numbers of steps ({listed}): their times are not of the same work."
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


def _calls(members: Sequence[_Member]) -> list[RankCalls]:
    """Return the collectives of the ranks by the clocks of their captures; the clock offset is derived from their ends."""
    found = []
    for one in members:
        rows, ops = one.collectives, one.timeline.ops
        base = one.timeline.facts.get("base_time_ns")
        offset = base if isinstance(base, int) and not isinstance(base, bool) else 0
        start, end = ops.start_ns[rows.op] + offset, ops.end_ns[rows.op] + offset
        found.append(RankCalls(one.rank, rows.kind, start, end, rows.bytes))
    return found


# Many ranks in bounded memory: of most of them only the collectives are kept after everything else has been summed.


MOST_ROWS = 4_000_000
"""Operations and calls that are kept in full, over all ranks together; about 50 bytes each."""


def kept_in_bounds(found: Iterable[Facts], most_rows: int = MOST_ROWS) -> Iterator[Facts]:
    """Yield the facts of rank after rank; from ``most_rows`` on, captures of ranks keep only their collectives.

    The lowest rank is kept whole: it represents the others where single kernels are shown. So is a capture that
    launches graphs, whose kernels may be named later by the recording of the graphs.
    """
    rows, lowest = 0, None
    for facts in found:
        for capture in facts.captures:
            rank = rank_of(capture, rank_in_name(capture.path))
            timeline = capture.found
            if rank is None or not isinstance(timeline, Timeline) or timeline.facts.get("graph_launches"):
                continue
            size = len(timeline.ops) + len(timeline.calls)
            is_lowest = lowest is None or rank <= lowest
            lowest = rank if lowest is None else min(rank, lowest)
            if rows + size > most_rows and not is_lowest:
                only_collectives(capture)
                facts.notes.append(
                    f"Rank {rank}: the captures contain more than {most_rows:,} operations and calls together, so there are no tables "
                    "of this rank alone; it is in all sums."
                )
            else:
                rows += size
        yield facts


def of_further_rank(facts: Facts) -> Facts:
    """Return what a rank other than the first adds: its captures and collectives. Timings and counts are of the same work.

    Tables of single launches are the first rank's; each one's own are in its directory.
    """
    for capture in facts.captures:
        capture.tables = False
    return Facts(
        stage=facts.stage,
        sources={kind: paths for kind, paths in facts.sources.items() if kind != "timings"},
        captures=facts.captures,
        host_collectives=facts.host_collectives,
    )


def only_collectives(capture: Capture) -> None:
    """Drop the rows of a summed capture, except those that give the times of its collectives."""
    timeline, axis = capture.found, capture.facts.axis
    if not isinstance(timeline, Timeline) or axis is None:
        return
    rows = np.unique(axis.collectives.op)
    collectives = replace(axis.collectives, op=np.searchsorted(rows, axis.collectives.op))
    kept = {one.name: getattr(timeline.ops, one.name)[rows] for one in fields(DeviceOps)}
    kept["launch"], kept["range"] = np.full_like(kept["launch"], -1), np.full_like(kept["range"], -1)
    none, no_names = np.empty(0, np.int64), np.empty(0, np.int32)
    capture.found = replace(
        timeline,
        ops=DeviceOps(**kept),
        calls=HostCalls(none, none, none, no_names),
        ranges=Ranges(none, none, none, no_names, no_names),
        operators=no_spans(),
        frames=no_spans(),
    )
    capture.facts = replace(capture.facts, axis=replace(axis, collectives=collectives))
    capture.attribution, capture.tables = None, False


# The ranks of a planned run: what each holds and sends, and the floor of its device.


_PHASES = ("prefill", "decode")


def add_rank_shares(summary: Summary, ranks: int, hardware: Hardware | None) -> None:
    """Add the static model's values to the rows of the ranks; ``hardware`` is the device of one rank."""
    static = summary.static
    split = (
        next((s for s in static.splits if (s.kind, s.ranks) == ("tensor", ranks)), None) if static else None
    )
    if static is None or split is None:
        return
    if split.reason is not None:
        summary.notes.append(f"The model over {ranks} ranks is unknown: {split.reason}.")
        return
    known = {row.rank: row for row in summary.ranks}
    sent = {
        phase: sum(one.link_bytes for one in split.exchanges if one.phase == phase)
        for phase in _PHASES
        if phase in static.phases
    }
    floors = _floors(static, split, hardware, summary.workload.dtype, sent)
    for share in split.shares:
        row = known.get(share.rank)
        if row is None:
            row = summary_RankUse(rank=share.rank)
            summary.ranks.append(row)
        row.weight_bytes, row.kv_bytes_per_token = share.weight_bytes, share.kv_bytes_per_token
        row.link_bytes = dict(sent)
        # The rank with the most to read is the slowest, and all ranks wait for it.
        row.floor_s = dict(floors)
    summary.ranks.sort(key=lambda row: row.rank)


def _floors(
    static: Static, split: Split, hardware: Hardware | None, dtype: str | None, sent: dict[str, float]
) -> dict[str, float]:
    """Return phase → the least time of a pass on one rank's device."""
    if hardware is None:
        return {}
    limits = limits_for(hardware, dtype)
    ratios = RankRatios(static, split, split.ranks)
    found = {}
    for phase, link_bytes in sent.items():
        seconds = _floor(static, phase, limits, ratios, split.ranks, gpu=hardware.kind == "gpu")
        if seconds is not None:
            talk_s = link_bytes / hardware.link_bytes_per_s if hardware.link_bytes_per_s else 0.0
            found[phase] = max(seconds, talk_s)
    return found


def _floor(
    static: Static, phase: str, limits: Limits, ratios: RankRatios, ranks: int, *, gpu: bool
) -> float | None:
    facts = static.phases[phase]
    flops, weights = facts.least_flops, facts.least_weight_bytes
    if flops is None or weights is None or limits.peak is None or limits.bandwidth is None:
        return None
    moved = weights * ratios.read(phase) + (facts.least_kv_bytes or 0.0) * ratios.cache
    launches = launches_of(facts) if gpu else None
    return floor_time(flops / ranks, moved, limits.peak, limits.bandwidth, launches).seconds
