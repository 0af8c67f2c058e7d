"""Kernels of a busy device against the limit of their shape and against their siblings."""

from __future__ import annotations

import dataclasses

import pytest

from llm_perf_opt.analysis.findings import find_all
from llm_perf_opt.analysis.findings.kernels import find_slow_kernels
from llm_perf_opt.analysis.verdicts import judge
from llm_perf_opt.summary import Hardware, Kernel, Peak, Summary
from llm_perf_opt.summary.kernels import KernelWork
from tests.unit.summaries import budget, summary

PEAK, BANDWIDTH = 1000e12, 4e12


def product(
    name: str, calls: int, tflop: float, rate: float, family: str = "gemm", moved: float = 1e6
) -> Kernel:
    """A kernel with calls of one shape; ``rate`` in TFLOP/s."""
    total = calls * tflop / rate
    work = KernelWork(f"mm {name}", "bfloat16", calls, total, tflop * 1e12, moved)
    return Kernel(name, name, family, None, None, calls, total, None, work=[work])


def captured(*kernels: Kernel, compute: float = 0.99, launches: float = 1000, peaks: bool = True) -> Summary:
    total = sum(kernel.total_s or 0.0 for kernel in kernels)
    known = {"bfloat16": Peak(PEAK, "sheet")} if peaks else {}
    hardware = Hardware("device", "gpu", known, BANDWIDTH, "catalogue")
    found = summary(
        hardware=hardware,
        kernels=list(kernels),
        budget={"all": budget(total / compute, compute=compute, launch=1 - compute)},
        metrics={"kernel_launches": launches},
    )
    found.run = dataclasses.replace(found.run, command=["llm-perf-opt", "ingest"])
    return found


def test_a_product_below_its_siblings_is_the_finding_of_a_busy_device() -> None:
    found = captured(
        product("gate_up", 36, 3.0, 450), product("down", 36, 1.5, 600), product("qkv", 36, 0.8, 550)
    )
    (slow,) = find_all(found)
    assert slow.id == "slow-kernels" and "siblings" in slow.title
    assert "gate_up" in slow.evidence[0] and "550 TFLOP/s to 600 TFLOP/s" in slow.evidence[0]
    assert slow.gain_upper_s == pytest.approx(36 * 3.0 / 450 * (1 - 450 / 600))
    verdict = judge(found)["all"]
    assert verdict.bound == "compute" and "gemm 100 %" in verdict.arithmetic


@pytest.mark.parametrize(
    "kernels",
    [
        [product("a", 36, 3.0, 550), product("b", 36, 1.5, 600)],  # as fast as it gets
        [product("a", 36, 3.0, 450)],  # nothing to compare with, and near enough to the roof
        [product("a", 36, 30.0, 450), product("b", 36, 1.0, 600)],  # far larger: another kind of shape
        [
            product("a", 1, 0.03, 300),
            product("b", 36, 0.1, 600),
            product("c", 36, 0.1, 600),
        ],  # too little time
    ],
    ids=["near", "alone", "unlike", "short"],
)
def test_no_finding_where_nothing_is_far(kernels: list[Kernel]) -> None:
    assert find_slow_kernels(captured(*kernels)) == []


def test_attention_far_below_its_own_roofline_is_reported_without_a_gain() -> None:
    found = captured(product("attn_fwd", 100, 0.5, 80, "attention"))
    (slow,) = find_slow_kernels(found)
    assert slow.gain_upper_s is None and slow.time_s == pytest.approx(100 * 0.5 / 80)
    assert "limit of its own shape" in slow.title and "8.00 %" in slow.evidence[0]
    (thin,) = find_all(captured(product("attn_fwd", 10, 0.5, 80, "attention"), launches=10))
    assert (thin.confidence, thin.gain_upper_s) == ("low", None)


def test_a_short_call_does_not_fill_a_device_and_does_not_rate_its_kernel() -> None:
    assert find_slow_kernels(captured(product("small", 10_000, 0.5e-6, 0.05))) == []


def test_a_device_that_waits_or_whose_peak_is_unknown_has_no_such_finding() -> None:
    kernels = (product("gate_up", 36, 3.0, 450), product("down", 36, 1.5, 600))
    assert find_slow_kernels(captured(*kernels, compute=0.7)) == []
    assert find_slow_kernels(captured(*kernels, peaks=False)) == []


def test_a_shape_under_memory_is_compared_with_memory() -> None:
    """Reading 40 GB takes 10 ms at best and took 100 ms."""
    found = captured(product("gemv", 100, 0.001, 0.01, moved=40e9))
    (slow,) = find_slow_kernels(found)
    assert "10.0 % of the memory limit" in slow.evidence[0]
    assert judge(found)["all"].bound == "memory"


def test_a_busy_device_without_another_finding_names_what_takes_its_time() -> None:
    found = captured(product("expert", 48, 3.0, 700, family="moe"), product("qkv", 36, 0.2, 650))
    (held,) = find_all(found)
    assert (held.id, held.gain_upper_s) == ("dominant-kernels", None)
    assert "expert kernels" in held.title
    assert any("70.0 % of the limits" in line for line in held.evidence)
    without = find_all(captured(product("expert", 48, 3.0, 700, family="moe"), peaks=False))
    assert any("limits of this device are not known" in line for line in without[0].evidence)


def test_a_device_that_waits_or_has_a_better_finding_is_not_called_busy() -> None:
    expert = product("expert", 48, 3.0, 700, family="moe")
    assert "dominant-kernels" not in [one.id for one in find_all(captured(expert, compute=0.7))]
    slow = captured(product("gate_up", 36, 3.0, 450), product("down", 36, 1.5, 600))
    assert [one.id for one in find_all(slow)] == ["slow-kernels"]


def test_one_of_two_families_that_hold_as_much_does_not_dominate() -> None:
    pair = product("expert", 48, 3.0, 700, family="moe"), product("qkv", 48, 2.6, 700)
    assert find_all(captured(*pair)) == []


def test_a_few_launches_are_too_little_to_call_a_device_busy() -> None:
    few = captured(product("expert", 10, 3.0, 700, family="moe"))
    few.metrics["kernel_launches"] = 10.0
    assert find_all(few) == []


def test_the_longest_kernel_is_named_where_no_family_is_known() -> None:
    (held,) = find_all(captured(product("mystery", 48, 3.0, 700, family="other")))
    assert "mystery holds 100 %" in held.title
