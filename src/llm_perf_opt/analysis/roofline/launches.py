"""The third term of a floor: every kernel must be started, however little it does.

A floor uses the minimum: only products and attention (small operators between them can be fused), started by a graph.
What launching one by one costs is given as well, because most programs still do. Both are linear in the kernels and do not
depend on batch, context or the device's speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_perf_opt.analysis.roofline.demand import own_point
from llm_perf_opt.analysis.roofline.expected_times import Tables, at_point, expect, target_of
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import BEFORE_PREFILL, PREFILL
from llm_perf_opt.summary import Hardware, Static, StaticPhase, Summary

GRAPH_NODE_S = 0.5e-6
"""What a kernel costs inside a graph besides its own time: a kernel of 2.9 µs takes 3.4 µs in a graph of twenty (V100).
https://developer.nvidia.com/blog/cuda-graphs/"""
EAGER_LAUNCH_S = 4e-6
"""What the host needs for one launch: 4 to 6 µs (RTX 5070 Ti, CUDA 13).
https://susun-blog.com/blog/pegainfer-3-cuda-graph"""


@dataclass(frozen=True, slots=True)
class LaunchCost:
    """The host cost of one launch, and its source."""

    seconds: float
    source: str
    is_bound: bool = True
    """Whether a model's own code takes longer: a launch by itself has none of it."""


TYPICAL = LaunchCost(EAGER_LAUNCH_S, "typical")


@dataclass(frozen=True, slots=True)
class Launches:
    """The kernels of one pass."""

    least: int | None
    """Products, convolutions and attention; ``None``: not counted."""
    eager: float | None
    """Everything that is started one by one; ``None``: not counted."""
    cost: LaunchCost = TYPICAL

    @property
    def graph_s(self) -> float:
        """Least time of starting the kernels; 0 where they were not counted."""
        return (self.least or 0) * GRAPH_NODE_S

    @property
    def eager_s(self) -> float | None:
        """Time of starting everything one by one."""
        return self.eager * self.cost.seconds if self.eager is not None else None

    def describe_eager(self) -> str:
        """Format the time of starting everything one by one."""
        text = f"{units.count(self.eager)} kernels × {units.seconds(self.cost.seconds)} ({self.cost.source})"
        return f"{text} = {units.seconds(self.eager_s)}"


_NOTHING_COUNTED = Launches(None, None)


def launches_of(
    phase: StaticPhase | None, *, captured: float | None = None, cost: LaunchCost | None = None
) -> Launches:
    """Return the kernels of a pass; ``captured`` is the number found in a capture."""
    if phase is None:
        return Launches(None, captured, cost or TYPICAL)
    eager = captured if captured is not None else phase.operators
    least = phase.products
    if least is not None and captured is not None:
        least = min(least, round(captured))
    return Launches(least, eager, cost or TYPICAL)


def measured_launch(hardware: Hardware) -> LaunchCost | None:
    """Return what starting an operator costs on the run's own accelerator, where its probe measured it."""
    if hardware.kind != "gpu" or not hardware.measured_operator_s:
        return None
    return LaunchCost(hardware.measured_operator_s, "measured on this machine")


# The kernels that the passes of a model start, and what each costs the host.


@dataclass(frozen=True, slots=True)
class Started:
    """Kernels that passes start."""

    passes: Mapping[str, Launches] = field(default_factory=dict)
    """``vision`` or ``encode``, and ``prefill``."""
    step: Launches = _NOTHING_COUNTED

    def before(self, number: int) -> list[Launches]:
        """Return those of the passes up to the first token, in sequence; prefill is the last."""
        names = [*(name for name in BEFORE_PREFILL if name in self.passes), PREFILL]
        found = [self.passes.get(name, _NOTHING_COUNTED) for name in names]
        return [*([_NOTHING_COUNTED] * (number - len(found))), *found][-number:]


def started_by(
    static: Static,
    *,
    step_launches: float | None = None,
    launch_cost: LaunchCost | None = None,
    pass_cost: LaunchCost | None = None,
) -> Started:
    """Return the kernels that passes of a model start; ``pass_cost`` is per counted operator, before the first token."""
    return Started(
        {
            name: launches_of(static.phases[name], cost=pass_cost)
            for name in (*BEFORE_PREFILL, PREFILL)
            if name in static.phases
        },
        launches_of(static.phases.get("decode"), captured=step_launches, cost=launch_cost),
    )


# Host cost of an operator when a model's own code launches it, derived from a host-bound run.
#
# A probe calls one operator again and again; a model runs its modules' Python between them, which takes longer. Neither is in a
# data sheet. So one rule: a step that took at least ``HOST_BOUND`` times the work it had for the device waited for the host, and
# what the host took per operator is that step ÷ its operators. Every other cost is a lower bound.


HOST_BOUND = 1.5


def started_in(summary: Summary, tables: Tables | None) -> Started:
    """Return the kernels that passes of a run's model start, at the cost its own host has for them."""
    static = summary.static
    if static is None:
        return Started()
    step = host_step_s(summary, tables)
    launches = summary.metrics.get("launches_per_token")
    operators = static.phases["decode"].operators if "decode" in static.phases else None
    probed = measured_launch(summary.hardware)
    return started_by(
        static,
        step_launches=launches,
        launch_cost=_cost(step, launches or operators) or probed,
        pass_cost=_cost(step, operators) or probed,
    )


def _cost(step_s: float | None, launches: float | None) -> LaunchCost | None:
    if step_s is None or not launches:
        return None
    return LaunchCost(step_s / launches, "this run's own steps", is_bound=False)


def host_step_s(summary: Summary, tables: Tables | None) -> float | None:
    """Return the measured time of a decode step that was limited by its host; ``None``: limited by the device, or unknown."""
    static, timed = summary.static, summary.timings.tpot_s
    hardware, workload = summary.hardware, summary.workload
    graphs = workload.compiled or workload.cuda_graphs
    if static is None or static.operators is None or timed is None or hardware.kind != "gpu" or graphs:
        return None
    point = own_point(static, workload.dtype)
    if point is None:
        return None
    at = at_point(static, point, workload.ranks)
    limits = hardware.peak_flops_per_s, hardware.bandwidth_bytes_per_s, hardware.link_bytes_per_s
    target = target_of(hardware.name or "", *limits, tables)
    found = expect(static.operators, (), at, target, tables)
    work = found.eager_step_s if found is not None else None
    return timed.shown if work is not None and timed.shown >= HOST_BOUND * work else None
