"""Timelines made by hand, for tests of the analysis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llm_perf_opt.analysis.timeline.attribution import NONE, Attribution, Total, by_path_and_name
from llm_perf_opt.analysis.timeline.summary import summarise_timeline
from llm_perf_opt.captures.timeline import (
    CollectiveCalls,
    DeviceOps,
    HostCalls,
    HostSpans,
    OpKind,
    Ranges,
    Timeline,
)
from llm_perf_opt.core.arrays import link_ranges, order_by_thread
from llm_perf_opt.summary import Budget
from llm_perf_opt.summary.devices import IdleOwner

Op = tuple[int, int, str, int]
"""(start, end, name, row of the launching call or -1)"""
Call = tuple[int, int, str]
Range = tuple[int, int, str]
Collective = tuple[int, str, int, int]
"""(row of the operation, name, bytes, group size)"""

LAUNCH, SYNC, MALLOC = "cudaLaunchKernel_v7000", "cudaStreamSynchronize_v3020", "cudaMalloc_v3020"
COPY = "[CUDA memcpy Device-to-Host]"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
US, MS = 1_000, 1_000_000


def column(values: Sequence[Any], kind: Any = np.int64) -> Any:
    return np.array(values, kind)


class _Names:
    def __init__(self) -> None:
        self.listed: list[str] = []

    def index(self, name: str) -> int:
        if name not in self.listed:
            self.listed.append(name)
        return self.listed.index(name)


def make_timeline(
    ops: Sequence[Op] = (),
    calls: Sequence[Call] = (),
    ranges: Sequence[Range] = (),
    *,
    devices: Sequence[int] | None = None,
    streams: Sequence[int] | None = None,
    threads: Sequence[int] | None = None,
    range_threads: Sequence[int] | None = None,
    operators: Sequence[Range] = (),
    operator_threads: Sequence[int] | None = None,
    frames: Sequence[Range] = (),
    frame_threads: Sequence[int] | None = None,
    collectives: Sequence[Collective] = (),
    facts: Mapping[str, Any] | None = None,
    unit: int = 1,
) -> Timeline:
    """Copies are operations named ``[CUDA memcpy…]``; everything else is a kernel.

    Times are in ``unit`` nanoseconds. Rows may come in any order, and refer to one another as given; threads are 1,
    devices 0 and streams 7 unless told.
    """
    names = _Names()
    host, call_place = _calls(calls, threads, names, unit)
    start, end = _times(ranges, unit)
    thread = column(list(range_threads) if range_threads is not None else [1] * len(ranges))
    order = order_by_thread(thread, start, end)
    start, end, thread = start[order], end[order], thread[order]
    label = column([names.index(one[2]) for one in ranges], np.int32)[order]
    parent, inside = link_ranges(start, end, thread, np.zeros(len(start), bool), host.thread, host.start_ns)
    launch = column([call_place[one[3]] if one[3] >= 0 else -1 for one in ops], np.int32)
    picked = column(sorted(range(len(ops)), key=lambda row: (ops[row][0], ops[row][1], row)))
    kinds = [OpKind.COPY if one[2].startswith("[CUDA memcpy") else OpKind.KERNEL for one in ops]
    of_op = np.where(launch >= 0, inside[launch], -1).astype(np.int32) if len(calls) else launch
    begins, ends = _times(ops, unit)
    device_ops = DeviceOps(
        start_ns=begins[picked],
        end_ns=ends[picked],
        kind=column(kinds, np.int8)[picked],
        name=column([names.index(one[2]) for one in ops], np.int32)[picked],
        device=column(list(devices) if devices is not None else [0] * len(ops), np.int32)[picked],
        stream=column(list(streams) if streams is not None else [7] * len(ops))[picked],
        process=column([1] * len(ops)),
        launch=launch[picked],
        range=of_op[picked],
        bytes=column([-1] * len(ops)),
    )
    place = {int(row): number for number, row in enumerate(picked.tolist())}
    return Timeline(
        "made by hand",
        names.listed,
        device_ops,
        host,
        Ranges(start, end, thread, label, parent),
        facts=dict(facts or {}),
        operators=_spans(operators, operator_threads, names, unit),
        frames=_spans(frames, frame_threads, names, unit),
        collectives=CollectiveCalls(
            column([place[one[0]] for one in collectives], np.int32),
            column([names.index(one[1]) for one in collectives], np.int32),
            column([one[2] for one in collectives]),
            column([one[3] for one in collectives], np.int32),
        ),
    )


def _times(rows: Sequence[tuple[Any, ...]], unit: int) -> tuple[Any, Any]:
    return column([one[0] for one in rows]) * unit, column([one[1] for one in rows]) * unit


def _calls(
    calls: Sequence[Call], threads: Sequence[int] | None, names: _Names, unit: int
) -> tuple[HostCalls, dict[int, int]]:
    thread = column(list(threads) if threads is not None else [1] * len(calls))
    start, end = _times(calls, unit)
    order = np.lexsort((np.arange(len(calls)), start, thread))
    name = column([names.index(one[2]) for one in calls], np.int32)
    table = HostCalls(start[order], end[order], thread[order], name[order])
    return table, {int(row): number for number, row in enumerate(order.tolist())}


def _spans(spans: Sequence[Range], threads: Sequence[int] | None, names: _Names, unit: int) -> HostSpans:
    thread = column(list(threads) if threads is not None else [1] * len(spans))
    start, end = _times(spans, unit)
    order = order_by_thread(thread, start, end)
    name = column([names.index(one[2]) for one in spans], np.int32)
    return HostSpans(start[order], end[order], thread[order], name[order])


def budget_of(timeline: Timeline, phase: str = "all") -> Budget:
    """The budget of a phase, which must be whole: nothing negative, and its parts sum to its span."""
    budget = summarise_timeline(timeline).budget[phase]
    assert all(part.seconds >= 0 for part in budget.parts)
    assert abs(sum(part.seconds for part in budget.parts) - budget.span_s) < 1e-12
    return budget


def split(timeline: Timeline, phase: str = "all", unit: int = 1) -> dict[str, float]:
    """The parts of a phase that are not nothing, in ``unit`` nanoseconds."""
    parts = budget_of(timeline, phase).parts
    return {part.name: round(part.seconds * 1e9) / unit for part in parts if part.seconds}


def owner_of(timeline: Timeline, part: str, phase: str = "all") -> IdleOwner:
    """The owner of a part that has one."""
    (found,) = [one.owner for one in budget_of(timeline, phase).parts if one.name == part]
    assert found is not None
    return found


def by_innermost(timeline: Timeline, attribution: Attribution) -> dict[str | None, Total]:
    """Totals of kernels by the name of the innermost range; ``None`` outside all ranges."""
    result: dict[str | None, Total] = {}
    for (path, _), total in by_path_and_name(timeline, attribution).items():
        key = timeline.names[attribution.paths.name[path]] if path != NONE else None
        before = result.get(key, Total(0, 0))
        result[key] = Total(before.launches + total.launches, before.total_ns + total.total_ns)
    return result
