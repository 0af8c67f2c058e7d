"""Calls as operators of the tables: what is exactly one of them, and everything that is not."""

from __future__ import annotations

from typing import Any

import pytest

from llm_perf_opt.analysis.targets import measured_operator
from llm_perf_opt.captures.kineto.calls import Signature
from llm_perf_opt.hardware.silicon.operators import Attention, Gemm, MoeLayer, Operator

BF16, F32, F8 = "c10::BFloat16", "float", "c10::Float8_e4m3fn"


def call(name: str, *dims: Any, types: Any = BF16, concrete: dict[int, str] | None = None) -> Signature:
    kinds = (types,) * len(dims) if isinstance(types, str) else tuple(types)
    texts = [""] * max(16, len(dims))
    for place, text in (concrete or {}).items():
        texts[place] = text
    return Signature(name, tuple(dims), kinds, tuple(texts))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (call("aten::linear", [16, 559, 1024], [2816, 1024], []), Gemm(16 * 559, 2816, 1024)),
        (call("aten::mm", [4, 8], [8, 16]), Gemm(4, 16, 8)),
        (call("aten::addmm", [16], [4, 8], [8, 16]), Gemm(4, 16, 8)),
        (call("aten::bmm", [1, 4, 8], [1, 8, 16]), Gemm(4, 16, 8)),
        (call("aten::_scaled_mm", [4, 8], [8, 16], types=F8), Gemm(4, 16, 8, "float8")),
        (
            call("_C::cutlass_scaled_mm", [4, 16], [4, 8], [8, 16], types=(BF16, F8, F8)),
            Gemm(4, 16, 8, "float8"),
        ),
        (call("aten::mm", [4, 8], [8, 16], types=F32), Gemm(4, 16, 8, "float32")),
    ],
)
def test_products(given: Signature, expected: Operator) -> None:
    assert measured_operator(given) == expected


@pytest.mark.parametrize(
    "given",
    [
        call("aten::mm", [4, 8], [9, 16]),
        call("aten::mm", [0, 8], [8, 16]),
        call("aten::mm", [10**20, 8], [8, 16]),
        call("aten::mm", [4, 8], [8, 16], types=(BF16, F32)),
        call("aten::mm", [4, 8], [8, 16], types="long"),
        call("aten::bmm", [2, 4, 8], [2, 8, 16]),
        call("aten::linear", [4, 8], [8]),
        call("aten::mm", [[4], 8], [8, 16]),
        call("aten::convolution", [1, 3, 8, 8], [4, 3, 3, 3]),
        Signature("aten::mm", (), (), ()),
    ],
)
def test_what_is_no_product_of_the_tables_has_no_shape(given: Signature) -> None:
    assert measured_operator(given) is None


SDPA = "aten::scaled_dot_product_attention"
Q, KV = [2, 16, 559, 64], [2, 4, 559, 64]


def test_attention_is_distinguished_by_its_flag_and_its_lengths() -> None:
    causal = call(SDPA, Q, KV, KV, [], concrete={5: "True"})
    assert measured_operator(causal) == Attention("context", 2, 559, 16, 4, 64)
    whole = call(SDPA, Q, Q, Q, [], concrete={5: "False"})
    assert measured_operator(whole) == Attention("encoder", 2, 559, 16, 16, 64)
    step = call(SDPA, [2, 16, 1, 64], KV, KV, [2, 1, 1, 559], concrete={5: "False"})
    assert measured_operator(step) == Attention("generation", 2, 559, 16, 4, 64)
    other_axes = call(
        "flash_attn::_flash_attn_forward",
        [2, 559, 16, 64],
        [2, 559, 4, 64],
        [2, 559, 4, 64],
        concrete={5: "True"},
    )
    assert measured_operator(other_axes) == Attention("context", 2, 559, 16, 4, 64)


@pytest.mark.parametrize(
    "given",
    [
        call(SDPA, Q, KV, KV, [1, 1, 559, 559], concrete={5: "False"}),  # a mask may be causal or not
        call(SDPA, Q, KV, KV, []),  # the flag was not recorded
        call(SDPA, [2, 16, 100, 64], KV, KV, [], concrete={5: "True"}),  # a part of a prompt
        call(SDPA, Q, KV, KV, [], concrete={5: "False"}),  # no encoder has fewer heads of keys
        call(SDPA, Q, KV, [2, 4, 559, 32], [], concrete={5: "True"}),
        call(SDPA, [2, 15, 559, 64], KV, KV, [], concrete={5: "True"}),
        call("aten::_flash_attention_forward", Q, Q, Q, [3], concrete={8: "True"}),  # packed sequences
    ],
)
def test_attention_that_is_not_clearly_one_kind_has_no_shape(given: Signature) -> None:
    assert measured_operator(given) is None


def experts(up: list[int], down: list[int], types: Any = BF16, **more: Any) -> Signature:
    return call("vllm::outplace_fused_experts", [64, 2048], up, down, [64, 8], [64, 8], types=types, **more)


def test_experts_of_one_rank() -> None:
    found = measured_operator(experts([128, 1536, 2048], [128, 2048, 768]))
    assert found == MoeLayer(64, 2048, 768, 8, 128)
    eight = (BF16, F8, F8, F32, "int")
    plain = measured_operator(experts([128, 1536, 2048], [128, 2048, 768], types=eight))
    blocks = measured_operator(
        experts([128, 1536, 2048], [128, 2048, 768], types=eight, concrete={15: "[128, 128]"})
    )
    assert isinstance(plain, MoeLayer) and isinstance(blocks, MoeLayer)
    assert (plain.dtype, blocks.dtype) == ("float8", "fp8_block")
    # Weights of four bits are packed: their sizes are not those of the experts.
    assert measured_operator(experts([128, 1536, 1024], [128, 2048, 384])) is None
    # A list of the experts that are here: they are spread over ranks.
    spread = Signature(
        "vllm::outplace_fused_experts",
        ([64, 2048], [64, 1536, 2048], [64, 2048, 768], [64, 8], [64, 8], [], [128]),
        (BF16, BF16, BF16, F32, "int", "", "int"),
        ("",) * 7,
    )
    assert measured_operator(spread) is None
