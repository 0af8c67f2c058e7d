"""Calls of a framework as operators of the measured tables; ``None`` wherever a call is not exactly one of them.

A wrong shape gives a wrong target, so nothing is guessed: a mask that is passed along may be causal or not, a batch of
matrix products is in no table, and the operands of packed sequences do not tell their lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from llm_perf_opt.analysis.operators.flops import has_expert_map, operand_dtype
from llm_perf_opt.hardware.silicon.operators import Attention, Gemm, MoeLayer, Operator
from llm_perf_opt.ingest.kineto.calls import Signature

Shape = tuple[int, ...]
_LARGEST = 10**9
"""No axis of a tensor is longer: larger sizes are damage."""
_BLOCK_SCALED = "[128, 128]"
"""Block of the scales of eight-bit experts, as a trace writes the argument."""


def measured_operator(call: Signature) -> Operator | None:
    """Return the operator of the tables that a call is."""
    reader = _READERS.get(call.name)
    return reader(call) if reader is not None else None


def _shape(call: Signature, place: int) -> Shape | None:
    """Return the shape of a tensor of at least one element; ``None`` for anything else."""
    shape = call.dims[place] if place < len(call.dims) else None
    if not isinstance(shape, list) or not shape:
        return None
    if not all(
        isinstance(size, int) and not isinstance(size, bool) and 0 < size <= _LARGEST for size in shape
    ):
        return None
    return tuple(shape)


def _product(call: Signature, first: int) -> Gemm | None:
    a, b = _shape(call, first), _shape(call, first + 1)
    if a is None or b is None or len(a) != 2 or len(b) != 2 or a[1] != b[0]:
        return None
    return _gemm(call, first, first + 1, a[0], b[1], a[1])


def _batched(call: Signature, first: int) -> Gemm | None:
    """A batch of one is a product; of others the tables know nothing."""
    a, b = _shape(call, first), _shape(call, first + 1)
    if a is None or b is None or len(a) != 3 or len(b) != 3 or a[0] != 1 or b[0] != 1 or a[2] != b[1]:
        return None
    return _gemm(call, first, first + 1, a[1], b[2], a[2])


def _linear(call: Signature) -> Gemm | None:
    x, weight = _shape(call, 0), _shape(call, 1)
    if x is None or weight is None or len(weight) != 2 or x[-1] != weight[1]:
        return None
    return _gemm(call, 0, 1, prod(x[:-1]), weight[0], weight[1])


def _gemm(call: Signature, first: int, second: int, m: int, n: int, k: int) -> Gemm | None:
    dtype = operand_dtype(call, first)
    if dtype is None or operand_dtype(call, second) != dtype:
        return None
    return Gemm(m, n, k, dtype)


def _attention(
    call: Signature, *, causal: int, mask: int | None = None, lengths: int | None = None, heads_axis: int = 1
) -> Attention | None:
    """``causal``, ``mask``, ``lengths``: places of these arguments."""
    q, k, v = (_shape(call, place) for place in range(3))
    if q is None or k is None or v is None or not len(q) == len(k) == len(v) == 4 or k != v:
        return None
    if lengths is not None and lengths < len(call.dims) and call.dims[lengths]:
        return None
    positions = 3 - heads_axis
    heads, kv_heads, new, seen = q[heads_axis], k[heads_axis], q[positions], k[positions]
    dtype = operand_dtype(call, 0)
    if dtype is None or q[0] != k[0] or q[3] != k[3] or heads % kv_heads:
        return None
    masked = mask is not None and mask < len(call.dims) and bool(call.dims[mask])
    if new == 1:
        return Attention("generation", q[0], seen, heads, kv_heads, q[3], dtype=dtype, cache_dtype=dtype)
    is_causal = call.concrete[causal] if causal < len(call.concrete) else ""
    if masked or new != seen or is_causal not in ("True", "False"):
        return None
    if is_causal == "True":
        return Attention("context", q[0], new, heads, kv_heads, q[3], dtype=dtype, cache_dtype=dtype)
    if heads != kv_heads:
        return None
    return Attention("encoder", q[0], new, heads, kv_heads, q[3], dtype=dtype, cache_dtype=dtype)


def _fused_experts(call: Signature) -> MoeLayer | None:
    """``fused_experts`` of vLLM and SGLang: positions, gate and up of all experts, down of all, weights, chosen experts."""
    x, up, down, chosen = (_shape(call, place) for place in (0, 1, 2, 4))
    if x is None or up is None or down is None or chosen is None or has_expert_map(call):
        return None
    if not (len(x) == len(chosen) == 2 and len(up) == len(down) == 3):
        return None
    hidden, inner = x[1], down[2]
    fits = up == (down[0], 2 * inner, hidden) and down[1] == hidden and chosen[0] == x[0]
    dtype = operand_dtype(call, 1)
    if not fits or dtype is None or operand_dtype(call, 2) != dtype:
        return None
    if dtype == "float8" and _BLOCK_SCALED in call.concrete:
        dtype = "fp8_block"
    return MoeLayer(x[0], hidden, inner, chosen[1], down[0], dtype=dtype)


_READERS: dict[str, Callable[[Signature], Operator | None]] = {
    "aten::mm": lambda call: _product(call, 0),
    "aten::addmm": lambda call: _product(call, 1),
    "aten::bmm": lambda call: _batched(call, 0),
    "aten::baddbmm": lambda call: _batched(call, 1),
    "aten::linear": _linear,
    "aten::_scaled_mm": lambda call: _product(call, 0),
    "_C::cutlass_scaled_mm": lambda call: _product(call, 1),
    "sgl_kernel::fp8_scaled_mm": lambda call: _product(call, 0),
    "aten::scaled_dot_product_attention": lambda call: _attention(call, mask=3, causal=5),
    "aten::_scaled_dot_product_flash_attention": lambda call: _attention(call, causal=4),
    "aten::_scaled_dot_product_efficient_attention": lambda call: _attention(call, mask=3, causal=6),
    "aten::_scaled_dot_product_cudnn_attention": lambda call: _attention(call, mask=3, causal=6),
    "aten::_flash_attention_forward": lambda call: _attention(call, lengths=3, causal=8, heads_axis=2),
    "flash_attn::_flash_attn_forward": lambda call: _attention(call, causal=5, heads_axis=2),
    **{
        f"{engine}::{way}_fused_experts": _fused_experts
        for engine in ("vllm", "sglang")
        for way in ("inplace", "outplace")
    },
}
