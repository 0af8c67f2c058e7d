"""What an operator costs the host: from a run that waited for it, else a lower bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_perf_opt.analysis.roofline.launches import EAGER_LAUNCH_S, TYPICAL, host_step_s, started_in
from llm_perf_opt.hardware.silicon import AllReduce, Operator, Timing
from tests.unit.analysis.roofline.runs_with_operators import TABLES, HalfInEight, run

WORK_S = 11e-3
"""Eight products, the head and attention of two layers at 1 ms each."""


def test_a_step_that_waited_for_its_host_gives_the_cost_of_an_operator() -> None:
    slow = run(tpot=3 * WORK_S)
    assert host_step_s(slow, TABLES) == pytest.approx(3 * WORK_S)
    started = started_in(slow, TABLES)
    assert started.step.eager_s == pytest.approx(3 * WORK_S), "the step is met, being what it was taken from"
    assert started.passes["prefill"].eager_s == pytest.approx(3 * WORK_S), "as many operators, the same cost"
    assert not started.step.cost.is_bound and started.step.cost.source != TYPICAL.source


def test_captured_launches_share_the_same_step() -> None:
    slow = run(tpot=3 * WORK_S)
    slow.metrics["launches_per_token"] = 80.0
    started = started_in(slow, TABLES)
    assert started.step.eager == 80 and started.step.eager_s == pytest.approx(3 * WORK_S)
    assert started.passes["prefill"].cost.seconds == pytest.approx(3 * WORK_S / 40)


def test_a_step_that_the_device_bounds_gives_no_host_cost() -> None:
    busy = run(tpot=1.2 * WORK_S)
    assert host_step_s(busy, TABLES) is None
    started = started_in(busy, TABLES)
    assert started.step.cost.seconds == EAGER_LAUNCH_S and started.step.cost.is_bound
    busy.hardware.measured_operator_s = 7e-6
    started = started_in(busy, TABLES)
    assert started.step.cost.seconds == started.passes["prefill"].cost.seconds == 7e-6
    assert started.step.cost.is_bound


def test_graphs_processors_and_uncounted_models_give_no_host_cost() -> None:
    graphs = run(tpot=3 * WORK_S)
    graphs.workload.cuda_graphs = True
    assert host_step_s(graphs, TABLES) is None
    assert host_step_s(run("Some CPU", tpot=3 * WORK_S), TABLES) is None
    assert host_step_s(run(static=None), TABLES) is None
    assert started_in(run(static=None), TABLES).step.eager_s is None


def test_ranks_whose_sums_nobody_timed_are_known_by_their_links() -> None:
    class WithoutSums(HalfInEight):
        def time(self, operator: Operator, device: str, *, framework: str | None = None) -> Timing | None:
            known = super().time(operator, device, framework=framework)
            return None if isinstance(operator, AllReduce) else known

    tables, slow = replace(TABLES, times=WithoutSums()), run(ranks=2, tpot=3 * WORK_S)
    assert host_step_s(slow, tables) is None
    slow.hardware.link_bytes_per_s = 4.5e11
    assert host_step_s(slow, tables) == pytest.approx(3 * WORK_S)
