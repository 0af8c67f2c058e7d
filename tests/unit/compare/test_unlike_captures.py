"""Captures that are not like for like: said first, whole families compared, fused kernels that gave way named."""

from __future__ import annotations

from typing import Any

import pytest

from llm_perf_opt.analysis.origin import Side
from llm_perf_opt.compare.compare import compare
from llm_perf_opt.compare.data import Comparison
from llm_perf_opt.summary import Hardware, Kernel, Summary
from tests.unit.summaries import budget, summary


def kernel(name: str, family: str, launches: int, total_s: float) -> Kernel:
    return Kernel(name, name, family, None, None, launches, total_s, None)


def captured(*kernels: Kernel, device: str = "NVIDIA A100-SXM4-80GB", **metrics: Any) -> Summary:
    total = sum(one.total_s or 0.0 for one in kernels)
    return summary(
        hardware=Hardware(device, "gpu", {}, None, "none"),
        kernels=list(kernels),
        budget={"all": budget(total, compute=1.0)},
        metrics={"profiler_steps": 4.0, **metrics},
    )


def compared(a: Summary, b: Summary) -> Comparison:
    return compare(Side("A", [], [a], [None]), Side("B", [], [b], [None]))


A = [
    kernel("ampere_sgemm_a", "gemm", 1000, 0.5),
    kernel("ampere_sgemm_b", "gemm", 100, 0.05),
    kernel("add", "elementwise", 500, 0.1),
]
B = [
    kernel("volta_sgemm_a", "gemm", 50, 0.1),
    kernel("volta_sgemm_b", "gemm", 1250, 1.2),
    kernel("add", "elementwise", 500, 0.2),
]


def test_other_devices_and_ranks_are_reported_first_and_families_are_compared() -> None:
    found = compared(captured(*A, world_size=8.0), captured(*B, device="Tesla V100", world_size=2.0))
    assert found.sentence is not None
    assert found.sentence.startswith(
        "Not like for like (hardware NVIDIA A100-SXM4-80GB → Tesla V100, ranks 8 → 2)"
    )
    assert [row.what for row in found.differences][:2] == ["hardware", "ranks"]
    names = [cause.name for cause in found.conclusions[0].causes]
    assert "gemm kernels (2): time per launch" in names
    assert not any("times as often" in (cause.text or "") for cause in found.conclusions[0].causes)


def test_the_same_device_and_ranks_are_like_for_like() -> None:
    found = compared(
        captured(*A, world_size=8.0), captured(*A[:2], kernel("add", "elementwise", 500, 0.3), world_size=8.0)
    )
    assert found.sentence is not None and "like for like" not in found.sentence
    assert found.conclusions[0].causes[0].name == "add: time per launch"


def test_kernels_exchanged_within_a_family_are_reported_by_the_family() -> None:
    """On one device too: another library chooses other kernels, and no kernel runs 12 times as often."""
    a = captured(
        kernel("gemm_x<1>", "gemm", 100, 0.5),
        kernel("gemm_y", "gemm", 1000, 0.5),
        kernel("add", "elementwise", 500, 0.1),
    )
    b = captured(
        kernel("gemm_x<2>", "gemm", 1200, 1.0),
        kernel("gemm_z", "gemm", 10, 0.05),
        kernel("add", "elementwise", 500, 0.1),
    )
    causes = compared(a, b).conclusions[0].causes
    assert {cause.name for cause in causes if "gemm" in cause.name} <= {
        "gemm kernels (2): launches",
        "gemm kernels (2): time per launch",
    }


@pytest.mark.parametrize("reverse", [False, True])
def test_fused_attention_that_gave_way_to_separate_kernels_is_the_cause(*, reverse: bool) -> None:
    fused = captured(kernel("flash_fwd", "attention", 100, 0.1), kernel("gemm", "gemm", 400, 0.5))
    pieces = [
        kernel("softmax", "softmax", 100, 0.3),
        kernel("bmm_qk", "gemm", 200, 0.3),
        kernel("scale", "elementwise", 100, 0.2),
    ]
    separate = captured(kernel("gemm", "gemm", 400, 0.5), *pieces)
    sides = (separate, fused) if reverse else (fused, separate)
    found = compared(*sides)
    first = found.conclusions[0].causes[0]
    assert first.kind == ("fused" if reverse else "unfused")
    assert abs(first.change_s) == pytest.approx(0.7)
    assert ("in place of separate ones" if reverse else "in place of a fused one") in first.text
    assert sum(cause.change_s for cause in found.conclusions[0].causes) == pytest.approx(
        found.conclusions[0].change_s
    )
