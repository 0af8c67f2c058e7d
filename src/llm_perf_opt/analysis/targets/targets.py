"""Kernels against the best and the median measured time of the shapes they ran."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from llm_perf_opt.analysis.targets.calls import KernelPhase, ShapedCalls
from llm_perf_opt.analysis.targets.measured import LookUp, MeasuredTime
from llm_perf_opt.hardware.silicon.operators import Attention, Gemm, MoeLayer, Operator
from llm_perf_opt.model.summary import Kernel
from llm_perf_opt.model.summary.target import KernelTarget

_MOST_SHAPES = 5
Compared = tuple[ShapedCalls, MeasuredTime]


@dataclass(slots=True)
class Coverage:
    """How much was compared, and what was not."""

    compared_s: float = 0.0
    at_stake_s: float = 0.0
    compared: list[tuple[Kernel, ShapedCalls, MeasuredTime]] = field(default_factory=list)
    """Every shape of every kernel that has a target."""
    outside: list[ShapedCalls] = field(default_factory=list)
    """Calls whose shape no table holds, the longest first."""

    @property
    def outside_s(self) -> float:
        """Their time."""
        return sum(row.total_s for row in self.outside)


def add_targets(
    kernels: Sequence[Kernel],
    shaped: Iterable[ShapedCalls],
    look_up: LookUp,
    traced_s: Mapping[KernelPhase, float] | None = None,
) -> Coverage:
    """Give every kernel whose shapes are in the tables its target; others keep none.

    ``traced_s``: time of each kernel and phase in the traces that ``shaped`` is from. Where a kernel's time is of another
    capture of the same run (nsys beside the profiler, a second trace), what is at stake is carried over by the two times;
    where the trace's is not known, nothing is claimed.
    """
    coverage = Coverage()
    found: dict[tuple[str, str | None], list[Compared]] = defaultdict(list)
    for row in shaped:
        if row.total_s <= 0:
            continue  # a clock that did not tick
        time = look_up(row.operator)
        if time is None:
            coverage.outside.append(row)
        else:
            found[row.kernel, row.phase].append((row, time))
    coverage.outside.sort(key=lambda row: -row.total_s)
    for kernel in kernels:
        compared = found.pop((kernel.name, kernel.phase), None)
        if compared is None:
            continue
        kernel.target = _target(kernel, compared, (traced_s or {}).get((kernel.name, kernel.phase)))
        coverage.compared += [(kernel, row, time) for row, time in compared]
        coverage.compared_s += sum(row.total_s for row, _ in compared)
        coverage.at_stake_s += kernel.target.at_stake_s or 0.0
    return coverage


def _target(kernel: Kernel, compared: list[Compared], traced_s: float | None) -> KernelTarget:
    calls = sum(row.calls for row, _ in compared)
    measured_s = sum(row.total_s for row, _ in compared)
    best_s = sum(row.calls * time.best_s for row, time in compared)
    median_s = sum(row.calls * time.median_s for row, time in compared)
    stake_s = sum(max(0.0, row.total_s - row.calls * time.best_s) for row, time in compared)
    longest = sorted(compared, key=lambda pair: (-pair[0].total_s, repr(pair[0].operator)))
    carried = kernel.total_s / traced_s if traced_s and kernel.total_s is not None else None
    same_capture = carried is not None and math.isclose(carried, 1.0, rel_tol=1e-6)
    return KernelTarget(
        best_s=best_s / calls,
        median_s=median_s / calls,
        ratio=measured_s / best_s,
        source=longest[0][1].source,
        measured_s=measured_s / calls,
        calls=calls,
        how="measured" if all(time.how == "measured" for _, time in compared) else "interpolated",
        shapes=[shape_words(row.operator) for row, _ in longest[:_MOST_SHAPES]],
        compared_ratio=min(1.0, measured_s / kernel.total_s) if same_capture and kernel.total_s else None,
        at_stake_s=None if carried is None else stake_s * carried,
        flops=sum(row.calls * row.operator.flops for row, _ in compared) / calls,
        moved_bytes=sum(row.calls * row.operator.moved_bytes for row, _ in compared) / calls,
    )


def shape_words(operator: Operator) -> str:
    """Say a shape as a reader of the tables would."""
    match operator:
        case Gemm():
            return f"{operator.m} × {operator.n} × {operator.k} {operator.dtype}"
        case Attention():
            heads = f"{operator.heads} heads" + (
                f" ({operator.kv_heads} of keys)" if operator.kv_heads != operator.heads else ""
            )
            return f"{operator.phase}, batch {operator.batch}, {operator.tokens} positions, {heads} of {operator.head_dim}"
        case MoeLayer():
            return (
                f"{operator.tokens} tokens, {operator.top_k} of {operator.experts} experts, "
                f"{operator.hidden} × {operator.inter} {operator.dtype}"
            )
        case _:
            return str(operator)
