"""Where the wall-clock of a phase goes, without overlap: the parts sum to the span, to the nanosecond.

The span of a phase is the time its ranges are open on the host, together with the time its operations run on
the device (launches are asynchronous: work may go on after the range has closed). In it, in this order,

``compute``  a kernel runs on a device;
``copy``     no kernel, but a copy or memset runs;
``sync``     the device is idle and a launching thread waits in a synchronising call;
``launch``   the device is idle and a launching thread is inside a call that launches work;
``host``     the device is idle and the host does something else.

Work on several streams or devices is united, never summed. Spans of different phases may overlap where one is
still running on the device while the host is in the next.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llm_perf_opt.analysis.timeline.attribution import Attribution, take_or_none
from llm_perf_opt.analysis.timeline.intervals import (
    EMPTY,
    IntervalSet,
    complement,
    growing,
    steps,
    union,
    unite,
)
from llm_perf_opt.model.timeline import (
    HostCalls,
    Int32,
    OpKind,
    Ranges,
    Timeline,
)

Mask = npt.NDArray[np.bool_]

PARTS = ("compute", "copy", "sync", "launch", "host")

# Names as nsys prints them carry a version ("cudaMemcpy_v3020"), driver calls begin with "cu", HIP with "hip".
_SYNC_CALL = re.compile(
    r"synchronize|^\[CUDA synchronization\]|^(?:cuda|cu|hip)Memcpy(?!\w*Async)", re.IGNORECASE
)
_LAUNCH_CALL = re.compile(r"launch|memcpy\w*async|memset|memprefetch", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PhaseBudget:
    """The wall-clock of one phase."""

    span_ns: int
    parts_ns: dict[str, int]
    """Part → length; the values sum to the span."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What devices and launching threads did, each as a set of intervals."""

    busy_by_device: dict[int, IntervalSet]
    claimed: list[IntervalSet]
    """Kernels, then with copies, then with waits, then with launches: each claims what is left."""


def is_sync_call(name: str) -> bool:
    """Whether a CUDA call makes the host wait for the device."""
    return bool(_SYNC_CALL.search(name))


def activity(timeline: Timeline) -> Activity:
    """Unite the device operations and the relevant calls of a capture."""
    ops = timeline.ops
    kernel = ops.kind == OpKind.KERNEL
    devices = np.unique(ops.device).tolist()
    busy = {
        device: union(ops.start_ns[ops.device == device], ops.end_ns[ops.device == device])
        if len(devices) > 1
        else union(ops.start_ns, ops.end_ns)
        for device in devices
    }
    syncs, launches = _host_layers(timeline.calls, timeline.names, timeline.ops.launch)
    kernels = union(ops.start_ns[kernel], ops.end_ns[kernel])
    copies = union(ops.start_ns[~kernel], ops.end_ns[~kernel])
    return Activity(busy, growing([kernels, copies, syncs, launches]))


def _host_layers(calls: HostCalls, names: list[str], launched_by: Int32) -> tuple[IntervalSet, IntervalSet]:
    """(waiting, launching) of the threads that launch work, or of all threads when none is known to."""
    if not len(calls):
        return EMPTY, EMPTY
    launching = np.zeros(len(calls), bool)
    launching[launched_by[launched_by >= 0]] = True
    threads = np.unique(calls.thread[launching])
    relevant = np.isin(calls.thread, threads) if len(threads) else np.ones(len(calls), bool)
    used = np.unique(calls.name)
    is_sync, is_launch = np.zeros(len(names) + 1, bool), np.zeros(len(names) + 1, bool)
    for index in used.tolist():
        is_sync[index] = is_sync_call(names[index])
        is_launch[index] = not is_sync[index] and bool(_LAUNCH_CALL.search(names[index]))
    waits, launches = is_sync[calls.name] & relevant, (is_launch[calls.name] | launching) & relevant
    return (
        union(calls.start_ns[waits], calls.end_ns[waits]),
        union(calls.start_ns[launches], calls.end_ns[launches]),
    )


def phase_windows(timeline: Timeline, attribution: Attribution) -> dict[str, IntervalSet]:
    """The span of every phase: its ranges on the host and its operations on the device.

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
    """From the first to the last device operation, or launching call of one."""
    ops = timeline.ops
    if not len(ops):
        return EMPTY
    launches = ops.launch[ops.launch >= 0]
    first = min(
        int(ops.start_ns[0]), int(timeline.calls.start_ns[launches].min(initial=int(ops.start_ns[0])))
    )
    return union(np.array([first]), np.array([int(ops.end_ns.max())]))


def budget_of(window: IntervalSet, found: Activity) -> PhaseBudget:
    """Split one window."""
    lengths = steps(window, found.claimed)
    return PhaseBudget(window.length_ns, dict(zip(PARTS, lengths, strict=True)))


def busy_ratios(window: IntervalSet, found: Activity) -> dict[int, float]:
    """Device → share of the window in which it ran anything; devices that ran nothing at all are left out."""
    length = window.length_ns
    if not length:
        return {}
    return {device: busy.length_within(window) / length for device, busy in found.busy_by_device.items()}
