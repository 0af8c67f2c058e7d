"""Columns come back as they went in, in fewer bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.captures.cache import pack, unpack

WHOLE = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(WHOLE, max_size=30), st.sampled_from([np.int64, np.int32, np.int8]))
def test_a_column_comes_back(values: list[int], kind: type) -> None:
    column = np.array([value % 2 ** (8 * np.dtype(kind).itemsize - 1) for value in values], kind)

    kept, how = pack(column)
    back = unpack(kept, how)

    np.testing.assert_array_equal(back, column)
    assert back.dtype == column.dtype
    assert kept.nbytes <= column.nbytes


@given(st.lists(WHOLE, max_size=30))
def test_any_64_bit_numbers_come_back(values: list[int]) -> None:
    column = np.array(values, np.int64)
    np.testing.assert_array_equal(unpack(*pack(column)), column)


@pytest.mark.parametrize(
    ("values", "most"), [([7] * 100, 0), (range(100, 300), 200), (range(0, 600, 2), 600)]
)
def test_few_bytes_are_kept(values: list[int], most: int) -> None:
    assert pack(np.array(list(values), np.int64))[0].nbytes <= most


def test_what_does_not_belong_together_is_refused() -> None:
    kept, how = pack(np.arange(10))
    with pytest.raises(ValueError, match="9 rows where 10"):
        unpack(kept[:9], how)
