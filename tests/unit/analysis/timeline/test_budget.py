"""Wall-clock budgets: parts that sum to the span, and the right part for every instant."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_perf_opt.analysis.intervals import union
from llm_perf_opt.analysis.timeline.attribution import attribute
from llm_perf_opt.analysis.timeline.budget import (
    PARTS,
    activity,
    budget_of,
    busy_ratios,
    is_sync_call,
    phase_windows,
    whole_window,
)
from llm_perf_opt.analysis.timeline.summary import summarise_timeline
from llm_perf_opt.model.timeline import Timeline
from tests.unit.timelines import Call, Op, Range, make_timeline

LAUNCH, SYNC, OTHER, COPY = (
    "cudaLaunchKernel_v7000",
    "cudaStreamSynchronize_v3020",
    "cudaMalloc_v3020",
    "[CUDA memcpy Device-to-Host]",
)


def parts_of(timeline: Timeline, phase: str) -> dict[str, int]:
    window = phase_windows(timeline, attribute(timeline))[phase]
    budget = budget_of(window, activity(timeline))
    assert sum(budget.parts_ns.values()) == budget.span_ns
    return budget.parts_ns


def test_every_instant_has_one_owner() -> None:
    timeline = make_timeline(
        ops=[(20, 40, "gemm", 0), (30, 50, "gemm", 0), (45, 60, COPY, 0)],
        calls=[(5, 15, LAUNCH), (62, 80, SYNC), (85, 90, OTHER)],
        ranges=[(0, 100, "decode")],
    )
    assert parts_of(timeline, "decode") == {"compute": 30, "copy": 10, "sync": 18, "launch": 10, "host": 32}


def test_overlapping_streams_are_united_not_summed() -> None:
    timeline = make_timeline([(0, 10, "a", 0), (0, 10, "b", 0)], [(0, 1, LAUNCH)], [(0, 10, "decode")])
    assert parts_of(timeline, "decode")["compute"] == 10


def test_device_work_after_the_range_extends_the_span() -> None:
    timeline = make_timeline([(50, 80, "gemm", 0)], [(5, 6, LAUNCH)], [(0, 10, "prefill")])
    parts = parts_of(timeline, "prefill")
    assert parts["compute"] == 30
    assert sum(parts.values()) == 40


def test_a_phase_inside_another_is_taken_out_of_it() -> None:
    timeline = make_timeline(
        ops=[(12, 18, "conv", 0), (30, 40, "gemm", 1)],
        calls=[(11, 12, LAUNCH), (25, 26, LAUNCH)],
        ranges=[(0, 50, "prefill"), (10, 20, "vision"), (13, 15, "sam")],
    )
    windows = phase_windows(timeline, attribute(timeline))
    assert windows["vision"].length_ns == 10
    assert windows["prefill"].length_ns == 40


def test_only_threads_that_launch_are_asked_what_the_host_did() -> None:
    """A watchdog that sleeps in a synchronising call does not explain idle time."""
    timeline = make_timeline(
        ops=[(50, 60, "gemm", 0)],
        calls=[(0, 10, LAUNCH), (0, 100, SYNC)],
        ranges=[(0, 100, "decode")],
        threads=[1, 2],
    )
    parts = parts_of(timeline, "decode")
    assert (parts["sync"], parts["launch"], parts["host"]) == (0, 10, 80)


def test_busy_ratio_is_per_device() -> None:
    timeline = make_timeline(
        [(0, 50, "a", 0), (0, 100, "b", 0), (50, 60, "c", 0)],
        [(0, 1, LAUNCH)],
        [(0, 100, "decode")],
        devices=[0, 1, 0],
    )
    window = phase_windows(timeline, attribute(timeline))["decode"]
    assert busy_ratios(window, activity(timeline)) == {0: 0.6, 1: 1.0}
    facts = summarise_timeline(timeline)
    assert facts.device_busy_ratio["decode"] == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cudaDeviceSynchronize_v3020", True),
        ("cuStreamSynchronize", True),
        ("cudaEventSynchronize", True),
        ("hipDeviceSynchronize", True),
        ("cudaMemcpy_v3020", True),
        ("cuMemcpyDtoH_v2", True),
        ("[CUDA synchronization] Stream sync", True),
        ("cudaMemcpyAsync_v3020", False),
        ("cuMemcpyDtoHAsync_v2", False),
        ("cudaStreamWaitEvent_v3020", False),
        ("cudaLaunchKernel_v7000", False),
    ],
)
def test_calls_that_make_the_host_wait(name: str, expected: bool) -> None:
    assert is_sync_call(name) is expected


TIMES = st.tuples(st.integers(0, 80), st.integers(0, 25)).map(lambda one: (one[0], one[0] + one[1]))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(TIMES, st.sampled_from(["gemm", "norm", COPY])), min_size=1, max_size=15),
    st.lists(st.tuples(TIMES, st.sampled_from([LAUNCH, SYNC, OTHER])), min_size=1, max_size=10),
    st.lists(st.tuples(TIMES, st.sampled_from(["prefill", "decode", "layer.0"])), max_size=8),
)
def test_parts_always_sum_to_the_span(
    ops: list[tuple[tuple[int, int], str]],
    calls: list[tuple[tuple[int, int], str]],
    ranges: list[tuple[tuple[int, int], str]],
) -> None:
    ordered: list[Call] = sorted((start, end, name) for (start, end), name in calls)
    work: list[Op] = [(start, end, name, row % len(ordered)) for row, ((start, end), name) in enumerate(ops)]
    spans: list[Range] = [(start, end, name) for (start, end), name in ranges]
    timeline = make_timeline(work, ordered, spans)
    found = activity(timeline)
    windows = {**phase_windows(timeline, attribute(timeline)), "all": whole_window(timeline)}
    for window in windows.values():
        budget = budget_of(window, found)
        assert tuple(budget.parts_ns) == PARTS
        assert sum(budget.parts_ns.values()) == budget.span_ns == window.length_ns
        assert min(budget.parts_ns.values()) >= 0
        busy = union(timeline.ops.start_ns, timeline.ops.end_ns)
        assert budget.parts_ns["compute"] + budget.parts_ns["copy"] == busy.length_within(window)
        assert all(0 <= ratio <= 1 for ratio in busy_ratios(window, found).values())
    facts = summarise_timeline(timeline)
    for split in facts.budget.values():
        assert sum(part.seconds for part in split.parts) == pytest.approx(split.span_s, abs=1e-15)


def test_no_device_no_budget() -> None:
    facts = summarise_timeline(make_timeline(ranges=[(0, 10, "decode")]))
    assert facts.budget == {}
    assert facts.device_busy_ratio == {}
    assert facts.time_attributed_ratio is None
    assert facts.timeline == {}
    assert np.isclose(facts.metrics["kernel_time_s"] or 0.0, 0.0)
