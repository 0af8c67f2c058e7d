"""Checks of the self-test against machines that are right, and machines that are wrong in one way each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_perf_opt.captures.ncu.launches import NcuCapture, NcuLaunch, Quantity
from llm_perf_opt.captures.timeline import DeviceOps, HostCalls, OpKind, Ranges, Timeline
from llm_perf_opt.self_test.checks import collective_checks, judge_counters, judge_outer_range
from llm_perf_opt.self_test.judge import (
    judge_clock,
    judge_collective,
    judge_device,
    judge_engine,
    judge_graph_kernels,
    judge_memory,
    judge_operators,
    judge_probe,
    judge_release,
    judge_telemetry,
    judge_timeline,
)
from llm_perf_opt.self_test.known_work import (
    EXPECTED_ADDITIONS,
    EXPECTED_OPERATORS,
    EXPECTED_PRODUCT_FLOPS,
    PRODUCT_RANGE,
    PRODUCTS,
    ROUND_RANGE,
    ROUNDS,
    SUM_RANGE,
    SUMS,
)
from llm_perf_opt.summary import Hardware, Peak

GIB = 2.0**30


@pytest.mark.parametrize(
    ("offered", "resolved", "status"),
    [
        (None, "cpu", "passed"),
        ("cuda", "cuda:0", "passed"),
        ("xpu", "cpu", "failed"),  # an accelerator that auto does not take
        ("xpu", "cuda:0", "failed"),
        (None, "cuda:0", "failed"),
    ],
)
def test_device(offered: str | None, resolved: str, status: str) -> None:
    facts = {"accelerator": offered, "count": 1 if offered else 0, "name": "some GPU", "used": resolved}
    assert judge_device(facts, resolved).status == status


def clock(**changes: Any) -> dict[str, Any]:
    trials = [{"host_s": 0.1, "raw_s": 0.1001, "events_s": 0.0995}] * 5
    return {"backward_steps": 0, "smallest_step_ns": 40, "trials": trials, **changes}


@pytest.mark.parametrize(
    ("facts", "host", "events"),
    [
        (clock(), "passed", "passed"),
        (clock(backward_steps=2), "failed", "passed"),
        (clock(smallest_step_ns=4_000_000), "failed", "passed"),  # a clock of 4 ms steps
        (clock(trials=[{"host_s": 0.1, "raw_s": 0.12}] * 5), "failed", "not possible"),
        (
            clock(trials=[{"host_s": 0.1, "raw_s": 0.1, "events_s": 0.01}] * 5),
            "passed",
            "failed",
        ),  # another stream's
        (clock(trials=[]), "passed", "not possible"),
    ],
)
def test_clocks(facts: dict[str, Any], host: str, events: str) -> None:
    assert [one.status for one in judge_clock(facts)] == [host, events]


def test_operators_and_flops() -> None:
    right = {"operators": dict(EXPECTED_OPERATORS), "product_flops": float(EXPECTED_PRODUCT_FLOPS)}
    assert [one.status for one in judge_operators(right)] == ["passed", "passed"]
    lost = {"operators": {**EXPECTED_OPERATORS, "aten::add": 19}, "product_flops": EXPECTED_PRODUCT_FLOPS / 2}
    assert [one.status for one in judge_operators(lost)] == ["failed", "failed"]
    assert judge_operators({**right, "product_flops": None})[1].status == "not possible"


def timeline(
    *, sums: int = SUMS, products: int = PRODUCTS, rounds: int = ROUNDS, launches: bool = True
) -> Timeline:
    """Return a capture of the known work with so many kernels in each range."""
    names = [ROUND_RANGE, PRODUCT_RANGE, SUM_RANGE, "kernel", "cudaLaunchKernel"]
    range_names, kernel_ranges = [], []
    for number in range(rounds):
        range_names += [0, 1, 2]
        kernel_ranges += [3 * number + 1] * products + [3 * number + 2] * sums
    places = np.arange(len(kernel_ranges), dtype=np.int64)
    spans = np.arange(len(range_names), dtype=np.int64)
    nowhere = np.full(len(places), -1)
    return Timeline(
        source="made up",
        names=names,
        ops=DeviceOps(
            start_ns=places,
            end_ns=places + 1,
            kind=np.full(len(places), OpKind.KERNEL, np.int8),
            name=np.full(len(places), 3, np.int32),
            device=np.zeros(len(places), np.int32),
            stream=np.zeros(len(places), np.int64),
            process=np.zeros(len(places), np.int64),
            launch=(places if launches else nowhere).astype(np.int32),
            range=(np.array(kernel_ranges) if launches else nowhere).astype(np.int32),
            bytes=nowhere.astype(np.int64),
        ),
        calls=HostCalls(places, places, places, places.astype(np.int32)),
        ranges=Ranges(
            spans, spans + 1, spans * 0, np.array(range_names, np.int32), (spans * 0 - 1).astype(np.int32)
        ),
    )


@pytest.mark.parametrize(
    ("changes", "statuses"),
    [
        ({}, ["passed", "passed"]),
        ({"products": PRODUCTS * 2}, ["passed", "passed"]),  # a library may split a product
        ({"sums": SUMS - 1}, ["passed", "failed"]),  # kernels lost
        ({"sums": SUMS + 1}, ["passed", "failed"]),
        ({"products": PRODUCTS - 1}, ["passed", "failed"]),
        ({"rounds": ROUNDS - 1}, ["failed", "failed"]),
        ({"launches": False}, ["passed", "not possible"]),
    ],
)
def test_ranges_and_kernels(changes: dict[str, Any], statuses: list[str]) -> None:
    assert [one.status for one in judge_timeline("nsys", timeline(**changes))] == statuses


def test_kernels_where_there_can_be_none() -> None:
    assert judge_timeline("nsys", timeline(), kernels="no GPU")[1].status == "not possible"


@pytest.mark.parametrize(
    ("before", "held", "after", "status"),
    [
        (1 * GIB, 1.25 * GIB, 1 * GIB, "passed"),
        (1 * GIB, 1.25 * GIB, 1.25 * GIB, "failed"),  # kept by the allocator
        (1 * GIB, 1 * GIB, 1 * GIB, "failed"),  # not told at all
        (None, None, None, "not possible"),
    ],
)
def test_memory(before: float | None, held: float | None, after: float | None, status: str) -> None:
    facts = {"block_bytes": 256 << 20, "before_bytes": before, "held_bytes": held, "after_bytes": after}
    assert judge_memory(facts).status == status


def test_telemetry() -> None:
    def facts(first: float | None, second: float | None, power: float | None = 300.0) -> dict[str, Any]:
        readings = [{"power_w": power, "energy_j": energy} for energy in (first, second)]
        return {"reader": "nvidia-ml", "first": readings[0], "second": readings[1], "absent": {}}

    assert judge_telemetry(facts(10.0, 160.0)).status == "passed"
    assert judge_telemetry(facts(None, None)).status == "passed"
    assert judge_telemetry(facts(10.0, 10.0)).status == "failed"  # a counter that stands still
    assert judge_telemetry(facts(None, None, power=None)).status == "not possible"
    assert judge_telemetry({"refused": "nvidia-ml-py absent"}).status == "not possible"


@pytest.mark.parametrize(
    ("rate", "source", "status"),
    [
        (700e12, "catalogue", "passed"),
        (1500e12, "catalogue", "failed"),
        (100e12, "catalogue", "failed"),
        (700e12, "probe", "not possible"),
    ],
)
def test_probe(rate: float, source: str, status: str) -> None:
    hardware = Hardware(
        name="H100",
        kind="gpu",
        peak_flops_per_s={"bfloat16": Peak(989e12, "sheet")},
        bandwidth_bytes_per_s=3.35e12,
        source=source,
        measured_peak_flops_per_s={"bfloat16": Peak(rate, "measured")},
        measured_bandwidth_bytes_per_s=3.0e12,
    )
    assert judge_probe(hardware).status == status


def test_counters() -> None:
    def launch(additions: float, seconds: float | None = 2e-6) -> NcuLaunch:
        fused = Quantity(additions, "inst", str(additions))
        metrics = {"smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": fused}
        metrics |= (
            {"gpu__time_duration.sum": Quantity(seconds, "s", str(seconds))} if seconds is not None else {}
        )
        return NcuLaunch("add", "1", "1", None, None, None, None, metrics)

    whole = [launch(EXPECTED_ADDITIONS)] * ROUNDS * SUMS
    assert [one.status for one in judge_counters(NcuCapture(whole, "x"))] == ["passed", "passed"]
    assert judge_counters(NcuCapture(whole[:-1], "x"))[0].status == "failed"
    assert judge_counters(NcuCapture([launch(0.0)] * ROUNDS * SUMS, "x"))[1].status == "failed"
    assert judge_counters(NcuCapture([launch(EXPECTED_ADDITIONS, None)] * 20, "x"))[1].status == "failed"


def test_an_ncu_filter_on_the_outer_range_finds_all_kernels() -> None:
    launch = NcuLaunch("add", "1", "1", None, None, None, None, {})
    assert judge_outer_range("ncu outer range", NcuCapture([launch] * 35, "x")).status == "passed"
    assert judge_outer_range("ncu outer range", NcuCapture([launch] * 20, "x")).status == "failed"


def test_kernels_of_replayed_graphs() -> None:
    inner = timeline()
    rounds = [row for row, name in enumerate(inner.ranges.name) if inner.names[name] == ROUND_RANGE]
    assert judge_graph_kernels("nsys graph kernels", inner).status == "failed"  # in other ranges
    inner.ops.range[:] = rounds[0]
    assert judge_graph_kernels("nsys graph kernels", inner).status == "passed"
    inner.ops.range[0] = -1  # one node lost
    assert judge_graph_kernels("nsys graph kernels", inner).status == "failed"


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, "passed"),
        ({"verified": False}, "failed"),
        ({"verified": None}, "not possible"),
        ({"decode_s": [0.1, 0.0]}, "failed"),
        ({"prefill_s": [None]}, "failed"),
        ({"prefill_s": [], "decode_s": []}, "failed"),
    ],
)
def test_engine(changes: dict[str, Any], status: str) -> None:
    facts = {"tokens": [1, 2], "verified": True, "prefill_s": [0.1], "decode_s": [0.2], **changes}
    outcome = judge_engine("engine compile", facts, [1, 3])
    assert outcome.status == status and outcome.facts["same_as_eager"] is False


def test_memory_an_engine_leaves() -> None:
    assert judge_release("r", None).status == "not possible"
    assert judge_release("r", {"left_bytes": 0, "problem": None}).status == "passed"
    assert judge_release("r", {"left_bytes": 1 << 30, "problem": "1 GiB left"}).status == "failed"


def test_collective(tmp_path: Path) -> None:
    rank = {"backend": "nccl", "low": 3.0, "high": 3.0, "nccl": "2.21.5"}
    assert judge_collective([rank, rank]).status == "passed"
    assert judge_collective([rank]).status == "failed"  # the other rank died
    assert judge_collective([rank, {**rank, "low": 1.0}]).status == "failed"
    for device, count in (("cpu", 0), ("xpu:0", 2), ("cuda:0", 1)):
        assert [one.status for one in collective_checks(device, tmp_path, count)] == ["not possible"]
