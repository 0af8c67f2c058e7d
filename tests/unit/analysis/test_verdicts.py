"""Each answer a verdict can give, and what it says when it cannot tell."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.verdicts import judge, worth_showing
from llm_perf_opt.model.summary import Prediction, Utilisation, Workload
from tests.unit.summaries import budget, cpu, kernel, operator, summary, timings, verdict


@pytest.mark.parametrize(
    ("shares", "bound"),
    [
        ({"compute": 0.2, "launch": 0.5, "host": 0.2, "sync": 0.1}, "launch"),
        ({"compute": 0.2, "launch": 0.1, "host": 0.3, "sync": 0.35, "copy": 0.05}, "launch"),
        ({"compute": 0.2, "launch": 0.1, "host": 0.1, "sync": 0.6}, "sync"),
        ({"compute": 0.3, "launch": 0.1, "copy": 0.6}, "copy"),
        ({"compute": 0.9, "launch": 0.1}, "unknown"),
        ({"compute": 0.4, "copy": 0.25, "launch": 0.1}, "unknown"),
    ],
)
def test_an_idle_device_is_explained_by_what_it_waits_for(shares: dict[str, float], bound: str) -> None:
    found = judge(summary(budget={"decode": budget(1.0, **shares)}))["decode"]
    assert found.bound == bound
    if bound != "unknown":
        assert "largest wait" in found.arithmetic
        assert found.lever
        assert found.evidence == ["timeline: run.sqlite"]


def test_device_time_against_wall_clock() -> None:
    busy = {"decode": Utilisation(device_busy_ratio=0.2)}
    assert judge(summary(utilisation=busy))["decode"].bound == "launch"
    half = {"decode": Utilisation(device_busy_ratio=0.9)}
    assert judge(summary(utilisation=half))["decode"].bound == "unknown"


def test_one_phase_of_many_is_judged_by_an_upper_bound() -> None:
    data = summary(
        timings=timings(prefill=0.1, decode=0.7),
        workload=Workload(samples=10),
        metrics={"device_busy_s": 2.1},
    )
    found = judge(data)
    assert found["decode"].bound == "launch"
    assert "at most 30.0 %" in found["decode"].arithmetic
    assert found["prefill"].bound == "unknown"  # all kernel time could be in prefill


@pytest.mark.parametrize(
    ("compute", "memory", "bound"),
    [(0.9, 0.3, "compute"), (0.2, 0.8, "memory"), (0.8, 0.79, "balanced"), (0.3, 0.3, "unknown")],
)
def test_counters_decide_when_they_cover_enough(compute: float, memory: float, bound: str) -> None:
    counters: dict[str, float | None] = {"compute_ratio": compute, "dram_ratio": memory}
    rows = [
        kernel("a", "gemm", 0.9, phase="prefill", counters=counters),
        kernel("b", "gemm", 0.1, phase="prefill"),
    ]
    data = summary(kernels=rows, budget={"prefill": budget(1.0, compute=0.95, host=0.05)})
    assert judge(data)["prefill"].bound == bound
    rows[0].total_s = 0.05
    assert judge(data)["prefill"].bound == "unknown"


@pytest.mark.parametrize(
    ("mfu", "mbu", "bound"),
    [
        (0.6, 0.1, "compute"),
        (0.1, 0.6, "memory"),
        (0.5, 0.52, "balanced"),
        (0.1, 0.2, "unknown"),
        (0.6, None, "unknown"),
    ],
)
def test_utilisation_near_a_limit(mfu: float, mbu: float | None, bound: str) -> None:
    found = judge(summary(utilisation={"prefill": Utilisation(mfu_ratio=mfu, mbu_ratio=mbu)}))["prefill"]
    assert found.bound == bound
    assert found.arithmetic


def test_on_a_cpu_operators_decide() -> None:
    timed = timings(prefill=0.1, decode=0.5)
    small = [operator("aten::mul", 100, 0.7), operator("aten::addmm", 10, 0.3)]
    assert judge(summary(hardware=cpu(), timings=timed, operators=small))["decode"].bound == "launch"
    matrix = [operator("aten::addmm", 10, 0.9), operator("aten::mul", 10, 0.1)]
    predicted = {"decode": Prediction(0.15, "memory", 0.5 / 0.15, "1.5 GB ÷ 10 GB/s")}
    data = summary(hardware=cpu(), timings=timed, operators=matrix, predictions=predicted)
    assert judge(data)["decode"].bound == "memory"  # 0.15 s of 0.9 × 0.5 s: a third of the limit
    data.predictions = {"decode": Prediction(0.05, "memory", 10.0, "0.5 GB ÷ 10 GB/s")}
    slow = judge(data)["decode"]
    assert slow.bound == "unknown"  # mostly matrix work, but far from any limit
    assert "reaches 11.1 % of its memory limit" in slow.arithmetic
    even = [operator("aten::addmm", 10, 0.5), operator("aten::mul", 10, 0.5)]
    undecided = judge(summary(hardware=cpu(), timings=timed, operators=even))["decode"]
    assert undecided.bound == "unknown"
    assert "trace" not in undecided.arithmetic  # it has one
    assert "hardware peak" in undecided.arithmetic
    blind = judge(summary(hardware=cpu(), timings=timed))["decode"]
    assert "a torch trace of this phase" in blind.arithmetic


def test_unknown_says_what_is_missing_and_nothing_is_judged_without_data() -> None:
    found = judge(summary(timings=timings(decode=1.0)))
    assert set(found) == {"decode"}
    assert found["decode"].bound == "unknown"
    assert "timeline" in found["decode"].arithmetic
    assert found["decode"].lever is None
    assert judge(summary()) == {}


def test_a_batch_is_timed_once_for_all_its_samples() -> None:
    data = summary(
        timings=timings(prefill=0.1, decode=0.7),
        workload=Workload(samples=10, batch_size=5),
        metrics={"device_busy_s": 2.1},
    )
    assert judge(data)["decode"].bound == "unknown"  # 2 batches take 1.4 s: the device may be busy throughout


def test_the_whole_capture_is_not_shown_where_it_repeats_a_phase() -> None:
    told = {"prefill": verdict("compute"), "decode": verdict("launch"), "all": verdict("launch")}
    assert worth_showing(told) == ["prefill", "decode"]
    assert worth_showing({**told, "all": verdict("memory")}) == ["prefill", "decode", "all"]
    assert worth_showing({"all": verdict("launch")}) == ["all"]
