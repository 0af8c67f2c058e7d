"""Units and numbers of NVIDIA's tools."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.captures.ncu.units import (
    Unit,
    is_missing,
    parse_number,
    parse_unit,
    shows_decimal_comma,
    shows_decimal_point,
    significant_step,
)


@pytest.mark.parametrize(
    ("text", "factor", "symbol"),
    [
        ("byte", 1, "B"),
        ("Kbyte", 1e3, "B"),
        ("Mbyte", 1e6, "B"),
        ("Gbyte/s", 1e9, "B/s"),
        ("byte/second", 1, "B/s"),
        ("Tbyte/second", 1e12, "B/s"),
        ("us", 1e-6, "s"),
        ("usecond", 1e-6, "s"),
        ("ns", 1e-9, "s"),
        ("nsecond", 1e-9, "s"),
        ("msecond", 1e-3, "s"),
        ("second", 1, "s"),
        ("s", 1, "s"),
        ("Ghz", 1e9, "Hz"),
        ("Mhz", 1e6, "Hz"),
        ("hz", 1, "Hz"),
        ("cycle/nsecond", 1e9, "Hz"),
        ("cycle/usecond", 1e6, "Hz"),
        ("cycle/second", 1, "Hz"),
        ("%", 0.01, "ratio"),
        ("byte/cycle", 1, "B/cycle"),
        ("Kbyte/block", 1e3, "B/block"),
        ("inst/cycle", 1, "inst/cycle"),
        ("register/thread", 1, "register/thread"),
        ("warp", 1, "warp"),
        ("sector", 1, "sector"),
        ("", 1, ""),
        ("sector/request", 1, "sector/request"),
    ],
)
def test_units_become_si(text: str, factor: float, symbol: str) -> None:
    assert parse_unit(text) == Unit(pytest.approx(factor), symbol)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("46,970", 46970.0),
        ("1,275,068,416", 1275068416.0),
        ("39,578.42", 39578.42),
        ("0", 0.0),
        ("-2", -2.0),
        ("1.5e+06", 1.5e6),
        ("n/a", None),
        ("", None),
        ("nan", None),
        ("inf", None),
        ("1_000", None),
        ("cudaFuncCachePreferNone", None),
        ("0x7f", None),
        ("46 970", 46970.0),
        ("46'970.5", 46970.5),
        ("1,2", None),
        ("12,34,567", None),
    ],
)
def test_numbers_with_a_decimal_point(text: str, value: float | None) -> None:
    assert parse_number(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("23,42", 23.42),
        ("39.578,42", 39578.42),
        ("46.970", 46970.0),
        ("7", 7.0),
        ("n/a", None),
        ("1.5", None),
    ],
)
def test_numbers_with_a_decimal_comma(text: str, value: float | None) -> None:
    assert parse_number(text, decimal_comma=True) == value


def test_not_available_is_not_zero() -> None:
    assert is_missing("n/a") and is_missing("") and not is_missing("0")


def test_ambiguous_numbers_support_neither_convention() -> None:
    assert not shows_decimal_comma("1,234") and not shows_decimal_point("1.234")
    assert shows_decimal_comma("23,42") and shows_decimal_comma("1.234,5")
    assert shows_decimal_point("23.42") and shows_decimal_point("1,234.5")
    assert not shows_decimal_comma("1,234.5") and not shows_decimal_point("1.234,5")


@given(st.floats(min_value=-1e15, max_value=1e15, allow_nan=False), st.integers(0, 6))
def test_grouped_numbers_read_back(value: float, digits: int) -> None:
    english = f"{value:,.{digits}f}"
    german = english.translate(str.maketrans(",.", ".,"))
    expected = float(f"{value:.{digits}f}")
    assert parse_number(english) == expected
    read = parse_number(german, decimal_comma=True)
    assert read is not None and math.isclose(read, expected, rel_tol=0, abs_tol=0)


@given(st.text(max_size=20))
def test_any_text_is_a_number_or_nothing(text: str) -> None:
    for comma in (False, True):
        value = parse_number(text, decimal_comma=comma)
        assert value is None or math.isfinite(value)


@given(st.text(max_size=20))
def test_any_unit_has_a_factor(text: str) -> None:
    assert parse_unit(text).factor > 0


def test_rounding_of_printed_numbers() -> None:
    assert significant_step("3.35") == pytest.approx(0.005)
    assert significant_step("46,970") == pytest.approx(0.5)
    assert significant_step("1.5e+06") == pytest.approx(0.05e6)
