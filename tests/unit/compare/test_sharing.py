"""Sharing makes slower, never faster: that decides which answers of a gate are left open."""

from __future__ import annotations

import re
from typing import Any

import pytest

from llm_perf_opt.analysis.origin import Side
from llm_perf_opt.compare.compare import discount_gates, shared_notes
from llm_perf_opt.compare.data import GateResult, GateStatus
from tests.text_facts import mentions_in_order
from tests.unit.summaries import summary

ALONE = {"others_ratio": 0.02, "shared": None}
SHARED = {"others_ratio": 0.4, "shared": "other processes used 40.0 % of the processor"}
UNSEEN = {"others_ratio": None, "shared": "2 other processes used the GPU"}


def side(*uses: dict[str, Any] | None) -> Side:
    environments = [{} if use is None else {"device_use": use} for use in uses]
    return Side("x", ["x"] * len(uses), [summary(environment=each) for each in environments])


def gate(status: GateStatus) -> GateResult:
    return GateResult("tpot", 1.03, status, 1.1, 1.05, 1.2, 0.01, "why")


@pytest.mark.parametrize(
    ("a", "b", "given", "left"),
    [
        (ALONE, SHARED, "regression", "undecided"),
        (ALONE, UNSEEN, "regression", "undecided"),
        (ALONE, SHARED, "passed", "passed"),
        (SHARED, ALONE, "regression", "regression"),
        (SHARED, ALONE, "passed", "undecided"),
        (SHARED, SHARED, "regression", "regression"),
        (ALONE, ALONE, "regression", "regression"),
        (None, None, "passed", "passed"),
    ],
)
def test_only_answers_that_sharing_may_have_made_are_left_open(
    a: dict[str, Any] | None, b: dict[str, Any] | None, given: GateStatus, left: GateStatus
) -> None:
    (result,) = discount_gates([gate(given)], side(a), side(b), in_turns=False)
    assert result.status == left
    assert "why" in result.reason and (result.reason != "why") == (given != left)


def test_sides_in_turns_had_the_same_company() -> None:
    (result,) = discount_gates([gate("regression")], side(ALONE), side(SHARED), in_turns=True)
    assert result.status == "regression"


def test_the_notes_name_the_side_and_who_it_was() -> None:
    (note,) = shared_notes(side(ALONE), side(SHARED, ALONE))
    assert re.search(r"\bB\b", note) and str(SHARED["shared"]) in note
    assert mentions_in_order(note.replace(str(SHARED["shared"]), ""), "1", "2")
    (of_a,), (of_b,) = shared_notes(side(SHARED), side(ALONE)), shared_notes(side(ALONE), side(SHARED))
    assert re.search(r"\bA\b", of_a) and str(SHARED["shared"]) in of_a and of_a != of_b
    assert shared_notes(side(ALONE), side(None)) == []
