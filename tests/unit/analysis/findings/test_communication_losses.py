"""Exposed communication as a loss: moving data, and waiting for a rank that comes late, never both for the same time."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.findings import losses
from llm_perf_opt.model.parallel import Collective, Communication, IdleOwner, RankUse
from llm_perf_opt.model.summary import Budget, BudgetPart, Finding, Summary
from tests.unit.summaries import budget, summary


def talk(total_s: float, exposed_s: float, **fields: object) -> Communication:
    row = Collective("all_reduce", 4, 1e9, total_s, exposed_s, 5e10)
    return Communication([row], total_s, exposed_s, **fields)  # type: ignore[arg-type]


def found_in(data: Summary) -> dict[str, Finding]:
    return {one.id: one for one in losses.find(data)}


def test_exposed_communication_names_its_collectives() -> None:
    spans = {"all": budget(10.0, compute=0.4, communication=0.6)}
    found = found_in(summary(budget=spans, communication=talk(7.0, 6.0), sources={"trace": "t.json"}))
    only = found.pop("exposed-communication")
    assert found == {}
    assert only.title == "The run waits for communication that nothing hides"
    assert only.gain_upper_s == pytest.approx(6.0)
    assert only.arithmetic == "10.0 s × 60.0 % = at most 6.00 s"
    assert only.confidence == "high"
    assert only.evidence == [
        "only communication runs for 60.0 % of 10.0 s of the captured time",
        "all_reduce: 4 calls, 7.00 s, of it exposed 6.00 s, bus bandwidth 50.0 GB/s",
        "trace: t.json",
    ]


def test_overlapped_communication_is_no_loss() -> None:
    spans = {"all": budget(10.0, compute=0.96, communication=0.04)}
    assert losses.find(summary(budget=spans, communication=talk(7.0, 0.4))) == []


def test_waiting_for_the_last_rank_is_taken_off_what_is_left_to_move() -> None:
    """6 s exposed; of 8 s in collectives 4 s are waiting, and three quarters of those are for rank 2."""
    spans = {"all": budget(10.0, compute=0.4, communication=0.6)}
    late = talk(8.0, 6.0, wait_s=4.0, straggler=2, straggler_share_ratio=0.75)
    ranks = [RankUse(0), RankUse(2, causes_wait_s=3.5, last_in=31)]
    found = found_in(summary(budget=spans, communication=late, ranks=ranks))
    straggler, exposed = found["straggler"], found["exposed-communication"]
    assert straggler.title == "Rank 2 keeps the other ranks waiting"
    assert straggler.gain_upper_s == pytest.approx(6.0 * 3 / 8)
    assert exposed.gain_upper_s == pytest.approx(6.0 * 5 / 8)
    assert (straggler.gain_upper_s or 0) + (exposed.gain_upper_s or 0) == pytest.approx(6.0)
    assert straggler.evidence[:2] == [
        "rank 2 enters last where 75.0 % of the waiting in collectives arises; the other ranks wait for it for 3.50 s "
        "on average",
        "it is last in 31 collectives",
    ]
    assert straggler.arithmetic == (
        "6.00 s of exposed communication × 37.5 % of it waiting for the last rank = at most 2.25 s"
    )
    assert exposed.arithmetic == "10.0 s × 60.0 % − waiting for the last rank = at most 3.75 s"


def test_a_straggler_that_explains_everything_leaves_nothing_to_move() -> None:
    spans = {"all": budget(10.0, compute=0.4, communication=0.6)}
    late = talk(6.0, 6.0, wait_s=5.9, straggler=1, straggler_share_ratio=1.0)
    found = found_in(summary(budget=spans, communication=late))
    assert found.keys() == {"straggler"}
    assert found["straggler"].gain_upper_s == pytest.approx(5.9)


@pytest.mark.parametrize(
    "fields",
    [
        {"wait_s": 0.5, "straggler": 1, "straggler_share_ratio": 1.0},  # below a twentieth of the time
        {"wait_s": None, "straggler": None},
        {"wait_s": 4.0, "straggler": None},  # the ranks take turns
    ],
)
def test_no_straggler_where_none_matters(fields: dict[str, object]) -> None:
    spans = {"all": budget(20.0, compute=0.5, communication=0.5)}
    found = found_in(summary(budget=spans, communication=talk(10.0, 10.0, **fields)))
    assert found.keys() == {"exposed-communication"}
    assert found["exposed-communication"].gain_upper_s == pytest.approx(10.0)


def test_more_waiting_than_communication_is_all_of_it_and_not_more() -> None:
    """Damaged captures may say so; a loss is never above its time."""
    spans = {"all": budget(10.0, compute=0.4, communication=0.6)}
    late = talk(2.0, 6.0, wait_s=50.0, straggler=1, straggler_share_ratio=1.0)
    found = found_in(summary(budget=spans, communication=late))
    assert found.keys() == {"straggler"}
    assert found["straggler"].gain_upper_s == pytest.approx(6.0)


def test_a_host_that_stands_in_a_collective_is_named() -> None:
    owner = IdleOwner("collective wait", "gloo:barrier", "main", 1.0)
    parts = [BudgetPart("compute", 1.0, 0.5), BudgetPart("communication", 1.0, 0.5, owner)]
    only = found_in(summary(budget={"all": Budget(2.0, parts, "t")}))["exposed-communication"]
    assert "collective wait: in gloo:barrier, 100 % of the time looked at; thread: main" in only.evidence
    assert only.gain_upper_s == pytest.approx(1.0)
