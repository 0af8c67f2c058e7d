"""Wall-clock budgets: the right part for every instant, and the window each phase has on a device."""

from __future__ import annotations

import numpy as np
import pytest

from llm_perf_opt.analysis.timeline.attribution import attribute
from llm_perf_opt.analysis.timeline.budget import (
    PARTS,
    budget_on,
    device_activities,
    phase_windows,
    whole_window,
    windows_on,
)
from llm_perf_opt.analysis.timeline.summary import summarise_timeline
from tests.unit.timelines import ALL_REDUCE, COPY, LAUNCH, SYNC, US, make_timeline, split

# what the device does


def test_every_instant_has_one_owner() -> None:
    """The gap at the end has no operation behind it: what the launching thread does explains it."""
    timeline = make_timeline(
        ops=[(200, 400, "gemm", 0), (300, 500, "gemm", 0), (450, 600, COPY, 0)],
        calls=[(50, 150, LAUNCH), (620, 800, SYNC), (850, 900, "cudaMalloc")],
        ranges=[(0, 1_000, "decode")],
        unit=US,
    )
    assert split(timeline, "decode", US) == {
        "compute": 300,
        "copy": 100,
        "launch": 200 + 170,
        "allocation": 50,
        "sync": 180,
    }


def test_computing_hides_copies_and_both_hide_communication() -> None:
    timeline = make_timeline(
        ops=[(0, 100, ALL_REDUCE, 0), (10, 40, "gemm", 0), (30, 60, COPY, 0)],
        calls=[(-5, -1, LAUNCH)],
        streams=[20, 7, 30],
    )
    assert split(timeline) == {"compute": 30, "copy": 20, "communication": 50}


def test_overlapping_streams_are_united_not_summed() -> None:
    timeline = make_timeline(
        [(0, 10, "a", 0), (0, 10, "b", 0)], [(0, 1, LAUNCH)], [(0, 10, "decode")], streams=[7, 8]
    )
    assert split(timeline, "decode") == {"compute": 10}


# the window of a phase


def test_device_work_after_the_range_extends_the_span() -> None:
    timeline = make_timeline([(50, 80, "gemm", 0)], [(5, 6, LAUNCH)], [(0, 10, "prefill")])
    assert split(timeline, "prefill") == {"compute": 30, "launch": 10}


def test_a_phase_inside_another_is_taken_out_of_it() -> None:
    timeline = make_timeline(
        ops=[(12, 18, "conv", 0), (30, 40, "gemm", 1)],
        calls=[(11, 12, LAUNCH), (25, 26, LAUNCH)],
        ranges=[(0, 50, "prefill"), (10, 20, "vision"), (13, 15, "sam")],
    )
    windows = phase_windows(timeline, attribute(timeline))
    assert windows["vision"].length_ns == 10
    assert windows["prefill"].length_ns == 40


def test_a_phase_does_not_wait_while_the_device_works_for_another() -> None:
    """The host is in decode already; until 60 the device still does prefill's work."""
    timeline = make_timeline(
        ops=[(10, 60, "gemm", 0), (70, 90, "gemv", 1)],
        calls=[(2, 4, LAUNCH), (15, 17, LAUNCH)],
        ranges=[(0, 12, "prefill"), (12, 100, "decode")],
    )
    assert split(timeline, "prefill") == {"compute": 50, "launch": 10}
    # Between 60 and 70 its work was in the queue; what comes behind it is the host's.
    assert split(timeline, "decode") == {"compute": 20, "queue": 10, "launch": 10}


def test_work_of_two_phases_at_once_counts_for_both() -> None:
    timeline = make_timeline(
        ops=[(10, 60, "gemm", 0), (30, 90, "gemv", 1)],
        calls=[(2, 4, LAUNCH), (15, 17, LAUNCH)],
        ranges=[(0, 12, "prefill"), (12, 20, "decode")],
        streams=[7, 8],
    )
    assert split(timeline, "prefill") == {"compute": 50, "launch": 10}
    assert split(timeline, "decode") == {"compute": 60}


def test_a_phase_without_work_of_its_own_is_not_given_that_of_another() -> None:
    timeline = make_timeline(
        ops=[(10, 60, "gemm", 0)],
        calls=[(2, 4, LAUNCH)],
        ranges=[(0, 12, "prefill"), (12, 100, "decode")],
    )
    assert "compute" not in split(timeline, "decode")
    assert sum(split(timeline, "decode").values()) == 40


def test_work_that_cannot_be_attributed_counts_where_it_runs() -> None:
    """Without launches nothing says whose work it is; the time in the phase is all there is."""
    timeline = make_timeline(ops=[(10, 60, "gemm", -1)], ranges=[(0, 100, "decode")])
    assert split(timeline, "decode") == {"compute": 50, "launch": 50}


def test_a_phase_in_two_threads_is_there_once() -> None:
    timeline = make_timeline(
        [(0, 40, "gemm", 0)],
        [(0, 1, LAUNCH), (5, 6, LAUNCH)],
        [(0, 50, "decode"), (20, 80, "decode")],
        threads=[1, 2],
        range_threads=[1, 2],
    )
    assert sum(split(timeline, "decode").values()) == 80


# the whole capture


def test_the_whole_begins_at_the_first_operation_and_ends_with_the_last() -> None:
    """Launches before it are queueing; host work behind it holds nobody up."""
    timeline = make_timeline(
        [(500, 600, "gemm", 0), (500, 560, "gemm", 1)],
        [(0, 10, LAUNCH), (20, 30, LAUNCH)],
        [(0, 2_000, "decode")],
        streams=[7, 8],
    )
    assert split(timeline) == {"compute": 100}
    window = whole_window(timeline)
    assert (window.start.tolist(), window.end.tolist()) == ([500], [600])


def test_no_device_no_budget() -> None:
    timeline = make_timeline(ranges=[(0, 10, "decode")])
    facts = summarise_timeline(timeline)
    assert facts.budget == {}
    assert facts.device_busy_ratio == {}
    assert facts.time_attributed_ratio is None
    assert facts.timeline == {}
    assert facts.axis is None
    assert np.isclose(facts.metrics["kernel_time_s"] or 0.0, 0.0)
    assert device_activities(timeline) == []
    assert len(whole_window(timeline)) == 0


def test_parts_that_always_have_a_line_and_parts_that_need_time() -> None:
    timeline = make_timeline([(0, 10, "gemm", 0)], [(-5, -1, LAUNCH)])
    (activity,) = device_activities(timeline)
    found = budget_on(activity, whole_window(timeline))
    assert set(found.parts_ns) == set(PARTS)
    listed = [part.name for part in summarise_timeline(timeline).budget["all"].parts]
    assert listed == ["compute", "copy", "sync", "launch", "host"]


def test_a_window_is_cut_for_each_device() -> None:
    timeline = make_timeline(
        [(0, 50, "a", 0), (20, 100, "b", 1)],
        [(-9, -8, LAUNCH), (-7, -6, LAUNCH)],
        [(-10, -7, "prefill"), (-7, 100, "decode")],
        devices=[0, 0],
    )
    attribution = attribute(timeline)
    (activity,) = device_activities(timeline)
    cut = windows_on(activity, timeline, attribution, phase_windows(timeline, attribution))
    assert cut["prefill"].length_ns == 3 + 50
    assert cut["decode"].length_ns == 7 + 80
    assert {name: budget_on(activity, window).parts_ns["compute"] for name, window in cut.items()} == {
        "prefill": 50,
        "decode": 80,
    }


def test_durations_of_nothing() -> None:
    """A trace may round kernels down to no time at all."""
    timeline = make_timeline([(5, 5, "gemm", 0), (9, 9, "gemm", 0)], [(0, 1, LAUNCH)])
    assert split(timeline) == {"queue": 4}
    alone = summarise_timeline(make_timeline([(5, 5, "gemm", 0)], [(0, 1, LAUNCH)]))
    assert alone.budget == {}
    assert alone.device_busy_ratio == {}


@pytest.mark.parametrize("shift", [0, 1_718_000_000_000_000_000])
def test_any_clock_gives_the_same_budget(shift: int) -> None:
    timeline = make_timeline(
        [(shift + 20, shift + 40, "gemm", 0), (shift + 70, shift + 90, "gemm", 1)],
        [(shift + 5, shift + 15, LAUNCH), (shift + 50, shift + 60, LAUNCH)],
        [(shift, shift + 100, "decode")],
    )
    assert split(timeline, "decode") == {"compute": 40, "launch": 60}
