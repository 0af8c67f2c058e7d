"""Exposed communication as a loss: moving data, and waiting for a rank that comes late, never both for the same time."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.findings import idle
from llm_perf_opt.summary import Budget, BudgetPart, Finding, Summary
from llm_perf_opt.summary.devices import Collective, Communication, IdleOwner, RankUse
from tests.text_facts import any_mentions, mentions, mentions_in_order, numbers
from tests.unit.summaries import budget, summary


def talk(total_s: float, exposed_s: float, **fields: object) -> Communication:
    row = Collective("all_reduce", 4, 1e9, total_s, exposed_s, 5e10)
    return Communication([row], total_s, exposed_s, **fields)  # type: ignore[arg-type]


def found_in(data: Summary) -> dict[str, Finding]:
    return {one.id: one for one in idle.find_losses(data)}


def test_exposed_communication_names_its_collectives() -> None:
    spans = {"all": budget(10.0, compute=0.4, communication=0.6)}
    found = found_in(summary(budget=spans, communication=talk(7.0, 6.0), sources={"trace": "t.json"}))
    only = found.pop("exposed-communication")
    assert found == {}
    assert only.phase == "all"
    assert only.gain_upper_s == pytest.approx(6.0)
    assert mentions_in_order(only.arithmetic, "10.0 s", "60.0 %", "6.00 s") and "−" not in only.arithmetic
    assert only.confidence == "high"
    share, collective, source = only.evidence
    assert mentions(share, "60.0 %", "10.0 s")
    assert mentions_in_order(collective, "all_reduce", "4", "7.00 s", "6.00 s", "50.0 GB/s")
    assert source == "trace: t.json"


def test_overlapped_communication_is_no_loss() -> None:
    spans = {"all": budget(10.0, compute=0.96, communication=0.04)}
    assert idle.find_losses(summary(budget=spans, communication=talk(7.0, 0.4))) == []


def test_waiting_for_the_last_rank_is_taken_off_what_is_left_to_move() -> None:
    """Each of three ranks waits for rank 2 for 4 s of the 8 s in collectives, 6 s of which nothing hides."""
    spans = {"all": budget(10.0, compute=0.4, communication=0.6)}
    late = talk(8.0, 6.0, wait_s=3.2, straggler=2, straggler_share_ratio=0.75)
    ranks = [RankUse(0), RankUse(1), RankUse(2, causes_wait_s=4.0, last_in=31), RankUse(3)]
    found = found_in(summary(budget=spans, communication=late, ranks=ranks))
    straggler, exposed = found["straggler"], found["exposed-communication"]
    assert numbers(straggler.title) == ["2"]
    assert straggler.gain_upper_s == pytest.approx(4.0 * 6 / 8)
    assert mentions(straggler.evidence[0], "rank 2", "75.0 %", "3.00 s")
    assert numbers(straggler.evidence[1]) == ["31"]
    assert mentions(straggler.arithmetic, "rank 2", "3.00 s")
    # Budgets are means over all four ranks, one of which does not wait.
    assert exposed.gain_upper_s == pytest.approx(6.0 - 3.0 * 3 / 4)
    assert mentions_in_order(exposed.arithmetic, "10.0 s", "60.0 %", "−", "3.75 s")


def test_a_straggler_that_explains_everything_leaves_nothing_to_move() -> None:
    spans = {"all": budget(10.0, compute=0.4, communication=0.6)}
    late = talk(6.0, 6.0, wait_s=5.9, straggler=1, straggler_share_ratio=1.0)
    ranks = [RankUse(0), RankUse(1, causes_wait_s=11.8)]
    found = found_in(summary(budget=spans, communication=late, ranks=ranks))
    assert found.keys() == {"straggler"}
    assert found["straggler"].gain_upper_s == pytest.approx(10.0)  # not longer than the run


def test_every_phase_has_its_own_part_of_the_waiting() -> None:
    """Ranks are matched over the whole capture: what a phase loses goes by the communication it has."""
    spans = {
        "prefill": budget(2.0, compute=0.5, communication=0.5),
        "decode": budget(8.0, compute=0.625, communication=0.375),
    }
    late = talk(4.0, 4.0, wait_s=1.0, straggler=1, straggler_share_ratio=1.0)
    ranks = [RankUse(0), RankUse(1, causes_wait_s=2.0)]
    found = idle.find_losses(summary(budget=spans, communication=late, ranks=ranks))
    gains = {(one.id, one.phase): one.gain_upper_s for one in found}
    assert gains == {
        ("straggler", "prefill"): pytest.approx(0.5),
        ("exposed-communication", "prefill"): pytest.approx(0.75),
        ("straggler", "decode"): pytest.approx(1.5),
        ("exposed-communication", "decode"): pytest.approx(2.25),
    }


def test_waiting_under_the_profiler_is_scaled_to_the_time_without_it() -> None:
    """Captured: 10 s, 6 s of it communication. Without the profiler 5 s, and 3 s of it."""
    parts = [BudgetPart("compute", 2.0, 0.4), BudgetPart("communication", 3.0, 0.6)]
    spans = {"decode": Budget(5.0, parts, "t", 10.0, 2.0)}
    late = talk(6.0, 6.0, wait_s=1.5, straggler=1, straggler_share_ratio=1.0)
    ranks = [RankUse(0), RankUse(1, causes_wait_s=3.0)]
    found = found_in(summary(budget=spans, communication=late, ranks=ranks))
    assert found["straggler"].gain_upper_s == pytest.approx(1.5)
    assert found["exposed-communication"].gain_upper_s == pytest.approx(2.25)


@pytest.mark.parametrize(
    ("fields", "causes"),
    [
        ({"wait_s": 0.2, "straggler": 1, "straggler_share_ratio": 1.0}, 0.4),  # below a twentieth of the time
        ({"wait_s": None, "straggler": None}, None),
        ({"wait_s": 4.0, "straggler": None}, 4.0),  # the ranks take turns
        ({"wait_s": 4.0, "straggler": 7, "straggler_share_ratio": 1.0}, 4.0),  # a rank without a row
    ],
)
def test_no_straggler_where_none_matters(fields: dict[str, object], causes: float | None) -> None:
    spans = {"all": budget(20.0, compute=0.5, communication=0.5)}
    ranks = [RankUse(0), RankUse(1, causes_wait_s=causes)]
    found = found_in(summary(budget=spans, communication=talk(10.0, 10.0, **fields), ranks=ranks))
    assert found.keys() == {"exposed-communication"}
    assert found["exposed-communication"].gain_upper_s == pytest.approx(10.0)


@pytest.mark.parametrize(("share", "most_s"), [(0.6, 10.0), (0.3, 6.0)])
def test_more_waiting_than_there_is_time_is_never_more_than_the_time(share: float, most_s: float) -> None:
    """Damaged captures may say so. Of two ranks one waits at most twice the mean, and never longer than the run."""
    spans = {"all": budget(10.0, compute=1 - share, communication=share)}
    late = talk(2.0, 6.0, wait_s=50.0, straggler=1, straggler_share_ratio=1.0)
    ranks = [RankUse(0), RankUse(1, causes_wait_s=100.0)]
    found = found_in(summary(budget=spans, communication=late, ranks=ranks))
    assert found.keys() == {"straggler"}
    assert found["straggler"].gain_upper_s == pytest.approx(most_s)


def test_a_host_that_waits_in_a_collective_is_named() -> None:
    owner = IdleOwner("collective wait", "gloo:barrier", "main", 1.0)
    parts = [BudgetPart("compute", 1.0, 0.5), BudgetPart("communication", 1.0, 0.5, owner)]
    only = found_in(summary(budget={"all": Budget(2.0, parts, "t")}))["exposed-communication"]
    assert any_mentions(only.evidence, "collective wait", "gloo:barrier", "100 %", "main")
    assert only.gain_upper_s == pytest.approx(1.0)
