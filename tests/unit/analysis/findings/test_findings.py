"""Every rule on data that has the problem, with its arithmetic, and on data that has not."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.findings import RULES, idle, kernels
from llm_perf_opt.summary import Utilisation, Workload
from tests.text_facts import mentions, mentions_in_order
from tests.unit.summaries import (
    budget,
    cpu,
    gpu,
    kernel,
    operator,
    summary,
    timings,
    verdict,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__module__.rsplit(".", 1)[-1])
def test_no_rule_reports_without_data(rule: object) -> None:
    assert rule(summary()) == []  # type: ignore[operator]


# launch-bound


def test_launch_bound_without_a_timeline_is_bounded_by_the_idle_time_of_the_run() -> None:
    data = summary(
        timings=timings(prefill=0.1, decode=0.9),
        utilisation={"all": Utilisation(device_busy_ratio=0.3)},
        verdicts={"decode": verdict("launch"), "all": verdict("launch")},
    )
    (found,) = idle.find_launch_bound(data)
    assert found.phase == "decode"
    assert found.gain_upper_s == pytest.approx(0.7)
    assert found.confidence == "medium"
    assert mentions_in_order(found.arithmetic, "70.0 %", "1.00 s", "700 ms")


def test_launch_bound_gain_never_exceeds_the_phase() -> None:
    data = summary(
        timings=timings(prefill=0.9, decode=0.1),
        utilisation={"all": Utilisation(device_busy_ratio=0.1)},
        verdicts={"decode": verdict("launch")},
    )
    (found,) = idle.find_launch_bound(data)
    assert found.gain_upper_s == pytest.approx(0.1)


def test_launch_bound_abstains_for_other_verdicts() -> None:
    assert (
        idle.find_launch_bound(summary(verdicts={"decode": verdict("memory"), "all": verdict("sync")})) == []
    )


# host synchronisation


def test_host_syncs_by_operators_alone_have_no_price() -> None:
    data = summary(
        operators=[operator("aten::_local_scalar_dense", 62)], metrics={"profiled_decode_steps": 31.0 / 2}
    )
    (found,) = idle.find_host_syncs(data)
    assert found.gain_upper_s is None
    assert found.confidence == "medium"


def test_host_syncs_abstain() -> None:
    few = [operator("aten::item", 20)]
    assert idle.find_host_syncs(summary(operators=few, metrics={"profiled_decode_steps": 10.0})) == []
    assert idle.find_host_syncs(summary(operators=[operator("aten::item", 900)])) == []  # steps unknown
    assert idle.find_host_syncs(summary(budget={"decode": budget(1.0, compute=0.96, sync=0.04)})) == []
    on_cpu = summary(
        hardware=cpu(), operators=[operator("aten::item", 900)], metrics={"profiled_decode_steps": 10.0}
    )
    assert idle.find_host_syncs(on_cpu) == []


# float32


def test_full_precision_run_on_a_device_with_fast_half_precision() -> None:
    data = summary(
        hardware=gpu(float32=1e13, bfloat16=8e13),
        workload=Workload(dtype="float32"),
        timings=timings(prefill=0.2, decode=0.6),
    )
    (found,) = kernels.find_full_precision(data)
    assert found.gain_upper_s == pytest.approx(0.8 * (1 - 1 / 8))


def test_full_precision_counts_nested_vision_once() -> None:
    data = summary(
        hardware=gpu(float32=1e13, bfloat16=2e13),
        workload=Workload(dtype="float32"),
        timings=timings(vision=0.3, prefill=0.4, ttft=0.4, decode=0.6),
    )
    (found,) = kernels.find_full_precision(data)
    assert found.gain_upper_s == pytest.approx(1.0 * 0.5)


def test_full_precision_abstains() -> None:
    slow_half = gpu(float32=1e13, bfloat16=1.2e13)
    timed = timings(prefill=0.2, decode=0.6)
    float32 = Workload(dtype="float32")
    assert kernels.find_full_precision(summary(hardware=slow_half, workload=float32, timings=timed)) == []
    assert (
        kernels.find_full_precision(summary(hardware=gpu(float32=1e13), workload=float32, timings=timed))
        == []
    )
    fast = gpu(float32=1e13, bfloat16=8e13)
    assert kernels.find_full_precision(summary(hardware=fast, workload=float32)) == []  # nothing timed
    assert (
        kernels.find_full_precision(
            summary(hardware=fast, workload=Workload(dtype="bfloat16"), timings=timed)
        )
        == []
    )


def test_stray_float32_kernels() -> None:
    rows = [kernel("ampere_sgemm_128x64_nn", "gemm", 0.2), kernel("ampere_bf16_s16816gemm", "gemm", 0.8)]
    data = summary(
        workload=Workload(dtype="bfloat16"),
        hardware=gpu(float32=1e13, bfloat16=4e13),
        kernels=rows,
        timings=timings(prefill=0.5, decode=1.5),
        utilisation={"all": Utilisation(device_busy_ratio=0.5)},
    )
    (found,) = kernels.find_full_precision(data)
    assert found.id == "full-precision-kernels"
    assert found.gain_upper_s == pytest.approx(2.0 * 0.5 * 0.2 * (1 - 1 / 4))
    assert "ampere_sgemm_128x64_nn" in found.evidence[0]
    data.hardware.peak_flops_per_s.clear()
    (unbounded,) = kernels.find_full_precision(data)
    assert unbounded.gain_upper_s is None, "without peaks nothing is known of what half precision gains"
    assert unbounded.time_s == pytest.approx(0.2)
    data.kernels = rows[1:]
    assert kernels.find_full_precision(data) == []


# kernel shares


def test_unfused_elementwise() -> None:
    rows = [
        kernel("add", "elementwise", 0.2, launches=100_000),
        kernel("rms", "norm", 0.1, launches=50_000),
        kernel("mm", "gemm", 0.7),
    ]
    data = summary(
        kernels=rows,
        timings=timings(prefill=1.0, decode=1.0),
        utilisation={"all": Utilisation(device_busy_ratio=0.4)},
    )
    (found,) = kernels.find_unfused_elementwise(data)
    assert found.gain_upper_s == pytest.approx(2.0 * 0.4 * 0.3)
    assert mentions(found.evidence[0], "30.0 %", "150 k", "2")
    data.kernels[2].total_s = 1.7
    assert kernels.find_unfused_elementwise(data) == []


def test_shares_of_a_capture_of_one_phase_are_shares_of_that_phase() -> None:
    rows = [
        kernel("add", "elementwise", 0.5, phase="decode", launches=100_000),
        kernel("mm", "gemm", 0.5, phase="decode"),
    ]
    data = summary(
        kernels=rows,
        timings=timings(prefill=10.0, decode=1.0),
        budget={"decode": budget(1.0, compute=0.8, host=0.2)},
    )
    (found,) = kernels.find_unfused_elementwise(data)
    assert found.gain_upper_s == pytest.approx(1.0 * 0.8 * 0.5)


def test_copy_kernels() -> None:
    data = summary(
        kernels=[kernel("copy", "copy", 0.2), kernel("mm", "gemm", 0.8)],
        timings=timings(prefill=0.5, decode=0.5),
        budget={"decode": budget(3.0, compute=0.7, copy=0.3), "all": budget(4.0, compute=0.5, copy=0.5)},
    )
    (found,) = kernels.find_copies_and_casts(data)  # what the copy engine does is a loss of the timeline
    assert found.id == "copy-kernels"
    assert found.gain_upper_s == pytest.approx(1.0 * 0.5 * 0.2)
    quiet = summary(kernels=[kernel("copy", "copy", 0.05), kernel("mm", "gemm", 0.95)])
    assert kernels.find_copies_and_casts(quiet) == []


def test_underfilled_grids() -> None:
    rows = [
        kernel("small", "gemv", 0.3, counters={"waves": 0.2}),
        kernel("large", "gemm", 0.7, counters={"waves": 6.0}),
    ]
    data = summary(
        kernels=rows,
        timings=timings(prefill=0.5, decode=0.5),
        utilisation={"all": Utilisation(device_busy_ratio=1.0)},
    )
    (found,) = kernels.find_underfilled_grids(data)
    assert found.gain_upper_s == pytest.approx(0.3)
    assert "small" in found.evidence[0]
    rows[0].counters["waves"] = 4.0
    assert kernels.find_underfilled_grids(data) == []
    untimed = summary(kernels=[kernel("small", "gemv", None, bound="underfilled")])
    (counted,) = kernels.find_underfilled_grids(untimed)
    assert counted.gain_upper_s is None
    assert counted.confidence == "medium"
