"""The fast readers give exactly what the careful ones give, or step aside."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_perf_opt.captures.ncu import csv as ncu_csv
from llm_perf_opt.captures.ncu.csv import read_long_columns, read_ncu_csv, read_wide_columns
from llm_perf_opt.captures.ncu.launches import NcuCapture
from tests.unit.captures.ncu.test_ncu_csv import LONG, as_csv, lead, metric, raw, rule

CELLS = st.one_of(
    st.floats(0, 1e9).map(lambda value: f"{value:,.2f}"),
    st.integers(0, 10**12).map(lambda value: f"{value:,}"),
    st.floats(0, 1e9).map(repr),
    st.sampled_from(
        ["n/a", "0", "nan", "inf", "cudaFuncCachePreferNone", "1 234", "12 (3; 4)", "-1.5", "1e+06", " 7"]
    ),
)
UNITS = st.sampled_from(["us", "Mbyte", "%", "", "inst", "Ghz", "byte/cycle"])
NAMES = st.sampled_from(["void f<int, 2>(T1 *)", 'k "q" | <b>', "g"])


def content(capture: NcuCapture) -> list[object]:
    return [
        (each.kernel, each.launch_id, each.process_id, each.grid, each.block, each.rules, dict(each.metrics))
        for each in capture.launches
    ]


def both(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[object], list[object]]:
    monkeypatch.setattr(ncu_csv, "WORTHWHILE_BYTES", 0)
    fast = content(read_ncu_csv(path))
    monkeypatch.setattr(ncu_csv, "WORTHWHILE_BYTES", 1 << 60)
    return fast, content(read_ncu_csv(path))


def same(first: object, second: object) -> bool:
    """Compare values with the tolerance of one rounding: factors may be applied in another order."""
    if isinstance(first, float) and isinstance(second, float):
        return first == pytest.approx(second, rel=1e-12)
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(same(a, b) for a, b in zip(first, second, strict=True))
    return first == second


fixture_ok = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@fixture_ok
@given(
    table=st.lists(st.lists(CELLS, min_size=3, max_size=3), min_size=1, max_size=4),
    units=st.tuples(UNITS, UNITS, UNITS),
)
def test_raw_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: list[list[str]], units: tuple[str, ...]
) -> None:
    rows = [[*lead(number), *cells] for number, cells in enumerate(table)]
    path = tmp_path / "raw.csv"
    path.write_text(raw(["a__b.sum", "c__d.sum", "e__f.sum"], units, *rows))
    fast, careful = both(path, monkeypatch)
    assert same(fast, careful)


@fixture_ok
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 2), NAMES, st.sampled_from("ABC"), UNITS, CELLS), min_size=1, max_size=12
    ),
    with_rule=st.booleans(),
)
def test_details_pages(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: list[tuple[int, str, str, str, str]],
    with_rule: bool,
) -> None:
    """Launches may be interleaved and metrics repeated: then the careful reader must have been used."""
    table = [
        LONG,
        *(
            metric("S", name, unit, cell, number=number, kernel=kernel)
            for number, kernel, name, unit, cell in rows
        ),
    ]
    table += [rule("SOLBottleneck", "text", "global", "12.5")] * with_rule
    path = tmp_path / "details.csv"
    path.write_text(as_csv(table))
    fast, careful = both(path, monkeypatch)
    assert same(fast, careful)


def test_regular_pages_take_the_fast_way(tmp_path: Path) -> None:
    rows = [
        LONG,
        *(
            metric("S", f"m{place}", "us", "1,234.5", number=number)
            for number in range(3)
            for place in range(4)
        ),
    ]
    launches = read_long_columns(as_csv(rows).encode(), ",", tmp_path)
    assert launches is not None and [len(each.metrics) for each in launches] == [4, 4, 4]
    assert launches[2].metrics["S/m3"].value == pytest.approx(1.2345e-3)
    page = raw(["a__b.sum"], ["us"], [*lead(0), "1,234.5"], [*lead(1), "n/a"])
    wide = read_wide_columns(page.encode(), ",", tmp_path)
    assert wide is not None and [each.metrics["a__b.sum"].value for each in wide] == [
        pytest.approx(1.2345e-3),
        None,
    ]


@pytest.mark.parametrize("cell", ["23,42", "1,2345", "12345,678", "46 970"])
def test_doubtful_numbers_make_it_step_aside(tmp_path: Path, cell: str) -> None:
    page = raw(["a__b.sum"], ["us"], [*lead(0), cell], [*lead(1), "5"])
    assert read_wide_columns(page.encode(), ",", tmp_path) is None
    rows = [LONG, metric("S", "m", "us", cell)]
    assert read_long_columns(as_csv(rows).encode(), ",", tmp_path) is None
