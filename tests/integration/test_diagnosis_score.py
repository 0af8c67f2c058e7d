"""The diagnosis keeps its score: a spread of the generated captures gets the planted cause, its size, and no false alarm.

``python benchmarks/diagnosis.py`` tries all of them and prints the table.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.diagnosis import try_case
from benchmarks.diagnosis_captures.cases import all_cases
from benchmarks.diagnosis_captures.labels import CAUSES, Case

SPREAD = [case for number, case in enumerate(all_cases()) if number % 4 == 1]


@pytest.mark.parametrize("case", SPREAD, ids=lambda case: case.name)
def test_the_planted_cause_is_named_with_its_size(case: Case, tmp_path: Path) -> None:
    outcome = try_case(case, tmp_path, None)
    assert outcome.exit_code == 0, outcome.error
    assert outcome.false_alarms == []
    if not case.healthy:
        assert outcome.top_right, outcome.claims
        assert [one.cause for one in outcome.planted if not one.gain_right] == []


def test_the_spread_has_causes_formats_ranks_and_healthy_captures() -> None:
    assert len({cause for case in SPREAD for cause in case.causes}) >= len(CAUSES) - 2
    assert {case.format for case in SPREAD} == {"kineto", "nsys"}
    assert sum(case.healthy for case in SPREAD) >= 4
    assert any(case.world.ranks > 1 for case in SPREAD)
