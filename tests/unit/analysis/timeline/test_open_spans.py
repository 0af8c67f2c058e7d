"""What is open on a thread at a time, against looking at every row."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.analysis.timeline.idle_owners import OpenSpans
from tests.unit.timelines import LAUNCH, US, Range, make_timeline


def nested(draw: st.DrawFn, low: int, high: int, depth: int, name: str) -> list[Range]:
    """Spans inside one another or beside one another, as a thread's are; no two share an end or a beginning."""
    if depth == 0 or high - low < 8:
        return []
    found: list[Range] = []
    at = low + 1
    for number in range(draw(st.integers(0, 3))):
        if at > high:
            break
        start = draw(st.integers(at, high))
        end = draw(st.integers(start, high))
        if end - start < 4 or end >= high:
            break
        label = f"{name}.{number}"
        found += [(start, end, label), *nested(draw, start, end, depth - 1, label)]
        at = end + 2
    return found


@st.composite
def spans(draw: st.DrawFn) -> list[Range]:
    return nested(draw, 0, 120, 4, "op")


@given(spans(), st.lists(st.integers(-5, 130), min_size=1, max_size=20))
def test_operators_are_named_innermost_first(operators: list[Range], times: list[int]) -> None:
    found = OpenSpans(make_timeline(operators=operators))
    for at in times:
        inside = sorted((one for one in operators if one[0] <= at <= one[1]), key=lambda one: -one[0])
        assert found.at(1, at) == [("operator", one[2]) for one in inside]
        assert found.at(2, at) == []


@given(spans(), st.lists(st.integers(-5, 130), min_size=1, max_size=20))
def test_ranges_are_named_innermost_first(ranges: list[Range], times: list[int]) -> None:
    found = OpenSpans(make_timeline(ranges=ranges))
    for at in times:
        inside = sorted((one for one in ranges if one[0] <= at <= one[1]), key=lambda one: -one[0])
        assert found.at(1, at) == [("range", one[2]) for one in inside]
        assert found.at(2, at) == []


@given(spans(), st.lists(st.integers(-5, 130), min_size=1, max_size=20))
def test_frames_are_named_where_nothing_else_is_open(frames: list[Range], times: list[int]) -> None:
    found = OpenSpans(make_timeline(frames=frames, unit=10 * US))
    for at in times:
        inside = [one for one in frames if one[0] <= at <= one[1] and (one[1] - one[0]) * 10 * US >= 20_000]
        names = [one[2] for one in sorted(inside, key=lambda one: -one[0])]
        assert found.frames_at(1, at * 10 * US) == names
        assert found.at(1, at * 10 * US) == [("frame", name) for name in names]


def test_calls_come_before_operators_and_ranges() -> None:
    timeline = make_timeline(
        calls=[(10, 40, LAUNCH), (15, 30, "cuLaunchKernel")],
        ranges=[(0, 100, "decode"), (6, 60, "sample")],
        operators=[(5, 50, "aten::mm")],
        frames=[(0, 100, "app.py(1): main")],
    )
    found = OpenSpans(timeline)
    assert found.at(1, 20) == [
        ("call", "cuLaunchKernel"), ("call", LAUNCH), ("range", "sample"), ("operator", "aten::mm"), ("range", "decode"),
    ]  # fmt: skip
    assert found.at(1, 70) == [("range", "decode")]
