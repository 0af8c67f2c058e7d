"""Analysis of a timeline's time axis: budgets by phase, devices, the longest gaps, communication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from llm_perf_opt.analysis.intervals import EMPTY, IntervalSet, complement, intersect, union, unite
from llm_perf_opt.analysis.timeline.attribution import Attribution
from llm_perf_opt.analysis.timeline.budget import (
    PARTS,
    WORKING,
    DeviceActivity,
    DeviceBudget,
    budget_on,
    device_activities,
    phase_windows,
    used_devices,
    whole_window,
    windows_on,
    works_for,
)
from llm_perf_opt.analysis.timeline.communication import (
    CollectiveRows,
    collective_rows,
    communication_of,
    no_collective_rows,
)
from llm_perf_opt.analysis.timeline.idle import COLLECTIVE_WAIT
from llm_perf_opt.analysis.timeline.idle_owners import HostActivity, Stretches, joined, stretches
from llm_perf_opt.captures.timeline import Int64, Timeline
from llm_perf_opt.core import units
from llm_perf_opt.core.arrays import by_stream, distinct_values
from llm_perf_opt.core.phases import WHOLE
from llm_perf_opt.summary import Budget, BudgetPart
from llm_perf_opt.summary.devices import Communication, DeviceUse, IdleGap, IdleOwner

# Clock problems: every gap and share depends on the clocks, so inconsistencies are reported.


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
class ClockProblems:
    """Clock inconsistencies of a capture."""

    silence: IntervalSet
    """Stretches in which neither host nor device recorded anything, and which are far longer than what they recorded."""
    notes: list[str]


def find_clock_problems(timeline: Timeline) -> ClockProblems:
    """Detect clocks that jump ahead, jump back, or differ between host and device."""
    silence = _silence(timeline)
    notes = []
    if len(silence):
        notes.append(
            f"For {units.seconds(silence.length_ns / 1e9)} neither host nor device recorded anything, far longer than all that "
            "was recorded: a clock jumped, or nothing was done. That time is left out."
        )
    return ClockProblems(silence, [*notes, *_early(timeline), *(_back(timeline) or _overlaps(timeline))])


def _silence(timeline: Timeline) -> IntervalSet:
    ops, calls, operators = timeline.ops, timeline.calls, timeline.operators
    if not len(ops):
        return EMPTY
    first = min(int(each.start_ns.min(initial=int(ops.start_ns[0]))) for each in (ops, calls, operators))
    last = max(int(each.end_ns.max(initial=int(ops.end_ns[0]))) for each in (ops, calls, operators))
    starts = np.concatenate(([first], ops.start_ns, [last]))
    if np.diff(starts).max() < _SILENT_NS:
        return EMPTY  # fast path for nearly every capture
    seen = unite(*(union(each.start_ns, each.end_ns) for each in (ops, calls, operators)))
    gaps = complement(seen, union(np.array([first]), np.array([last])))
    long = gaps.end - gaps.start >= max(_SILENT_NS, 1)
    silence = union(gaps.start[long], gaps.end[long])
    recorded = last - first - silence.length_ns
    return silence if silence.length_ns >= _SILENT_TIMES * recorded else EMPTY


def _launched(timeline: Timeline) -> Int64 | slice:
    """Rows of the operations whose launch is known; all of them need no list of rows."""
    known = timeline.ops.launch >= 0
    return slice(None) if known.all() else np.flatnonzero(known)


def _early(timeline: Timeline) -> list[str]:
    """Operations that begin before the call that launched them."""
    ops, calls = timeline.ops, timeline.calls
    known = _launched(timeline)
    launch = ops.launch[known]
    if not len(launch):
        return []
    ahead = calls.start_ns[launch] - ops.start_ns[known]
    early = ahead > _EARLY_NS
    if early.sum() < _ENOUGH * len(launch):
        return []
    return [
        f"{int(early.sum())} of {len(launch)} device operations begin before the call that launched them, by up to "
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
    """Operations of one stream that overlap: a stream runs them in order. Graphs may have branches and are excluded."""
    ops = timeline.ops
    known = _launched(timeline)
    launch = ops.launch[known]
    if not len(launch):
        return []
    alone = np.bincount(launch)[launch] == 1
    rows = known if alone.all() else np.arange(len(ops))[known][alone]
    order = by_stream(ops.device[rows], ops.stream[rows])
    start, end, stream, device = (
        column[rows][order] for column in (ops.start_ns, ops.end_ns, ops.stream, ops.device)
    )
    same = (stream[1:] == stream[:-1]) & (device[1:] == device[:-1])
    overlapping = int((same & (start[1:] < end[:-1] - _OVERLAP_NS)).sum())
    if overlapping < max(3, _ENOUGH_OVERLAPS * len(start)):
        return []
    return [
        f"{overlapping} of {len(start)} device operations begin before the one before them on their stream has ended: a clock jumped "
        "back, or streams were mixed up. Times that overlap count once."
    ]


def _crossing(thread: Int64, start: Int64, end: Int64) -> int:
    """Count calls that begin inside an earlier one of their thread and end after it; rows are ordered by thread and start."""
    same = thread[1:] == thread[:-1]
    inside = same & (start[1:] < end[:-1]) & (end[1:] > end[:-1])
    return int(inside.sum())


_NS = 1e9
_MOST_GAPS = 10
_GAP_NS = 50_000
"""Gaps below this are not worth a line of their own."""
Windows = Mapping[str, IntervalSet]


@dataclass(slots=True)
class TimeAxis:
    """The results of the time axis."""

    budget: dict[str, Budget] = field(default_factory=dict)
    busy_ratio: dict[str, float] = field(default_factory=dict)
    """Phase → share of its span in which a device is busy, mean over the devices that are used."""
    busy_by_device: dict[str, dict[int, float]] = field(default_factory=dict)
    devices: list[DeviceUse] = field(default_factory=list)
    gaps: list[IdleGap] = field(default_factory=list)
    communication: Communication | None = None
    collectives: CollectiveRows = field(default_factory=no_collective_rows)
    """Every communication kernel by itself, to match those of several ranks."""
    notes: list[str] = field(default_factory=list)


def time_axis(timeline: Timeline, attribution: Attribution, source: str | None) -> TimeAxis:
    """Analyse a timeline that has device operations."""
    activities = device_activities(timeline)
    base = phase_windows(timeline, attribution)
    whole = whole_window(timeline)
    found = TimeAxis()
    problems = find_clock_problems(timeline)
    if len(problems.silence):
        base = {phase: complement(problems.silence, window) for phase, window in base.items()}
        whole = complement(problems.silence, whole)
    windows: list[dict[str, IntervalSet]] = [
        {**windows_on(one, timeline, attribution, base), WHOLE: complement(one.idle.held, whole)}
        for one in activities
    ]
    kept = {id(one) for one in used_devices(activities)}
    used = [place for place, one in enumerate(activities) if id(one) in kept]
    working = [works_for(one, attribution) for one in activities]
    host = HostActivity(timeline)
    for phase in (*base, WHOLE):
        chosen = [place for place in used if phase in working[place]] or used
        cut = [(activities[place], windows[place][phase]) for place in chosen if len(windows[place][phase])]
        if not cut:
            continue
        budgets = [budget_on(one, window) for one, window in cut]
        found.budget[phase] = _mean(budgets, _owners(cut, budgets, host), source)
        ratios = {
            one.device: _busy_ns(one, window, b) / b.span_ns
            for (one, window), b in zip(cut, budgets, strict=True)
        }
        found.busy_by_device[phase] = ratios
        found.busy_ratio[phase] = sum(ratios.values()) / len(ratios)
    found.devices = [_device(timeline, one, problems.silence) for one in activities]
    found.gaps = _longest_gaps(timeline, activities, windows, host)
    found.notes = [*_notes(activities), *problems.notes]
    if any(len(one.communication) for one in activities):
        found.collectives = collective_rows(timeline, attribution)
        span = found.budget[WHOLE].span_s * _NS if WHOLE in found.budget else 0.0
        found.communication = communication_of(timeline, activities, found.collectives, span)
    return found


def _busy_ns(one: DeviceActivity, window: IntervalSet, budget: DeviceBudget) -> int:
    """Return busy time; time in which the host is inside a collective is communication, not busy time."""
    working = sum(budget.parts_ns[name] for name in WORKING)
    return working - one.idle.parts[COLLECTIVE_WAIT].length_within(window)


def _mean(
    budgets: Sequence[DeviceBudget], owners: Mapping[str, IdleOwner | None], source: str | None
) -> Budget:
    count = len(budgets)
    span = sum(one.span_ns for one in budgets)
    parts = []
    for name in PARTS:
        length = sum(one.parts_ns[name] for one in budgets)
        if length or name in ("compute", "copy", "sync", "launch", "host"):
            share = length / span if span else 0.0
            waits = round(sum(one.waits for one in budgets) / count) if name == "sync" else None
            parts.append(BudgetPart(name, length / count / _NS, share, owners.get(name), waits))
    return Budget(span_s=span / count / _NS, parts=parts, source=source)


def _owners(
    cut: Sequence[tuple[DeviceActivity, IntervalSet]], budgets: Sequence[DeviceBudget], host: HostActivity
) -> dict[str, IdleOwner | None]:
    found = {name: host.owner(name, _stretches(name, cut)) for name in PARTS if name not in WORKING}
    return found | {COLLECTIVE_WAIT: _collective_owner(cut, budgets, host)}


def _collective_owner(
    cut: Sequence[tuple[DeviceActivity, IntervalSet]], budgets: Sequence[DeviceBudget], host: HostActivity
) -> IdleOwner | None:
    """Return the owner of waits in host collectives; the rest of that part belongs to the devices."""
    owner = host.owner(COLLECTIVE_WAIT, _stretches(COLLECTIVE_WAIT, cut))
    total = sum(one.parts_ns[COLLECTIVE_WAIT] for one in budgets)
    if owner is None or not total:
        return None
    waited = sum(one.idle.parts[COLLECTIVE_WAIT].length_within(window) for one, window in cut)
    return replace(owner, share_ratio=(owner.share_ratio or 0.0) * waited / total)


def _stretches(name: str, cut: Sequence[tuple[DeviceActivity, IntervalSet]]) -> Stretches:
    return joined(
        [
            stretches(one.idle.parts[name], window, one.idle.gaps.start, one.idle.gaps.thread).longest()
            for one, window in cut
        ]
    )


def _device(timeline: Timeline, one: DeviceActivity, silence: IntervalSet) -> DeviceUse:
    """The figures of one device, over its own span: before its first and after its last work it is not waiting."""
    rows = one.rows
    first, last = int(timeline.ops.start_ns[rows[0]]), int(timeline.ops.end_ns[rows].max())
    own = complement(unite(one.idle.held, silence), union(np.array([first]), np.array([last])))
    budget = budget_on(one, own)
    busy = _busy_ns(one, own, budget)
    queued = budget.parts_ns["queue"]
    return DeviceUse(
        device=one.device,
        name=timeline.devices.get(one.device),
        span_s=budget.span_ns / _NS,
        busy_s=busy / _NS,
        busy_ratio=busy / budget.span_ns if budget.span_ns else None,
        idle_s=(budget.span_ns - busy) / _NS,
        queued_s=queued / _NS,
        backlog_s=one.idle.held.length_ns / _NS,
        communication_s=one.communication.length_ns / _NS,
        exposed_communication_s=(
            budget.parts_ns["communication"] - one.idle.parts[COLLECTIVE_WAIT].length_within(own)
        )
        / _NS,
        copy_s=budget.parts_ns["copy"] / _NS,
        streams=len(distinct_values(timeline.ops.stream[rows])),
    )


def _longest_gaps(
    timeline: Timeline,
    activities: Sequence[DeviceActivity],
    windows: Sequence[Windows],
    host: HostActivity,
) -> list[IdleGap]:
    origin = int(timeline.ops.start_ns[0])
    candidates: list[tuple[int, int, int]] = []
    for number, (one, own) in enumerate(zip(activities, windows, strict=True)):
        whole, idle = own[WHOLE], one.idle.gaps
        long = np.flatnonzero(idle.end - idle.start >= _GAP_NS)
        length = whole.length_before(idle.end[long]) - whole.length_before(idle.start[long])
        longest = np.argsort(-length, kind="stable")[:_MOST_GAPS].tolist()
        candidates += [(-int(length[at]), number, int(long[at])) for at in longest if length[at] >= _GAP_NS]
    gaps = []
    for _, number, row in sorted(candidates)[:_MOST_GAPS]:
        one, own = activities[number], windows[number]
        gap = IntervalSet(one.idle.gaps.start[row : row + 1], one.idle.gaps.end[row : row + 1])
        window = intersect(gap, own[WHOLE])
        start, end = int(window.start[0]), int(window.end[-1])
        part = max(one.idle.parts, key=lambda name: one.idle.parts[name].length_within(window))
        owner = host.owner(part, _stretches(part, [(one, window)]))
        thread = int(one.idle.gaps.thread[row])
        if owner is None:
            continue
        gaps.append(
            IdleGap(
                device=one.device,
                start_s=(start - origin) / _NS,
                seconds=window.length_ns / _NS,
                owner=owner,
                phase=_phase_at(own, (start + end) // 2),
                frames=host.frames(thread, (start + end) // 2),
            )
        )
    return gaps


def _phase_at(windows: Windows, at: int) -> str | None:
    point = np.array([at])
    for phase, window in windows.items():
        if phase != WHOLE and (window.length_before(point + 1) > window.length_before(point)).any():
            return phase
    return None


def _notes(activities: Sequence[DeviceActivity]) -> list[str]:
    notes = []
    for one in activities:
        held = one.idle.held.length_ns
        if held:
            notes.append(
                f"Device {one.device} had work in its queue for {units.seconds(held / _NS)} before it ran it: its stream was "
                "still busy with work from before the capture. That time is not counted as idle, nor as part of the span."
            )
    return notes
