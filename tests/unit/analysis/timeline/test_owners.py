"""Who owns idle time: names, threads, frames; and what is no name at all. Times are in microseconds."""

from __future__ import annotations

from typing import Any

import pytest

from llm_perf_opt.analysis.timeline.idle_owners import HostActivity
from llm_perf_opt.captures.timeline import Timeline
from llm_perf_opt.summary.devices import IdleOwner
from tests.unit.timelines import LAUNCH, MALLOC, SYNC, US, Call, Op, budget_of, make_timeline, owner_of

END = 3_000


def waiting(*calls: Call, **fields: Any) -> Timeline:
    """A device that runs dry at 0 and gets its next kernel at 3,000."""
    launches = [(-120, -110, LAUNCH), (END - 10, END - 5, LAUNCH)]
    ops = [(-100, 0, "gemm", 0), (END, END + 100, "gemm", 1)]
    return make_timeline(ops, [*launches, *calls], unit=US, **fields)


def owner(timeline: Timeline, part: str = "host") -> tuple[str, str | None]:
    found = owner_of(timeline, part)
    return found.what, found.range


def test_the_innermost_range_or_operator_owns_the_time() -> None:
    ranges = [(-200, END + 200, "decode"), (-50, END, "sample")]
    assert owner(waiting(ranges=ranges)) == ("range", "sample")
    inside = [(-20, END, "aten::multinomial")]
    assert owner(waiting(ranges=ranges, operators=inside)) == ("operator", "aten::multinomial")
    outside = [(-150, END + 50, "aten::outer")]
    assert owner(waiting(ranges=ranges, operators=outside)) == ("range", "sample")


def test_most_of_the_time_decides_and_its_share_is_shown() -> None:
    found = owner_of(waiting(ranges=[(0, 2_200, "sample"), (2_200, END, "detokenise_step")]), "host")
    assert found.range == "sample"
    assert found.share_ratio == pytest.approx(0.75, abs=0.13)


@pytest.mark.parametrize("name", ["ProfilerStep#5", "step 3", "Iteration 4"])
def test_ranges_that_only_count_steps_own_nothing(name: str) -> None:
    around = [(-500, END + 500, name)]
    assert owner(waiting(ranges=around)) == ("not recorded", None)
    assert owner(waiting(ranges=[*around, (-50, END, "sample")])) == ("range", "sample")
    assert owner(waiting(ranges=[(-900, END + 900, "serve"), *around])) == ("range", "serve")


def test_time_outside_everything_is_pythons_where_operators_are_recorded() -> None:
    """nsys records no operators: there, nothing says what the host did."""
    assert owner(waiting()) == ("not recorded", None)
    assert owner(waiting(operators=[(-300, -200, "aten::mm")])) == ("python", None)


def test_python_frames_are_used_where_nothing_else_is_recorded() -> None:
    frames = [(-900, END + 900, "app.py(3): main"), (5, END - 20, "app.py(90): beam_search")]
    timeline = waiting(frames=frames, operators=[(-300, -200, "aten::mm")])
    assert owner(timeline) == ("python", "app.py(90): beam_search")
    named = waiting(frames=frames, ranges=[(-50, END, "sample")])
    assert owner(named) == ("range", "sample")
    counted = waiting(frames=frames, ranges=[(-500, END + 500, "ProfilerStep#5")])
    assert owner(counted) == ("python", "app.py(90): beam_search")


def test_frames_are_listed_outermost_first_and_short_ones_left_out() -> None:
    frames = [
        (-900, END + 900, "app.py(3): main"),
        (-800, END + 800, "app.py(9): serve"),
        (1_000, 2_000, "app.py(90): beam_search"),
        (1_495, 1_505, "app.py(99): tick"),
    ]
    host = HostActivity(waiting(frames=frames))
    assert host.frames(1, 1_500 * US) == ["app.py(3): main", "app.py(9): serve", "app.py(90): beam_search"]
    assert host.frames(1, 2_500 * US) == ["app.py(3): main", "app.py(9): serve"]
    assert host.frames(1, -950 * US) == []
    assert HostActivity(waiting()).frames(1, 0) == []
    deep = [(-900 + i, END + 900 - i, f"app.py({i}): f{i}") for i in range(20)]
    assert HostActivity(waiting(frames=deep)).frames(1, 1_500 * US) == [
        f"app.py({i}): f{i}" for i in range(12, 20)
    ]


@pytest.mark.parametrize(
    ("part", "fields", "expected"),
    [
        ("data", {"ranges": [(0, END, "load_batch")]}, ("data loading", "load_batch")),
        ("data", {"ranges": [(0, END, "load_batch"), (5, END, "pad")]}, ("data loading", "load_batch")),
        ("data", {"ranges": [(0, END, "tokenize prompts")]}, ("tokenising", "tokenize prompts")),
        (
            "data",
            {"frames": [(0, END, "torch/utils/data/dataloader.py(7): __next__"), (9, END, "lock.py(1): get")]},
            ("data loading", "torch/utils/data/dataloader.py(7): __next__"),
        ),
        ("communication", {"operators": [(0, END, "gloo:barrier")]}, ("collective wait", "gloo:barrier")),
        ("host", {"ranges": [(0, END, "torch._dynamo.convert_frame")]}, ("compilation", "torch._dynamo.convert_frame")),
    ],
)  # fmt: skip
def test_the_part_names_its_owner(part: str, fields: dict[str, Any], expected: tuple[str, str]) -> None:
    assert owner(waiting(**fields), part) == expected


def test_calls_are_owned_by_what_is_around_them_else_by_themselves() -> None:
    inside = [(-50, END, "aten::empty")]
    assert owner(waiting((10, 2_000, MALLOC), operators=inside), "allocation") == (
        "allocation",
        "aten::empty",
    )
    assert owner(waiting((10, 2_000, MALLOC)), "allocation") == ("allocation", MALLOC)
    assert owner(waiting((10, 2_000, SYNC), operators=[(0, END, "aten::item")]), "sync") == (
        "synchronisation",
        "aten::item",
    )
    assert owner(waiting((10, 2_000, SYNC)), "sync") == ("synchronisation", SYNC)


def test_dispatch_is_owned_by_the_operator_that_launches() -> None:
    calls: list[Call] = [(-120, -110, LAUNCH), (80, 85, LAUNCH)]
    ops: list[Op] = [(-100, 0, "gemm", 0), (90, 190, "gemm", 1)]
    timeline = make_timeline(ops, calls, operators=[(-5, 88, "aten::mm")], unit=US)
    assert owner(timeline, "launch") == ("launch calls", "aten::mm")


@pytest.mark.parametrize(
    ("facts", "label"),
    [
        ({}, "thread 1"),
        ({"threads": [{}, {"pid": 12, "tid": 34, "name": "engine core"}]}, "engine core"),
        ({"threads": [{}, {"pid": 12, "tid": 34, "name": None}]}, "process 12, thread 34"),
        ({"threads": "damaged"}, "thread 1"),
        ({"threads": [{"name": "only one"}]}, "thread 1"),
    ],
)
def test_threads_are_named_as_the_capture_names_them(facts: dict[str, Any], label: str) -> None:
    assert owner_of(waiting(facts=facts), "host").thread == label


def test_a_thread_of_nsys_is_named_without_its_process() -> None:
    thread = (4242 << 24) | 77
    calls = [(-120, -110, LAUNCH), (END - 10, END - 5, LAUNCH)]
    ops = [(-100, 0, "gemm", 0), (END, END + 100, "gemm", 1)]
    timeline = make_timeline(ops, calls, threads=[thread, thread], unit=US)
    assert owner_of(timeline, "host").thread == "thread 77"


def test_nobody_owns_what_is_not_there() -> None:
    timeline = waiting(ranges=[(0, END, "sample")])
    parts = {part.name: part.owner for part in budget_of(timeline).parts}
    assert parts["sync"] is None
    assert parts["compute"] is None
    assert isinstance(parts["host"], IdleOwner)


def test_ranges_of_a_gap_are_looked_for_on_the_thread_that_ends_it() -> None:
    """Two threads feed the device; each gap belongs to the one that launches the kernel behind it."""
    calls: list[Call] = [(-120, -110, LAUNCH), (2_000, 2_005, LAUNCH), (9_000, 9_005, LAUNCH)]
    ops: list[Op] = [(-100, 0, "a", 0), (2_010, 2_110, "b", 1), (9_010, 9_110, "c", 2)]
    ranges = [(-200, 2_100, "short work"), (0, 9_100, "long work")]
    timeline = make_timeline(ops, calls, ranges, threads=[1, 1, 2], range_threads=[1, 2], unit=US)
    found = owner_of(timeline, "host")
    assert (found.range, found.thread) == ("long work", "thread 2")
    assert found.share_ratio == pytest.approx(6_890 / 8_890, abs=0.02)
