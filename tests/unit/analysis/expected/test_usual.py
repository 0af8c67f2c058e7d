"""Operators that no table reaches: rooflines as measurements usually lie to them."""

from __future__ import annotations

import itertools

import pytest

from llm_perf_opt.analysis.expected.calls import Call, Work
from llm_perf_opt.analysis.expected.compose import Target, pass_time, roofline_s
from llm_perf_opt.analysis.expected.usual import usual_time
from llm_perf_opt.hardware.silicon import AllReduce, Attention, Gemm, LatentBlock, MoeLayer, Operator
from llm_perf_opt.hardware.silicon.errors import find_spread, kind_of, of_size, typical_sizes
from llm_perf_opt.model.summary import Peak

DEVICE = Target(
    "a device no table is of",
    {name: Peak(rate, "sheet") for name, rate in (("bfloat16", 2e14), ("float8", 4e14), ("float4", 8e14))},
    1.8e12,
    link_bytes_per_s=5e10,
)
OPERATORS: list[Operator] = [
    Gemm(1, 4096, 4096),
    Gemm(1, 128, 128, "float8"),
    Gemm(1, 4096, 4096, "float4"),
    Attention("context", 1, 1, 8, 8, 64),
    Attention("generation", 1, 1, 32, 8, 128),
    Attention("encoder", 1, 1, 16, 16, 64),
    LatentBlock("context", 1, 1, 16, 7168, 1536, 512, 64, 128, 128),
    LatentBlock("generation", 1, 1, 16, 7168, 1536, 512, 64, 128, 128),
    MoeLayer(1, 2048, 768, 8, 128),
]


def roofline(operator: Operator) -> float | None:
    return roofline_s(operator, DEVICE)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda one: kind_of(one)[0])
def test_a_larger_operator_never_takes_less_time(operator: Operator) -> None:
    """Small kernels lie farther above their roofline, so that the median falls with the size: faster than some rooflines grow."""
    sizes = [round(1.25**step) for step in range(56)]
    found = [usual_time(of_size(operator, size), roofline) for size in sizes]
    times = [one.seconds for one in found if one is not None]
    assert len(times) == len(sizes) and all(a <= b * (1 + 1e-9) for a, b in itertools.pairwise(times))
    for one in found:
        assert one is not None and one.low_s is not None and one.high_s is not None
        assert one.low_s <= one.seconds <= one.high_s


def test_an_operator_without_a_table_takes_what_measured_ones_take_and_says_the_factor() -> None:
    operator = Attention("context", 1, 3000, 32, 8, 128)
    timed = pass_time([Call("attention", operator, 3)], DEVICE, None, None)
    spread, raw_s = find_spread("context attention", 3000, "roofline"), roofline(operator)
    assert timed is not None and spread is not None and raw_s is not None and spread.middle_ratio > 1.2
    (part,) = timed.parts
    assert part.seconds == pytest.approx(3 * raw_s * spread.middle_ratio) and part.how == "roofline"
    assert part.source == f"roofline × {spread.middle_ratio:.2f}"
    assert part.low_s == pytest.approx(3 * raw_s * spread.low_ratio)
    assert part.high_s == pytest.approx(3 * raw_s * spread.high_ratio)


def test_what_no_table_could_correct_stays_a_roofline() -> None:
    work, talk = Work(0.0, 1e8), AllReduce(100_000, 8)
    timed = pass_time([Call("norms", work, 1), Call("sum", talk, 1)], DEVICE, None, None)
    assert timed is not None
    assert [part.source for part in timed.parts] == ["roofline", "roofline"]
    assert [part.seconds for part in timed.parts] == [roofline_s(work, DEVICE), roofline_s(talk, DEVICE)]
    assert timed.parts[0].low_s is not None and timed.parts[1].low_s is None


def test_the_median_holds_at_typical_sizes_and_changes_evenly_between_them() -> None:
    small, *_, large = typical_sizes("context attention")
    ratios = [find_spread("context attention", round(small * 1.2**step), "roofline") for step in range(40)]
    middles = [one.middle_ratio for one in ratios if one is not None]
    assert len(middles) == 40 and small * 1.2**39 > large
    assert all(0.9 < b / a <= 1 for a, b in itertools.pairwise(middles)), "no step at a region's end"


def test_without_limits_there_is_no_time() -> None:
    assert usual_time(Gemm(1, 64, 64), lambda _: None) is None
