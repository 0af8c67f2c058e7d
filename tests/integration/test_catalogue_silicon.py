"""The catalogue against measured silicon: no floor above a measurement, and the shipped rates are those of the tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.catalogue_floors import REACHED, Checked, check_floors, data_folder, render_reached

from tests.needs import need


@pytest.fixture(scope="module")
def folder() -> Path:
    need("silicon")
    found = data_folder()
    assert found is not None
    return found


@pytest.fixture(scope="module")
def checked(folder: Path) -> list[Checked]:
    return check_floors(folder)


def test_no_measurement_is_faster_than_its_floor(checked: list[Checked]) -> None:
    wrong = [one for one in checked if one.faster_than_compute or one.not_by_cache]
    assert not wrong
    assert sum(one.rows for one in checked) > 9_000_000 and not any(one.no_time for one in checked)


def test_every_system_and_operator_was_looked_at(checked: list[Checked]) -> None:
    assert len({one.system for one in checked}) == 10
    for operator in ("gemm", "context_attention", "generation_attention", "moe"):
        assert len({one.system for one in checked if one.operator == f"{operator}_perf"}) == 10
    # Types without a peak have no compute floor: those of devices that have no such arithmetic, and no others.
    assert {one.system for one in checked if one.no_peak} == {"a100_sxm", "b60"}


def test_a_peak_that_is_too_low_would_be_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import benchmarks.catalogue_floors as module

    shipped = module.load_catalogue()
    for device in shipped.devices:
        if device.name == "NVIDIA L40S":
            monkeypatch.setitem(device.peaks, "bfloat16", type(device.peaks["bfloat16"])(290e12, "too low"))  # type: ignore[arg-type]
    found = {
        (one.system, one.operator, one.dtype): one.faster_than_compute for one in module.check_floors(folder)
    }
    assert found["l40s", "gemm_perf", "bfloat16"] > 0


def test_the_shipped_rates_are_those_of_the_tables(folder: Path) -> None:
    assert render_reached(folder) == REACHED.read_text(encoding="utf-8")
