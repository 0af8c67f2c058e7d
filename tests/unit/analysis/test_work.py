"""A phase on the processor, split: planted times come back, and what cannot be told is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.analysis.cpu import PhaseClock, cpu_work, phase_work, unprofiled_seconds
from llm_perf_opt.analysis.facts import ProfiledPass
from llm_perf_opt.summary import SampleTimes, Workload
from llm_perf_opt.summary.phases import CpuWork
from tests.unit.summaries import cpu, gpu, kernel, operator, summary, timings

ROWS = [
    operator("aten::mm", 100, 0.30),
    operator("aten::cat", 10, 0.20),
    operator("aten::copy_", 20, 0.05),
    operator("aten::mul", 100, 0.05),
    operator("aten::view", 1000, 0.04),
]
COST_S = 1e-4
"""Per call: 10 ms of the product's, 1 ms of the join's, 2 ms of the copy's, 10 ms of the multiplication's time."""


def shares(work: CpuWork | None) -> dict[str, float]:
    assert work is not None
    return {part.name: part.share_ratio for part in work.parts}


def test_dispatch_is_what_the_unprofiled_wall_clock_leaves_over() -> None:
    """0.577 s of work; the profiler made 1 s of the 0.8 s it takes without: dispatch is 0.223 s, not 0.423 s."""
    work = phase_work(ROWS, PhaseClock(host_s=1.0, wall_s=0.8), operator_cost_s=COST_S, grows=True)
    assert work is not None and work.of == "wall-clock"
    assert work.profiled_ratio == pytest.approx(1.25)
    assert shares(work) == pytest.approx(
        {
            "matrix": 0.29 / 0.8,
            "growing cache": 0.199 / 0.8,
            "dispatch": 0.223 / 0.8,
            "movement": 0.048 / 0.8,
            "element-wise": 0.04 / 0.8,
        }
    )
    assert [part.name for part in work.parts][:2] == ["matrix", "dispatch"]  # the largest first
    dispatch, moved = work.part("dispatch"), work.part("movement")
    assert dispatch is not None and (dispatch.calls, dispatch.operator) == (1230, None)
    assert moved is not None and moved.operator == "aten::copy_"
    assert moved.operator_share_ratio == pytest.approx(0.048 / 0.8)


def test_joins_are_movement_unless_the_cache_is_known_to_grow() -> None:
    found = shares(phase_work(ROWS, PhaseClock(1.0, 0.8), operator_cost_s=COST_S))
    assert found["movement"] == pytest.approx((0.199 + 0.048) / 0.8)
    assert "growing cache" not in found


@pytest.mark.parametrize(
    "clock",
    [
        PhaseClock(host_s=1.0),
        PhaseClock(host_s=1.0, wall_s=1.1),  # the profiled pass was disturbed less
        PhaseClock(host_s=1.0, wall_s=0.5),  # 0.577 s of work do not fit: it was disturbed more
    ],
)
def test_without_two_matching_passes_dispatch_is_not_separated(clock: PhaseClock) -> None:
    """The rest of the profiled time holds the profiler too."""
    work = phase_work(ROWS, clock, operator_cost_s=COST_S)
    assert work is not None and work.of == "profiled"
    assert "dispatch" not in shares(work)
    assert shares(work)["outside operators"] == pytest.approx(1 - 0.577)


def test_operators_alone_do_not_explain_time_between_them() -> None:
    work = phase_work(ROWS, PhaseClock(wall_s=0.8), operator_cost_s=COST_S)
    assert work is not None and (work.of, work.span_s) == ("operators", pytest.approx(0.64))
    assert "dispatch" not in shares(work)


def test_compiled_code_is_recorded_from_outside_only() -> None:
    """Its kernels are no operators, so the time outside operators is not dispatch."""
    rows = [operator("Torch-Compiled Region: 0/0", 10, 0.1), operator("aten::mm", 10, 0.2)]
    found = shares(phase_work(rows, PhaseClock(host_s=1.0, wall_s=0.9)))
    assert "dispatch" not in found
    assert found["outside operators"] == pytest.approx(0.6 / 0.9)


def test_without_the_cost_of_a_call_only_views_are_dispatch_inside_operators() -> None:
    found = shares(phase_work(ROWS, PhaseClock(host_s=1.0, wall_s=0.8)))
    assert found["dispatch"] == pytest.approx(0.2 / 0.8)
    assert found["matrix"] == pytest.approx(0.3 / 0.8)


def test_calls_shorter_than_a_call_costs_are_all_dispatch() -> None:
    rows = [operator("aten::mul", 1000, 0.01), operator("aten::mm", 1, 0.09)]
    found = shares(phase_work(rows, PhaseClock(host_s=0.2, wall_s=0.1), operator_cost_s=1e-3))
    assert found == pytest.approx({"matrix": 0.089 / 0.1, "dispatch": 0.011 / 0.1, "element-wise": 0.0})


def test_no_operators_no_work() -> None:
    assert phase_work([], PhaseClock(1.0, 0.8)) is None
    assert phase_work([operator("aten::mm", 1, 0.0)], PhaseClock(1.0, 0.8)) is None


def test_a_little_more_work_than_wall_clock_is_noise() -> None:
    work = phase_work(ROWS, PhaseClock(host_s=1.0, wall_s=0.56), operator_cost_s=COST_S)
    assert work is not None and work.of == "wall-clock"
    assert "dispatch" not in shares(work)
    assert sum(shares(work).values()) == pytest.approx(1.0)


@given(
    times=st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=6),
    host=st.none() | st.floats(1e-6, 5.0),
    wall=st.none() | st.floats(1e-6, 5.0),
    cost=st.none() | st.floats(0, 1e-2),
)
def test_parts_always_sum_to_the_span_and_none_is_negative(
    times: list[float], host: float | None, wall: float | None, cost: float | None
) -> None:
    names = ["aten::mm", "aten::cat", "aten::view", "aten::mul", "x::y", "aten::argmax"]
    rows = [operator(name, 7, seconds) for name, seconds in zip(names, times, strict=False)]
    work = phase_work(rows, PhaseClock(host, wall), operator_cost_s=cost, grows=True)
    assert work is not None
    assert all(part.share_ratio >= 0 and part.seconds >= 0 for part in work.parts)
    assert sum(part.share_ratio for part in work.parts) == pytest.approx(1.0)
    assert sum(part.seconds for part in work.parts) == pytest.approx(work.span_s)


SAMPLES = [
    SampleTimes("a", 4, new_tokens=32, vision_s=None, prefill_s=0.1, decode_s=0.62, tpot_s=0.02),
    SampleTimes("b", 4, new_tokens=32, prefill_s=9.0, decode_s=9.0, tpot_s=9.0),
]


def test_the_profiled_sample_is_compared_with_itself() -> None:
    def seconds(phase: str, **fields: object) -> float | None:
        base: dict[str, object] = {"sample_ids": ["a"], "new_tokens": 32, "active_passes": 1, "seconds": 1.0}
        return unprofiled_seconds(SAMPLES, ProfiledPass(**{**base, **fields}), phase)  # type: ignore[arg-type]

    assert seconds("decode") == 0.62
    assert seconds("prefill", active_passes=3) == pytest.approx(0.3)
    assert seconds("decode", new_tokens=11) == pytest.approx(0.2)  # cut short: ten steps
    assert seconds("vision") is None
    assert seconds("mixed") is None
    assert seconds("decode", sample_ids=["c"]) is None
    assert unprofiled_seconds(SAMPLES, None, "decode") is None


def test_shares_of_the_profiled_sample_become_seconds_of_the_median_one() -> None:
    data = summary(
        hardware=cpu(),
        operators=ROWS,
        workload=Workload(cache="dynamic"),
        samples=SAMPLES,
        timings=timings(decode=2.0),
    )
    profiled = ProfiledPass(["a"], 32, 1, 1.0)
    (phase,) = (found := cpu_work(data, {"decode": 0.8}, profiled))
    assert phase == "decode"
    assert found["decode"].span_s == 2.0
    grown = found["decode"].part("growing cache")
    assert grown is not None and grown.seconds == pytest.approx(2.0 * 0.2 / 0.62)


@pytest.mark.parametrize(("phase", "cache"), [("decode", "static"), ("decode", None), ("prefill", "dynamic")])
def test_only_decode_with_a_dynamic_cache_copies_it(phase: str, cache: str | None) -> None:
    rows = [operator("aten::cat", 10, 0.2, phase)]
    data = summary(hardware=cpu(), operators=rows, workload=Workload(cache=cache))
    assert [part.name for part in cpu_work(data, {}, None)[phase].parts] == ["movement"]


def test_where_a_device_works_the_host_is_not_rated_by_its_operators() -> None:
    assert cpu_work(summary(hardware=gpu(), operators=ROWS), {"decode": 1.0}, None) == {}
    with_kernels = summary(hardware=cpu(), operators=ROWS, kernels=[kernel("k", "gemm", 1.0)])
    assert cpu_work(with_kernels, {"decode": 1.0}, None) == {}
