"""Captures of several ranks as one: who they are, who is missing, who waits for whom. Times are in microseconds."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.captures import join_captures
from llm_perf_opt.analysis.facts import Facts
from llm_perf_opt.analysis.ranks import Ranks, join_ranks, rank_of
from llm_perf_opt.summary.devices import Communication
from tests.text_facts import mentions
from tests.unit.rank_captures import rank_capture, rank_timeline
from tests.unit.timelines import ALL_REDUCE, LAUNCH, US, make_timeline

GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
LATE = [[100, 400, 700], [180, 480, 780]]
"""Rank 1 enters each collective 80 µs after rank 0."""
ENDS = [200, 500, 800]


def joined(enters: list[list[int]], ends: list[int], clocks: list[int] | None = None) -> Ranks:
    clocks = clocks or [0] * len(enters)
    captures = [
        rank_capture(rank_timeline(own, ends, clock=clock), f"rank{rank}.json", rank)
        for rank, (own, clock) in enumerate(zip(enters, clocks, strict=True))
    ]
    return join_ranks(captures)


def talk_of(found: Ranks) -> Communication:
    axis = found.captures[0].facts.axis
    assert axis is not None and axis.communication is not None
    return axis.communication


# who they are


def test_the_rank_is_from_the_capture_else_from_the_file_name() -> None:
    timeline = rank_timeline([10], [20])
    assert rank_of(rank_capture(timeline, "rank5.json", 3), 5) == 3
    for odd in (None, True, -1, "2", 1e3):
        timeline.facts["rank"] = odd
        assert rank_of(rank_capture(timeline, "rank5.json"), 5) == 5
    assert rank_of(rank_capture(timeline, "trace.json"), None) is None


def test_one_rank_of_many_has_a_row_and_one_alone_has_none() -> None:
    alone = rank_capture(rank_timeline([10], [20]), "rank0.json", 0)
    assert join_ranks([alone]).ranks == []
    of_eight = rank_capture(rank_timeline([10], [20], facts={"world_size": 8}), "rank3.json", 3)
    found = join_ranks([of_eight])
    assert [row.rank for row in found.ranks] == [3]
    assert found.captures == [of_eight]
    assert found.notes == []


def test_captures_without_ranks_stay_as_they_are() -> None:
    captures = [rank_capture(rank_timeline([10], [20]), name) for name in ("a.json", "b.json")]
    found = join_ranks(captures)
    assert found.captures == captures
    assert (found.ranks, found.notes) == ([], [])


def test_two_ranks_become_one_capture_and_others_stay() -> None:
    captures = [rank_capture(rank_timeline([10], [20]), f"rank{rank}.json", rank) for rank in (1, 0)]
    other = rank_capture(rank_timeline([10], [20]), "other.json")
    found = join_ranks([captures[0], other, captures[1]])
    assert [row.rank for row in found.ranks] == [0, 1]
    assert len(found.captures) == 2
    assert found.captures[1] is other


def test_a_rank_given_twice_counts_once() -> None:
    captures = [
        rank_capture(rank_timeline([10], [20]), name, rank)
        for name, rank in (("b-rank0.json", 0), ("a-rank0.json", 0), ("rank1.json", 1))
    ]
    for order in (captures, captures[::-1]):
        found = join_ranks(order)
        (note,) = found.notes
        assert mentions(note, "0", "a-rank0.json", "b-rank0.json")
        assert [row.source for row in found.ranks] == ["a-rank0.json", "rank1.json"]
        assert len(found.captures) == 1
        assert sum(kernel.launches or 0 for kernel in found.captures[0].facts.kernels) == 2 * 3


def test_two_captured_ranges_of_every_rank_are_two_captures() -> None:
    captures = [
        rank_capture(rank_timeline([10], [20]), f"run.{label}.rank{rank}.sqlite")
        for label in ("prefill", "decode")
        for rank in (0, 1)
    ]
    found = join_ranks(captures)
    assert [one.path.name for one in found.captures] == [
        "run.prefill.rank0.sqlite",
        "run.decode.rank0.sqlite",
    ]
    assert ([row.rank for row in found.ranks], found.joined, found.notes) == ([0, 1], 2, [])
    for one in found.captures:
        assert sum(kernel.launches or 0 for kernel in one.facts.kernels) == 2 * 3


def test_missing_ranks_and_different_numbers_of_steps_are_reported() -> None:
    def capture(rank: int, steps: int) -> object:
        facts = {"world_size": 8, "profiler_steps": steps}
        return rank_capture(rank_timeline([10], [20], facts=facts), f"rank{rank}.json", rank)

    (missing,) = join_ranks([capture(0, 2), capture(5, 2)]).notes  # type: ignore[list-item]
    assert mentions(missing, "2", "8", "6")
    notes = join_ranks([capture(0, 2), capture(5, 3)]).notes  # type: ignore[list-item]
    assert len(notes) == 2
    assert mentions(notes[1], "0", "2", "5", "3"), "the ranks, and the steps of each"


# who waits for whom


def test_a_rank_that_always_comes_last_is_the_straggler() -> None:
    found = joined(LATE, ENDS)
    first, second = found.ranks
    assert first.waits_s == pytest.approx(240e-6)
    assert (first.last_in, first.causes_wait_s) == (0, 0.0)
    assert second.waits_s == 0.0
    assert second.last_in == 3
    assert second.causes_wait_s == pytest.approx(240e-6)
    talk = talk_of(found)
    assert (talk.straggler, talk.straggler_share_ratio) == (1, 1.0)
    assert talk.wait_s == pytest.approx(120e-6)  # mean over the ranks
    assert talk.total_s == pytest.approx((300e-6 + 60e-6) / 2)
    (row,) = talk.collectives
    assert (row.last_rank, row.count, row.devices) == (1, 3, 2)
    assert row.wait_s == pytest.approx(120e-6)


@pytest.mark.parametrize("clocks", [[0, 7_000], [0, -7_000], [123_456_789, 0], [0, 0]])
def test_clocks_that_differ_are_aligned_by_the_ends_of_collectives(clocks: list[int]) -> None:
    plain, found = joined(LATE, ENDS), joined(LATE, ENDS, clocks)
    assert talk_of(found) == talk_of(plain)
    assert [(row.waits_s, row.last_in) for row in found.ranks] == [
        (row.waits_s, row.last_in) for row in plain.ranks
    ]


def test_a_capture_that_begins_earlier_has_the_same_clock() -> None:
    """Rank 1 had work of its own before the first collective: that says nothing of clocks."""
    early = rank_timeline([100, 400], [200, 500])
    ops = [(-5_000, -4_990, "gemm", 0)]
    late = make_timeline(
        [*ops, (0, 180, "gemm", 0), (180, 200, ALL_REDUCE, 0), (200, 480, "gemm", 0), (480, 500, ALL_REDUCE, 0)],
        [(-6_000, -5_900, LAUNCH)],
        unit=US,
        facts={"rank": 1, "profiler_steps": 1},
    )  # fmt: skip
    found = join_ranks([rank_capture(early, "rank0.json", 0), rank_capture(late, "rank1.json", 1)])
    assert found.notes == []
    assert talk_of(found).straggler == 1
    assert found.ranks[0].waits_s == pytest.approx(160e-6)


@pytest.mark.parametrize(
    ("clock_us", "message"),
    [(3, None), (7_000, "differ by up to 7.00 ms"), (9_000_000, "from different moments")],
)
def test_what_clocks_differ_by_is_reported(clock_us: int, message: str | None) -> None:
    found = joined(LATE, ENDS, [0, clock_us])
    assert [note for note in found.notes if message is None or message not in note] == []
    assert bool(found.notes) == (message is not None)


def test_times_relative_to_different_bases_are_one_clock() -> None:
    """torch 2.4 and later write times relative to a base that every process chooses for itself."""
    captures = []
    for rank, (enters, base_us) in enumerate(zip(LATE, (0, 40_000), strict=True)):
        timeline = rank_timeline(enters, ENDS, clock=-base_us, facts={"base_time_ns": base_us * 1000})
        captures.append(rank_capture(timeline, f"rank{rank}.json", rank))
    found = join_ranks(captures)
    assert found.notes == []
    assert talk_of(found) == talk_of(joined(LATE, ENDS))


def test_ranks_that_take_turns_in_coming_last_have_no_straggler() -> None:
    found = joined([[100, 480, 700, 1_080], [180, 400, 780, 1_000]], [200, 500, 800, 1_100])
    talk = talk_of(found)
    assert (talk.straggler, talk.straggler_share_ratio) == (None, None)
    assert talk.wait_s == pytest.approx(160e-6)
    assert [row.last_in for row in found.ranks] == [2, 2]


def test_ranks_that_enter_together_wait_for_nobody() -> None:
    found = joined([[100, 400], [104, 405]], [200, 500])
    assert talk_of(found).straggler is None
    assert [row.last_in for row in found.ranks] == [0, 0]
    assert [row.last_in for row in joined([[100, 400], [104, 406]], [200, 500]).ranks] == [0, 1]


def test_among_eight_ranks_most_of_the_waiting_decides() -> None:
    enters = [[100, 400, 700] for _ in range(8)]
    enters[5] = [180, 480, 700]
    enters[2] = [100, 400, 720]
    talk = talk_of(joined(enters, ENDS))
    assert talk.straggler == 5
    assert talk.straggler_share_ratio == pytest.approx(160 / 180)


def test_collectives_without_a_partner_are_left_out_and_reported() -> None:
    """Half a collective: rank 1's capture ends before the last one."""
    captures = [
        rank_capture(rank_timeline(LATE[0], ENDS), "rank0.json", 0),
        rank_capture(rank_timeline(LATE[1][:2], ENDS[:2]), "rank1.json", 1),
    ]
    found = join_ranks(captures)
    (note,) = found.notes
    assert mentions(note, "1")
    assert found.ranks[0].waits_s == pytest.approx(160e-6)


def test_ranks_without_a_collective_in_common_are_not_compared() -> None:
    captures = [
        rank_capture(rank_timeline([100], [200]), "rank0.json", 0),
        rank_capture(rank_timeline([100], [200], name=GATHER), "rank1.json", 1),
    ]
    found = join_ranks(captures)
    assert mentions(found.notes[0], "2")
    assert [row.waits_s for row in found.ranks] == [None, None]
    assert talk_of(found).wait_s is None


def test_ranks_that_do_not_talk_have_rows_and_no_waiting() -> None:
    captures = [rank_capture(rank_timeline([], []), f"rank{rank}.json", rank) for rank in (0, 1)]
    found = join_ranks(captures)
    assert found.notes == []
    assert [(row.rank, row.waits_s, row.busy_ratio) for row in found.ranks] == [
        (0, None, 1.0),
        (1, None, 1.0),
    ]


def test_bandwidth_leaves_the_waiting_out() -> None:
    captures = [
        rank_capture(
            rank_timeline(own, [200], collectives=[(1, "allreduce", 1_000_000, 2)]), f"rank{rank}.json", rank
        )
        for rank, own in enumerate(([100], [180]))
    ]
    (row,) = talk_of(join_ranks(captures)).collectives
    assert row.bytes == 1e6
    assert row.algorithm_bytes_per_s == pytest.approx(1e6 / 20e-6)
    assert row.bus_bytes_per_s == pytest.approx(1e6 / 20e-6)


def test_the_order_of_ranks_does_not_matter() -> None:
    captures = [
        rank_capture(rank_timeline(own, ENDS), f"rank{rank}.json", rank) for rank, own in enumerate(LATE)
    ]
    left, right = join_ranks(captures), join_ranks(captures[::-1])
    assert left.ranks == right.ranks
    assert left.notes == right.notes
    assert left.captures[0].facts == right.captures[0].facts


def test_all_ranks_are_in_the_joined_facts_of_a_run() -> None:
    captures = [
        rank_capture(rank_timeline(own, ENDS), f"rank{rank}.json", rank) for rank, own in enumerate(LATE)
    ]
    found = join_captures(Facts(captures=captures))
    assert found.ranks_joined == 2
    assert [row.rank for row in found.ranks] == [0, 1]
    assert [device.rank for device in found.devices] == [0, 1]
    assert found.communication is not None
    assert found.communication.straggler == 1
    assert sum(kernel.launches or 0 for kernel in found.facts.kernels) == 2 * 7
