"""A point as expected times ask for it: the same cache as floors have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_perf_opt.analysis.roofline.demand import Point
from llm_perf_opt.analysis.roofline.expected_times import at_point
from llm_perf_opt.summary import Static
from llm_perf_opt.summary.static import Quantisation
from tests.unit.analysis.roofline.test_what_if import decoder


def counted(cache_element_bytes: float | None, quantisation: Quantisation | None = None) -> Static:
    static = decoder()
    assert static.scaling is not None
    scaling = replace(static.scaling, cache_element_bytes=cache_element_bytes)
    return replace(static, scaling=scaling, quantisation=quantisation)


@pytest.mark.parametrize(
    ("dtype", "cache_bytes", "cache"),
    [
        ("bfloat16", 1.0, "float8"),
        ("float32", 1.0, "float8"),
        ("int4", 1.0, "float8"),
        ("bfloat16", 2.0, "bfloat16"),
        ("float8", 2.0, "float8"),
        ("int8", None, "bfloat16"),
    ],
)
def test_a_cache_that_was_chosen_to_be_small_stays_so(dtype: str, cache_bytes: float, cache: str) -> None:
    assert at_point(counted(cache_bytes), Point(dtype, 1, 16, 16)).cache_dtype == cache


def test_a_quantised_checkpoint_has_its_own_cache_or_that_of_the_run() -> None:
    point = Point("float8", 1, 16, 16)
    assert at_point(counted(2.0, Quantisation("fp8", "float8")), point).cache_dtype == "bfloat16"
    assert at_point(counted(1.0, Quantisation("fp8", "float8")), point).cache_dtype == "float8"
    own = Quantisation("fp8", "float8", cache_dtype="float8")
    assert at_point(counted(2.0, own), point).cache_dtype == "float8"


@pytest.mark.parametrize(
    ("block", "computed", "dtype"),
    [
        ([128, 128], "float8", "fp8_block"),
        (None, "float8", "float8"),
        ([64, 64], "float8", "float8"),
        ([128, 128], None, "float8"),
    ],
)
def test_weights_with_a_scale_per_block_are_looked_up_by_their_own_kernels(
    block: list[int] | None, computed: str | None, dtype: str
) -> None:
    static = counted(2.0, Quantisation("fp8", "float8", computed, block=block))
    assert at_point(static, Point("float8", 1, 16, 16)).dtype == dtype
    assert at_point(static, Point("bfloat16", 1, 16, 16)).dtype == "bfloat16"
