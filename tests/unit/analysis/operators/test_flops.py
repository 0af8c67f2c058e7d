"""FLOPs from recorded shapes equal torch's own counter on real traces, to the last one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.analysis.operators.flops import COUNTED_OPERATORS, call_work
from llm_perf_opt.analysis.operators.work import operator_work
from llm_perf_opt.analysis.timeline.attribution import attribute
from llm_perf_opt.captures.kineto.calls import Signature, read_operator_calls
from llm_perf_opt.captures.kineto.reader import read_kineto
from llm_perf_opt.core.phases import WHOLE

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count  # noqa: E402


def _cpu_flash(query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


CPU_FLASH = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _cpu_flash}


def rand(*shape: int) -> Any:
    return torch.rand(*shape)


def linear_layers() -> None:
    layers = torch.nn.Sequential(
        torch.nn.Linear(48, 96), torch.nn.GELU(), torch.nn.Linear(96, 24, bias=False)
    )
    with torch.no_grad():
        layers(rand(2, 7, 48))


def products() -> None:
    rand(5, 6) @ rand(6, 7)
    torch.addmm(rand(3), rand(4, 9), rand(9, 3))
    torch.bmm(rand(3, 4, 5), rand(3, 5, 6))
    torch.baddbmm(rand(3, 4, 6), rand(3, 4, 5), rand(3, 5, 6))
    torch.einsum("bij,bjk->bik", rand(2, 3, 4), rand(2, 4, 5))
    torch.matmul(rand(2, 3, 4, 5), rand(5, 6))


def convolutions() -> None:
    F.conv2d(rand(2, 4, 17, 13), rand(8, 4, 3, 3), stride=(2, 1), padding=(1, 0))
    F.conv2d(rand(2, 8, 9, 9), rand(8, 2, 3, 3), groups=4, dilation=2, padding="same")
    F.conv1d(rand(3, 4, 20), rand(6, 4, 5), stride=3)
    F.conv_transpose2d(rand(1, 6, 5, 5), rand(6, 3, 4, 4), stride=2, padding=1, output_padding=1)
    F.conv3d(rand(1, 2, 6, 6, 6), rand(4, 2, 3, 3, 3))


def attention() -> None:
    q, k, v = rand(2, 8, 11, 16), rand(2, 8, 19, 16), rand(2, 8, 19, 16)
    F.scaled_dot_product_attention(q, k, v)
    F.scaled_dot_product_attention(q, q, q, is_causal=True)
    with sdpa_kernel(SDPBackend.MATH):
        F.scaled_dot_product_attention(q, k, v)


def grouped_queries() -> None:
    with sdpa_kernel(SDPBackend.MATH):
        F.scaled_dot_product_attention(
            rand(2, 8, 11, 16), rand(2, 2, 19, 16), rand(2, 2, 19, 16), enable_gqa=True
        )


def training_step() -> None:
    x = rand(4, 3, 10, 10)
    weight, head = rand(6, 3, 3, 3).requires_grad_(), rand(384, 5).requires_grad_()
    (F.conv2d(x, weight).flatten(1) @ head).sum().backward()


WORKLOADS: list[Callable[[], None]] = [
    linear_layers, products, convolutions, attention, grouped_queries, training_step,
]  # fmt: skip


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_a_real_trace_counts_what_torch_counts(workload: Callable[[], None], tmp_path: Path) -> None:
    counter = FlopCounterMode(display=False, custom_mapping=CPU_FLASH)
    with counter:
        workload()
    with torch.profiler.profile(record_shapes=True) as profile:
        workload()
    path = tmp_path / "trace.json"
    profile.export_chrome_trace(str(path))
    capture = read_kineto(path)
    calls = read_operator_calls(path, COUNTED_OPERATORS, capture.facts["threads"])
    found = operator_work(capture.timeline, attribute(capture.timeline), calls)
    assert counter.get_total_flops() > 0
    assert found.phases[WHOLE].flops == counter.get_total_flops()


BF16, FP8 = "c10::BFloat16", "c10::Float8_e4m3fn"


def signature(
    name: str, dims: list[Any], types: list[str] | None = None, concrete: tuple[str, ...] = ()
) -> Signature:
    return Signature(name, tuple(dims), tuple(types or [BF16] * len(dims)), concrete)


def test_operand_bytes_are_inputs_and_output_in_their_types() -> None:
    work = call_work(signature("aten::mm", [[4, 8], [8, 16]]))
    assert work is not None
    assert (work.flops, work.dtype, work.operand_bytes) == (2 * 4 * 8 * 16, "bfloat16", 2 * (32 + 128 + 64))
    eight_bit = call_work(
        signature("aten::_scaled_mm", [[4, 8], [8, 16], [1], [1]], [FP8, FP8, "float", "float"])
    )
    assert eight_bit is not None
    assert (eight_bit.dtype, eight_bit.operand_bytes) == ("float8", 32 + 128 + 2 * 64)


def test_operators_of_engines() -> None:
    out_first = signature(
        "_C::cutlass_scaled_mm", [[4, 16], [4, 8], [8, 16], [1], [1]], [BF16, FP8, FP8, "float", "float"]
    )
    work = call_work(out_first)
    assert work is not None
    assert (work.flops, work.dtype) == (2 * 4 * 8 * 16, "float8")
    grouped = call_work(signature("aten::_grouped_mm", [[100, 8], [4, 8, 16], [4]]))
    assert grouped is not None and grouped.flops == 2 * 100 * 8 * 16


def test_attention_of_vllm_needs_the_record_of_its_step() -> None:
    call = signature(
        "vllm::unified_attention_with_output", [[30, 8, 64], [30, 2, 64], [30, 2, 64], [30, 8, 64]]
    )
    assert call_work(call) is None
    work = call_work(call, pairs=1000)
    assert work is not None
    assert (work.flops, work.operand_bytes) == (4 * 1000 * 8 * 64, None)


@pytest.mark.parametrize(
    "call",
    [
        signature("aten::mm", [[4, 8], [9, 16]]),
        signature("aten::mm", [[4, 8]]),
        signature("aten::mm", []),
        signature("aten::mm", [[4, 8], [[8, 16]]]),
        signature("aten::mm", [[4, -8], [-8, 16]]),
        signature("aten::mm", [[4, 8], "8, 16"]),
        signature("aten::bmm", [[4, 8], [8, 16]]),
        signature("aten::convolution", [[1, 3, 8, 8], [4, 3, 3, 3]]),
        signature("aten::convolution", [[1, 3, 8, 8], [4, 3, 3, 3]], concrete=("", "", "", "[0, 0]", "[0]", "[1]", "False", "[0]", "1")),
        signature("aten::convolution", [[1, 3, 8, 8], [4, 3, 3, 3]], concrete=("", "", "", "[1]", "[x]", "[1]", "False", "[0]", "1")),
        signature("aten::scaled_dot_product_attention", [[1, 8, 4, 16], [1, 3, 4, 16], [1, 3, 4, 16]]),
        signature("aten::_flash_attention_forward", [[40, 8, 16], [40, 8, 16], [40, 8, 16], [5], [5]]),
        signature("aten::_flash_attention_forward", [[1, 4, 8, 16], [1, 4, 8, 16], [1, 4, 8, 16], [5], [5]]),
        signature("aten::relu", [[4, 8]]),
        signature("aten::mm", [[10**9, 10**9], [10**9, 10**9]]),
    ],
    ids=lambda call: f"{call.name} {call.dims}"[:50],
)  # fmt: skip
def test_inputs_that_do_not_fit_the_formula_are_not_counted(call: Signature) -> None:
    assert call_work(call) is None


def test_fused_experts_count_what_each_position_meets() -> None:
    dims = ([64, 2048], [128, 1536, 2048], [128, 2048, 768], [64, 8], [64, 8])
    types = ("c10::BFloat16",) * 3 + ("float", "int")
    found = call_work(Signature("sglang::inplace_fused_experts", dims, types, ()))
    assert found is not None and found.flops == 2 * 64 * 8 * 3 * 2048 * 768
    assert (found.dtype, found.operand_bytes) == ("bfloat16", None)
    packed = ([64, 2048], [128, 1536, 256], [128, 2048, 96], [64, 8], [64, 8])
    assert call_work(Signature("sglang::inplace_fused_experts", packed, types, ())) is None
    spread = call_work(Signature("vllm::inplace_fused_experts", (*dims, [256]), (*types, "int"), ()))
    assert spread is None
