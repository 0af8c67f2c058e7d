"""What the static model says of each rank of a run, and how fast its device could be at best."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_perf_opt.analysis.ranks import add_rank_shares
from llm_perf_opt.hardware.catalogue import load_catalogue
from llm_perf_opt.summary import Hardware, RankUse, Static, Summary
from llm_perf_opt.summary.static import Exchange, RankShare, Split
from tests.unit.report_summaries import full_summary

H100 = load_catalogue().named("NVIDIA H100 SXM5 80GB")


def split_summary(link_bytes: float = 1e6) -> tuple[Summary, Static]:
    """A run of two ranks whose weights are halved, but for a tenth that both have."""
    found = full_summary()
    static = found.static
    assert static is not None
    whole = static.phases["decode"].least_weight_bytes
    assert whole is not None
    static.splits = [
        Split(
            "tensor",
            2,
            [RankShare(rank, 100, 0.55 * whole, 64.0) for rank in (0, 1)],
            read_bytes={"decode": 0.55 * whole},
            exchanges=[Exchange("decode", "all_reduce", 9, link_bytes, link_bytes)],
            element_bytes=2.0,
        )
    ]
    found.workload.dtype = "bfloat16"
    found.ranks = [RankUse(1, span_s=2.0)]
    return found, static


def hardware(link: float | None = 450e9) -> Hardware:
    return replace(H100, link_bytes_per_s=link).to_hardware()


def test_every_rank_gets_a_row_and_measured_ones_keep_theirs() -> None:
    found, static = split_summary()
    add_rank_shares(found, 2, hardware())
    assert [(row.rank, row.span_s) for row in found.ranks] == [(0, None), (1, 2.0)]
    assert {row.weight_bytes for row in found.ranks} == {static.splits[0].shares[0].weight_bytes}
    assert found.ranks[0].link_bytes["decode"] == 1e6


def test_the_floor_is_that_of_what_a_rank_reads_or_of_its_links() -> None:
    found, static = split_summary()
    decode = static.phases["decode"]
    add_rank_shares(found, 2, hardware())
    read = 0.55 * (decode.least_weight_bytes or 0.0)
    assert found.ranks[0].floor_s["decode"] >= read / 3.35e12
    slow, _ = split_summary()
    add_rank_shares(slow, 2, hardware(link=1e3))
    assert slow.ranks[0].floor_s["decode"] == pytest.approx(1e3)
    unknown, _ = split_summary(link_bytes=1e15)
    add_rank_shares(unknown, 2, hardware(link=None))
    assert unknown.ranks[0].floor_s["decode"] == found.ranks[0].floor_s["decode"]


def test_without_limits_or_a_split_there_is_no_floor() -> None:
    found, static = split_summary()
    add_rank_shares(found, 2, None)
    assert found.ranks[0].weight_bytes is not None and found.ranks[0].floor_s == {}
    other, _ = split_summary()
    add_rank_shares(other, 4, hardware())
    assert [(row.rank, row.weight_bytes) for row in other.ranks] == [(1, None)]
    static.splits = [Split("tensor", 2, reason="too few heads")]
    add_rank_shares(found, 2, hardware())
    assert any("too few heads" in note for note in found.notes)
