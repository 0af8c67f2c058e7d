"""Operators of a torch trace: self and total host time, and the device time they caused.

Operators and annotations of one thread nest. Sorted by start, the parent of each is the nearest earlier one
that contains it; everything else follows from the parents, level by level.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llm_perf_opt.captures.kineto.columns import Table
from llm_perf_opt.captures.timeline import DeviceOps, HostCalls, HostSpans, Int32, Int64, Ranges
from llm_perf_opt.core.arrays import enclosing, innermost, launching_rows, order_by_thread

NONE = -1


@dataclass(frozen=True, slots=True)
class OperatorTable:
    """Operator calls summed by (name, innermost range), ordered by both."""

    name: Int32
    """Index into ``Timeline.names``."""
    range: Int32
    """Row of ``Timeline.ranges``: the innermost annotation around the calls; -1 outside all."""
    calls: Int64
    self_ns: Int64
    """Host time without nested operators and annotations."""
    total_ns: Int64
    """Host time with them; a call inside a call of the same operator is not counted again."""
    self_device_ns: Int64 | None
    """Device time of what the operator launched itself; ``None`` without device activity in the trace."""
    total_device_ns: Int64 | None
    """Device time of what it and its callees launched; nested calls of the same operator once."""

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True, slots=True)
class SpanTable:
    """Operator calls as read: start, duration, name, thread and id."""

    table: Table
    origin_ns: int
    """What the starts are relative to."""
    unique_ids: Callable[[Int64, Int32], Int64]
    """Ids and threads → ids that are unique over all ranks; -1: none."""


@dataclass(slots=True)
class _Nodes:
    """Operators and ranges together, ordered by (thread, start, longest first)."""

    start: Int64
    end: Int64
    thread: Int32
    name: Int32
    external: Int64
    """The id that device operations carry to say which operator caused them; -1 for ranges."""
    range: Int32
    """Row among the ranges; -1 for operators."""
    parent: Int32

    @property
    def is_range(self) -> npt.NDArray[np.bool_]:
        return self.range >= 0


def operator_table(
    spans: SpanTable,
    ranges: Ranges,
    ops: DeviceOps,
    external: Int64,
    calls: HostCalls,
    names: int,
    behind_graph: npt.NDArray[np.bool_] | None = None,
) -> tuple[OperatorTable, HostSpans]:
    """Sum operator calls, and return the calls themselves in order.

    ``external`` is the operator id of each device operation (-1: absent).

    Work of a graph launch (``behind_graph``) was recorded earlier, by other operators than the one that happens
    to surround the launch: no operator gets its time.

    ``spans`` is consumed, because it is the largest part of a trace.
    """
    nodes = _nest(spans, ranges)
    levels = list(_levels(nodes.parent))
    rows = np.flatnonzero(~nodes.is_range)
    around = _innermost_range(nodes, levels)[rows].astype(np.int64)
    keys, code = _groups((around + 1) * max(1, names) + nodes.name[rows])
    del around
    repeated = _inside_same_name(nodes)[rows]

    def summed(values: Int64, *, once: bool = False) -> Int64:
        picked = values[rows]
        if once:
            picked[repeated] = 0
        total = np.zeros(len(keys), np.int64)
        np.add.at(total, code, picked)
        return total

    duration = nodes.end - nodes.start
    total_ns = summed(duration, once=True)
    inner = np.flatnonzero(nodes.parent >= 0)
    np.subtract.at(duration, nodes.parent[inner], (nodes.end - nodes.start)[inner])
    self_ns = summed(np.maximum(duration, 0))
    del duration, inner
    self_device = total_device = None
    if len(ops):
        device = _device_time(nodes, ops, external, calls, behind_graph)
        self_device = summed(device)
        for level in reversed(levels[1:]):
            np.add.at(device, nodes.parent[level], device[level])
        total_device = summed(device, once=True)
    table = OperatorTable(
        name=(keys % max(1, names)).astype(np.int32),
        range=(keys // max(1, names) - 1).astype(np.int32),
        calls=np.bincount(code, minlength=len(keys)).astype(np.int64),
        self_ns=self_ns,
        total_ns=total_ns,
        self_device_ns=self_device,
        total_device_ns=total_device,
    )
    return table, HostSpans(
        nodes.start[rows], nodes.end[rows], nodes.thread[rows].astype(np.int64), nodes.name[rows]
    )


def _groups(keys: Int64) -> tuple[Int64, Int64]:
    """Return the distinct keys in order, and the index of each key among them."""
    limit = int(keys.max(initial=-1)) + 1
    if limit > 4 * len(keys) + (1 << 20):
        distinct, code = np.unique(keys, return_inverse=True)
        return distinct, code
    seen = np.zeros(limit, bool)
    seen[keys] = True
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[keys]


def _nest(source: SpanTable, ranges: Ranges) -> _Nodes:
    spans = source.table
    begin = spans.take("start") + source.origin_ns
    end = np.concatenate((ranges.end_ns, begin + spans.take("dur")))
    start = np.concatenate((ranges.start_ns, begin))
    del begin
    thread = np.concatenate((ranges.thread.astype(np.int32), spans.take("thread")))
    order = order_by_thread(thread, start, end)
    start, end, thread = start[order], end[order], thread[order]
    parent = np.full(len(order), NONE, np.int32)
    for first, last in _thread_slices(thread):
        found = enclosing(end[first:last])
        parent[first:last] = np.where(found >= 0, found + first, NONE)
    name = np.concatenate((ranges.name, spans.take("name")))[order]
    external = np.concatenate((np.full(len(ranges), NONE), spans.take("external")))[order]
    external = source.unique_ids(external, thread)
    row = np.where(order < len(ranges), order, NONE).astype(np.int32)
    return _Nodes(start, end, thread, name, external, row, parent)


def _thread_slices(thread: Int32) -> Iterator[tuple[int, int]]:
    """Yield the bounds of each thread's rows in a column sorted by thread."""
    if not len(thread):
        return
    bounds = np.flatnonzero(np.diff(thread)) + 1
    edges = [0, *bounds.tolist(), len(thread)]
    yield from itertools.pairwise(edges)


def _levels(parent: Int32) -> Iterator[Int64]:
    """Yield the rows at depth 0, 1, 2, …"""
    done = np.zeros(len(parent), bool)
    level, waiting = np.flatnonzero(parent < 0), np.flatnonzero(parent >= 0)
    while len(level):
        yield level
        done[level] = True
        ready = done[parent[waiting]]
        level, waiting = waiting[ready], waiting[~ready]


def _innermost_range(nodes: _Nodes, levels: list[Int64]) -> Int32:
    """Row of the nearest range around each node."""
    around = np.full(len(nodes.start), NONE, np.int32)
    for level in levels[1:]:
        above = nodes.parent[level]
        around[level] = np.where(nodes.range[above] >= 0, nodes.range[above], around[above])
    return around


def _inside_same_name(nodes: _Nodes) -> npt.NDArray[np.bool_]:
    """Whether an operator runs inside another call of itself."""
    found = np.zeros(len(nodes.start), bool)
    rows, above = np.arange(len(nodes.start), dtype=np.int32), nodes.parent
    while True:
        inner = above >= 0
        rows, above = rows[inner], above[inner]
        if not len(rows):
            return found
        same = (nodes.name[above] == nodes.name[rows]) & (nodes.range[above] < 0)
        found[rows[same]] = True
        rows, above = rows[~same], nodes.parent[above[~same]]


def _device_time(
    nodes: _Nodes,
    ops: DeviceOps,
    external: Int64,
    calls: HostCalls,
    behind_graph: npt.NDArray[np.bool_] | None,
) -> Int64:
    """Device time each node caused directly.

    The operator's id on the device operation decides. Without one (or when ids repeat, as in merged traces)
    it is the innermost operator that was running when the launching call began.
    """
    node = np.full(len(ops), NONE, np.int64)
    known = np.sort(nodes.external[nodes.external >= 0])
    if not (known[1:] == known[:-1]).any():
        one_process = np.zeros(max(len(nodes.external), len(ops)), np.int64)
        node = launching_rows(
            one_process[: len(nodes.external)], nodes.external, nodes.start, one_process[: len(ops)], external
        ).astype(np.int64)
    left = np.flatnonzero((node < 0) & (ops.launch >= 0))
    node[left] = _operator_at(nodes, calls.thread[ops.launch[left]], calls.start_ns[ops.launch[left]])
    caused = np.zeros(len(nodes.start), np.int64)
    hit = node >= 0
    if behind_graph is not None:
        hit &= ~behind_graph
    np.add.at(caused, node[hit], (ops.end_ns - ops.start_ns)[hit])
    return caused


def _operator_at(nodes: _Nodes, thread: Int64, time: Int64) -> Int64:
    """Innermost operator that runs on a thread at a time; -1 for none."""
    found = np.full(len(thread), NONE, np.int64)
    for first, last in _thread_slices(nodes.thread):
        mine = np.flatnonzero(thread == nodes.thread[first])
        if not len(mine):
            continue
        parent = np.where(nodes.parent[first:last] >= 0, nodes.parent[first:last] - first, NONE)
        inside = innermost(nodes.start[first:last], nodes.end[first:last], parent, time[mine])
        found[mine] = np.where(inside >= 0, inside + first, NONE)
    while True:
        annotation = np.flatnonzero(found >= 0)
        annotation = annotation[nodes.range[found[annotation]] >= 0]
        if not len(annotation):
            return found
        found[annotation] = nodes.parent[found[annotation]]
