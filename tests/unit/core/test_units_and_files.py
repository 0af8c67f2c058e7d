"""Numbers for people, and files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.core import units
from llm_perf_opt.core.files import atomic_path, atomic_write_json, atomic_write_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, units.MISSING),
        (0, "0 s"),
        (9.996, "10.0 s"),
        (0.99996, "1.00 s"),
        (0.0123, "12.3 ms"),
        (1.5e-7, "150 ns"),
        (-0.5, "-500 ms"),
        (float("inf"), "inf s"),
    ],
)
def test_seconds(value: float | None, text: str) -> None:
    assert units.seconds(value) == text


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (units.flops(4.27e12), "4.27 TFLOP"),
        (units.flops(999.96e9), "1.00 TFLOP"),
        (units.bytes_per_s(1.792e12), "1.79 TB/s"),
        (units.size(503316480), "480 MiB"),
        (units.percent(0.307), "30.7 %"),
        (units.percent(0.000521), "0.0521 %"),
        (units.count(64), "64"),
        (units.count(3336106240), "3.34 G"),
        (units.number(None), units.MISSING),
    ],
)
def test_other_quantities(shown: str, text: str) -> None:
    assert shown == text


@given(st.floats(min_value=1e-12, max_value=1e6))
def test_seconds_are_within_rounding_of_the_value(value: float) -> None:
    number, unit = units.seconds(value).split(" ")
    factor = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]
    assert float(number) * factor == pytest.approx(value, rel=6e-3)
    assert float(number) < 1000 or unit == "s"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = atomic_write_text(tmp_path / "a.txt", "old")
    with pytest.raises(ZeroDivisionError), atomic_path(target) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_the_users_umask_decides_who_may_read(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        private = atomic_write_text(tmp_path / "private.txt", "x")
    finally:
        os.umask(before)
    assert private.stat().st_mode & 0o077 == 0


def test_json_is_strict(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        atomic_write_json(tmp_path / "a.json", {"x": float("nan")})
    assert not (tmp_path / "a.json").exists()


def test_long_names_and_lone_surrogates_survive(tmp_path: Path) -> None:
    atomic_write_text(tmp_path / ("頁" * 80 + ".md"), "\udcff")
    assert (tmp_path / ("頁" * 80 + ".md")).read_text() == "\\udcff"
