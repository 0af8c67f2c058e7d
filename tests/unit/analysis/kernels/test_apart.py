"""Two different kernels of one table never read the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.analysis.kernels.names import (
    distinguishing_parts,
    make_short_names_distinct,
    short_name,
    without_ending,
)
from llm_perf_opt.summary import Kernel

GEMV = "std::enable_if<!T7, void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, float, (bool)0, (int){}, (bool)0>(T13)"


def kernel(name: str, phase: str = "decode") -> Kernel:
    return Kernel(name, short_name(name), "gemv", phase, None, 1, 1.0, 0.5)


def test_kernels_that_differ_in_a_template_value_show_it() -> None:
    rows = [kernel(GEMV.format(6)), kernel(GEMV.format(7)), kernel(GEMV.format(6), "prefill")]
    assert len({row.short_name for row in rows}) == 1
    make_short_names_distinct(rows)
    assert [row.short_name for row in rows] == ["gemvx bf16 · 6", "gemvx bf16 · 7", "gemvx bf16 · 6"]
    assert without_ending(rows[0].short_name) == "gemvx bf16"


def test_a_name_of_its_own_stays_as_it_is() -> None:
    rows = [kernel(GEMV.format(6)), kernel("void other_kernel<float>(T1)")]
    before = [row.short_name for row in rows]
    make_short_names_distinct(rows)
    assert [row.short_name for row in rows] == before


@given(st.sets(st.text("ab01<>(), ", min_size=1, max_size=12), min_size=2, max_size=6))
def test_any_names_are_distinguished(names: set[str]) -> None:
    found = distinguishing_parts(names)
    assert set(found) == names
    assert len(set(found.values())) == len(names)
