"""Which kernel ran which operator of which shape, and how long that took: from a trace with recorded shapes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from llm_perf_opt.analysis.kernels.demangle import demangled
from llm_perf_opt.analysis.operators.work import LinkedCalls
from llm_perf_opt.analysis.targets.shapes import measured_operator
from llm_perf_opt.analysis.timeline.attribution import NONE, Attribution
from llm_perf_opt.hardware.silicon.operators import Operator
from llm_perf_opt.ingest.graphs import behind_graph_launch
from llm_perf_opt.ingest.kineto.calls import OperatorCalls
from llm_perf_opt.model.timeline import OpKind, Timeline


@dataclass(frozen=True, slots=True)
class ShapedCalls:
    """All calls of one shape that one kernel did the most of, in one phase."""

    kernel: str
    """Full name; of the kernels of a call the longest."""
    phase: str | None
    operator: Operator
    calls: int
    total_s: float
    """Time of all kernels of these calls: a product may be split, and summed by a second kernel."""


KernelPhase = tuple[str, str | None]
"""Full name of a kernel, and phase."""


class TracedKernel(NamedTuple):
    """All time of one kernel in one phase of a trace with shapes, whether its calls are in the tables or not."""

    kernel: str
    phase: str | None
    total_s: float


def traced_times(traced: Iterable[TracedKernel]) -> dict[KernelPhase, float]:
    """Add up the traces."""
    found: dict[KernelPhase, float] = {}
    for one in traced:
        key = (one.kernel, one.phase)
        found[key] = found.get(key, 0.0) + one.total_s
    return found


def shaped_calls(
    timeline: Timeline, attribution: Attribution, calls: OperatorCalls, linked: LinkedCalls
) -> list[ShapedCalls]:
    """Return every shape by kernel and phase, the longest first; calls that no table could hold are left out."""
    operators = [measured_operator(signature) for signature in calls.signatures]
    ops = timeline.ops
    wanted = np.array([operator is not None for operator in operators], bool)
    if not len(ops) or not wanted.any():
        return []
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
    return _merged(timeline, attribution, operators, found)


def _merged(
    timeline: Timeline,
    attribution: Attribution,
    operators: list[Operator | None],
    found: dict[tuple[int, int, int], tuple[int, int]],
) -> list[ShapedCalls]:
    """Put calls together that differ in what the shape does not hold (strides, a bias)."""
    merged: dict[tuple[str, str | None, Operator], tuple[int, int]] = {}
    for (name, phase, signature), (count, total) in found.items():
        operator = operators[signature]
        if operator is None:
            continue
        label = attribution.phases[phase] if phase != NONE else None
        key = (demangled(timeline.names[name]), label, operator)
        calls, time = merged.get(key, (0, 0))
        merged[key] = (calls + count, time + total)
    rows = [ShapedCalls(*key, calls, total / 1e9) for key, (calls, total) in merged.items()]
    return sorted(rows, key=lambda row: (-row.total_s, row.kernel, row.phase or "", repr(row.operator)))
