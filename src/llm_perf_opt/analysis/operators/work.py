"""FLOPs of a trace by phase: single calls with shapes, the kernels they launched, and the time the device was busy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from llm_perf_opt.analysis.intervals import union
from llm_perf_opt.analysis.kernels.demangle import demangled
from llm_perf_opt.analysis.kernels.families import family_of, load_narrowing
from llm_perf_opt.analysis.operators.flops import Work, call_work, needs_pairs
from llm_perf_opt.analysis.timeline.attribution import NONE, Attribution, take_or_none
from llm_perf_opt.captures.timeline import Int32, Int64, OpKind, Timeline, behind_graph_launch
from llm_perf_opt.core.arrays import enclosing, link_ranges
from llm_perf_opt.core.phases import WHOLE
from llm_perf_opt.summary import Kernel
from llm_perf_opt.summary.kernels import KernelWork

if TYPE_CHECKING:
    from llm_perf_opt.captures.kineto.calls import OperatorCalls, Signature

Mask = npt.NDArray[np.bool_]
_SIMILAR = 0.1
"""Products with less than this share of the work of the narrow ones are too small to compare with."""
_MATRIX_FAMILIES = frozenset(("gemm", "gemv", "attention", "conv", "moe"))
"""Kernels of these families compute matrix products, whoever launched them."""


@dataclass(slots=True)
class PhaseWork:
    """Work of one phase, counted from shapes."""

    flops: int = 0
    flops_by_dtype: dict[str | None, int] = field(default_factory=dict)
    operand_bytes: float | None = 0.0
    """Inputs and outputs of the counted calls; ``None`` where one is not known."""
    calls: int = 0
    busy_s: float = 0.0
    """Time in which devices ran anything of this phase, summed over devices."""
    matrix_s: float = 0.0
    """Time of kernels that compute matrix products: launched by a counted call, or known by their name."""
    counted_s: float = 0.0
    """Of it, launched by a counted call."""
    graph_s: float = 0.0
    """Of it, behind graph launches, where no call can be counted."""
    devices: int = 1
    """Devices that ran it."""

    @property
    def coverage_ratio(self) -> float | None:
        """Share of the matrix kernels' time whose work was counted; ``None`` without such kernels."""
        return self.counted_s / self.matrix_s if self.matrix_s > 0 else None

    def add(self, work: Work) -> None:
        """Add one call."""
        self.calls += 1
        self.flops += work.flops
        self.flops_by_dtype[work.dtype] = self.flops_by_dtype.get(work.dtype, 0) + work.flops
        known = self.operand_bytes is not None and work.operand_bytes is not None
        self.operand_bytes = (self.operand_bytes or 0.0) + (work.operand_bytes or 0.0) if known else None


@dataclass(frozen=True, slots=True)
class ProductRates:
    """How fast matrix products with narrow loads are compared with those with wide ones."""

    narrow_flops: int
    narrow_s: float
    wide_flops_per_s: float


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """Work of a trace."""

    phases: dict[str, PhaseWork]
    """Phase → its work; ``all`` is the whole trace."""
    uses_tf32: bool = False
    """Kernels name the reduced precision that float32 products may run in."""
    products: ProductRates | None = None
    """Matrix products by the width of their loads; ``None`` where none has narrow ones."""


@dataclass(frozen=True, slots=True)
class LinkedCalls:
    """Calls with a count, and the kernels they launched."""

    works: list[Work | None]
    counted: Mask
    """Calls that count: the outermost that have work and kernels."""
    launched: Int64
    """Row of the counted call in which each device operation was launched; -1 for none."""
    around: Int32
    """Path of ranges around each call; -1 outside all."""


def link_calls(timeline: Timeline, attribution: Attribution, calls: OperatorCalls) -> LinkedCalls:
    """Relate the calls of a trace to its kernels, shared by all callers."""
    around = _paths_of(timeline, attribution, calls)
    works = _works(attribution, calls, around)
    counted = _outermost_counted(calls, works)
    if len(timeline.ops):
        counted &= _has_kernels(timeline, calls, counted)
    return LinkedCalls(works, counted, _launched_by(timeline, calls, counted), around)


def operator_work(
    timeline: Timeline, attribution: Attribution, calls: OperatorCalls, linked: LinkedCalls | None = None
) -> OperatorWork:
    """Count the calls and relate them to kernels.

    Work and time must be of the same kernels: calls whose kernels the trace does not hold are left out, and so are
    kernels launched before it began. Work behind a graph has no call in the trace and is not counted.
    """
    linked = linked or link_calls(timeline, attribution, calls)
    works, counted = linked.works, linked.counted
    phase = take_or_none(attribution.path_phase, linked.around)
    found = {name: PhaseWork() for name in (*attribution.phases, WHOLE)}
    for row in np.flatnonzero(counted).tolist():
        work = works[row]
        if work is None:
            continue
        found[WHOLE].add(work)
        if phase[row] != NONE:
            found[attribution.phases[phase[row]]].add(work)
    _add_device_time(found, timeline, attribution, linked)
    tf32 = any("tf32" in timeline.names[name].casefold() for name in np.unique(timeline.ops.name).tolist())
    return OperatorWork(
        {name: work for name, work in found.items() if work.calls or work.matrix_s},
        tf32,
        _product_rates(timeline, linked),
    )


def _paths_of(timeline: Timeline, attribution: Attribution, calls: OperatorCalls) -> Int32:
    """Path of ranges around each call; -1 outside all."""
    ranges = timeline.ranges
    if not len(ranges) or not len(calls):
        return np.full(len(calls), NONE, np.int32)
    nowhere = np.zeros(len(ranges), bool)
    _, inside = link_ranges(
        ranges.start_ns, ranges.end_ns, ranges.thread, nowhere, calls.thread, calls.start_ns
    )
    return take_or_none(attribution.paths.of_range, inside)


def _works(attribution: Attribution, calls: OperatorCalls, around: Int32) -> list[Work | None]:
    """Work of every call; equal inputs are counted once."""
    plain = [None if needs_pairs(one.name) else call_work(one) for one in calls.signatures]
    pairs: dict[int, int | None] = {}
    works: list[Work | None] = []
    for row, number in enumerate(calls.signature.tolist()):
        signature = calls.signatures[number]
        if not needs_pairs(signature.name):
            works.append(plain[number])
            continue
        path = int(around[row])
        if path not in pairs:
            pairs[path] = _pairs_around(attribution, path)
        works.append(call_work(signature, pairs[path]))
    return works


def _pairs_around(attribution: Attribution, path: int) -> int | None:
    """Return the query × key pairs recorded by the nearest engine step around a call."""
    for above in attribution.paths.ancestors(path):
        step = attribution.meanings[above].step
        if step is not None:
            return step.all_pairs
    return None


def _outermost_counted(calls: OperatorCalls, works: list[Work | None]) -> Mask:
    """Calls that have a count and are not inside another that has."""
    counted = np.zeros(len(calls), bool)
    for thread in np.unique(calls.thread).tolist():
        first, last = np.searchsorted(calls.thread, (thread, thread + 1)).tolist()
        parents = enclosing(calls.end_ns[first:last]).tolist()
        covered = [False] * (last - first)
        for place, parent in enumerate(parents):
            inside = parent >= 0 and covered[parent]
            mine = works[first + place] is not None
            counted[first + place] = mine and not inside
            covered[place] = inside or mine
    return counted


def _add_device_time(
    found: dict[str, PhaseWork],
    timeline: Timeline,
    attribution: Attribution,
    linked: LinkedCalls,
) -> None:
    ops = timeline.ops
    if not len(ops):
        return
    kernel = ops.kind == OpKind.KERNEL
    behind = behind_graph_launch(timeline.names, timeline.calls, ops)
    ours = (linked.launched != NONE) & kernel & ~behind
    by_family = np.zeros(len(timeline.names) + 1, bool)
    for name in np.unique(ops.name[kernel]).tolist():
        by_family[name] = family_of(timeline.names[name]) in _MATRIX_FAMILIES
    matrix = kernel & (by_family[ops.name] | ours)
    phase = attribution.op_phase
    rows = {
        WHOLE: ops.launch >= 0,
        **{name: phase == number for number, name in enumerate(attribution.phases)},
    }
    durations = ops.end_ns - ops.start_ns
    for name, inside in rows.items():
        work = found[name]
        work.matrix_s = int(durations[matrix & inside].sum()) / 1e9
        work.counted_s = int(durations[ours & inside].sum()) / 1e9
        work.graph_s = int(durations[matrix & behind & inside].sum()) / 1e9
        work.busy_s = _busy_ns(timeline, inside) / 1e9
        work.devices = max(1, len(np.unique(ops.device[inside])))


def _product_rates(timeline: Timeline, linked: LinkedCalls) -> ProductRates | None:
    """Compare calls whose products load narrowly with the others of a similar size."""
    ops = timeline.ops
    kinds = np.zeros(len(timeline.names) + 1, np.int8)  # 1: a product, 2: one with narrow loads
    for name in np.unique(ops.name).tolist():
        if family_of(timeline.names[name]) == "gemm":
            kinds[name] = 1 if load_narrowing(timeline.names[name]) is None else 2
    if not (kinds == 2).any():
        return None
    launched, counted = linked.launched, len(linked.works)
    rows = np.flatnonzero((launched >= 0) & (kinds[ops.name] > 0))
    seconds = np.bincount(launched[rows], (ops.end_ns - ops.start_ns)[rows] / 1e9, counted)
    narrow = np.zeros(counted, bool)
    narrow[launched[rows[kinds[ops.name[rows]] == 2]]] = True
    flops = np.array([work.flops if work is not None else 0 for work in linked.works], np.float64)
    timed = linked.counted & (seconds > 0) & (flops > 0)
    slow = timed & narrow
    if not slow.any():
        return None
    wide = timed & ~narrow & (flops >= _SIMILAR * flops[slow].mean())
    if not wide.any():
        return None
    return ProductRates(
        int(flops[slow].sum()), float(seconds[slow].sum()), float(flops[wide].sum() / seconds[wide].sum())
    )


def _busy_ns(timeline: Timeline, rows: Mask) -> int:
    ops = timeline.ops
    total = 0
    for device in np.unique(ops.device[rows]).tolist():
        mine = rows & (ops.device == device)
        total += union(ops.start_ns[mine], ops.end_ns[mine]).length_ns
    return total


def _launched_by(timeline: Timeline, calls: OperatorCalls, counted: Mask) -> Int64:
    """Row of the counted call (of the same thread) in which each device operation was launched; -1 for none."""
    ops, launches = timeline.ops, timeline.calls
    found = np.full(len(ops), NONE, np.int64)
    known = np.flatnonzero(ops.launch >= 0)
    thread, time = launches.thread[ops.launch[known]], launches.start_ns[ops.launch[known]]
    rows = np.flatnonzero(counted)
    for one in np.unique(calls.thread[rows]).tolist():
        own, mine = rows[calls.thread[rows] == one], np.flatnonzero(thread == one)
        place = np.searchsorted(calls.start_ns[own], time[mine], side="right") - 1
        call = own[np.maximum(place, 0)]
        inside = (place >= 0) & (time[mine] <= calls.end_ns[call])
        found[known[mine[inside]]] = call[inside]
    return found


def _has_kernels(timeline: Timeline, calls: OperatorCalls, counted: Mask) -> Mask:
    launched = _launched_by(timeline, calls, counted)
    launched = launched[(launched >= 0) & (timeline.ops.kind == OpKind.KERNEL)]
    found = np.zeros(len(calls), bool)
    found[launched] = True
    return found


# Which kernel ran which shape, and for how long.


_MOST_SHAPES = 5


def calls_by_kernel(
    timeline: Timeline, attribution: Attribution, calls: OperatorCalls, linked: LinkedCalls, wanted: Mask
) -> dict[tuple[int, int, int], tuple[int, int]]:
    """Return (name of a call's longest kernel, phase, signature) → calls and nanoseconds of all their kernels.

    ``wanted``: signature → whether its calls count.
    """
    ops = timeline.ops
    if not len(ops) or not wanted.any():
        return {}
    ours = (linked.launched != NONE) & (ops.kind == OpKind.KERNEL)
    ours &= ~behind_graph_launch(timeline.names, timeline.calls, ops)
    ours[ours] = wanted[calls.signature[linked.launched[ours]]]
    rows = np.flatnonzero(ours)
    durations = (ops.end_ns - ops.start_ns)[rows]
    call = linked.launched[rows]
    # Of each call the longest kernel, then the sum of all of them.
    order = np.lexsort((-durations, call))
    first = np.flatnonzero(np.r_[True, call[order][1:] != call[order][:-1]]) if len(order) else order
    sums = np.add.reduceat(durations[order], first) if len(order) else durations
    found: dict[tuple[int, int, int], tuple[int, int]] = {}
    for place, total in zip(order[first].tolist(), sums.tolist(), strict=True):
        row = int(rows[place])
        key = (int(ops.name[row]), int(attribution.op_phase[row]), int(calls.signature[call[place]]))
        count, before = found.get(key, (0, 0))
        found[key] = (count + 1, before + total)
    return found


def add_kernel_work(
    kernels: Sequence[Kernel],
    timeline: Timeline,
    attribution: Attribution,
    calls: OperatorCalls,
    linked: LinkedCalls,
) -> None:
    """Add to every kernel the shapes it ran, most time first; calls whose work depends on more than shapes are left out."""
    works = [None if needs_pairs(one.name) else call_work(one) for one in calls.signatures]
    wanted = np.array([work is not None and work.flops > 0 for work in works], bool)
    rows: dict[tuple[str, str | None], dict[tuple[str, str | None], KernelWork]] = {}
    for (name, phase, signature), (count, total) in calls_by_kernel(
        timeline, attribution, calls, linked, wanted
    ).items():
        work = works[signature]
        if work is None:
            continue
        label = attribution.phases[phase] if phase != NONE else None
        own = rows.setdefault((demangled(timeline.names[name]), label), {})
        shape = _describe_call(calls.signatures[signature])
        before = own.setdefault(
            (shape, work.dtype), KernelWork(shape, work.dtype, 0, 0.0, float(work.flops), work.operand_bytes)
        )
        before.calls += count
        before.total_s += total / 1e9
    for kernel in kernels:
        found = rows.get((kernel.name, kernel.phase), {}).values()
        kernel.work = sorted(found, key=lambda one: (-one.total_s, one.shape))[:_MOST_SHAPES]


def _describe_call(call: Signature) -> str:
    """``mm 15360×4096 · 4096×24576``."""
    shapes = ["×".join(map(str, shape)) for shape in call.dims if isinstance(shape, list) and len(shape) > 1]
    return f"{call.name.rpartition('::')[2]} {' · '.join(shapes[:4])}".strip()
