"""One damaged capture: read with a note of what was left out, or refused with a message; never a share above 100 %."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import damaged_captures as damaged

CAPTURES = {"kineto": "item-in-layers-medium", "nsys": "item-in-layers-medium-nsys"}
QUIET = {"ranges_cross"}
"""Nothing is left out: ranges that cross are still ranges, and what is in two of them is in the inner one."""


@pytest.mark.parametrize("format_", CAPTURES)
@pytest.mark.parametrize("name", [*damaged.DAMAGES, *damaged.CLOCK_DAMAGES])
def test_no_share_is_above_all_of_it(
    name: str, format_: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (rank,) = damaged.ranks(CAPTURES[format_])
    (damaged.DAMAGES | damaged.CLOCK_DAMAGES)[name](rank)
    path = damaged.write(rank, tmp_path, format_)
    code, summary = damaged.ingest([damaged.OPTIONS[format_], str(path)], tmp_path / "out")
    if summary is None:
        assert code == 3
        assert path.name in capsys.readouterr().err
    else:
        damaged.assert_possible(summary)


@pytest.mark.parametrize("format_", CAPTURES)
@pytest.mark.parametrize("name", [name for name in damaged.DAMAGES if name not in QUIET])
def test_what_was_left_out_is_reported(name: str, format_: str, tmp_path: Path) -> None:
    (rank,) = damaged.ranks(CAPTURES[format_])
    damaged.DAMAGES[name](rank)
    path = damaged.write(rank, tmp_path / "damaged", format_)
    code, summary = damaged.ingest([damaged.OPTIONS[format_], str(path)], tmp_path / "out")
    assert code in (0, 3)
    if summary is not None:
        assert damaged.new_notes(summary, damaged.ranks(CAPTURES[format_]), format_, tmp_path)


def test_ranges_that_end_on_another_thread_hold_no_share_above_all(tmp_path: Path) -> None:
    (rank,) = damaged.ranks(CAPTURES["nsys"])
    path = damaged.write(rank, tmp_path, "nsys")
    damaged.ranges_end_on_other_threads(path)
    code, summary = damaged.ingest(["--nsys", str(path)], tmp_path / "out")
    assert code == 0
    assert summary is not None
    damaged.assert_possible(summary)


@pytest.mark.parametrize("format_", CAPTURES)
def test_half_a_collective_of_one_rank(format_: str, tmp_path: Path) -> None:
    """What of it was captured counts; nothing is invented for the rest."""
    rank = damaged.training_ranks(2, 2)[0]
    damaged.half_a_collective(rank)
    path = damaged.write(rank, tmp_path, format_)
    code, summary = damaged.ingest([damaged.OPTIONS[format_], str(path)], tmp_path / "out")
    assert code == 0
    assert summary is not None
    damaged.assert_possible(summary)
