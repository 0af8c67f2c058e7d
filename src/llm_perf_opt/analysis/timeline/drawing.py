"""One decode step (or a stretch of another phase) as lanes of events, ready to draw."""

from __future__ import annotations

from typing import Any

import numpy as np

from llm_perf_opt.analysis.kernels.families import family_of
from llm_perf_opt.analysis.kernels.names import short_name
from llm_perf_opt.analysis.timeline.attribution import NONE, Attribution
from llm_perf_opt.analysis.timeline.idle import is_sync_call
from llm_perf_opt.captures.timeline import Int64, OpKind, Timeline

_PREFERRED = ("decode", "mixed", "prefill", "vision", "encode")
_MAX_EVENTS = 1500
_MAX_OPS_OF_A_STEP = 4000
_FALLBACK_OPS = 400
_NS = 1e9


def draw_step(timeline: Timeline, attribution: Attribution) -> dict[str, Any]:
    """Return ``{phase, span_s, lanes: [{name, events: [{name, start_s, end_s, family}]}]}``; empty without a device.

    The step is the typical one: the range of median length. A range around a whole loop is cut at the waits
    of the host, which is where one token ends and the next begins.
    """
    if not len(timeline.ops):
        return {}
    phase, begin, end, thread = _choose(timeline, attribution)
    lanes = [*_host_lanes(timeline, attribution, begin, end, thread), *_device_lanes(timeline, begin, end)]
    events = sum(len(lane["events"]) for lane in lanes)
    drawing: dict[str, Any] = {
        "phase": phase,
        "span_s": (end - begin) / _NS,
        "start_ns": begin,
        "lanes": lanes,
    }
    if events > _MAX_EVENTS:
        for lane in lanes:
            lane["events"] = lane["events"][: max(1, _MAX_EVENTS * len(lane["events"]) // events)]
        drawing["shown_events"], drawing["all_events"] = _MAX_EVENTS, events
    return drawing


def _choose(timeline: Timeline, attribution: Attribution) -> tuple[str | None, int, int, int]:
    """(phase, begin, end, thread) of the stretch to draw."""
    phases = [name for name in _PREFERRED if name in attribution.phases] or list(attribution.phases)
    for phase in phases:
        number = attribution.phases.index(phase)
        rows = _outermost(timeline, attribution, number)
        if len(rows):
            length = timeline.ranges.end_ns[rows] - timeline.ranges.start_ns[rows]
            row = int(rows[np.argsort(length, kind="stable")[len(rows) // 2]])
            thread = int(timeline.ranges.thread[row])
            begin, end = int(timeline.ranges.start_ns[row]), _device_end(timeline, row)
            return (phase, *_one_step(timeline, begin, end, thread), thread)
    ops = timeline.ops
    middle = len(ops) // 2
    with_launch = np.flatnonzero(ops.launch[middle:] >= 0)
    middle += int(with_launch[0]) if len(with_launch) else 0
    last = min(len(ops) - 1, middle + _FALLBACK_OPS)
    launch = int(ops.launch[middle])
    thread = int(timeline.calls.thread[launch]) if launch >= 0 else NONE
    return None, int(ops.start_ns[middle]), int(ops.end_ns[middle : last + 1].max()), thread


def _outermost(timeline: Timeline, attribution: Attribution, phase: int) -> Int64:
    of_phase = attribution.path_phase[attribution.paths.of_range] == phase
    parent = timeline.ranges.parent
    inside_same = np.where(parent >= 0, of_phase[np.maximum(parent, 0)], False)
    rows: Int64 = np.flatnonzero(of_phase & ~inside_same)
    return rows


def _device_end(timeline: Timeline, row: int) -> int:
    """Return the end of the work launched in a range: the range's end, or later on the device."""
    begin, end = int(timeline.ranges.start_ns[row]), int(timeline.ranges.end_ns[row])
    first, last = _calls_begun(timeline, begin, end, int(timeline.ranges.thread[row]))
    launched = timeline.ops.launch
    mine = np.flatnonzero((launched >= first) & (launched < last))
    return max(end, int(timeline.ops.end_ns[mine].max(initial=end)))


def _calls_begun(timeline: Timeline, begin: int, end: int, thread: int) -> tuple[int, int]:
    """Rows of the calls of a thread that begin from ``begin`` to ``end``; calls are ordered by thread and start."""
    calls = timeline.calls
    low, high = (int(bound) for bound in np.searchsorted(calls.thread, (thread, thread + 1)))
    own = calls.start_ns[low:high]
    return (
        low + int(np.searchsorted(own, begin, side="left")),
        low + int(np.searchsorted(own, end, side="right")),
    )


def _one_step(timeline: Timeline, begin: int, end: int, thread: int) -> tuple[int, int]:
    first, last = np.searchsorted(timeline.ops.start_ns, (begin, end))
    calls = timeline.calls
    rows = np.arange(*_calls_begun(timeline, begin, end, thread))
    mine = rows[calls.end_ns[rows] <= end]
    sync = [int(calls.end_ns[row]) for row in mine.tolist() if is_sync_call(timeline.names[calls.name[row]])]
    waits = sorted(set(sync))
    if last - first > _FALLBACK_OPS and len(waits) >= 3:
        length = np.diff(waits)
        step = int(np.argsort(length, kind="stable")[len(length) // 2])
        return waits[step], waits[step + 1]
    if last - first > _MAX_OPS_OF_A_STEP:
        middle = (first + last) // 2
        return int(timeline.ops.start_ns[middle]), int(timeline.ops.start_ns[middle + _FALLBACK_OPS])
    return begin, end


def _event(name: str, start: int, end: int, begin: int, limit: int, family: str) -> dict[str, Any]:
    return {
        "name": name,
        "start_s": max(0, start - begin) / _NS,
        "end_s": (min(end, limit) - begin) / _NS,
        "family": family,
    }


def _host_lanes(
    timeline: Timeline, attribution: Attribution, begin: int, end: int, thread: int
) -> list[dict[str, Any]]:
    ranges, calls = timeline.ranges, timeline.calls
    lanes = []
    rows = np.flatnonzero((ranges.thread == thread) & (ranges.start_ns < end) & (ranges.end_ns > begin))
    named = [
        row
        for row in rows.tolist()
        if attribution.meanings[attribution.paths.of_range[row]].role != "operator"
    ]
    if named:
        events = [
            _event(
                timeline.names[ranges.name[row]],
                int(ranges.start_ns[row]),
                int(ranges.end_ns[row]),
                begin,
                end,
                "range",
            )
            for row in named
        ]
        lanes.append({"name": "ranges", "events": events})
    rows = np.flatnonzero((calls.thread == thread) & (calls.start_ns < end) & (calls.end_ns > begin))
    if len(rows):
        events = []
        for row in rows.tolist():
            name = timeline.names[calls.name[row]]
            family = "sync" if is_sync_call(name) else "call"
            label = name.split("_v")[0] if name.startswith("cu") else name
            events.append(_event(label, int(calls.start_ns[row]), int(calls.end_ns[row]), begin, end, family))
        lanes.append({"name": "CUDA calls", "events": events})
    return lanes


def _device_lanes(timeline: Timeline, begin: int, end: int) -> list[dict[str, Any]]:
    ops = timeline.ops
    rows = np.flatnonzero((ops.start_ns < end) & (ops.end_ns > begin))
    several = len(np.unique(ops.device[rows])) > 1
    lanes: dict[tuple[int, int, int], list[dict[str, Any]]] = {}
    for row in rows.tolist():
        name = timeline.names[ops.name[row]]
        is_copy = int(ops.kind[row] != OpKind.KERNEL)
        lane = lanes.setdefault((int(ops.device[row]), is_copy, int(ops.stream[row])), [])
        event = _event(
            short_name(name), int(ops.start_ns[row]), int(ops.end_ns[row]), begin, end, family_of(name)
        )
        lane.append(event)
    return [
        {
            "name": (f"device {device}: " if several else "")
            + (f"copies, stream {stream}" if is_copy else f"kernels, stream {stream}"),
            "events": events,
        }
        for (device, is_copy, stream), events in sorted(lanes.items())
    ]
