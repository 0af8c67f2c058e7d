from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.hardware.silicon.tables import MOST_CELLS, Grid


def grid_of(times: dict[tuple[int, ...], float]) -> Grid:
    points = np.array(list(times), dtype=np.int64)
    return Grid(points, np.array(list(times.values())), ["k"] * len(times))


SIZES = st.lists(st.integers(1, 5000), min_size=2, max_size=5, unique=True).map(sorted)


@st.composite
def growing_grids(draw: st.DrawFn) -> tuple[Grid, list[int], list[int]]:
    """Times that grow with both sizes."""
    rows, columns = draw(SIZES), draw(SIZES)
    steps = {(i, j): draw(st.floats(1e-7, 1e-3)) for i in range(len(rows)) for j in range(len(columns))}
    times = {
        (rows[i], columns[j]): sum(v for (a, b), v in steps.items() if a <= i and b <= j)
        for i, j in itertools.product(range(len(rows)), range(len(columns)))
    }
    return grid_of(times), rows, columns


@given(growing_grids(), st.data())
def test_where_measurements_grow_the_answer_grows(
    made: tuple[Grid, list[int], list[int]], data: st.DataObject
) -> None:
    grid, rows, columns = made
    at = st.integers(rows[0], rows[-1]), st.integers(columns[0], columns[-1])
    row, column = data.draw(at[0]), data.draw(at[1])
    here = grid.at((row, column))
    there = grid.at((data.draw(st.integers(row, rows[-1])), data.draw(st.integers(column, columns[-1]))))
    assert here is not None and there is not None
    assert there.seconds >= here.seconds * (1 - 1e-9)


@given(growing_grids(), st.data())
def test_an_answer_never_leaves_the_times_around_it(
    made: tuple[Grid, list[int], list[int]], data: st.DataObject
) -> None:
    grid, rows, columns = made
    row, column = data.draw(st.integers(rows[0], rows[-1])), data.draw(st.integers(columns[0], columns[-1]))
    found = grid.at((row, column))
    low = grid.at((max(v for v in rows if v <= row), max(v for v in columns if v <= column)))
    high = grid.at((min(v for v in rows if v >= row), min(v for v in columns if v >= column)))
    assert found is not None and low is not None and high is not None
    assert low.seconds * (1 - 1e-9) <= found.seconds <= high.seconds * (1 + 1e-9)


def test_a_hole_at_a_corner_is_not_bridged() -> None:
    grid = grid_of({(1, 1): 1.0, (1, 4): 2.0, (4, 1): 3.0})
    assert grid.at((2, 2)) is None
    assert grid.at((1, 2)) is not None
    assert grid.nearest_inside((4, 3)) == (1, 4) or grid.nearest_inside((4, 3)) == (4, 1)


def test_of_several_times_of_one_shape_the_shortest_is_kept_with_its_kernel() -> None:
    points = np.array([[1], [1], [2]], dtype=np.int64)
    grid = Grid(points, np.array([3.0, 1.0, 5.0]), ["slow", "fast", "other"])
    found = grid.at((1,))
    assert found is not None and (found.seconds, found.kernel, grid.size) == (1.0, "fast", 2)


def test_a_left_out_value_is_interpolated_from_its_neighbours() -> None:
    grid = grid_of({(1,): 1.0, (2,): 7.0, (4,): 4.0})
    left = grid.at((2,), {0: 0.0})
    assert left is not None and left.how == "interpolated" and left.seconds == pytest.approx(2.0)
    assert left.distance_octaves == pytest.approx(1.0)


def test_neighbours_of_a_shape_are_left_out_up_to_a_distance() -> None:
    grid = grid_of({(8,): 1.0, (16,): 9.0, (17,): 9.0, (32,): 4.0, (33,): 4.0})
    near, far = grid.at((16,), {0: 0.0}), grid.at((16,), {0: 0.5})
    assert near is not None and near.distance_octaves == pytest.approx(math.log2(17 / 16))
    assert far is not None and far.distance_octaves == pytest.approx(1.0)
    assert far.seconds == pytest.approx(2.0)  # between 8 and 32
    assert grid.at((16,), {0: 1.0}) is None, "8 is left out too, and nothing lies below"


def test_the_distance_adds_up_over_the_axes_and_a_measured_shape_has_none() -> None:
    grid = grid_of({(m, n): float(m * n) for m in (1, 4) for n in (1, 4)})
    between, exact = grid.at((2, 2)), grid.at((4, 1))
    assert between is not None and between.distance_octaves == pytest.approx(2.0)
    assert exact is not None and exact.distance_octaves == 0.0


def test_a_grid_can_be_cut_at_both_ends() -> None:
    grid = grid_of({(1,): 1.0, (2,): 2.0, (4,): 4.0, (8,): 8.0})
    inner = grid.within(0, 2, 4)
    assert inner.points().tolist() == [[2], [4]] and inner.at((8,)) is None


def test_shapes_that_span_no_grid_are_refused() -> None:
    numbers = np.arange(1, 201, dtype=np.int64)
    points = np.stack([numbers] * 3, axis=1)
    assert MOST_CELLS < 200**3
    with pytest.raises(ValueError, match="too many"):
        Grid(points, np.ones(200), ["k"] * 200)
