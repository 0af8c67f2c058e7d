"""Captures of many ranks keep what the joined answer needs."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from llm_perf_opt.analysis.facts import Capture, Facts
from llm_perf_opt.analysis.ranks import join_ranks, kept_in_bounds, only_collectives
from llm_perf_opt.captures.timeline import Timeline
from tests.unit.rank_captures import rank_capture, rank_timeline


def captures(count: int) -> list[Capture]:
    """Rank r comes 3 µs later to every collective than rank r - 1."""
    begins = [100, 300, 500]
    return [
        rank_capture(
            rank_timeline([one + 3 * rank for one in begins], [one + 90 for one in begins]),
            f"rank{rank}.json",
            rank,
        )
        for rank in range(count)
    ]


def rows(capture: Capture) -> int:
    assert isinstance(capture.found, Timeline)
    return len(capture.found.ops) + len(capture.found.calls)


def test_totals_of_ranks_are_the_same_without_their_rows() -> None:
    whole, slim = captures(4), captures(4)
    for one in slim[1:]:
        only_collectives(one)

    assert all(rows(a) > rows(b) for a, b in zip(whole[1:], slim[1:], strict=True))
    joined, again = join_ranks(whole), join_ranks(slim)
    assert again.ranks == joined.ranks
    assert again.notes == joined.notes
    axes = [found.captures[0].facts.axis for found in (joined, again)]
    assert axes[0] is not None and axes[0].communication is not None
    assert axes[0].communication == axes[1].communication  # type: ignore[union-attr]


def facts_of(found: list[Capture]) -> list[Facts]:
    return [Facts(captures=[one]) for one in found]


def test_the_lowest_rank_and_what_fits_stay_whole() -> None:
    given = captures(4)
    size = rows(given[0])

    kept = list(kept_in_bounds(facts_of(given), most_rows=2 * size))

    assert [rows(one.captures[0]) == size for one in kept] == [True, True, False, False]
    assert [len(one.notes) for one in kept] == [0, 0, 1, 1]
    assert "Rank 2" in kept[2].notes[0]


def test_a_lower_rank_that_comes_late_stays_whole() -> None:
    given = captures(3)[::-1]
    size = rows(given[0])

    kept = list(kept_in_bounds(facts_of(given), most_rows=size))

    assert [rows(one.captures[0]) == size for one in kept] == [True, True, True]


@pytest.mark.parametrize("why", ["no rank", "graphs"])
def test_captures_without_a_rank_or_with_graphs_stay_whole(why: str) -> None:
    given = copy.deepcopy(captures(3))
    for one in given:
        if why == "no rank":
            one.found.facts.pop("rank", None)
            one.path = Path("trace.json")
        else:
            one.found.facts["graph_launches"] = 1
    before = [rows(one) for one in given]

    list(kept_in_bounds(facts_of(given), most_rows=1))

    assert [rows(one) for one in given] == before


def test_both_captures_of_the_lowest_rank_stay_whole() -> None:
    given = [*captures(1), *captures(1)]
    size = rows(given[0])
    list(kept_in_bounds(facts_of(given), most_rows=1))
    assert [rows(one) for one in given] == [size, size]
