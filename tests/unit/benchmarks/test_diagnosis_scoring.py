"""How a summary's findings are held against what was planted."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.diagnosis_captures.scoring import Outcome, claims_of, false_alarms, judge, score


def finding(id_: str, gain_s: float | None, share: float | None = None) -> dict[str, Any]:
    return {"id": id_, "gain_upper_s": gain_s, "gain_share_ratio": share}


def test_findings_of_one_cause_are_added_and_the_largest_comes_first() -> None:
    claims = claims_of(
        [finding("copies", 0.4), finding("host-sync", 0.3), finding("host-sync", 0.2), finding("x", None)]
    )
    assert [(claim.cause, claim.gain_s) for claim in claims] == [
        ("host-sync", 0.5),
        ("copies", 0.4),
        ("x", None),
    ]


@pytest.mark.parametrize(
    ("gain", "right"), [(1.0, True), (0.81, True), (1.19, True), (0.79, False), (1.21, False)]
)
def test_a_gain_is_right_within_a_fifth(gain: float, right: bool) -> None:
    (judged,) = judge({"copies": 1.0}, claims_of([finding("copies", gain)]))
    assert judged.found
    assert judged.gain_right is right


def test_another_finding_with_a_larger_gain_makes_the_top_cause_wrong() -> None:
    (judged,) = judge({"copies": 1.0}, claims_of([finding("copies", 1.0), finding("launch-bound", 1.1)]))
    assert not judged.found
    assert judged.gain_right


def test_a_second_cause_counts_in_second_place_or_with_the_right_size() -> None:
    losses = {"host-sync": 3.0, "copies": 1.0}
    second = judge(losses, claims_of([finding("host-sync", 3.0), finding("copies", 2.0)]))[1]
    assert second.found and not second.gain_right
    third = judge(losses, claims_of([finding("host-sync", 3.0), finding("x", 2.0), finding("copies", 1.1)]))[
        1
    ]
    assert third.found and third.gain_right
    wrong = judge(losses, claims_of([finding("host-sync", 3.0), finding("x", 2.0), finding("copies", 0.1)]))[
        1
    ]
    assert not wrong.found


def test_a_claim_of_three_percent_on_a_healthy_capture_is_a_false_alarm() -> None:
    assert false_alarms(claims_of([finding("copies", 0.1, 0.029)]), 1.0) == []
    assert false_alarms(claims_of([finding("copies", 0.1, 0.03)]), 1.0) == ["copies 3%"]
    assert false_alarms(claims_of([finding("copies", 0.1)]), 1.0) == ["copies 10%"]
    assert false_alarms(claims_of([finding("noisy-timings", None)]), 1.0) == []


def outcome(planted: dict[str, float], *findings: dict[str, Any]) -> Outcome:
    claims = claims_of(findings)
    made = Outcome("case", "kineto", 1, 1.0, 0, claims, judge(planted, claims))
    if not planted:
        made.false_alarms = false_alarms(claims, 1.0)
    return made


def test_the_score_counts_captures_causes_and_alarms() -> None:
    total = score([
        outcome({"copies": 0.5}, finding("copies", 0.5)),
        outcome({"host-sync": 0.5}, finding("copies", 0.5)),
        outcome({}, finding("copies", 0.5)),
        outcome({}),
    ])  # fmt: skip
    assert (total.top_right, total.with_cause) == (1, 2)
    assert (total.gains_right, total.gains) == (1, 2)
    assert (total.alarmed, total.healthy) == (1, 2)
    assert [(row.cause, row.planted, row.found) for row in total.rows] == [
        ("host-sync", 1, 0),
        ("copies", 1, 1),
    ]
    assert len(total.missed()) == 3


def test_a_healthy_capture_that_cannot_be_read_is_no_success() -> None:
    unread = outcome({})
    unread.exit_code = 70
    assert score([unread]).alarmed == 1


def test_a_perfect_score_misses_nothing() -> None:
    assert score([outcome({"copies": 0.5}, finding("copies", 0.5)), outcome({})]).missed() == []
