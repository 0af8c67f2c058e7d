"""What a trace says of single collectives: by the host's records, by the kernels' own, and by neither."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.captures.kineto.reader import read_kineto
from llm_perf_opt.captures.kineto.stream import EventStream
from llm_perf_opt.captures.timeline import Timeline
from tests.unit.kineto_traces import LAYOUTS, annotation, call, document, kernel, op, span, write
from tests.unit.timelines import ALL_REDUCE

Event = dict[str, Any]

# As torch 2.9 writes it (a step of a data-parallel training over eight devices).
RECORD = json.loads(
    '{"External id": 1290,"Record function id": 0, "Collective name": "allreduce", "Process Group Description": "default_pg", '
    '"dtype": "BFloat16", "Rank": 0, "Input Strides": [[[1]], [], [], [], [], [], [], [], [], []], "Concrete Inputs": '
    '["", "", "", "0", "", "[]", "[]", "0", "1", "8"], "Out msg nelems": 2873320, "Process Group Name": "0", "Input type": '
    '["TensorList", "", "", "Scalar", "", "ScalarList", "ScalarList", "Scalar", "Scalar", "Scalar"], "Global rank stride": 1, '
    '"Out split size": "[]", "In split size": "[]", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]", "Group size": 8, '
    '"Input Dims": [[[2873320]], [], [], [], [], [], [], [], [], []], "Global rank start": 0, "Ev Idx": 265, '
    '"In msg nelems": 2873320}'
)

RANKS = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2}}
"""torch writes this before the events of a program with ranks."""


def record(start: float, length: float, **args: Any) -> Event:
    return span("cpu_op", "record_param_comms", start, length, args={**RECORD, **args})


def host_side(**args: Any) -> list[Event]:
    """A collective as the host records it, with a product launched before it."""
    return [
        call("cudaLaunchKernel", 5.0, 2.0, 1),
        kernel("gemm", 10.0, 30.0, 1),
        op("c10d::allreduce_", 20.0, 70.0, 1289),
        record(30.0, 50.0, **args),
        annotation("nccl:all_reduce", 40.0, 30.0),
        call("cudaLaunchKernel", 50.0, 4.0, 2),
        kernel(ALL_REDUCE, 60.0, 500.0, 2, stream=20),
    ]


def device_side(at: float = 60.0, **args: Any) -> list[Event]:
    """The same as torch writes it since 2.4: the kernel has the facts."""
    facts = {
        key: RECORD[key]
        for key in ("Collective name", "In msg nelems", "Out msg nelems", "dtype", "Group size")
    }
    return [
        call("cudaLaunchKernel", 5.0, 2.0, 1),
        kernel("gemm", 10.0, 30.0, 1),
        call("cudaLaunchKernel", 50.0, 4.0, 2),
        kernel(ALL_REDUCE, at, 500.0, 2, stream=20, args={**facts, **args}),
    ]


def read(tmp_path: Path, events: list[Event], layout: str = "torch") -> Timeline:
    return read_kineto(write(tmp_path / "t.json", document(events, **RANKS), layout)).timeline


def described(timeline: Timeline) -> list[tuple[str, str, int, int]]:
    """(kernel, collective, bytes, group size) of every row."""
    rows = timeline.collectives
    return [
        (timeline.names[timeline.ops.name[op]], timeline.names[name], int(size), int(group))
        for op, name, size, group in zip(rows.op, rows.name, rows.bytes, rows.group_size, strict=True)
    ]


ONE = [(ALL_REDUCE, "allreduce", 2 * 2873320, 8)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("events", [host_side(), device_side()], ids=["host", "device"])
def test_name_payload_and_group_of_a_collective(tmp_path: Path, events: list[Event], layout: str) -> None:
    assert described(read(tmp_path, events, layout)) == ONE


def test_both_sides_describe_one_collective_once(tmp_path: Path) -> None:
    both = [*host_side()[:-1], *device_side()[-1:]]
    assert described(read(tmp_path, both)) == ONE


def test_time_stamps_since_1970_are_good_enough(tmp_path: Path) -> None:
    moved = [{**event, "ts": event["ts"] + 1_718_000_000_000_000} for event in device_side()]
    assert described(read(tmp_path, moved)) == ONE


@pytest.mark.parametrize("ahead_us", [0.2, 0.5, 0.9])
def test_a_kernel_that_starts_at_nearly_the_same_time_is_not_taken_for_it(
    tmp_path: Path, ahead_us: float
) -> None:
    """Compute kernels on other streams begin within the same microsecond."""
    events = [
        *device_side(),
        kernel("gemm", 60.0 - ahead_us, 9.0, 77),
        kernel("gemm", 60.0 + ahead_us, 9.0, 78),
    ]
    assert described(read(tmp_path, events)) == ONE


def test_collectives_that_start_together_on_two_devices_are_both_described(tmp_path: Path) -> None:
    second = kernel(
        ALL_REDUCE, 60.0004, 500.0, 3, device=1, stream=20, args=device_side()[-1]["args"] | {"device": 1}
    )
    assert described(read(tmp_path, [*device_side(), second])) == ONE * 2


@pytest.mark.parametrize(
    ("args", "size"),
    [
        ({"dtype": "Float"}, 4 * 2873320),
        ({"dtype": "Float8_e4m3fn"}, 2873320),
        ({"dtype": "Long", "In msg nelems": 10, "Out msg nelems": 10}, 80),
        ({"In msg nelems": 100, "Out msg nelems": 800}, 1600),  # all-gather: what comes out is the payload
        ({"In msg nelems": 800, "Out msg nelems": 100}, 1600),
        ({"In msg nelems": "800", "Out msg nelems": None}, 1600),
        ({"In msg nelems": 0, "Out msg nelems": 0}, 0),
        ({"dtype": "QuantumFloat"}, -1),
        ({"dtype": None}, -1),
        ({"In msg nelems": None, "Out msg nelems": "many"}, -1),
        ({"In msg nelems": -5, "Out msg nelems": True}, -1),
        ({"In msg nelems": 1e300, "Out msg nelems": 1e300}, -1),
        ({"In msg nelems": [1], "Out msg nelems": {}}, -1),
    ],
)
@pytest.mark.parametrize("make", [host_side, device_side])
def test_the_payload_is_the_larger_side_and_not_guessed(
    tmp_path: Path, make: Any, args: dict[str, Any], size: int
) -> None:
    assert described(read(tmp_path, make(**args))) == [(ALL_REDUCE, "allreduce", size, 8)]


@pytest.mark.parametrize(
    ("group", "message"), [(2, 2), ("16", 16), (None, -1), ("", -1), (-1, -1), (1e12, -1), (True, -1)]
)
def test_a_group_is_a_count_or_not_known(tmp_path: Path, group: Any, message: int) -> None:
    ((_, _, _, found),) = described(read(tmp_path, host_side(**{"Group size": group})))
    assert found == message


def test_a_record_without_a_kernel_describes_nothing(tmp_path: Path) -> None:
    """A collective of gloo, or one whose kernel the capture does not hold."""
    assert described(read(tmp_path, host_side()[:-2])) == []
    assert described(read(tmp_path, host_side()[:-1])) == []


def test_a_record_of_another_thread_is_not_this_ones(tmp_path: Path) -> None:
    events = host_side()
    events[3]["tid"] = 99
    assert described(read(tmp_path, events)) == []


def test_every_record_has_the_first_kernel_launched_inside_it(tmp_path: Path) -> None:
    second = [
        record(600.0, 50.0, **{"Collective name": "_allgather_base", "Group size": 4}),
        call("cudaLaunchKernel", 610.0, 4.0, 3),
        call("cudaLaunchKernel", 620.0, 4.0, 4),
        kernel("ncclDevKernel_AllGather_RING_LL(a)", 700.0, 50.0, 3, stream=20),
        kernel("copy behind it", 760.0, 5.0, 4, stream=20),
    ]
    found = described(read(tmp_path, [*host_side(), *second]))
    assert found == [*ONE, ("ncclDevKernel_AllGather_RING_LL(a)", "_allgather_base", 2 * 2873320, 4)]


def test_the_innermost_record_counts(tmp_path: Path) -> None:
    """A coalesced collective records itself around those it is made of."""
    outer = record(25.0, 70.0, **{"Collective name": "allreduce_coalesced"})
    assert described(read(tmp_path, [*host_side(), outer])) == ONE


@pytest.mark.parametrize(
    "broken",
    [
        {"ts": None},
        {"ts": "soon"},
        {"dur": None},
        {"ts": -1e300},
        {"pid": None},
        {"args": {"Collective name": None}},
        {"args": {"Collective name": ["allreduce"], "Group size": 8}},
    ],
)
def test_a_damaged_record_does_no_harm(tmp_path: Path, broken: dict[str, Any]) -> None:
    damaged = {**record(30.0, 50.0), **broken}
    found = described(read(tmp_path, [damaged, *host_side()]))
    assert [row[0] for row in found] == [ALL_REDUCE]
    assert found[0][2:] in ((2 * 2873320, 8), (-1, 8), (-1, -1))


def test_the_mark_inside_a_text_is_no_record(tmp_path: Path) -> None:
    """A kernel or range may be called anything."""
    odd = annotation('see "Collective name": {"x": 1}, {', 1.0, 2.0)
    assert described(read(tmp_path, [odd, *host_side()])) == ONE


@pytest.mark.parametrize("piece_bytes", [300, 1_000, 5_000, 2 << 20])
def test_records_are_found_wherever_the_pieces_of_a_trace_end(tmp_path: Path, piece_bytes: int) -> None:
    events = []
    for number in range(30):
        for event in host_side():
            later = {**event, "ts": event["ts"] + 1000.0 * number, "args": dict(event["args"])}
            if "correlation" in later["args"]:
                later["args"]["correlation"] += 10 * number
            events.append(later)
    path = write(tmp_path / "t.json", document(events, **RANKS))
    stream = EventStream(path, piece_bytes=piece_bytes)
    assert sum(1 for _ in stream) >= 1
    assert len(stream.collectives.found) == 30
    assert described(read(tmp_path, events)) == ONE * 30


def test_only_programs_with_ranks_are_searched(tmp_path: Path) -> None:
    """torch says before the events whether there are ranks; looking for collectives in every other trace would cost."""
    for more, found in ((RANKS, 1), ({}, 0)):
        stream = EventStream(write(tmp_path / "t.json", document(host_side(), **more)))
        list(stream)
        assert len(stream.collectives.found) == found
