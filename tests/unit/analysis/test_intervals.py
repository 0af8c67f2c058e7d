"""The interval algebra against sets of single nanoseconds."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_perf_opt.analysis.intervals import (
    EMPTY,
    IntervalSet,
    complement,
    growing,
    intersect,
    steps,
    union,
    unite,
)
from llm_perf_opt.core.arrays import distinct_values, enclosing, innermost

PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=25)


def as_set(pairs: list[tuple[int, int]]) -> IntervalSet:
    return union(np.array([a for a, _ in pairs], np.int64), np.array([b for _, b in pairs], np.int64))


def points(pairs: list[tuple[int, int]]) -> set[int]:
    return {time for a, b in pairs for time in range(a, b)}


def points_of(one: IntervalSet) -> set[int]:
    return points(list(zip(one.start.tolist(), one.end.tolist(), strict=True)))


def assert_canonical(one: IntervalSet) -> None:
    assert (one.end > one.start).all()
    assert (one.start[1:] > one.end[:-1]).all()


FEW_PAIRS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), min_size=1, max_size=3)


@given(FEW_PAIRS, st.lists(st.integers(1, 6), min_size=60, max_size=120))
def test_few_intervals_against_many(few: list[tuple[int, int]], lengths: list[int]) -> None:
    """Sets of very different sizes take another way to the same result."""
    ends = np.cumsum(lengths)
    pairs = list(zip(ends[:-1:2].tolist(), ends[1::2].tolist(), strict=False))
    small, large = as_set(few), as_set(pairs)
    for found, expected in (
        (unite(small, large), points(few) | points(pairs)),
        (unite(large, small), points(few) | points(pairs)),
        (complement(large, small), points(few) - points(pairs)),
        (complement(small, large), points(pairs) - points(few)),
    ):
        assert_canonical(found)
        assert points_of(found) == expected


@given(
    st.lists(st.one_of(st.integers(-3, 40), st.integers(-(2**31), 2**31 - 1), st.integers(100_000, 160_000)))
)
def test_distinct_values_are_those_of_numpy(values: list[int]) -> None:
    for kind in (np.int32, np.int64):
        column = np.array(values, kind)
        found = distinct_values(column)
        assert found.dtype == kind
        assert found.tolist() == np.unique(column).tolist()


@given(PAIRS)
def test_union_covers_exactly_its_intervals(pairs: list[tuple[int, int]]) -> None:
    found = as_set(pairs)
    assert_canonical(found)
    assert points_of(found) == points(pairs)
    assert found.length_ns == len(points(pairs))


@given(PAIRS, PAIRS)
def test_set_operations(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    mine, other = as_set(left), as_set(right)
    for found, expected in (
        (intersect(mine, other), points(left) & points(right)),
        (unite(mine, other), points(left) | points(right)),
        (complement(mine, other), points(right) - points(left)),
    ):
        assert_canonical(found)
        assert points_of(found) == expected
    assert mine.length_within(other) == len(points(left) & points(right))
    assert intersect(mine, other) == intersect(other, mine)


@given(PAIRS, st.lists(PAIRS, max_size=5))
def test_shares_sum_to_the_window_and_never_overlap(
    window: list[tuple[int, int]], layers: list[list[tuple[int, int]]]
) -> None:
    sets = [as_set(layer) for layer in layers]
    found = steps(as_set(window), growing(sets))
    assert sum(found) == len(points(window))
    left = points(window)
    for share, layer in zip(found, layers, strict=False):
        assert share == len(left & points(layer))
        left -= points(layer)
    assert found[-1] == len(left)


@given(st.lists(st.integers(-(2**60), 2**60), min_size=2, max_size=8, unique=True))
def test_lengths_are_exact_for_any_clock(times: list[int]) -> None:
    times = sorted(times)[: len(times) // 2 * 2]
    found = as_set(list(zip(times[::2], times[1::2], strict=True)))
    assert found.length_ns == sum(b - a for a, b in zip(times[::2], times[1::2], strict=True))


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=30),
    st.lists(st.integers(-2, 90), max_size=20),
)
def test_innermost_is_the_latest_started_open_range(ranges: list[tuple[int, int]], times: list[int]) -> None:
    """Also when ranges of two NVTX domains overlap without nesting."""
    ordered = sorted(((start, start + length) for start, length in ranges), key=lambda one: (one[0], -one[1]))
    start = np.array([one[0] for one in ordered], np.int64)
    end = np.array([one[1] for one in ordered], np.int64)
    parent = enclosing(end)
    for row, above in enumerate(parent.tolist()):
        around = [i for i in range(row) if end[i] >= end[row]]
        assert above == (around[-1] if around else -1)
    found = innermost(start, end, parent, np.array(times, np.int64))
    for time, row in zip(times, found.tolist(), strict=True):
        opened = [i for i, (a, b) in enumerate(ordered) if a <= time <= b]
        assert row == (opened[-1] if opened else -1)


def test_a_set_is_not_equal_to_something_else() -> None:
    assert (EMPTY == 3) is False
    assert (union(np.array([1]), np.array([1])) == EMPTY) is True


@given(PAIRS, PAIRS)
def test_overlaps_is_any_common_point(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    asked = sorted(right) * 9  # many times, in order and not: both ways of looking them up
    for times in (asked, sorted(asked)):
        found = as_set(left).overlaps(
            *(np.array([pair[side] for pair in times], np.int64) for side in (0, 1))
        )
        assert found.tolist() == [bool(points(left) & set(range(a, b))) for a, b in times]
