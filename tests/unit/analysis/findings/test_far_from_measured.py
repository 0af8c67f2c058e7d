"""``far-from-measured``: kernels far from the best measured of their shapes, where that is much of the time."""

from __future__ import annotations

from typing import Any

import pytest

from llm_perf_opt.analysis.findings import find_all, kernels
from llm_perf_opt.summary import Kernel, Summary
from llm_perf_opt.summary.kernels import KernelTarget
from tests.text_facts import mentions, mentions_in_order
from tests.unit.analysis.findings.test_kernel_findings import FLASH_2, NARROW, captured
from tests.unit.summaries import kernel


def target(
    here_us: float, best_us: float, calls: int = 100, median_us: float | None = None, **more: Any
) -> KernelTarget:
    stake = max(0.0, here_us - best_us) * 1e-6 * calls
    return KernelTarget(
        best_us * 1e-6, (median_us or best_us) * 1e-6, here_us / best_us, "vLLM 0.24, cuBLAS", here_us * 1e-6, calls,
        **{"how": "measured", "shapes": ["64 × 64 × 64 bfloat16"], "at_stake_s": stake, **more},
    )  # fmt: skip


def with_target(given: KernelTarget | None, name: str = "sm90_xmma_gemm", family: str = "gemm") -> Kernel:
    one = kernel(
        name, family, given.measured_s * given.calls if given is not None else 4e-3, launches=100, phase=None
    )
    one.target = given
    return one


def run_of(*rows: Kernel) -> Summary:
    return captured(*rows, kernel("norm", "norm", 6e-3, launches=100, phase=None))


def test_a_slow_kernel_is_named_with_its_shape_source_and_milliseconds() -> None:
    (found,) = kernels.find_far_from_measured(run_of(with_target(target(40, 16, median_us=20))))
    assert (found.id, found.confidence) == ("far-from-measured", "high")
    assert mentions(found.evidence[0], "sm90_xmma_gemm", "2.50", "vLLM 0.24, cuBLAS", "64 × 64 × 64 bfloat16")
    assert "100 × (40.0 µs − 16.0 µs) = 2.40 ms" in found.arithmetic
    assert mentions_in_order(found.arithmetic, "2.40 ms", "10.0 ms")
    assert found.gain_upper_s == pytest.approx(2.0 * 0.24)  # 24 % of a capture of 2 s
    assert found in find_all(run_of(with_target(target(40, 16, median_us=20))))


@pytest.mark.parametrize(
    "given",
    [
        None,
        target(40, 36),  # near the best
        target(40, 16, median_us=36),  # one table is much better than all others
        target(4.5, 2.0, calls=900),  # a few microseconds: a warm cache
        target(40, 16, calls=3),  # little of the time
        target(40, 16, at_stake_s=None),  # a single profiled launch
    ],
)
def test_silent_where_the_kernel_is_not_far_or_not_much(given: KernelTarget | None) -> None:
    assert kernels.find_far_from_measured(run_of(with_target(given))) == []


def test_interpolated_shapes_are_less_certain() -> None:
    (found,) = kernels.find_far_from_measured(run_of(with_target(target(40, 16, how="interpolated"))))
    assert found.confidence == "medium"


def test_more_kernels_than_are_named_are_counted() -> None:
    rows = [with_target(target(40, 16), name=f"gemm_{place}") for place in range(5)]
    (found,) = kernels.find_far_from_measured(run_of(*rows))
    assert mentions(found.evidence[3], "2", "4.80 ms") and " + … = 12.0 ms" in found.arithmetic


def test_time_another_finding_claims_is_left_to_it() -> None:
    narrow = with_target(target(40, 16), name=NARROW.format(2))
    (claim,) = kernels.find_misaligned_gemm(run_of(narrow))
    assert mentions(claim.arithmetic, "2.40 ms")
    assert (claim.confidence, claim.gain_upper_s) == ("high", pytest.approx(2.0 * 0.24))
    assert kernels.find_far_from_measured(run_of(narrow)) == []
    flash = with_target(target(40, 16), name=FLASH_2, family="attention")
    assert [one.id for one in kernels.find_far_from_measured(run_of(flash))] == [
        "far-from-measured"
    ]  # no Hopper device
