"""Communication: which collective a kernel is, how much of it nothing hides, and what went over the links."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.kernels.families import family_of
from llm_perf_opt.analysis.timeline.communication import bus_factor, collective_name
from llm_perf_opt.analysis.timeline.summary import summarise_timeline
from llm_perf_opt.captures.timeline import Timeline
from llm_perf_opt.summary.devices import Communication
from tests.unit.timelines import ALL_REDUCE, COPY, LAUNCH, MS, make_timeline, split

GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GENERIC = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"


def talk_of(timeline: Timeline) -> Communication:
    axis = summarise_timeline(timeline).axis
    assert axis is not None and axis.communication is not None
    return axis.communication


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        (ALL_REDUCE, "all_reduce"),
        ("ncclKernel_AllReduce_RING_LL_Sum_half(ncclWorkElem)", "all_reduce"),
        (GATHER, "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce_scatter"),
        ("ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "broadcast"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "all_reduce"),
        ("void vllm::cross_device_reduce_2stage<half, 4>(vllm::RankData*)", "all_reduce"),
        (GENERIC, None),
    ],
)
def test_kernels_name_their_collective(kernel: str, name: str | None) -> None:
    assert family_of(kernel) == "communication"
    assert collective_name(kernel) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("allreduce", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("allgather_into_tensor_coalesced", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("alltoall_base", "all_to_all"),
        ("broadcast", "broadcast"),
        ("send", "send_recv"),
        ("nccl:recv", "send_recv"),
        ("nccl:send 0->1", None),  # neither end of a name: the kernel says SendRecv
        ("gather", "gather"),
        ("scatter", "scatter"),
        ("barrier", "barrier"),
        ("reduced precision", None),
        ("c10d::allreduce_", "all_reduce"),
        ("nccl:all_reduce", "all_reduce"),
        ("module:model.layers.0", None),
    ],
)
def test_records_and_ranges_name_it_too(text: str, name: str | None) -> None:
    assert collective_name(text) == name


@pytest.mark.parametrize(
    ("kind", "ranks", "factor"),
    [
        ("all_reduce", 8, 1.75),
        ("all_reduce", 2, 1.0),
        ("all_gather", 8, 0.875),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 4, 0.75),
        ("broadcast", 8, 1.0),
        ("send_recv", 2, 1.0),
        ("all_reduce", 1, 0.0),
    ],
)
def test_bytes_on_the_links_per_byte_of_payload(kind: str, ranks: int, factor: float) -> None:
    assert bus_factor(kind, ranks) == factor


def test_exposed_and_overlapped() -> None:
    timeline = make_timeline(
        ops=[(0, 10, "gemm", 0), (5, 25, ALL_REDUCE, 0), (20, 22, COPY, 0), (30, 40, GATHER, 0), (40, 50, "gemm", 0)],
        calls=[(-5, -1, LAUNCH)],
        streams=[7, 20, 8, 20, 7],
        unit=MS,
    )  # fmt: skip
    talk = talk_of(timeline)
    assert talk.total_s == pytest.approx(0.030)
    assert talk.exposed_s == pytest.approx(0.013 + 0.010)
    assert talk.share_ratio == pytest.approx(23 / 50)
    assert {one.name: (one.count, one.total_s, one.exposed_s) for one in talk.collectives} == {
        "all_reduce": (1, pytest.approx(0.020), pytest.approx(0.013)),
        "all_gather": (1, pytest.approx(0.010), pytest.approx(0.010)),
    }
    assert [one.name for one in talk.collectives] == ["all_reduce", "all_gather"]  # most exposed first
    parts = split(timeline, unit=MS)
    assert (parts["communication"], parts["copy"], parts["compute"]) == (23, 2, 20)


def test_communication_that_computing_hides_costs_nothing() -> None:
    timeline = make_timeline(
        [(0, 100, "gemm", 0), (20, 60, ALL_REDUCE, 0)], [(-5, -1, LAUNCH)], streams=[7, 20]
    )
    talk = talk_of(timeline)
    assert (talk.total_s, talk.exposed_s, talk.share_ratio) == (pytest.approx(40e-9), 0.0, 0.0)
    assert "communication" not in split(timeline)


def test_collectives_on_two_streams_are_united() -> None:
    timeline = make_timeline(
        [(0, 40, ALL_REDUCE, 0), (20, 60, ALL_REDUCE, 0)], [(-5, -1, LAUNCH)], streams=[20, 21]
    )
    talk = talk_of(timeline)
    assert talk.total_s == pytest.approx(60e-9)
    (row,) = talk.collectives
    assert (row.count, row.total_s, row.exposed_s) == (2, pytest.approx(80e-9), pytest.approx(60e-9))


def test_bytes_and_bandwidths_by_the_records() -> None:
    timeline = make_timeline(
        [(0, 10, ALL_REDUCE, 0), (20, 30, ALL_REDUCE, 0)],
        [(-5, -1, LAUNCH)],
        collectives=[(0, "allreduce", 1_000_000, 8), (1, "allreduce", 3_000_000, 8)],
        unit=MS,
    )
    (row,) = talk_of(timeline).collectives
    assert (row.bytes, row.group_size) == (4e6, 8)
    assert row.algorithm_bytes_per_s == pytest.approx(4e6 / 0.020)
    assert row.bus_bytes_per_s == pytest.approx(1.75 * 4e6 / 0.020)


@pytest.mark.parametrize(
    ("records", "size", "group"),
    [
        ([(0, "allreduce", 1_000, 8)], None, None),  # the second one has no record
        ([(0, "allreduce", 1_000, 8), (1, "allreduce", -1, 8)], None, 8),
        ([(0, "allreduce", 1_000, 8), (1, "allreduce", 1_000, 4)], 2_000, None),
        ([], None, None),
    ],
)
def test_what_is_not_recorded_of_every_call_is_not_reported_of_all(
    records: list[tuple[int, str, int, int]], size: float | None, group: int | None
) -> None:
    timeline = make_timeline(
        [(0, 10, ALL_REDUCE, 0), (20, 30, ALL_REDUCE, 0)], [(-5, -1, LAUNCH)], collectives=records
    )
    (row,) = talk_of(timeline).collectives
    assert (row.bytes, row.group_size) == (size, group)
    assert (row.algorithm_bytes_per_s is None) is (size is None)
    assert (row.bus_bytes_per_s is None) is (size is None or group is None)


def test_a_kernel_without_a_name_takes_that_of_its_record_or_range() -> None:
    calls = [(-9, -8, LAUNCH), (11, 12, LAUNCH), (31, 32, LAUNCH)]
    timeline = make_timeline(
        [(0, 10, GENERIC, 0), (20, 30, GENERIC, 1), (40, 50, GENERIC, 2)],
        calls,
        [(10, 13, "nccl:all_reduce"), (30, 33, "decode")],
        collectives=[(0, "_allgather_base", 64, 2)],
    )
    found = {one.name: one.count for one in talk_of(timeline).collectives}
    assert found == {"all_gather": 1, "all_reduce": 1, "collective": 1}


def test_the_record_counts_before_the_kernels_name() -> None:
    """Backends carry out one collective with the kernel of another."""
    timeline = make_timeline([(0, 10, ALL_REDUCE, -1)], collectives=[(0, "barrier", 4, 8)])
    assert [one.name for one in talk_of(timeline).collectives] == ["barrier"]


def test_several_devices_have_the_mean_and_a_collective_counts_once() -> None:
    timeline = make_timeline(
        [(0, 10, ALL_REDUCE, 0), (0, 30, ALL_REDUCE, 0), (0, 30, "gemm", 0)],
        [(-5, -1, LAUNCH)],
        devices=[0, 1, 0],
        streams=[20, 20, 7],
        collectives=[(0, "allreduce", 500, 2), (1, "allreduce", 500, 2)],
    )
    talk = talk_of(timeline)
    assert talk.total_s == pytest.approx(20e-9)
    assert talk.exposed_s == pytest.approx(15e-9)
    (row,) = talk.collectives
    assert (row.count, row.devices, row.bytes) == (1, 2, 500)
    assert row.total_s == pytest.approx(20e-9)
    assert row.exposed_s == pytest.approx(15e-9)


def test_a_capture_without_communication_does_not_mention_it() -> None:
    axis = summarise_timeline(make_timeline([(0, 10, "gemm", -1)])).axis
    assert axis is not None
    assert axis.communication is None
    assert len(axis.collectives) == 0
