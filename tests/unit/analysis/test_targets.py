"""Kernels against measured times: the arithmetic, what is left out, and what is carried over from another capture."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.analysis.findings.common import describe_target
from llm_perf_opt.analysis.operators.flops import COUNTED_OPERATORS
from llm_perf_opt.analysis.operators.work import link_calls
from llm_perf_opt.analysis.targets import (
    KernelPhase,
    MeasuredTime,
    ShapedCalls,
    add_targets,
    describe_shape,
    look_up_in,
    shaped_calls,
    target_section,
)
from llm_perf_opt.analysis.timeline.attribution import attribute
from llm_perf_opt.captures.kineto.calls import read_operator_calls
from llm_perf_opt.captures.kineto.reader import read_kineto
from llm_perf_opt.hardware.silicon.operators import Attention, Gemm, MoeLayer, Operator
from llm_perf_opt.hardware.silicon.timing import How, Source, TableTime, Timing
from llm_perf_opt.summary import Hardware, Kernel, Peak
from tests.text_facts import mentions
from tests.unit.analysis.operators.test_work import GEMM, shaped, trace
from tests.unit.kineto_traces import call, kernel
from tests.unit.summaries import kernel as row

SMALL, LARGE = Gemm(4, 16, 8), Gemm(64, 64, 64)


def tables(*answers: tuple[float, How, str]) -> Timing:
    times = tuple(
        TableTime(s, how, Source(name, "0.24.0", "t", "torch.nn.functional.linear"))
        for s, how, name in answers
    )
    best = min(times, key=lambda time: time.seconds)
    return Timing(best.seconds, best.how, best.source, times)


def measured(best_us: float, median_us: float | None = None) -> MeasuredTime:
    return MeasuredTime(best_us * 1e-6, (median_us or best_us) * 1e-6, "measured", "vLLM 0.24, cuBLAS")


def calls_of(path: Path) -> list[ShapedCalls]:
    capture = read_kineto(path)
    found = attribute(capture.timeline)
    calls = read_operator_calls(path, COUNTED_OPERATORS, capture.facts["threads"])
    return shaped_calls(capture.timeline, found, calls, link_calls(capture.timeline, found, calls))


# From a trace


def test_kernels_of_one_call_count_together_for_the_longest(tmp_path: Path) -> None:
    (found,) = calls_of(
        trace(
            tmp_path,
            shaped("aten::mm", 1, 20, [4, 8], [8, 16]),
            call("cudaLaunchKernel", 2, 1, 1),
            call("cudaLaunchKernel", 4, 1, 2),
            kernel("splitKreduce_kernel", 60, 5, 2),
            kernel(GEMM, 30, 30, 1),
            shaped("aten::linear", 25, 20, [2, 2, 8], [16, 8]),
            shaped("aten::addmm", 26, 18, [16], [4, 8], [8, 16]),
            call("cudaLaunchKernel", 27, 1, 3),
            kernel(GEMM, 70, 25, 3),
        )
    )
    assert (found.kernel, found.phase, found.operator, found.calls) == (GEMM, None, SMALL, 2)
    assert found.total_s == pytest.approx(60e-6)


def test_work_behind_graphs_and_shapes_of_no_table_are_left_out(tmp_path: Path) -> None:
    assert not calls_of(
        trace(
            tmp_path,
            shaped("aten::mm", 1, 10, [4, 8], [8, 16]),
            call("cudaGraphLaunch", 2, 1, 1),
            kernel(GEMM, 30, 30, 1),
            shaped("aten::bmm", 20, 10, [2, 4, 8], [2, 8, 16]),
            call("cudaLaunchKernel", 22, 1, 2),
            kernel(GEMM, 70, 30, 2),
        )
    )


# Against the tables


def test_ratio_and_time_at_stake_are_over_all_shapes_of_a_kernel() -> None:
    rows = [
        row(GEMM, "gemm", 1e-3, launches=30, phase=None),
        row("other", "gemm", 1e-3, launches=1, phase=None),
    ]
    shapes = [ShapedCalls(GEMM, None, LARGE, 10, 500e-6), ShapedCalls(GEMM, None, SMALL, 20, 100e-6)]
    times: dict[Operator, MeasuredTime] = {LARGE: measured(20, 25), SMALL: measured(6, 8)}
    coverage = add_targets(rows, shapes, times.get, {(GEMM, None): 1e-3, ("other", None): 1e-3})
    target = rows[0].target
    assert target is not None and rows[1].target is None
    assert target.measured_s == pytest.approx(20e-6) and target.calls == 30
    assert target.best_s == pytest.approx(320e-6 / 30) and target.median_s == pytest.approx(410e-6 / 30)
    assert target.ratio == pytest.approx(600 / 320)
    assert target.at_stake_s == pytest.approx(
        300e-6
    )  # the small one is faster than measured: it pays nothing back
    assert target.compared_ratio == pytest.approx(0.6)
    assert target.shapes == ["64 × 64 × 64 bfloat16", "4 × 16 × 8 bfloat16"]
    assert target.flops == pytest.approx((10 * LARGE.flops + 20 * SMALL.flops) / 30)
    assert mentions(describe_target(target), "1.88", "vLLM 0.24, cuBLAS")
    assert coverage.compared_s == pytest.approx(600e-6) and coverage.at_stake_s == pytest.approx(300e-6)


def test_a_shape_outside_the_tables_gives_no_target_and_is_named() -> None:
    rows = [row(GEMM, "gemm", 1e-3, launches=30, phase=None)]
    coverage = add_targets(rows, [ShapedCalls(GEMM, None, LARGE, 10, 5e-4)], lambda _: None)
    assert rows[0].target is None and coverage.outside_s == pytest.approx(5e-4)
    (section,) = target_section("torch_profiler", coverage, "tables")
    assert not section.tables and "64 × 64 × 64 bfloat16 (500 µs)" in section.paragraphs[-1]
    assert target_section("torch_profiler", type(coverage)(), "tables") == []


def test_kernels_of_another_phase_or_capture() -> None:
    other = row(GEMM, "gemm", 4e-3, launches=80, phase="decode")
    shapes = [ShapedCalls(GEMM, "prefill", LARGE, 10, 500e-6)]
    traced_s: dict[KernelPhase, float] = {(GEMM, "prefill"): 500e-6}
    add_targets([other], shapes, lambda _: measured(20), traced_s)
    assert other.target is None
    nsys = row(GEMM, "gemm", 4e-3, launches=80, phase="prefill")
    add_targets([nsys], shapes, lambda _: measured(20), traced_s)
    assert nsys.target is not None and nsys.target.compared_ratio is None
    assert nsys.target.at_stake_s == pytest.approx(300e-6 * 8)


def test_of_another_capture_only_the_covered_share_is_at_stake() -> None:
    """Half of the traced time lies in calls without a target: nothing is claimed of it in the other capture either."""
    shapes = [ShapedCalls(GEMM, "prefill", LARGE, 10, 500e-6), ShapedCalls(GEMM, "prefill", SMALL, 5, 100e-6)]
    nsys = row(GEMM, "gemm", 4e-3, launches=80, phase="prefill")
    times: dict[Operator, MeasuredTime] = {LARGE: measured(20)}
    coverage = add_targets([nsys], shapes, times.get, {(GEMM, "prefill"): 1e-3})
    assert nsys.target is not None and nsys.target.at_stake_s == pytest.approx(300e-6 * 4)
    assert coverage.at_stake_s == pytest.approx(300e-6 * 4)


def test_each_phase_is_compared_with_the_capture_it_comes_from() -> None:
    prefill = row(GEMM, "gemm", 1e-3, launches=10, phase="prefill")
    decode = row(GEMM, "gemm", 6e-3, launches=80, phase="decode")  # of a longer trace without shapes
    shapes = [ShapedCalls(GEMM, phase, LARGE, 10, 500e-6) for phase in ("prefill", "decode")]
    traced_s: dict[KernelPhase, float] = {(GEMM, "prefill"): 1e-3, (GEMM, "decode"): 1e-3}
    add_targets([prefill, decode], shapes, lambda _: measured(20), traced_s)
    assert prefill.target is not None and decode.target is not None
    assert (prefill.target.compared_ratio, decode.target.compared_ratio) == (pytest.approx(0.5), None)
    assert prefill.target.at_stake_s == pytest.approx(300e-6)
    assert decode.target.at_stake_s == pytest.approx(300e-6 * 6)


def test_without_the_time_of_the_trace_nothing_is_at_stake() -> None:
    one = row(GEMM, "gemm", 4e-3, launches=80, phase=None)
    add_targets([one], [ShapedCalls(GEMM, None, LARGE, 10, 500e-6)], lambda _: measured(20))
    assert one.target is not None and one.target.at_stake_s is None


# What counts as measured


def h100() -> Hardware:
    return Hardware("GPU", "gpu", {"bfloat16": Peak(1e15, "sheet")}, 1e12, "catalogue")


def test_times_that_only_a_cache_makes_possible_are_no_target() -> None:
    product = Gemm(1, 1000, 1000)  # 2 MB of weights: 2 µs at 1 TB/s
    given = tables((1e-6, "measured", "sglang"), (3e-6, "measured", "vllm"), (5e-6, "interpolated", "trtllm"))
    found = look_up_in(lambda _: given, h100())(product)
    assert found is not None and found.source == "vLLM 0.24, cuBLAS" and found.how == "interpolated"
    assert (found.best_s, found.median_s) == (pytest.approx(3e-6), pytest.approx(4e-6))
    assert look_up_in(lambda _: tables((1e-6, "measured", "vllm")), h100())(product) is None
    cache = Attention("generation", 8, 1000, 8, 8, 128)  # 32.8 MB
    assert look_up_in(lambda _: tables((30e-6, "measured", "vllm")), h100())(cache) is None
    assert look_up_in(lambda _: tables((40e-6, "measured", "vllm")), h100())(cache) is not None


def test_beyond_the_tables_there_is_no_target() -> None:
    far = tables((1e-3, "extrapolated", "vllm"))
    assert look_up_in(lambda _: far, h100())(LARGE) is None
    assert look_up_in(lambda _: None, h100())(LARGE) is None


def test_experts_of_one_rank_are_looked_for_as_parts_of_whole_ones() -> None:
    requested: list[Operator] = []

    def ask(operator: Operator) -> Timing | None:
        requested.append(operator)
        split = isinstance(operator, MoeLayer) and operator.tensor_parallel == 4
        return tables((1e-3, "measured", "vllm")) if split else None

    look_up = look_up_in(ask, h100())
    mine = MoeLayer(64, 2048, 192, 8, 128)
    assert look_up(mine) is not None and look_up(mine) is not None
    assert [op.inter for op in requested if isinstance(op, MoeLayer)] == [192, 384, 768]


def test_kernels_that_took_no_time_are_not_compared() -> None:
    one = row(GEMM, "gemm", 0.0, launches=1, phase=None)
    add_targets([one], [ShapedCalls(GEMM, None, LARGE, 1, 0.0)], lambda _: measured(20))
    assert one.target is None


def test_described_shapes() -> None:
    assert mentions(
        describe_shape(Attention("generation", 8, 1000, 9, 3, 128)),
        "generation",
        "8",
        "1000",
        "9",
        "3",
        "128",
    )
    assert mentions(describe_shape(MoeLayer(64, 2048, 192, 8, 128)), "64", "8", "128", "2048 × 192 bfloat16")


def test_a_kernel_without_time_keeps_its_target() -> None:
    only = Kernel(GEMM, "g", "gemm", None, None, None, None, None)
    add_targets([only], [ShapedCalls(GEMM, None, LARGE, 1, 50e-6)], lambda _: measured(20))
    assert only.target is not None and only.target.ratio == pytest.approx(2.5)
