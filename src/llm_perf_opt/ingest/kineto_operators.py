"""Operators of a torch trace: host time without and with what they call, and the device time they caused.

Operators and annotations of one thread nest. Sorted by start, the parent of each is the nearest earlier one
that contains it; everything else follows from the parents, level by level.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llm_perf_opt.ingest.linking import enclosing, innermost, launching_rows, order_by_thread
from llm_perf_opt.ingest.timeline import DeviceOps, HostCalls, Int32, Int64, Ranges

NONE = -1


@dataclass(slots=True)
class OperatorSpans:
    """Every operator call of a trace, in file order."""

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    name: Int32
    external: Int64
    """The id that device operations carry to say which operator caused them; -1 when absent."""


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


@dataclass(slots=True)
class _Nodes:
    """Operators and ranges together, ordered by (thread, start, longest first)."""

    start: Int64
    end: Int64
    thread: Int64
    name: Int32
    row: Int64
    """Row among the operators, or among the ranges."""
    is_range: npt.NDArray[np.bool_]
    parent: Int64


def operator_table(
    spans: OperatorSpans, ranges: Ranges, ops: DeviceOps, external: Int64, calls: HostCalls, names: int
) -> OperatorTable:
    """Sum operator calls; ``external`` is the operator id of each device operation (-1: absent)."""
    nodes = _nest(spans, ranges)
    levels = list(_levels(nodes.parent))
    around = _innermost_range(nodes, levels)
    own = np.maximum(nodes.end - nodes.start - _time_of_children(nodes), 0)
    repeated = _inside_same_name(nodes)
    device = total_device = None
    if len(ops):
        device = _device_time(nodes, spans, ops, external, calls)
        total_device = device.copy()
        for level in reversed(levels[1:]):
            np.add.at(total_device, nodes.parent[level], total_device[level])
    rows = np.flatnonzero(~nodes.is_range)
    group = (around[rows].astype(np.int64) + 1) * max(1, names) + nodes.name[rows]
    keys, code = np.unique(group, return_inverse=True)
    first = ~repeated[rows]

    def summed(values: Int64 | None, only: npt.NDArray[np.bool_] | None = None) -> Int64 | None:
        if values is None:
            return None
        picked = values[rows] if only is None else np.where(only, values[rows], 0)
        total = np.zeros(len(keys), np.int64)
        np.add.at(total, code, picked)
        return total

    return OperatorTable(
        name=(keys % max(1, names)).astype(np.int32),
        range=(keys // max(1, names) - 1).astype(np.int32),
        calls=np.bincount(code, minlength=len(keys)).astype(np.int64),
        self_ns=_known(summed(own)),
        total_ns=_known(summed(nodes.end - nodes.start, first)),
        self_device_ns=summed(device),
        total_device_ns=summed(total_device, first),
    )


def _known(values: Int64 | None) -> Int64:
    return np.zeros(0, np.int64) if values is None else values


def _nest(spans: OperatorSpans, ranges: Ranges) -> _Nodes:
    start = np.concatenate((ranges.start_ns, spans.start_ns))
    end = np.concatenate((ranges.end_ns, spans.end_ns))
    thread = np.concatenate((ranges.thread, spans.thread))
    order = order_by_thread(thread, start, end)
    start, end, thread = start[order], end[order], thread[order]
    parent = np.full(len(order), NONE, np.int64)
    for first, last in thread_slices(thread):
        found = enclosing(end[first:last])
        parent[first:last] = np.where(found >= 0, found + first, NONE)
    count = len(ranges)
    is_range = order < count
    row = np.where(is_range, order, order - count)
    return _Nodes(start, end, thread, np.concatenate((ranges.name, spans.name))[order], row, is_range, parent)


def thread_slices(thread: Int64) -> Iterator[tuple[int, int]]:
    """Yield the bounds of each thread's rows in a column sorted by thread."""
    if not len(thread):
        return
    bounds = np.flatnonzero(np.diff(thread)) + 1
    edges = [0, *bounds.tolist(), len(thread)]
    yield from itertools.pairwise(edges)


def _levels(parent: Int64) -> Iterator[Int64]:
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
        around[level] = np.where(nodes.is_range[above], nodes.row[above], around[above])
    return around


def _time_of_children(nodes: _Nodes) -> Int64:
    inner = np.flatnonzero(nodes.parent >= 0)
    total = np.zeros(len(nodes.start), np.int64)
    np.add.at(total, nodes.parent[inner], (nodes.end - nodes.start)[inner])
    return total


def _inside_same_name(nodes: _Nodes) -> npt.NDArray[np.bool_]:
    """Whether an operator runs inside another call of itself."""
    found = np.zeros(len(nodes.start), bool)
    rows, above = np.arange(len(nodes.start)), nodes.parent
    while True:
        inner = above >= 0
        rows, above = rows[inner], above[inner]
        if not len(rows):
            return found
        same = (nodes.name[above] == nodes.name[rows]) & ~nodes.is_range[above]
        found[rows[same]] = True
        rows, above = rows[~same], nodes.parent[above[~same]]


def _device_time(
    nodes: _Nodes, spans: OperatorSpans, ops: DeviceOps, external: Int64, calls: HostCalls
) -> Int64:
    """Device time each node caused directly.

    The operator's id on the device operation decides. Without one (or when ids repeat, as in merged traces)
    it is the innermost operator that was running when the launching call began.
    """
    place = np.empty(len(spans.start_ns), np.int64)
    rows = np.flatnonzero(~nodes.is_range)
    place[nodes.row[rows]] = rows
    node = np.full(len(ops), NONE, np.int64)
    known = spans.external[spans.external >= 0]
    if len(np.unique(known)) == len(known):
        one_process = np.zeros(len(spans.external), np.int64), np.zeros(len(ops), np.int64)
        found = launching_rows(one_process[0], spans.external, spans.start_ns, one_process[1], external)
        node = np.where(found >= 0, place[found] if len(place) else NONE, NONE)
    left = np.flatnonzero((node < 0) & (ops.launch >= 0))
    node[left] = _operator_at(nodes, calls.thread[ops.launch[left]], calls.start_ns[ops.launch[left]])
    caused = np.zeros(len(nodes.start), np.int64)
    hit = node >= 0
    np.add.at(caused, node[hit], (ops.end_ns - ops.start_ns)[hit])
    return caused


def _operator_at(nodes: _Nodes, thread: Int64, time: Int64) -> Int64:
    """Innermost operator that runs on a thread at a time; -1 for none."""
    found = np.full(len(thread), NONE, np.int64)
    for first, last in thread_slices(nodes.thread):
        mine = np.flatnonzero(thread == nodes.thread[first])
        if not len(mine):
            continue
        parent = np.where(nodes.parent[first:last] >= 0, nodes.parent[first:last] - first, NONE)
        inside = innermost(nodes.start[first:last], nodes.end[first:last], parent, time[mine])
        found[mine] = np.where(inside >= 0, inside + first, NONE)
    while True:
        annotation = np.flatnonzero(found >= 0)
        annotation = annotation[nodes.is_range[found[annotation]]]
        if not len(annotation):
            return found
        found[annotation] = nodes.parent[found[annotation]]
