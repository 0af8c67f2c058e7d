"""Operators that no table reaches: rooflines as measurements usually lie to them."""

from __future__ import annotations

import itertools

import pytest

from llm_perf_opt.analysis.roofline.expected_calls import Call, Work
from llm_perf_opt.analysis.roofline.expected_times import Target, pass_time, roofline_s, scale_roofline
from llm_perf_opt.hardware.silicon import AllReduce, Attention, Gemm, LatentBlock, MoeLayer, Operator
from llm_perf_opt.hardware.silicon.timing import kind_of, roofline_factor, roofline_spread
from llm_perf_opt.summary import Peak

DEVICE = Target("a device no table is of", {"bfloat16": Peak(2e14, "sheet")}, 1.8e12, link_bytes_per_s=5e10)
OPERATORS: list[Operator] = [
    Gemm(1, 64, 64),
    Gemm(1, 64, 64, "float8"),
    Gemm(1, 64, 64, "float4"),
    Attention("context", 1, 64, 8, 8, 64),
    Attention("generation", 1, 64, 8, 8, 64),
    Attention("encoder", 1, 64, 8, 8, 64),
    LatentBlock("context", 1, 64, 16, 7168, 1536, 512, 64, 128, 128),
    LatentBlock("generation", 1, 64, 16, 7168, 1536, 512, 64, 128, 128),
    MoeLayer(1, 64, 64, 1, 8),
]


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda one: kind_of(one)[0])
def test_a_longer_roofline_is_a_longer_time_inside_its_range(operator: Operator) -> None:
    """Short kernels lie farther above theirs, so the factor falls; it must not fall faster than rooflines grow, nor by steps."""
    found = [scale_roofline(operator, 1e-6 * 1.1**step) for step in range(120)]
    assert all(1 < after.seconds / before.seconds < 1.3 for before, after in itertools.pairwise(found))
    known = [one for one in found if one.low_s is not None and one.high_s is not None]
    assert known and all(one.low_s <= one.seconds <= one.high_s for one in known)  # type: ignore[operator]


def test_an_operator_without_a_table_is_scaled_as_measured_ones_and_names_the_factor() -> None:
    operator = Attention("context", 1, 3000, 32, 8, 128)
    timed = pass_time([Call("attention", operator, 3)], DEVICE, None, None)
    raw_s = roofline_s(operator, DEVICE)
    assert timed is not None and raw_s is not None
    spread = roofline_spread("context attention", raw_s)
    assert spread is not None and spread.middle_ratio > 1.2
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


def test_shorter_than_any_measured_one_the_nearest_factor_holds_without_a_range() -> None:
    """Latent attention of a few microseconds is in no table."""
    operator = LatentBlock("context", 1, 1, 16, 7168, 1536, 512, 64, 128, 128)
    short = scale_roofline(operator, 3e-6)
    assert short.low_s is None and short.factor == roofline_factor(kind_of(operator)[0], 5e-6) > 2
    assert roofline_spread("convolution", 1e-3) is None and roofline_factor("convolution", 1e-3) == 1
