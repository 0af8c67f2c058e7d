"""Clocks that cannot be right are said, and those that can be are not doubted. Times are in microseconds."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.timeline.summary import summarise_timeline
from llm_perf_opt.analysis.timeline.time_axis import find_clock_problems
from llm_perf_opt.captures.timeline import Timeline
from llm_perf_opt.core.units import seconds
from tests.text_facts import mentions
from tests.unit.timelines import LAUNCH, US, Call, Op, make_timeline, split

SECOND = 1_000_000


def steady(launches: int = 100, *, early: int = 0, by_us: int = 0) -> Timeline:
    """A call every 100 µs, its kernel 10 µs behind; ``early`` of the kernels begin ``by_us`` before their call."""
    calls: list[Call] = [(100 * n, 100 * n + 5, LAUNCH) for n in range(launches)]
    shift = [-by_us if n < early else 10 for n in range(launches)]
    ops: list[Op] = [(100 * n + shift[n], 100 * n + shift[n] + 50, "gemm", n) for n in range(launches)]
    return make_timeline(ops, calls, unit=US)


def test_a_capture_in_order_is_not_doubted() -> None:
    found = find_clock_problems(steady())
    assert found.notes == []
    assert len(found.silence) == 0


@pytest.mark.parametrize(("early", "by_us", "message"), [(1, 21, True), (1, 20, False), (5, 500, True)])
def test_kernels_before_their_launch_show_that_the_clocks_differ(
    early: int, by_us: int, message: bool
) -> None:
    notes = find_clock_problems(steady(early=early, by_us=by_us)).notes
    assert len(notes) == message
    assert all(mentions(note, str(early), "100", seconds(by_us * 1e-6)) for note in notes)


def test_one_odd_kernel_is_not_a_clock() -> None:
    assert find_clock_problems(steady(101, early=1, by_us=500)).notes == []


def test_calls_that_cross_show_a_clock_that_jumped_back() -> None:
    crossing: list[Call] = [(100 * n, 100 * n + 120, LAUNCH) for n in range(10)]
    timeline = make_timeline([(5_000, 5_100, "gemm", 9)], crossing, unit=US)
    (note,) = find_clock_problems(timeline).notes
    assert mentions(note, "9", "10")
    nested: list[Call] = [(100 * n, 100 * n + 90, LAUNCH) for n in range(10)]
    nested += [(100 * n + 10, 100 * n + 50, "cuLaunchKernel") for n in range(10)]
    assert find_clock_problems(make_timeline([(5_000, 5_100, "gemm", 9)], nested, unit=US)).notes == []
    threads = make_timeline([(5_000, 5_100, "gemm", 9)], crossing, threads=list(range(10)), unit=US)
    assert find_clock_problems(threads).notes == []


@pytest.mark.parametrize("streams", [[7] * 10, list(range(10))], ids=["one stream", "many"])
def test_a_stream_runs_its_work_in_order(streams: list[int]) -> None:
    calls: list[Call] = [(100 * n, 100 * n + 5, LAUNCH) for n in range(10)]
    ops: list[Op] = [(1_000 + 100 * n, 1_000 + 100 * n + 150, "gemm", n) for n in range(10)]
    notes = find_clock_problems(make_timeline(ops, calls, streams=streams, unit=US)).notes
    assert len(notes) == (len(set(streams)) == 1)
    assert all(mentions(note, "9", "10") for note in notes)


def test_branches_of_a_graph_may_overlap() -> None:
    ops: list[Op] = [(1_000 + 100 * n, 1_000 + 100 * n + 150, "gemm", 0) for n in range(10)]
    assert find_clock_problems(make_timeline(ops, [(0, 5, "cudaGraphLaunch")], unit=US)).notes == []


def silent(seconds: int, work_us: int = 100) -> Timeline:
    """Two kernels with a silence between them."""
    again = work_us + seconds * SECOND
    calls = [(-20, -10, LAUNCH), (again - 20, again - 10, LAUNCH)]
    return make_timeline([(0, work_us, "a", 0), (again, again + work_us, "b", 1)], calls, unit=US)


def test_an_hour_that_nobody_recorded_is_left_out() -> None:
    timeline = silent(3_600)
    assert len(find_clock_problems(timeline).silence) == 1
    assert split(timeline, unit=US) == {"compute": 200, "launch": 20}
    (note,) = find_clock_problems(timeline).notes
    assert mentions(note, "3600 s")
    assert note in summarise_timeline(timeline).warnings


def test_a_pause_is_a_pause() -> None:
    """Below ten seconds, or not far longer than what was recorded."""
    assert len(find_clock_problems(silent(9)).silence) == 0
    assert split(silent(9), unit=US)["host"] > 8 * SECOND
    assert len(find_clock_problems(silent(20, work_us=2 * SECOND)).silence) == 0
    assert len(find_clock_problems(silent(50, work_us=2 * SECOND)).silence) == 1
