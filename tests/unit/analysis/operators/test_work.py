"""Work by phase: the outermost call counts, kernels say how much of the time it stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.analysis.operators.flops import COUNTED_OPERATORS
from llm_perf_opt.analysis.operators.work import OperatorWork, operator_work
from llm_perf_opt.analysis.timeline.attribution import attribute
from llm_perf_opt.captures.kineto.calls import read_operator_calls
from llm_perf_opt.captures.kineto.reader import read_kineto
from llm_perf_opt.core.phases import WHOLE
from tests.unit.kineto_traces import annotation, call, document, kernel, span, write

GEMM = "ampere_bf16_s16816gemm_bf16_128x64_tn"


def shaped(name: str, start: float, dur: float, *dims: list[int]) -> dict[str, Any]:
    args = {
        "Input Dims": list(dims),
        "Input type": ["c10::BFloat16"] * len(dims),
        "Concrete Inputs": [""] * len(dims),
    }
    return span("cpu_op", name, start, dur, args=args)


def work_of(path: Path) -> OperatorWork:
    capture = read_kineto(path)
    calls = read_operator_calls(path, COUNTED_OPERATORS, capture.facts["threads"])
    return operator_work(capture.timeline, attribute(capture.timeline), calls)


def trace(folder: Path, *events: dict[str, Any]) -> Path:
    return write(folder / "t.json", document(list(events), record_shapes=1))


def test_nested_operators_count_once_and_phases_apart(tmp_path: Path) -> None:
    found = work_of(
        trace(
            tmp_path,
            annotation("execute_context_1(4)_generation_0(0)", 0, 50),
            shaped("aten::linear", 1, 20, [4, 8], [16, 8]),
            shaped("aten::mm", 2, 10, [4, 8], [8, 16]),
            call("cudaLaunchKernel", 5, 1, 1),
            kernel(GEMM, 100, 30, 1),
            annotation("execute_context_1(4)_generation_2(2)", 50, 50),
            shaped("aten::mm", 60, 10, [6, 8], [8, 16]),
            call("cudaLaunchKernel", 65, 1, 2),
            kernel(GEMM, 130, 10, 2),
            call("cudaLaunchKernel", 80, 1, 3),
            kernel("vectorized_elementwise_kernel", 150, 20, 3),
        )
    )
    prefill, mixed, whole = found.phases["prefill"], found.phases["mixed"], found.phases[WHOLE]
    assert (prefill.flops, prefill.calls) == (2 * 4 * 8 * 16, 1)
    assert (mixed.flops, mixed.calls) == (2 * 6 * 8 * 16, 1)
    assert whole.flops == prefill.flops + mixed.flops
    assert whole.flops_by_dtype == {"bfloat16": whole.flops}
    assert (prefill.busy_s, mixed.busy_s) == (pytest.approx(30e-6), pytest.approx(30e-6))
    assert (mixed.matrix_s, mixed.counted_s, mixed.coverage_ratio) == (
        pytest.approx(10e-6),
        pytest.approx(10e-6),
        1.0,
    )


def test_what_lies_behind_a_graph_is_not_counted_and_lowers_coverage(tmp_path: Path) -> None:
    found = work_of(
        trace(
            tmp_path,
            shaped("aten::mm", 1, 10, [4, 8], [8, 16]),
            call("cudaLaunchKernel", 2, 1, 1),
            kernel(GEMM, 20, 10, 1),
            shaped("aten::mm", 12, 10, [4, 8], [8, 16]),
            call("cudaGraphLaunch", 13, 1, 2),
            kernel(GEMM, 30, 90, 2),
        )
    ).phases[WHOLE]
    assert found.coverage_ratio == pytest.approx(0.1)
    assert found.graph_s == pytest.approx(90e-6)


def test_kernels_of_earlier_work_and_calls_without_kernels_are_left_out(tmp_path: Path) -> None:
    found = work_of(
        trace(
            tmp_path,
            kernel(GEMM, 0, 50, 900),
            shaped("aten::mm", 60, 10, [4, 8], [8, 16]),
            call("cudaLaunchKernel", 62, 1, 1),
            kernel(GEMM, 80, 10, 1),
            shaped("aten::mm", 95, 3, [1000, 1000], [1000, 1000]),
            call("cudaLaunchKernel", 96, 1, 2),
        )
    ).phases[WHOLE]
    assert (found.calls, found.flops) == (1, 2 * 4 * 8 * 16)
    assert (found.busy_s, found.coverage_ratio) == (pytest.approx(10e-6), 1.0)


def test_an_uncountable_call_leaves_its_kernel_uncounted(tmp_path: Path) -> None:
    found = work_of(
        trace(
            tmp_path,
            shaped("aten::mm", 1, 10, [4, 8], [9, 16]),
            call("cudaLaunchKernel", 2, 1, 1),
            kernel(GEMM, 20, 10, 1),
        )
    ).phases[WHOLE]
    assert (found.flops, found.coverage_ratio) == (0, 0.0)


def test_two_devices_add_up_their_busy_time(tmp_path: Path) -> None:
    found = work_of(
        trace(
            tmp_path,
            shaped("aten::mm", 1, 10, [4, 8], [8, 16]),
            call("cudaLaunchKernel", 2, 1, 1),
            call("cudaLaunchKernel", 4, 1, 2),
            kernel(GEMM, 20, 10, 1, device=0),
            kernel(GEMM, 20, 10, 2, device=1),
        )
    ).phases[WHOLE]
    assert found.busy_s == pytest.approx(20e-6)


def test_a_trace_of_a_language_model_has_the_flops_of_its_layers(shared_data: Path) -> None:
    (path,) = (shared_data / "h100-torch-traces").glob("Qwen*.json.gz")
    found = work_of(path).phases[WHOLE]
    batch, length, width, inner, layers = 16, 559, 1024, 2816, 24
    rows = batch * length
    per_layer = 2 * rows * width * (4 * width + 3 * inner) + 4 * batch * length * length * width
    angles = 2 * 32 * length
    assert found.flops == layers * per_layer + angles
    assert found.coverage_ratio == 1.0


def test_attention_of_a_vllm_step_counts_its_pairs_and_no_more(shared_data: Path) -> None:
    (path,) = (shared_data / "torch-traces-more").glob("*vllm*.json.gz")
    found = work_of(path)
    assert set(found.phases) == {"mixed", WHOLE}
    pairs, heads, width, layers = 7671310 + 34489, 64, 64, 24
    head = 2 * 46 * 2880 * 201088
    assert found.phases["mixed"].flops == layers * 4 * pairs * heads * width + head
    assert (found.phases["mixed"].coverage_ratio or 0.0) < 0.1
