"""Ranks that talk on the host: gloo's annotations in traces without a device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from llm_perf_opt.analysis.facts import HostCollectives
from llm_perf_opt.analysis.ranks import host_collectives, join_host_ranks
from llm_perf_opt.captures.timeline import HostSpans, Ranges, Timeline
from tests.text_facts import mentions
from tests.unit.timelines import make_timeline

MS = 1_000_000
WORKER, GLOO = 1, 0


def rank_trace(
    rank: int | None, enters: Sequence[int], ends: Sequence[int], *, clock: int = 0, waited: bool = True
) -> Timeline:
    """A rank that computes until it enters each collective, and, if ``waited``, stands in it; in ms."""
    base = make_timeline([], [], facts={"rank": rank, "world_size": 2})
    names = ["gloo:all_reduce", "aten::mm", "c10d::allreduce_"]
    spans, free = [], 0
    for enter, end in zip(enters, ends, strict=True):
        spans.append((free, enter, 1))
        spans.append((enter, end, 2 if waited else 1))
        free = end
    spans.append((free, free + 10, 1))

    def column(values: Sequence[int]) -> np.ndarray:
        return np.array(values, np.int64)

    operators = HostSpans(
        (column([one[0] for one in spans]) + clock) * MS,
        (column([one[1] for one in spans]) + clock) * MS,
        column([WORKER] * len(spans)),
        column([one[2] for one in spans]).astype(np.int32),
    )
    count = len(enters)
    ranges = Ranges(
        (column(enters) + clock) * MS,
        (column(ends) + clock) * MS,
        column([GLOO] * count),
        np.zeros(count, np.int32),
        np.full(count, -1, np.int32),
    )
    return Timeline(base.source, names, base.ops, base.calls, ranges, facts=base.facts, operators=operators)


def found(*arguments: object, **options: object) -> HostCollectives:
    one = host_collectives(rank_trace(*arguments, **options), "trace.json")  # type: ignore[arg-type]
    assert one is not None
    return one


def test_the_rank_that_comes_last_is_named_and_the_other_waits() -> None:
    slow, quick = found(1, (20, 50, 80), (22, 52, 82)), found(0, (10, 40, 70), (22, 52, 82))
    joined = join_host_ranks([slow, quick])
    assert [row.rank for row in joined.ranks] == [0, 1]
    assert [row.waits_s for row in joined.ranks] == [pytest.approx(0.030), 0.0]
    assert [row.last_in for row in joined.ranks] == [0, 3]
    assert [row.communication_s for row in joined.ranks] == [pytest.approx(0.036), pytest.approx(0.006)]
    talk = joined.communication
    assert talk is not None
    assert (talk.straggler, talk.straggler_share_ratio) == (1, 1.0)
    (only,) = talk.collectives
    assert (only.name, only.count, only.last_rank, only.bytes) == ("all_reduce", 3, 1, None)
    assert talk.share_ratio == pytest.approx((0.036 + 0.006) / 2 / 0.092)
    assert joined.ranks[0].busy_ratio is None, "nothing tells how busy the cores were"


def test_ranks_that_come_together_do_not_wait() -> None:
    joined = join_host_ranks([found(rank, (10, 40), (12, 42)) for rank in (0, 1)])
    assert [row.waits_s for row in joined.ranks] == [0.0, 0.0]
    assert joined.communication is not None
    assert joined.communication.straggler is None


def test_communication_behind_work_is_not_exposed() -> None:
    joined = join_host_ranks([found(rank, (10,), (20,), waited=False) for rank in (0, 1)])
    assert joined.communication is not None
    assert (joined.communication.total_s, joined.communication.exposed_s) == (pytest.approx(0.010), 0.0)


def test_clocks_that_differ_by_more_than_the_ends_scatter_are_aligned() -> None:
    ahead = found(1, (20, 50, 80), (22, 52, 82), clock=5000)
    joined = join_host_ranks([found(0, (10, 40, 70), (22, 52, 82)), ahead])
    assert [row.waits_s for row in joined.ranks] == [pytest.approx(0.030), 0.0]
    _, note = joined.notes
    assert mentions(note, "5.00 s", "3"), "the largest difference, and the collectives it was taken from"


def test_ends_that_scatter_are_no_difference_of_clocks() -> None:
    joined = join_host_ranks([found(0, (10, 40, 70), (22, 52, 82)), found(1, (20, 50, 80), (23, 58, 81))])
    assert joined.ranks[0].waits_s == pytest.approx(0.030)
    assert len(joined.notes) == 1, "what is said of all ranks on the host"


def test_a_missing_rank_is_reported() -> None:
    joined = join_host_ranks([found(0, (10,), (20,))])
    assert any(mentions(note, "1", "2") for note in joined.notes)
    assert joined.ranks[0].waits_s is None


def test_payloads_are_taken_only_where_every_call_has_one() -> None:
    trace = rank_trace(0, (10, 40), (12, 42))
    whole = host_collectives(trace, "t", [("all_reduce", 64), ("all_gather", 9), ("all_reduce", 32)])
    partial = host_collectives(trace, "t", [("all_reduce", 64)])
    assert whole is not None
    assert partial is not None
    assert whole.calls.bytes.tolist() == [64, 32]
    assert partial.calls.bytes.tolist() == [-1, -1]
    collective = join_host_ranks([whole]).communication
    assert collective is not None
    assert collective.collectives[0].bytes == 96


@pytest.mark.parametrize("trace", [rank_trace(None, (10,), (12,)), rank_trace(0, (), ())])
def test_a_trace_without_rank_or_collective_gives_no_rank(trace: Timeline) -> None:
    assert host_collectives(trace, "t") is None


def test_no_ranks_make_no_account() -> None:
    joined = join_host_ranks([])
    assert (joined.ranks, joined.communication, joined.notes) == ([], None, [])
