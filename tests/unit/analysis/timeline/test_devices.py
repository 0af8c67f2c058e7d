"""Several devices: each by itself, then the mean; never their union."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.timeline.summary import TimelineFacts, summarise_timeline
from llm_perf_opt.analysis.timeline.time_axis import TimeAxis
from llm_perf_opt.captures.timeline import Timeline
from tests.unit.timelines import ALL_REDUCE, COPY, LAUNCH, MS, US, make_timeline, split


def axis_of(timeline: Timeline) -> TimeAxis:
    axis = summarise_timeline(timeline).axis
    assert axis is not None
    return axis


def facts_of_two() -> TimelineFacts:
    return summarise_timeline(
        make_timeline(
            [(0, 50, "a", 0), (0, 100, "b", 0), (50, 60, "c", 0)],
            [(0, 1, LAUNCH)],
            [(0, 100, "decode")],
            devices=[0, 1, 0],
        )
    )


def test_busy_is_per_device_and_the_phase_has_their_mean() -> None:
    facts = facts_of_two()
    assert facts.busy_by_device["decode"] == {0: 0.6, 1: 1.0}
    assert facts.device_busy_ratio["decode"] == pytest.approx(0.8)
    assert facts.device_busy_ratio["all"] == pytest.approx(0.8)


def test_devices_that_take_turns_are_half_idle_not_full() -> None:
    """The union of the two would be busy all the time."""
    timeline = make_timeline(
        [(0, 50, "a", 0), (50, 100, "b", 1)],
        [(-10, -8, LAUNCH), (45, 47, LAUNCH)],
        devices=[0, 1],
    )
    assert split(timeline) == {"compute": 50, "launch": 50}
    assert summarise_timeline(timeline).device_busy_ratio["all"] == 0.5


def test_a_device_that_is_next_to_unused_does_not_count() -> None:
    calls = [(-10, -8, LAUNCH)]
    used = make_timeline([(0, 1000, "a", 0), (500, 510, "b", 0)], calls, devices=[0, 1])
    assert split(used)["compute"] == 505
    stray = make_timeline([(0, 1000, "a", 0), (500, 509, COPY, 0)], calls, devices=[0, 1])
    assert split(stray) == {"compute": 1000}
    listed = axis_of(stray).devices  # it is listed all the same
    assert [(one.device, one.busy_s) for one in listed] == [(0, 1e-6), (1, 9e-9)]


def test_a_phase_is_the_mean_over_the_devices_that_do_its_work() -> None:
    """A pipeline: the first device reads the page, the second writes the answer."""
    timeline = make_timeline(
        [(5, 55, "conv", 0), (65, 105, "gemv", 1)],
        [(1, 3, LAUNCH), (61, 63, LAUNCH)],
        [(0, 60, "vision"), (60, 110, "decode")],
        devices=[0, 1],
    )
    facts = summarise_timeline(timeline)
    assert facts.busy_by_device["vision"].keys() == {0}
    assert facts.busy_by_device["decode"].keys() == {1}
    assert split(timeline, "vision") == {"compute": 50, "launch": 10}
    assert split(timeline, "decode") == {"compute": 40, "launch": 10}


def test_a_phase_without_work_on_any_device_is_idle_on_all() -> None:
    timeline = make_timeline(
        [(100, 150, "conv", 0), (100, 150, "conv", 1)],
        [(91, 93, LAUNCH), (94, 96, LAUNCH)],
        [(0, 60, "prefill"), (90, 150, "decode")],
        devices=[0, 1],
    )
    assert split(timeline, "prefill") == {"launch": 60}
    assert summarise_timeline(timeline).busy_by_device["prefill"] == {0: 0.0, 1: 0.0}


def test_the_figures_of_a_device_are_over_its_own_span() -> None:
    timeline = make_timeline(
        [(0, 100, "a", 0), (40, 60, "b", 1), (55, 80, COPY, 2), (75, 95, ALL_REDUCE, 3)],
        [(-9, -8, LAUNCH), (30, 31, LAUNCH), (32, 33, LAUNCH), (34, 35, LAUNCH)],
        devices=[0, 1, 1, 1],
        streams=[7, 7, 8, 9],
    )
    first, second = axis_of(timeline).devices
    assert (first.span_s, first.busy_ratio, first.streams) == (1e-7, 1.0, 1)
    assert second.span_s == pytest.approx(55e-9)
    assert second.busy_s == pytest.approx(55e-9)
    assert second.idle_s == pytest.approx(0.0)
    assert second.copy_s == pytest.approx(20e-9)
    assert second.communication_s == pytest.approx(20e-9)
    assert second.exposed_communication_s == pytest.approx(15e-9)
    assert second.streams == 3


def test_devices_have_the_names_the_capture_gives() -> None:
    timeline = make_timeline([(0, 9, "a", -1), (0, 9, "a", -1)], devices=[0, 3])
    timeline.devices[3] = "NVIDIA H100"
    assert [one.name for one in axis_of(timeline).devices] == [None, "NVIDIA H100"]


def test_a_host_that_waits_in_a_collective_does_not_make_its_device_busy() -> None:
    timeline = make_timeline(
        [(0, 100, "a", 0), (500, 600, "b", 1)],
        [(-20, -10, LAUNCH), (480, 490, LAUNCH)],
        operators=[(100, 400, "gloo:all_reduce")],
        unit=US,
    )
    facts = summarise_timeline(timeline)
    assert split(timeline, unit=US) == {"compute": 200, "communication": 300, "launch": 100}
    assert facts.device_busy_ratio["all"] == pytest.approx(200 / 600)
    (device,) = axis_of(timeline).devices
    assert device.busy_ratio == pytest.approx(200 / 600)
    assert device.exposed_communication_s == 0.0
    assert axis_of(timeline).communication is None  # no device says anything to another


# the longest gaps


def test_the_longest_gaps_have_their_owner_phase_and_frames() -> None:
    timeline = make_timeline(
        [(0, 1, "a", 0), (4, 5, "b", 1), (11, 12, "c", 2)],
        [(-1, 0, LAUNCH), (3, 4, LAUNCH), (10, 11, LAUNCH)],
        [(-1, 6, "prefill"), (6, 12, "decode"), (7, 10, "load_batch")],
        frames=[(-1, 13, "app.py(1): main"), (7, 10, "app.py(9): fetch")],
        unit=MS,
    )
    first, second = axis_of(timeline).gaps
    assert (first.seconds, first.start_s, first.phase) == (0.006, 0.005, "decode")
    assert (first.owner.what, first.owner.range) == ("data loading", "load_batch")
    assert first.frames == ["app.py(1): main", "app.py(9): fetch"]
    assert (second.seconds, second.phase, second.owner.what) == (0.003, "prefill", "range")
    assert second.frames == ["app.py(1): main"]


def test_gaps_of_all_devices_are_ranked_and_short_ones_left_out() -> None:
    ops, calls, devices = [], [], []
    for number in range(14):
        start = number * 10_000
        calls += [(start - 20, start - 10, LAUNCH), (start + 995, start + 996, LAUNCH)]
        length = 1_000 + 100 * number
        ops += [
            (start, start + 100, "a", 2 * number),
            (start + length, start + length + 9_000 - length, "b", 2 * number + 1),
        ]
        devices += [number % 2, number % 2]
    timeline = make_timeline(ops, calls, devices=devices, unit=US)
    gaps = axis_of(timeline).gaps
    assert len(gaps) == 10
    lengths = [gap.seconds for gap in gaps]
    assert lengths == sorted(lengths, reverse=True)
    assert {gap.device for gap in gaps} == {0, 1}
    short = make_timeline([(0, 100, "a", -1), (149, 200, "b", -1), (250, 300, "c", -1)], unit=US)
    assert [gap.seconds for gap in axis_of(short).gaps] == [50e-6]


def test_a_gap_ends_with_the_capture_whatever_ranges_stay_open() -> None:
    timeline = make_timeline(
        [(0, 1, "a", 0), (0, 5, "b", 0)], [(-2, -1, LAUNCH)], [(-2, 100, "serve")], devices=[0, 1], unit=MS
    )
    (gap,) = axis_of(timeline).gaps
    assert (gap.device, gap.start_s, gap.seconds) == (0, 0.001, 0.004)
