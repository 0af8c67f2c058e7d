"""An export of several processes (nsys around ``torchrun``), process by process."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_perf_opt.ingest.linking import process_of
from llm_perf_opt.model.timeline import DeviceOps, HostCalls, Int64, Ranges, Timeline

Mask = npt.NDArray[np.bool_]


def by_process(timeline: Timeline) -> dict[int, Timeline]:
    """Return process → what it did, for every process that used a device, in the order of devices and processes."""
    ops = timeline.ops
    processes = [int(one) for one in np.unique(ops.process) if one >= 0]
    if len(processes) < 2:
        return dict.fromkeys(processes, timeline)
    first_device = {one: int(ops.device[ops.process == one].min()) for one in processes}
    ordered = sorted(processes, key=lambda one: (first_device[one], one))
    return {one: of_process(timeline, one) for one in ordered}


def marked_ranks(timeline: Timeline) -> dict[int, int]:
    """Return rank → process, where several processes say which rank of one group they are."""
    told: list[list[int]] = timeline.facts.get("rank_processes") or []
    found = {rank: process for process, rank, _ in told}
    sizes = {size for _, _, size in told}
    # Two groups in one capture, or a rank that is there twice: nobody can say who belongs together.
    return found if len(sizes) == 1 and len(found) == len(told) > 1 else {}


def of_process(timeline: Timeline, process: int) -> Timeline:
    """Return what one process did."""
    ops, calls, ranges = timeline.ops, timeline.calls, timeline.ranges
    mine = process_of(calls.thread) == process
    open_here = process_of(ranges.thread) == process
    call_row, range_row = _new_rows(mine), _new_rows(open_here)
    own = ops.process == process
    kept: dict[str, Any] = _rows(ops, own)
    kept["launch"] = _moved(kept["launch"], call_row)
    kept["range"] = _moved(kept["range"], range_row)
    inside: dict[str, Any] = _rows(ranges, open_here)
    inside["parent"] = _moved(inside["parent"], range_row)
    devices = set(np.unique(kept["device"]).tolist())
    return replace(
        timeline,
        ops=DeviceOps(**kept),
        calls=HostCalls(**_rows(calls, mine)),
        ranges=Ranges(**inside),
        devices={number: name for number, name in timeline.devices.items() if number in devices},
        facts=dict(timeline.facts),
    )


def _rows(table: DeviceOps | HostCalls | Ranges, chosen: Mask) -> dict[str, Any]:
    return {one.name: getattr(table, one.name)[chosen] for one in fields(table)}


def _new_rows(chosen: Mask) -> Int64:
    """Return for every row its place among the chosen; -1 for the others."""
    return np.where(chosen, np.cumsum(chosen) - 1, -1)


def _moved(rows: Any, places: Int64) -> Any:
    """Return references to rows as references to their new places; what is not among them is not known."""
    if not len(places):
        return np.full_like(rows, -1)
    return np.where(rows >= 0, places[np.maximum(rows, 0)], -1).astype(rows.dtype)
