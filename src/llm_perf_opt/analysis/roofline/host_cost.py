"""What an operator costs the host when a model's own code launches it, taken from a run that waited for its host.

A probe calls one operator again and again; a model runs its modules' Python between them, which takes longer. Neither is in a
data sheet. So one rule: a step that took at least ``HOST_BOUND`` times the work it had for the device waited for the host, and
what the host took per operator is that step ÷ its operators. Every other cost is a lower bound.
"""

from __future__ import annotations

from llm_perf_opt.analysis.expected.estimate import Tables, expect
from llm_perf_opt.analysis.roofline.asked import at_point, target_of
from llm_perf_opt.analysis.roofline.demand import own_point
from llm_perf_opt.analysis.roofline.launches import LaunchCost, measured_launch
from llm_perf_opt.analysis.roofline.started import Started, started_by
from llm_perf_opt.model.summary import Summary

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
    """Return the measured time of a decode step that its host set; ``None``: the device did, or it is not known."""
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
    return timed.median if work is not None and timed.median >= HOST_BOUND * work else None
