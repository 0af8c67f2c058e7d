"""Facts of several ranks as those of one: work adds up, times are means."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.timeline.merge import mean_budget, merge_facts_of_ranks
from llm_perf_opt.analysis.timeline.summary import TimelineFacts, summarise_timeline
from llm_perf_opt.summary import Budget, BudgetPart
from llm_perf_opt.summary.devices import IdleOwner
from tests.unit.summaries import budget
from tests.unit.timelines import ALL_REDUCE, LAUNCH, MS, make_timeline


def rank_facts(gemm_ms: int, talk_ms: int = 0, phase: str = "decode", gap_ms: int = 0) -> TimelineFacts:
    ops = [(0, gemm_ms, "gemm", 0)]
    end = gemm_ms + gap_ms
    if talk_ms:
        ops.append((end, end + talk_ms, ALL_REDUCE, 0))
    return summarise_timeline(
        make_timeline(ops, [(-2, -1, LAUNCH)], [(-2, -1, phase)], unit=MS), source=f"{gemm_ms}.json"
    )


def test_work_is_added_up_and_times_are_means() -> None:
    merged = merge_facts_of_ranks({0: rank_facts(10, 10), 1: rank_facts(30, 10)})
    kernels = {kernel.name: (kernel.launches, kernel.total_s) for kernel in merged.kernels}
    assert kernels == {"gemm": (2, pytest.approx(0.040)), ALL_REDUCE: (2, pytest.approx(0.020))}
    assert sum(kernel.share_ratio or 0.0 for kernel in merged.kernels) == pytest.approx(1.0)
    assert merged.metrics["kernel_launches"] == 4
    assert merged.metrics["kernel_time_s"] == pytest.approx(0.060)
    whole = merged.budget["all"]
    assert whole.span_s == pytest.approx(0.030)
    assert {part.name: part.seconds for part in whole.parts if part.seconds} == pytest.approx(
        {"compute": 0.020, "communication": 0.010}
    )
    assert sum(part.share_ratio for part in whole.parts) == pytest.approx(1.0)
    assert merged.phase_ranges == {"decode": 2}
    assert merged.families["decode", "gemm"].launches == 2
    assert merged.source == "10.json, 30.json"


def test_devices_and_gaps_know_their_rank() -> None:
    merged = merge_facts_of_ranks({3: rank_facts(10, 10, gap_ms=5), 1: rank_facts(30, 10, gap_ms=9)})
    assert merged.axis is not None
    assert [device.rank for device in merged.axis.devices] == [1, 3]
    assert [(gap.rank, gap.seconds) for gap in merged.axis.gaps] == [(1, 0.009), (3, 0.005)]


def test_a_phase_that_some_ranks_have_is_the_mean_of_those() -> None:
    merged = merge_facts_of_ranks({0: rank_facts(10), 1: rank_facts(30, phase="prefill")})
    assert merged.budget["decode"].span_s == pytest.approx(0.012 - 0.001)
    assert merged.budget["prefill"].span_s == pytest.approx(0.032 - 0.001)
    assert merged.budget["all"].span_s == pytest.approx(0.020)
    assert merged.device_busy_ratio["all"] == pytest.approx(1.0)


def test_a_silent_rank_communicates_for_no_time() -> None:
    merged = merge_facts_of_ranks({0: rank_facts(10, 10), 1: rank_facts(10)})
    assert merged.axis is not None
    talk = merged.axis.communication
    assert talk is not None
    assert talk.total_s == pytest.approx(0.005)
    assert talk.exposed_s == pytest.approx(0.005)
    assert talk.share_ratio == pytest.approx(0.25)
    (row,) = talk.collectives
    assert (row.count, row.devices) == (1, 1)
    assert row.total_s == pytest.approx(0.005)
    quiet = merge_facts_of_ranks({0: rank_facts(10), 1: rank_facts(10)}).axis
    assert quiet is not None
    assert quiet.communication is None


def test_warnings_are_printed_once() -> None:
    one, other = rank_facts(10), rank_facts(10)
    one.warnings, other.warnings = ["same", "mine"], ["same"]
    assert merge_facts_of_ranks({0: one, 1: other}).warnings == ["same", "mine"]


def test_the_owner_of_a_part_is_that_of_the_rank_that_has_most_of_it() -> None:
    mine, theirs = IdleOwner("range", "mine"), IdleOwner("range", "theirs")
    left = Budget(1.0, [BudgetPart("compute", 0.8, 0.8), BudgetPart("host", 0.2, 0.2, mine)], "a")
    right = Budget(3.0, [BudgetPart("compute", 2.0, 2 / 3), BudgetPart("host", 1.0, 1 / 3, theirs)], "b")
    found = mean_budget([left, right])
    assert found.span_s == pytest.approx(2.0)
    assert {part.name: (part.seconds, part.owner) for part in found.parts} == {
        "compute": (pytest.approx(1.4), None),
        "host": (pytest.approx(0.6), theirs),
    }
    assert [part.share_ratio for part in found.parts] == pytest.approx([0.7, 0.3])
    assert found.source == "a, b"


def test_a_part_that_a_rank_has_not_is_none_of_its_time() -> None:
    found = mean_budget([budget(1.0, compute=1.0), budget(1.0, compute=0.5, data=0.5)])
    assert {part.name: part.share_ratio for part in found.parts} == pytest.approx(
        {"compute": 0.75, "data": 0.25}
    )
