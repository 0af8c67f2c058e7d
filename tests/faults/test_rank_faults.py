"""Several ranks that do not belong together: said, or refused; never counted twice, never a share above 100 %."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from benchmarks.diagnosis_captures.events import RankEvents

from tests.faults import damaged_captures as damaged

FORMATS = ("kineto", "nsys")


def _ingest(ranks: list[RankEvents], format_: str, folder: Path) -> tuple[int, dict[str, Any] | None]:
    """Write every rank into a folder of its own, so that two may have the same number."""
    arguments: list[str] = []
    for number, rank in enumerate(ranks):
        path = damaged.write(rank, folder / f"from{number}", format_)
        arguments += [damaged.OPTIONS[format_], str(path)]
    return damaged.ingest(arguments, folder / "out")


def _notes_of(ranks: list[RankEvents], format_: str, folder: Path) -> set[str]:
    code, summary = _ingest(ranks, format_, folder)
    assert code == 0
    assert summary is not None
    return set(summary["notes"])


@pytest.mark.parametrize("format_", FORMATS)
def test_ranks_given_one_by_one_are_all_there(format_: str, tmp_path: Path) -> None:
    code, summary = _ingest(damaged.training_ranks(3, 2), format_, tmp_path)
    assert code == 0
    assert summary is not None
    assert [rank["rank"] for rank in summary["ranks"]] == [0, 1, 2]
    damaged.assert_possible(summary)


def test_a_folder_holds_the_ranks(tmp_path: Path) -> None:
    for rank in damaged.training_ranks(3, 2):
        damaged.write(rank, tmp_path / "traces", "kineto")
    code, summary = damaged.ingest(["--trace", str(tmp_path / "traces")], tmp_path / "out")
    assert code == 0
    assert summary is not None
    assert [rank["rank"] for rank in summary["ranks"]] == [0, 1, 2]


def test_a_rank_given_twice_counts_once_and_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = damaged.training_ranks(2, 2)
    code, summary = _ingest([first, second, deepcopy(second)], "kineto", tmp_path / "twice")
    if summary is None:
        assert code == 3
        assert "rank 1" in capsys.readouterr().err
        return
    damaged.assert_possible(summary)
    assert [rank["rank"] for rank in summary["ranks"]] == [0, 1]
    assert set(summary["notes"]) - _notes_of([first, second], "kineto", tmp_path / "once")


@pytest.mark.parametrize("format_", FORMATS)
def test_ranks_of_different_steps_are_reported(format_: str, tmp_path: Path) -> None:
    """One rank was captured for two steps, the other for five: what cannot be matched is left out of the waiting."""
    short, long = damaged.training_ranks(2, 2), damaged.training_ranks(2, 5, seed=4)
    code, summary = _ingest([short[0], long[1]], format_, tmp_path / "mixed")
    assert code in (0, 3)
    if summary is not None:
        damaged.assert_possible(summary)
        assert set(summary["notes"]) - _notes_of(short, format_, tmp_path / "same")


@pytest.mark.parametrize("format_", FORMATS)
def test_half_a_collective_is_reported(format_: str, tmp_path: Path) -> None:
    """One rank's capture ended inside a collective that the other has whole."""
    whole = damaged.training_ranks(2, 3)
    cut = deepcopy(whole)
    damaged.half_a_collective(cut[1])
    code, summary = _ingest(cut, format_, tmp_path / "cut")
    assert code == 0
    assert summary is not None
    damaged.assert_possible(summary)
    assert set(summary["notes"]) - _notes_of(whole, format_, tmp_path / "whole")


def test_a_missing_rank_is_reported(tmp_path: Path) -> None:
    """The traces say that there are four; three are given."""
    ranks = damaged.training_ranks(4, 2)
    code, summary = _ingest([ranks[0], ranks[1], ranks[3]], "kineto", tmp_path / "three")
    assert code == 0
    assert summary is not None
    assert [rank["rank"] for rank in summary["ranks"]] == [0, 1, 3]
    assert set(summary["notes"]) - _notes_of(ranks, "kineto", tmp_path / "four")


@pytest.mark.parametrize("format_", FORMATS)
def test_clocks_hours_apart_make_no_hours_of_waiting(format_: str, tmp_path: Path) -> None:
    """Ranks are put side by side by their collectives, not by their clocks."""
    ranks = damaged.training_ranks(2, 3)
    ranks[1].clock_offset_ns = 5 * 3_600 * 10**9
    code, summary = _ingest(ranks, format_, tmp_path)
    if format_ == "kineto":  # traces that began hours apart are not taken for one job
        assert (code, summary) == (3, None)
        return
    assert code == 0
    assert summary is not None
    damaged.assert_possible(summary)
    assert all((rank["waits_s"] or 0.0) < 0.2 for rank in summary["ranks"])
    assert all((finding["gain_upper_s"] or 0.0) < 0.2 for finding in summary["findings"])


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("name", [*damaged.DAMAGES, *damaged.CLOCK_DAMAGES])
def test_one_damaged_rank_among_good_ones_makes_no_impossible_share(
    name: str, format_: str, tmp_path: Path
) -> None:
    ranks = damaged.training_ranks(3, 2)
    (damaged.DAMAGES | damaged.CLOCK_DAMAGES)[name](ranks[1])
    code, summary = _ingest(ranks, format_, tmp_path)
    assert code in (0, 3)
    if summary is not None:
        damaged.assert_possible(summary)
