"""The common form of timelines from nsys and from the torch profiler.

Columns are NumPy arrays (structure of arrays), times are integer nanoseconds on one clock, and strings
are stored once in ``Timeline.names`` and referred to by index. An index of ``-1`` means "not known".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_perf_opt.core.arrays import distinct_values
from llm_perf_opt.core.errors import InputError

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
    """Single collectives of a capture, one row per device operation."""

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
    """Return empty spans."""
    empty = np.empty(0, np.int64)
    return HostSpans(empty, empty, empty, empty.astype(np.int32))


def no_collectives() -> CollectiveCalls:
    """Return empty collectives."""
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
    """One row of a summary table: name, count, time."""

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
    """Contents of a summary CSV: totals without a time axis, so no phases, gaps or device-busy time."""

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


# The part of a run that a capture covers.


@dataclass(frozen=True, slots=True)
class CaptureConfiguration:
    """Capture settings from the files next to a capture."""

    label: str | None
    """The range it was limited to; ``None``: the whole program."""
    passes: int | None
    """How often that range is in the capture; ``None``: not known."""
    source: str
    """File it was read from."""


@dataclass(frozen=True, slots=True)
class CapturedRange:
    """The range that a kernel table covers."""

    name: str
    """As the capture names it: ``decode``, ``sam``."""
    phase: str | None
    """``None``: the whole program, all phases together."""
    component: str | None
    """Part of the phase it is limited to (``sam`` of vision); ``None``: the whole phase."""
    passes: int | None
    """How many passes over it the capture holds; ``None``: not known."""
    source: str
    """In the words of a note: ``the file's name``, ``cmd.txt``."""


# CUDA and HIP graphs in captures: which device operations a graph launch started, and which calls only recorded.


Mask = npt.NDArray[np.bool_]
# nsys appends a version ("cudaGraphLaunch_v10000"), HIP and the driver have prefixes of their own.
_GRAPH_LAUNCH = re.compile(r"(cuda|cu|hip)GraphLaunch")
_CAPTURE_BEGIN = re.compile(r"(cuda|cu|hip)StreamBeginCapture")
_CAPTURE_END = re.compile(r"(cuda|cu|hip)StreamEndCapture")
_KERNEL_LAUNCH = re.compile(r"(cuda|cu|hip)(Ext)?(Module)?Launch(Cooperative)?Kernel")


# Limits. A file beyond one of them is not a real capture; reading it would take minutes and gigabytes.


MOST_DEVICES = 256
_MOST_STREAMS = 65_536
LONGEST_NAME = 16_384
"""Characters of a kernel's name; the longest of real libraries have some ten thousand."""
_LONGEST_NAMES = 8_000_000
"""Characters of all different names of kernels together."""
DEEPEST_NESTING = 512
"""Ranges inside one another."""


def check_limits(timeline: Timeline, path: Path) -> None:
    """Reject a capture beyond a limit, naming the limit."""
    ops = timeline.ops
    used = np.flatnonzero(np.bincount(ops.name, minlength=1)).tolist() if len(ops) else []
    lengths = [len(timeline.names[name]) for name in used]
    found = (
        (_at_most(ops.device, MOST_DEVICES), MOST_DEVICES, "devices"),
        (_at_most(ops.stream, _MOST_STREAMS), _MOST_STREAMS, "streams"),
        (max(lengths, default=0), LONGEST_NAME, "characters in the name of a kernel"),
        (sum(lengths), _LONGEST_NAMES, "characters in the names of kernels"),
        (_depth(timeline.ranges), DEEPEST_NESTING, "ranges inside one another"),
    )
    for value, most, what in found:
        if value > most:
            raise InputError(
                f"{path.name} is not a capture of a program: it holds more than {most:,} {what}",
                hint="capture again, or a shorter part of the program; the limits are in docs/timeline.md",
                path=str(path),
            )


def _at_most(values: npt.NDArray[Any], most: int) -> int:
    """Return the number of distinct values, up to the limit."""
    return len(distinct_values(values)) if len(values) > most else 0


def _depth(ranges: Ranges) -> int:
    """Return how deep ranges are nested, up to the limit."""
    if len(ranges) <= DEEPEST_NESTING:
        return 0
    depth, above = 0, ranges.parent
    while depth <= DEEPEST_NESTING:
        above = above[above >= 0]
        if not len(above):
            break
        depth, above = depth + 1, ranges.parent[above]
    return depth


def is_graph_launch(name: str) -> bool:
    """Whether a call launches a whole graph."""
    return bool(_GRAPH_LAUNCH.match(name))


def is_kernel_launch(name: str) -> bool:
    """Whether a call launches (or, while a stream is captured, records) one kernel."""
    return bool(_KERNEL_LAUNCH.match(name))


def is_capture_begin(name: str) -> bool:
    """Whether a call begins to record a stream into a graph."""
    return bool(_CAPTURE_BEGIN.match(name))


def is_capture_end(name: str) -> bool:
    """Whether a call ends recording."""
    return bool(_CAPTURE_END.match(name))


def behind_graph_launch(names: Sequence[str], calls: HostCalls, ops: DeviceOps) -> Mask:
    """Return which device operations a graph launch started; those without a known launch are excluded."""
    used = distinct_values(calls.name).tolist()
    graph = [index for index in used if is_graph_launch(names[index])]
    if not graph or not len(ops):
        return np.zeros(len(ops), bool)
    launches = np.isin(calls.name, graph)
    found: Mask = (ops.launch >= 0) & launches[np.maximum(ops.launch, 0)]
    return found
