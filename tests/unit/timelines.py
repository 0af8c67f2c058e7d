"""Timelines made by hand, for tests of the analysis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llm_perf_opt.analysis.timeline.attribution import NONE, Attribution, Total, by_path_and_name
from llm_perf_opt.ingest.linking import link_ranges, order_by_thread
from llm_perf_opt.model.timeline import (
    DeviceOps,
    HostCalls,
    OpKind,
    Ranges,
    Timeline,
)

Op = tuple[int, int, str, int]
"""(start, end, name, row of the launching call or -1)"""
Call = tuple[int, int, str]
Range = tuple[int, int, str]


def column(values: Sequence[Any], kind: Any = np.int64) -> Any:
    return np.array(values, kind)


def make_timeline(
    ops: Sequence[Op] = (),
    calls: Sequence[Call] = (),
    ranges: Sequence[Range] = (),
    *,
    devices: Sequence[int] | None = None,
    threads: Sequence[int] | None = None,
    range_threads: Sequence[int] | None = None,
) -> Timeline:
    """Copies are operations named ``[CUDA memcpy…]``; everything else is a kernel. Calls must be in order."""
    names: list[str] = []

    def index(name: str) -> int:
        if name not in names:
            names.append(name)
        return names.index(name)

    call_thread = column(list(threads) if threads is not None else [1] * len(calls))
    start, end = column([one[0] for one in ranges]), column([one[1] for one in ranges])
    thread = column(list(range_threads) if range_threads is not None else [1] * len(ranges))
    order = order_by_thread(thread, start, end)
    start, end, thread = start[order], end[order], thread[order]
    label = column([index(one[2]) for one in ranges], np.int32)[order]
    call_start = column([one[0] for one in calls])
    parent, inside = link_ranges(start, end, thread, np.zeros(len(start), bool), call_thread, call_start)
    launch = column([one[3] for one in ops], np.int32)
    table = sorted(range(len(ops)), key=lambda row: (ops[row][0], ops[row][1], row))
    picked = column(table)
    kinds = [OpKind.COPY if one[2].startswith("[CUDA memcpy") else OpKind.KERNEL for one in ops]
    where = column(list(devices) if devices is not None else [0] * len(ops), np.int32)
    of_op = np.where(launch >= 0, inside[launch], -1).astype(np.int32) if len(calls) else launch
    device_ops = DeviceOps(
        start_ns=column([one[0] for one in ops])[picked],
        end_ns=column([one[1] for one in ops])[picked],
        kind=column(kinds, np.int8)[picked],
        name=column([index(one[2]) for one in ops], np.int32)[picked],
        device=where[picked],
        stream=column([7] * len(ops)),
        process=column([1] * len(ops)),
        launch=launch[picked],
        range=of_op[picked],
        bytes=column([-1] * len(ops)),
    )
    host = HostCalls(
        call_start,
        column([one[1] for one in calls]),
        call_thread,
        column([index(one[2]) for one in calls], np.int32),
    )
    return Timeline("made by hand", names, device_ops, host, Ranges(start, end, thread, label, parent))


def by_innermost(timeline: Timeline, attribution: Attribution) -> dict[str | None, Total]:
    """Totals of kernels by the name of the innermost range; ``None`` outside all ranges."""
    result: dict[str | None, Total] = {}
    for (path, _), total in by_path_and_name(timeline, attribution).items():
        key = timeline.names[attribution.paths.name[path]] if path != NONE else None
        before = result.get(key, Total(0, 0))
        result[key] = Total(before.launches + total.launches, before.total_ns + total.total_ns)
    return result
