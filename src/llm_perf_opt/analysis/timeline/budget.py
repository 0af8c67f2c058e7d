"""Breakdown of the wall-clock of a phase, without overlap: the parts sum to the span, to the nanosecond.

The span of a phase is the time its ranges are open on the host, together with the time its operations run on
the device (launches are asynchronous: work may go on after the range has closed), without the time in which the
device was busy with other phases only, or held by a backlog from before the capture. In it, in this order,

``compute``        a kernel runs that is not communication;
``copy``           no such kernel, but a copy or memset runs;
``communication``  only communication runs (or the host waits in a collective of its own);
and where nothing runs, the parts of :mod:`llm_perf_opt.analysis.timeline.idle`.

Every device is split separately; the streams of a device are merged. The budget of a phase is the mean over the devices
that do its work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llm_perf_opt.analysis.intervals import EMPTY, IntervalSet, complement, growing, steps, union, unite
from llm_perf_opt.analysis.kernels.families import family_of
from llm_perf_opt.analysis.timeline.attribution import Attribution, take_or_none
from llm_perf_opt.analysis.timeline.idle import (
    COLLECTIVE_WAIT,
    IDLE_PARTS,
    Idle,
    OneOff,
    feeding_threads,
    idle_of,
    named,
)
from llm_perf_opt.analysis.timeline.one_off import find_one_off
from llm_perf_opt.captures.timeline import Int32, Int64, OpKind, Ranges, Timeline
from llm_perf_opt.core.arrays import distinct_values

Mask = npt.NDArray[np.bool_]
PARTS = ("compute", "communication", "copy", *IDLE_PARTS)
WORKING = ("compute", "communication", "copy")
"""Parts in which the device does something."""
_COUNTS_AS_USED = 0.01
"""A device with less than this share of the busiest one's activity is not part of a mean over devices."""


@dataclass(frozen=True, slots=True)
class DeviceActivity:
    """Activity of one device, and the causes of its idle time."""

    device: int
    rows: Int64
    """Its operations."""
    compute: IntervalSet
    copies: IntervalSet
    communication: IntervalSet
    claimed: list[IntervalSet]
    """Compute, then with copies, then with communication: each claims what is left."""
    idle: Idle

    @property
    def busy(self) -> IntervalSet:
        """Any activity."""
        return self.claimed[-1]


@dataclass(frozen=True, slots=True)
class DeviceBudget:
    """The wall-clock of one phase on one device."""

    span_ns: int
    parts_ns: dict[str, int]
    """Part → length; the values sum to the span."""
    waits: int = 0
    """Waits of the host after which the device ran dry."""


def communication_names(timeline: Timeline) -> Mask:
    """Mark the names of kernels that communicate between devices."""
    kernels = timeline.ops.name[timeline.ops.kind == OpKind.KERNEL]
    return named(timeline.names, kernels, lambda name: family_of(name) == "communication")


def device_activities(timeline: Timeline) -> list[DeviceActivity]:
    """Split the operations by device, and explain each device's gaps."""
    ops = timeline.ops
    if not len(ops):
        return []
    low, high = _bounds(timeline)
    talking = communication_names(timeline)
    found = []
    once: dict[tuple[int, ...], OneOff] = {}
    devices = distinct_values(ops.device).tolist()
    for device in devices:
        rows = np.flatnonzero(ops.device == device)
        own = rows if len(devices) > 1 else slice(None)  # a view of the only device's columns
        start, end, kernel = ops.start_ns[own], ops.end_ns[own], ops.kind[own] == OpKind.KERNEL
        talks = kernel & talking[ops.name[own]]
        compute, copies, communication = (
            union(start[chosen], end[chosen]) for chosen in (kernel & ~talks, ~kernel, talks)
        )
        claimed = growing([compute, copies, communication])
        threads = feeding_threads(timeline, ops.launch[rows])
        key = tuple(threads.tolist())
        if key not in once:
            once[key] = find_one_off(timeline, threads, low, high)
        idle = idle_of(timeline, rows, claimed[-1], low, high, once[key])
        found.append(DeviceActivity(device, rows, compute, copies, communication, claimed, idle))
    return found


def _bounds(timeline: Timeline) -> tuple[int, int]:
    """The time that any window can reach."""
    ops, ranges = timeline.ops, timeline.ranges
    low = min(int(ops.start_ns[0]), int(ranges.start_ns.min(initial=int(ops.start_ns[0]))))
    last = int(ops.end_ns.max())
    return low, max(last, int(ranges.end_ns.max(initial=last)))


def phase_windows(timeline: Timeline, attribution: Attribution) -> dict[str, IntervalSet]:
    """The span of every phase: its ranges on the host and its operations on the devices.

    A phase inside another (vision inside prefill) is taken out of the outer one.
    """
    if not attribution.phases:
        return {}
    range_phase = attribution.path_phase[attribution.paths.of_range]
    outer_phase = _outer_phases(attribution)[attribution.paths.of_range]
    op_phase = attribution.op_phase
    windows = {}
    for number, name in enumerate(attribution.phases):
        inner = (outer_phase == number) & (range_phase != number)
        host = _host_window(timeline.ranges, range_phase == number, inner)
        ops = op_phase == number
        windows[name] = unite(host, union(timeline.ops.start_ns[ops], timeline.ops.end_ns[ops]))
    return {name: window for name, window in windows.items() if len(window)}


def _outer_phases(attribution: Attribution) -> Int32:
    """Path → phase of the path around it."""
    parents = np.array(attribution.paths.parent, np.int32)
    return take_or_none(attribution.path_phase, parents)


def _host_window(ranges: Ranges, own: Mask, inner: Mask) -> IntervalSet:
    if not inner.any():
        return union(ranges.start_ns[own], ranges.end_ns[own])
    parts = []
    for thread in np.unique(ranges.thread[own]).tolist():
        mine, within = own & (ranges.thread == thread), inner & (ranges.thread == thread)
        outside = union(ranges.start_ns[mine], ranges.end_ns[mine])
        parts.append(complement(union(ranges.start_ns[within], ranges.end_ns[within]), outside))
    return unite(*parts)


def whole_window(timeline: Timeline) -> IntervalSet:
    """From the first to the last device operation: launches before it are queueing, not waiting."""
    ops = timeline.ops
    if not len(ops):
        return EMPTY
    return union(np.array([int(ops.start_ns[0])]), np.array([int(ops.end_ns.max())]))


def windows_on(
    activity: DeviceActivity, timeline: Timeline, attribution: Attribution, windows: Mapping[str, IntervalSet]
) -> dict[str, IntervalSet]:
    """The part of every phase's window in which this device could have worked for it."""
    ops = timeline.ops
    op_phase = attribution.op_phase[activity.rows]
    result = {}
    for number, name in enumerate(attribution.phases):
        if name not in windows:
            continue
        own = op_phase == number
        elsewhere = activity.idle.held
        if own.any() and not own.all():
            mine, rest = (
                union(ops.start_ns[rows], ops.end_ns[rows])
                for rows in (activity.rows[own], activity.rows[~own])
            )
            elsewhere = unite(
                complement(mine, rest), elsewhere
            )  # what is busy is either its own or other work
        elif not own.any():
            # Operations without a phase may belong to this one: without launches it cannot be excluded.
            other = activity.rows[op_phase >= 0]
            elsewhere = unite(union(ops.start_ns[other], ops.end_ns[other]), elsewhere)
        result[name] = complement(elsewhere, windows[name])
    return result


def works_for(activity: DeviceActivity, attribution: Attribution) -> set[str]:
    """Phases that a device has operations of."""
    count = np.bincount(attribution.op_phase[activity.rows] + 1, minlength=1)[1:]
    return {attribution.phases[number] for number in np.flatnonzero(count).tolist()}


def budget_on(activity: DeviceActivity, window: IntervalSet) -> DeviceBudget:
    """Split one window of one device."""
    compute, copies, communication, _ = steps(window, activity.claimed)
    parts = {"compute": compute, "communication": communication, "copy": copies}
    for name in IDLE_PARTS:
        parts[name] = activity.idle.parts[name].length_within(window)
    parts["communication"] += activity.idle.parts[COLLECTIVE_WAIT].length_within(window)
    ends = activity.idle.waits_ns
    waits = int((window.length_before(ends + 1) > window.length_before(ends)).sum()) if len(ends) else 0
    return DeviceBudget(window.length_ns, parts, waits)


def used_devices(activities: Sequence[DeviceActivity]) -> list[DeviceActivity]:
    """Leave out nearly unused devices: their idle time is not informative."""
    most = max((one.busy.length_ns for one in activities), default=0)
    return [one for one in activities if one.busy.length_ns >= _COUNTS_AS_USED * most]
