"""Clocks that jump: the report says so, because every gap and every share rests on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import damaged_captures as damaged

CAPTURES = {"kineto": "item-in-layers-medium", "nsys": "item-in-layers-medium-nsys"}


@pytest.mark.parametrize("format_", CAPTURES)
@pytest.mark.parametrize("name", damaged.CLOCK_DAMAGES)
def test_a_clock_that_jumps_is_reported(name: str, format_: str, tmp_path: Path) -> None:
    (rank,) = damaged.ranks(CAPTURES[format_])
    damaged.CLOCK_DAMAGES[name](rank)
    path = damaged.write(rank, tmp_path / "damaged", format_)
    code, summary = damaged.ingest([damaged.OPTIONS[format_], str(path)], tmp_path / "out")
    assert code in (0, 3)
    if summary is not None:
        assert damaged.new_notes(summary, damaged.ranks(CAPTURES[format_]), format_, tmp_path)


@pytest.mark.parametrize("format_", CAPTURES)
def test_an_hour_that_nobody_recorded_is_no_loss(format_: str, tmp_path: Path) -> None:
    """Neither host nor device has an event in it: the clock jumped, the device did not idle."""
    (rank,) = damaged.ranks(CAPTURES[format_])
    damaged.clock_jumps_ahead(rank)
    path = damaged.write(rank, tmp_path, format_)
    code, summary = damaged.ingest([damaged.OPTIONS[format_], str(path)], tmp_path / "out")
    assert code in (0, 3)
    if summary is not None:
        assert all((finding["gain_upper_s"] or 0.0) < 60.0 for finding in summary["findings"])
