"""Every reason for which a device can run nothing, by hand. Times are in microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from llm_perf_opt.captures.timeline import Timeline
from tests.unit.timelines import LAUNCH, MALLOC, US, Call, Range, make_timeline, owner_of, split


def gap(launch: tuple[int, int], length: int, more: Sequence[Call] = (), **fields: Any) -> Timeline:
    """Two kernels of 100 µs, the second ``length`` after the first; ``launch`` is when the second one's call ran.

    The first kernel ends at 0, so that times are those since the device ran dry.
    """
    calls = [(-120, -110, LAUNCH), (*launch, LAUNCH), *more]
    ops = [(-100, 0, "gemm", 0), (length, length + 100, "gemm", 1)]
    return make_timeline(ops, calls, unit=US, **fields)


def idle(timeline: Timeline) -> dict[str, float]:
    found = split(timeline, unit=US)
    assert found.pop("compute") == 200
    return found


# the next operation was launched already


def test_a_short_gap_before_work_that_was_queued_lies_between_kernels() -> None:
    timeline = gap((-105, -101), 8)
    assert idle(timeline) == {"queue": 8}
    assert owner_of(timeline, "queue").what == "between kernels"


def test_a_long_gap_before_work_that_was_queued_is_not_the_hosts() -> None:
    """Whatever the host does meanwhile: the device did not wait for it."""
    timeline = gap((-105, -101), 30_000, ranges=[(0, 29_000, "load_batch")])
    assert idle(timeline) == {"queue": 30_000}
    assert owner_of(timeline, "queue").what == "queued work"


def test_a_launch_that_returns_when_the_gap_begins_was_ahead_of_it() -> None:
    assert idle(gap((-5, 0), 40)) == {"queue": 40}
    assert idle(gap((-5, 1), 40)) == {"launch": 40}


@pytest.mark.parametrize(("starts", "part"), [(110, "launch"), (111, "queue")])
def test_a_device_may_take_a_tenth_of_a_millisecond_to_start(starts: int, part: str) -> None:
    """The call runs from the 5th to the 10th microsecond of the gap."""
    found = idle(gap((5, 10), starts))
    assert sum(found.values()) == starts
    assert found[part] == (starts if part == "launch" else starts - 10)


# the host was busy with something else until it launched


@pytest.mark.parametrize(("length", "part"), [(500, "launch"), (501, "host")])
def test_only_dispatch_fits_in_half_a_millisecond(length: int, part: str) -> None:
    timeline = gap((length - 4, length - 1), length)
    assert idle(timeline) == ({"launch": length} if part == "launch" else {"host": length - 4, "launch": 4})


def test_the_call_itself_is_launching_in_a_long_gap_too() -> None:
    assert idle(gap((2_000, 2_030), 2_035)) == {"host": 2_000, "launch": 35}


def test_a_gap_without_calls_at_all_has_no_owner_but_its_length() -> None:
    ops = [(0, 100, "gemm", -1), (150, 250, "gemm", -1), (1_250, 1_350, "gemm", -1)]
    assert split(make_timeline(ops, unit=US), unit=US) == {"compute": 300, "launch": 50, "host": 1_000}


def test_work_whose_launch_is_not_known_is_explained_by_the_thread_that_launches_most() -> None:
    """A launch before the profiler began, or a lost correlation id."""
    calls = [(-120, -110, LAUNCH), (10, 600, MALLOC)]
    ops = [(-100, 0, "gemm", 0), (900, 1_000, "gemm", -1)]
    assert idle(make_timeline(ops, calls, unit=US)) == {"allocation": 590, "host": 310}


# input


LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@pytest.mark.parametrize(
    "spans",
    [
        {"ranges": [(100, 2_900, "load_batch")]},
        {"operators": [(100, 2_900, LOADER)]},
        {"frames": [(100, 2_900, "torch/utils/data/dataloader.py(701): __next__")]},
        {"ranges": [(100, 2_000, "load_batch")], "operators": [(1_500, 2_900, LOADER)]},
    ],
    ids=["range", "operator", "frame", "two that overlap"],
)
def test_time_in_which_input_is_prepared(spans: dict[str, Sequence[Range]]) -> None:
    timeline = gap((2_950, 2_955), 2_960, **spans)
    assert idle(timeline) == {"data": 2_800, "host": 150, "launch": 10}
    assert owner_of(timeline, "data").what == "data loading"


def test_input_that_another_thread_prepares_does_not_hold_the_device_up() -> None:
    spans: dict[str, Any] = {"ranges": [(100, 2_900, "load_batch")], "range_threads": [2]}
    assert idle(gap((2_950, 2_955), 2_960, **spans)) == {"host": 2_950, "launch": 10}


def test_frames_of_python_threads_that_are_numbered_apart() -> None:
    frame = (100, 2_900, "torch/utils/data/dataloader.py(701): __next__")
    alone = gap((2_950, 2_955), 2_960, frames=[frame], frame_threads=[70])
    assert idle(alone)["data"] == 2_800
    # With several of them nobody knows which one feeds the device.
    several = gap((2_950, 2_955), 2_960, frames=[frame, (0, 10, "a.py(1): f")], frame_threads=[70, 71])
    assert "data" not in idle(several)


def test_input_that_is_prepared_while_the_device_works_costs_nothing() -> None:
    assert idle(gap((3, 6), 10, ranges=[(-100, 2, "load_batch")])) == {"data": 2, "launch": 8}
    assert idle(gap((3, 6), 10, ranges=[(-100, 0, "load_batch")])) == {"launch": 10}


# allocation


@pytest.mark.parametrize("name", [MALLOC, "cudaFree_v3020", "hipMalloc", "cuMemMap"])
def test_time_in_which_memory_is_allocated_or_freed(name: str) -> None:
    timeline = gap((700, 705), 710, [(100, 650, name)])
    assert idle(timeline) == {"allocation": 550, "host": 150, "launch": 10}
    assert owner_of(timeline, "allocation").what == "allocation"


def test_allocation_while_input_is_prepared_is_part_of_the_preparing() -> None:
    timeline = gap((700, 705), 710, [(100, 650, MALLOC)], ranges=[(50, 660, "load_batch")])
    assert idle(timeline) == {"data": 610, "host": 90, "launch": 10}


# a collective of the host


@pytest.mark.parametrize(
    "spans", [{"ranges": [(20, 320, "gloo:all_reduce")]}, {"operators": [(20, 320, "c10d::barrier")]}]
)
def test_time_in_which_the_host_waits_in_a_collective(spans: dict[str, Sequence[Range]]) -> None:
    timeline = gap((390, 395), 400, **spans)
    assert idle(timeline) == {"communication": 300, "launch": 100}
    assert owner_of(timeline, "communication").what == "collective wait"


# which thread counts


def test_a_watchdog_that_sleeps_in_a_waiting_call_explains_nothing() -> None:
    timeline = gap((700, 705), 710, [(-50, 900, "cudaEventSynchronize")], threads=[1, 1, 2])
    assert idle(timeline) == {"host": 700, "launch": 10}


def test_every_thread_that_launches_a_noticeable_share_is_examined() -> None:
    """Autograd launches from a thread of its own."""
    calls: list[Call] = [(-120, -110, LAUNCH), (700, 705, LAUNCH), (100, 600, MALLOC)]
    ops = [(-100, 0, "gemm", 0), (710, 810, "gemm", 1)]
    assert idle(make_timeline(ops, calls, threads=[1, 2, 1], unit=US))["allocation"] == 500
    # A thread with less than a hundredth of the launches feeds nobody.
    many = [*calls, *((800 + i, 801 + i, LAUNCH) for i in range(300))]
    work = [*ops, *((810 + 10 * i, 820 + 10 * i, "gemm", 3 + i) for i in range(300))]
    rare = make_timeline(work, many, threads=[1, 2, 1, *[2] * 300], unit=US)
    assert "allocation" not in split(rare, unit=US)
