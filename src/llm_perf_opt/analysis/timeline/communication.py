"""Communication between devices: which collectives, how long, how much of it is exposed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.analysis.intervals import complement, union, unite
from llm_perf_opt.analysis.timeline.attribution import Attribution
from llm_perf_opt.analysis.timeline.budget import DeviceActivity, communication_names
from llm_perf_opt.captures.timeline import Int32, Int64, OpKind, Timeline
from llm_perf_opt.summary.devices import Collective, Communication

_NAMES = (
    ("all_to_all", re.compile(r"all_?to_?all|a2a|alltoallv|dispatch_?kernel|combine_?kernel|deep_ep", re.IGNORECASE)),
    ("reduce_scatter", re.compile(r"reduce_?scatter", re.IGNORECASE)),
    ("all_gather", re.compile(r"all_?gather", re.IGNORECASE)),
    ("all_reduce", re.compile(r"all_?reduce|cross_device_reduce|allreduce|one_?shot|two_?shot|lamport|custom_ar", re.IGNORECASE)),
    ("broadcast", re.compile(r"broadcast", re.IGNORECASE)),
    ("send_recv", re.compile(r"send_?recv|\bp2p|(?:^|[_:])(?:send|recv|isend|irecv)(?:$|[_(:])", re.IGNORECASE)),
    ("scatter", re.compile(r"scatter", re.IGNORECASE)),
    ("gather", re.compile(r"gather", re.IGNORECASE)),
    ("reduce", re.compile(r"reduce(?!d)", re.IGNORECASE)),
    ("barrier", re.compile(r"barrier", re.IGNORECASE)),
)  # fmt: skip
OTHER = "collective"
"""A communication kernel that does not say which collective it is."""


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveRows:
    """Communication kernels of a capture, one row each, in order of (device, start)."""

    op: Int64
    """Row of the timeline's operations."""
    kind: list[str]
    """``all_reduce``, …"""
    bytes: Int64
    """-1: not recorded."""
    group_size: Int32

    def __len__(self) -> int:
        return len(self.op)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CollectiveRows):
            return NotImplemented
        columns = ((self.op, other.op), (self.bytes, other.bytes), (self.group_size, other.group_size))
        return self.kind == other.kind and all(np.array_equal(mine, theirs) for mine, theirs in columns)


def no_collective_rows() -> CollectiveRows:
    """Return the rows of a capture without communication."""
    empty = np.empty(0, np.int64)
    return CollectiveRows(empty, [], empty, empty.astype(np.int32))


def collective_name(text: str) -> str | None:
    """Return the collective named by a kernel, range or argument; ``None`` if there is none."""
    return next((name for name, pattern in _NAMES if pattern.search(text)), None)


def bus_factor(kind: str, group_size: int) -> float:
    """Bytes over each link per byte of payload, as nccl-tests defines bus bandwidth (its doc/PERFORMANCE.md)."""
    if kind == "all_reduce":
        return 2 * (group_size - 1) / group_size
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return (group_size - 1) / group_size
    return 1.0


def collective_rows(timeline: Timeline, attribution: Attribution) -> CollectiveRows:
    """Find the communication kernels and their collectives: by the record, its kernel's name, or the range around its launch."""
    ops = timeline.ops
    talking = communication_names(timeline)
    rows = np.flatnonzero((ops.kind == OpKind.KERNEL) & talking[ops.name])
    rows = rows[np.argsort(ops.device[rows], kind="stable")]
    recorded = {int(op): row for row, op in enumerate(timeline.collectives.op.tolist())}
    by_name: dict[int, str | None] = {}
    kinds, sizes, groups = [], [], []
    for op in rows.tolist():
        record = recorded.get(op)
        kind = None
        if record is not None:
            kind = collective_name(timeline.names[timeline.collectives.name[record]])
        name = int(ops.name[op])
        if name not in by_name:
            by_name[name] = collective_name(timeline.names[name])
        kind = kind or by_name[name] or _range_kind(timeline, attribution, int(attribution.op_path[op]))
        kinds.append(kind or OTHER)
        sizes.append(int(timeline.collectives.bytes[record]) if record is not None else -1)
        groups.append(int(timeline.collectives.group_size[record]) if record is not None else -1)
    return CollectiveRows(rows, kinds, np.array(sizes, np.int64), np.array(groups, np.int32))


def _range_kind(timeline: Timeline, attribution: Attribution, path: int) -> str | None:
    if path < 0:
        return None
    labels = (timeline.names[attribution.paths.name[one]] for one in attribution.paths.ancestors(path))
    return next((kind for label in labels if (kind := collective_name(label)) is not None), None)


def communication_of(
    timeline: Timeline, activities: Sequence[DeviceActivity], rows: CollectiveRows, span_ns: float
) -> Communication | None:
    """Sum the collectives of a capture, per device; ``None`` when there are none."""
    used = [one for one in activities if len(one.communication)]
    if not used or not len(rows):
        return None
    start, end = timeline.ops.start_ns[rows.op], timeline.ops.end_ns[rows.op]
    device = timeline.ops.device[rows.op]
    kinds = np.array(rows.kind)
    table = []
    for kind in sorted(set(rows.kind)):
        mine = kinds == kind
        exposed = 0
        for one in used:
            chosen = mine & (device == one.device)
            others = unite(one.compute, one.copies)
            exposed += complement(others, union(start[chosen], end[chosen])).length_ns
        table.append(_collective(kind, rows, mine, end - start, device, exposed / len(used)))
    total = sum(one.communication.length_ns for one in used) / len(used)
    alone = sum(
        complement(unite(one.compute, one.copies), one.communication).length_ns for one in used
    ) / len(used)
    table.sort(key=lambda one: (-one.exposed_s, -one.total_s, one.name))
    return Communication(table, total / 1e9, alone / 1e9, min(1.0, alone / span_ns) if span_ns > 0 else None)


def _collective(
    kind: str, rows: CollectiveRows, mine: np.ndarray, lengths: Int64, device: Int32, exposed_ns: float
) -> Collective:
    devices = max(1, len(np.unique(device[mine])))
    total_s = float(lengths[mine].sum()) / devices / 1e9
    groups = {int(size) for size in np.unique(rows.group_size[mine]).tolist()}
    group = next(iter(groups)) if len(groups) == 1 and min(groups) > 0 else None
    size = rows.bytes[mine]
    payload = float(size.sum()) / devices if (size >= 0).all() else None
    rate = payload / total_s if payload is not None and total_s > 0 else None
    return Collective(
        name=kind,
        count=round(int(mine.sum()) / devices),
        bytes=payload,
        total_s=total_s,
        exposed_s=exposed_ns / 1e9,
        bus_bytes_per_s=rate * bus_factor(kind, group) if rate is not None and group is not None else None,
        algorithm_bytes_per_s=rate,
        group_size=group,
        devices=devices,
    )
