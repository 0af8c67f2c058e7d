"""One export of several processes: ranks where they talk to one another, one capture where they do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from llm_perf_opt.analysis.captures import join_captures
from llm_perf_opt.captures.nsys.reader import by_process
from llm_perf_opt.captures.nsys.sqlite import read_nsys_sqlite
from llm_perf_opt.core.ranks import Rank
from llm_perf_opt.stages.nsys.facts import nsys_facts
from tests.text_facts import mentions
from tests.unit.nsys_exports import MARK, call, kernel, nvtx, process_id, thread_id, write_export

GEMM, ALL_REDUCE, LAUNCH = 1, 2, 3
STRINGS = {GEMM: "gemm_kernel", ALL_REDUCE: "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevKernelArgs)", LAUNCH: "cudaLaunchKernel"}  # fmt: skip
MS = 1_000_000


def rank_rows(pid: int, device: int, enters_ms: int) -> dict[str, list[dict[str, object]]]:
    """A process that computes from 1 ms on and then is in a collective that ends at 30 ms."""
    thread, where = thread_id(pid, pid), {"globalPid": process_id(pid), "deviceId": device}
    return {
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            kernel(1 * MS, enters_ms * MS, 1, GEMM, **where),
            kernel(enters_ms * MS, 30 * MS, 2, ALL_REDUCE, **where),
        ],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            call(MS // 2, MS // 2 + 1000, 1, LAUNCH, thread),
            call(MS // 2 + 2000, MS // 2 + 3000, 2, LAUNCH, thread),
        ],
        "NVTX_EVENTS": [nvtx(MS // 4, 31 * MS, "decode", thread=thread)],
    }


def export(path: Path, *ranks: dict[str, list[dict[str, object]]]) -> Path:
    tables = {name: [row for rank in ranks for row in rank[name]] for name in ranks[0]}
    return write_export(path, tables, STRINGS)


@pytest.fixture
def two_ranks(tmp_path: Path) -> Path:
    # The process with the higher number has the first device: ranks follow devices.
    return export(tmp_path / "all.sqlite", rank_rows(20, 1, enters_ms=10), rank_rows(30, 0, enters_ms=25))


def test_every_process_keeps_its_own_launches_and_ranges(two_ranks: Path) -> None:
    parts = by_process(read_nsys_sqlite(two_ranks))
    assert list(parts) == [process_id(30), process_id(20)]
    for process, part in parts.items():
        assert set(part.ops.process.tolist()) == {process}
        assert part.ops.launch.tolist() == [0, 1]
        assert part.ops.range.tolist() == [0, 0]
        assert (len(part.calls), len(part.ranges)) == (2, 1)
        assert [part.names[name] for name in part.ranges.name] == ["decode"]
        assert np.all(part.calls.start_ns[part.ops.launch] < part.ops.start_ns)


def test_processes_that_talk_are_ranks_and_the_last_to_enter_is_named(two_ranks: Path) -> None:
    facts = nsys_facts(two_ranks)
    joined = join_captures(facts)
    assert [(row.rank, row.device) for row in joined.ranks] == [(0, 0), (1, 1)]
    assert [row.waits_s for row in joined.ranks] == [0.0, pytest.approx(0.015)]
    assert [row.last_in for row in joined.ranks] == [1, 0]
    assert joined.communication is not None
    assert joined.communication.straggler == 0
    assert (joined.communication.collectives[0].count, joined.ranks_joined) == (1, 2)
    # The mean of the ranks, not their sum.
    assert joined.facts.budget["decode"].span_s == pytest.approx(0.0308, rel=0.01)
    assert any(mentions(note, two_ranks.name, "2", "0") for note in facts.notes)


def test_processes_that_do_not_talk_stay_one_capture(tmp_path: Path) -> None:
    ranks = [rank_rows(20, 0, 10), rank_rows(30, 1, 25)]
    for rank in ranks:
        del rank["CUPTI_ACTIVITY_KIND_KERNEL"][1]
    facts = nsys_facts(export(tmp_path / "beside.sqlite", *ranks))
    assert len(facts.captures) == 1
    assert join_captures(facts).ranks == []


def test_one_process_stays_as_it_is(tmp_path: Path) -> None:
    facts = nsys_facts(export(tmp_path / "one.sqlite", rank_rows(20, 0, 10)))
    assert len(facts.captures) == 1
    assert facts.notes == []


def marked(pid: int, rank: int, size: int, step_ms: int) -> list[dict[str, object]]:
    """A process that says which rank it is, and then runs a step."""
    thread = thread_id(pid, pid)
    mark = Rank(rank, size, rank).mark
    return [
        nvtx(1 * MS, None, mark, thread=thread, kind=MARK),
        nvtx(2 * MS, (2 + step_ms) * MS, "decode", thread=thread),
    ]


def test_processes_that_name_their_rank_need_no_device(tmp_path: Path) -> None:
    # The process with the higher number is rank 0; a third one (the launcher) says nothing.
    events = [
        *marked(20, 1, 2, 4),
        *marked(30, 0, 2, 6),
        nvtx(0, 9 * MS, "launching", thread=thread_id(9, 9)),
    ]
    facts = nsys_facts(write_export(tmp_path / "all.sqlite", {"NVTX_EVENTS": events}))
    joined = join_captures(facts)
    assert [(row.rank, row.span_s) for row in joined.ranks] == [
        (0, pytest.approx(0.006)),
        (1, pytest.approx(0.004)),
    ]
    (section,) = joined.sections
    assert mentions(section.title, "2", "all.sqlite")
    assert section.tables[0].rows == [
        ["decode", "decode", "1", "5.00 ms", "4.00 ms", "1", "6.00 ms", "0"],
    ]


@pytest.mark.parametrize("others", [marked(30, 1, 2, 6), marked(30, 0, 4, 6)], ids=["twice", "two groups"])
def test_ranks_that_cannot_be_of_one_group_stay_together(
    others: list[dict[str, object]], tmp_path: Path
) -> None:
    facts = nsys_facts(
        write_export(tmp_path / "all.sqlite", {"NVTX_EVENTS": [*marked(20, 1, 2, 4), *others]})
    )
    assert len(facts.captures) == 1


def test_one_marked_process_is_a_rank_whatever_its_file_is_called(tmp_path: Path) -> None:
    folder = [write_export(tmp_path / f"{n}.sqlite", {"NVTX_EVENTS": marked(20, n, 2, 4)}) for n in (0, 1)]
    assert [nsys_facts(path).captures[0].found.facts["rank"] for path in folder] == [0, 1]
