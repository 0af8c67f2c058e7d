"""The one shape every timeline takes, whether it came from nsys or from the torch profiler.

Columns are NumPy arrays (structure of arrays), times are integer nanoseconds on one clock, and strings
are stored once in ``Timeline.names`` and referred to by index. An index of ``-1`` means "not known".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
UNKNOWN = -1


class OpKind(IntEnum):
    """What a device operation is."""

    KERNEL = 0
    COPY = 1
    MEMSET = 2


@dataclass(frozen=True, slots=True)
class DeviceOps:
    """Everything that ran on a device: one row per kernel, copy or memset, ordered by (start, end, row)."""

    start_ns: Int64
    end_ns: Int64
    kind: npt.NDArray[np.int8]
    """An :class:`OpKind`."""
    name: Int32
    """Index into ``Timeline.names``: the full demangled kernel name, or the copy's direction."""
    device: Int32
    stream: Int64
    process: Int64
    launch: Int32
    """Row of :class:`HostCalls` that launched it; -1 when the capture does not tell."""
    range: Int32
    """Row of :class:`Ranges`: the innermost range open on the launching thread when the launching call
    began (not when the kernel ran); -1 outside every range."""
    bytes: Int64
    """Bytes moved by copies and memsets; -1 for kernels."""

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class HostCalls:
    """CUDA runtime and driver calls on host threads, ordered by (thread, start)."""

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    name: Int32

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class Ranges:
    """NVTX ranges or ``record_function`` annotations, ordered by (thread, start, longest first)."""

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    name: Int32
    parent: Int32
    """Row of the enclosing range on the same thread (or of the process-wide NVTX start/end range around it);
    -1 at the top."""

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class HostSpans:
    """Operators, or Python frames, on host threads, ordered by (thread, start, longest first)."""

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    name: Int32

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class CollectiveCalls:
    """What a capture says of single collectives, one row per device operation that is one."""

    op: Int32
    """Row of :class:`DeviceOps`."""
    name: Int32
    """Index into ``Timeline.names``: ``allreduce``, ``_allgather_base``, as the program calls it."""
    bytes: Int64
    """Payload of this rank (the larger of what goes in and comes out); -1 where not recorded."""
    group_size: Int32
    """Ranks that take part; -1 where not recorded."""

    def __len__(self) -> int:
        return len(self.op)


def no_spans() -> HostSpans:
    """Return spans of a capture that records none."""
    empty = np.empty(0, np.int64)
    return HostSpans(empty, empty, empty, empty.astype(np.int32))


def no_collectives() -> CollectiveCalls:
    """Return the collectives of a capture that says nothing of them."""
    empty = np.empty(0, np.int32)
    return CollectiveCalls(empty, empty, empty.astype(np.int64), empty)


@dataclass(frozen=True, slots=True)
class Timeline:
    """A capture in memory."""

    source: str
    """Which file, and which schema was found in it."""
    names: list[str]
    ops: DeviceOps
    calls: HostCalls
    ranges: Ranges
    devices: dict[int, str] = field(default_factory=dict)
    """Device id → name as the driver reports it (empty when the capture does not tell)."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Further facts of the capture (tool version, schema, process names), for the report."""
    warnings: tuple[str, ...] = ()
    """What the capture lacks or what was dropped while reading, in words."""
    operators: HostSpans = field(default_factory=no_spans)
    """Operators on host threads, for what the host did while a device idled; only torch traces have them."""
    frames: HostSpans = field(default_factory=no_spans)
    """Python frames, where the profiler recorded stacks."""
    collectives: CollectiveCalls = field(default_factory=no_collectives)


@dataclass(frozen=True, slots=True)
class NamedTotal:
    """One row of a summary table: what, how often, how long."""

    name: str
    """Full demangled kernel name, call, copy direction or range, as the tool printed it."""
    count: int
    total_ns: int
    min_ns: int | None = None
    max_ns: int | None = None
    median_ns: float | None = None
    """Not known when rows of one name had to be added up."""
    std_ns: float | None = None


@dataclass(frozen=True, slots=True)
class RangeTotals:
    """Kernels launched inside the ranges of one name; inside nested ranges they are counted for each of them."""

    name: str
    instances: int | None
    """How many ranges of this name there are."""
    kernels: tuple[NamedTotal, ...]


@dataclass(frozen=True, slots=True)
class KernelTotals:
    """What a summary CSV holds: totals without a time axis, so no phases, gaps or device-busy time."""

    source: str
    """Which file, and which report was found in it."""
    kernels: tuple[NamedTotal, ...] = ()
    copies: tuple[NamedTotal, ...] = ()
    """Copies and memsets by direction."""
    calls: tuple[NamedTotal, ...] = ()
    """CUDA calls on the host."""
    ranges: tuple[NamedTotal, ...] = ()
    """NVTX ranges, host time."""
    facts: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    by_range: tuple[RangeTotals, ...] = ()
    """The kernels of each range name, where the table has a column of ranges."""
