"""FLOPs and operand bytes of one operator call, from the shapes a trace recorded.

The counts are those of ``torch.utils.flop_counter`` at the same shapes: two per multiply-add, attention over the whole
rectangle of query × key positions, biases and elementwise work not counted. An operator that is listed here and whose
inputs do not fit its formula is not counted, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from llm_perf_opt.core.units import dtype_bytes

if TYPE_CHECKING:
    from llm_perf_opt.captures.kineto.calls import Signature

Shape = tuple[int, ...]
_MOST_OF_ONE_CALL = 10**21
"""FLOPs no single call has: larger sizes are damage."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one call computes and the operands it must touch."""

    flops: int
    dtype: str | None
    """Of the operands that are multiplied; ``None`` where they differ or are not known."""
    operand_bytes: float | None
    """Inputs and output, each once; ``None`` where a type or a size is not known."""


class _NotCounted(Exception):
    """The inputs do not fit the formula."""


_TYPES = {
    "double": "float64",
    "float": "float32",
    "c10::bfloat16": "bfloat16",
    "c10::half": "float16",
    "c10::float8_e4m3fn": "float8",
    "c10::float8_e4m3fnuz": "float8",
    "c10::float8_e5m2": "float8",
    "c10::float8_e5m2fnuz": "float8",
}


def operand_dtype(call: Signature, place: int) -> str | None:
    """Return the data type of an input; ``None`` if it is unknown."""
    return _TYPES.get(call.types[place].casefold()) if place < len(call.types) else None


def _shape(call: Signature, place: int, rank: int | None = None) -> Shape:
    """Return the shape of an input; raise if it is not a tensor or has another number of axes."""
    shape = call.dims[place] if place < len(call.dims) else ()
    whole = isinstance(shape, list) and bool(shape)
    if not whole or not all(
        isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in shape
    ):
        raise _NotCounted
    if rank is not None and len(shape) != rank:
        raise _NotCounted
    return tuple(shape)


def _require(holds: bool) -> None:
    if not holds:
        raise _NotCounted


def _given(call: Signature, place: int) -> bool:
    """Whether an optional tensor was passed."""
    return place < len(call.dims) and bool(call.dims[place])


def _work(
    call: Signature, flops: int, multiplied: Sequence[int], out: int, out_dtype: str | None = None
) -> Work:
    """Put a count together: inputs ``multiplied`` are read once, ``out`` elements written once."""
    dtypes = {operand_dtype(call, place) for place in multiplied}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    sizes = [dtype_bytes(found) if (found := operand_dtype(call, place)) else None for place in multiplied]
    # Products of eight-bit numbers are written with sixteen.
    written = dtype_bytes(out_dtype or ("bfloat16" if dtype == "float8" else dtype or ""))
    moved = None
    if written is not None and all(size is not None for size in sizes):
        elements = [prod(_shape(call, place)) for place in multiplied]
        moved = (
            sum(count * (size or 0.0) for count, size in zip(elements, sizes, strict=True)) + out * written
        )
    return Work(flops, dtype, moved)


# --- matrix products -------------------------------------------------------------------------------------


def _product(call: Signature, first: int) -> Work:
    (m, k), (k2, n) = _shape(call, first, 2), _shape(call, first + 1, 2)
    _require(k == k2)
    return _work(call, 2 * m * k * n, (first, first + 1), m * n)


def _batched(call: Signature, first: int) -> Work:
    (b, m, k), (b2, k2, n) = _shape(call, first, 3), _shape(call, first + 1, 3)
    _require(b == b2 and k == k2)
    return _work(call, 2 * b * m * k * n, (first, first + 1), b * m * n)


def _linear(call: Signature) -> Work:
    x, weight = _shape(call, 0), _shape(call, 1)
    _require(len(weight) in (1, 2) and x[-1] == weight[-1])
    rows, n = prod(x[:-1]), prod(weight[:-1])
    return _work(call, 2 * rows * x[-1] * n, (0, 1), rows * n)


def _grouped(call: Signature) -> Work:
    """Count a grouped product: rows of the first input are split among the matrices of the second."""
    a, b = _shape(call, 0), _shape(call, 1)
    _require(len(a) == 2 and len(b) == 3 and a[1] == b[1])
    return _work(call, 2 * a[0] * a[1] * b[2], (0, 1), a[0] * b[2])


def has_expert_map(call: Signature) -> bool:
    """Whether experts are distributed over ranks: the number of positions for the local experts is then unknown."""
    return any(
        isinstance(shape, list) and len(shape) == 1 and place < len(call.types) and "int" in call.types[place]
        for place, shape in enumerate(call.dims)
        if place > 4
    )


def _fused_experts(call: Signature) -> Work:
    """Count fused experts: gate and up, then down. The number of experts read cannot be derived from shapes."""
    _require(not has_expert_map(call))
    x, up, down, chosen = _shape(call, 0, 2), _shape(call, 1, 3), _shape(call, 2, 3), _shape(call, 4, 2)
    _require(up == (down[0], 2 * down[2], x[1]) and down[1] == x[1] and chosen[0] == x[0])
    dtype = operand_dtype(call, 1)
    return Work(
        2 * x[0] * chosen[1] * (prod(up[1:]) + prod(down[1:])),
        dtype if dtype == operand_dtype(call, 2) else None,
        None,
    )


# --- convolutions ----------------------------------------------------------------------------------------


def _integers(text: str) -> Shape:
    """``[14, 14]`` → (14, 14)."""
    parts = text.strip().strip("[]").split(",")
    try:
        return tuple(int(part) for part in parts)
    except ValueError as error:
        raise _NotCounted from error


def _flag(text: str) -> bool:
    _require(text in ("True", "False"))
    return text == "True"


def _text(call: Signature, place: int) -> str:
    _require(place < len(call.concrete) and bool(call.concrete[place]))
    return call.concrete[place]


def _spread(values: Shape, axes: int) -> Shape:
    """One value holds for every axis."""
    spread = values * axes if len(values) == 1 else values
    _require(len(spread) == axes)
    return spread


def _conv_flops(x: Shape, weight: Shape, out: Shape, *, transposed: bool) -> int:
    """Count a convolution as torch does: every point of the output (transposed: of the input) meets the filter."""
    points = prod((x if transposed else out)[2:])
    return 2 * x[0] * points * prod(weight)


def _convolution(call: Signature) -> Work:
    x, weight = _shape(call, 0), _shape(call, 1)
    axes = len(x) - 2
    _require(axes >= 1 and len(weight) == len(x))
    stride, padding, dilation = (_spread(_integers(_text(call, place)), axes) for place in (3, 4, 5))
    transposed, groups = _flag(_text(call, 6)), _integers(_text(call, 8))[0]
    _require(all(step > 0 for step in stride))
    if transposed:
        extra = _spread(_integers(_text(call, 7)), axes)
        sizes = tuple(
            (x[2 + i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (weight[2 + i] - 1) + extra[i] + 1
            for i in range(axes)
        )
        out = (x[0], weight[1] * groups, *sizes)
    else:
        sizes = tuple(
            (x[2 + i] + 2 * padding[i] - dilation[i] * (weight[2 + i] - 1) - 1) // stride[i] + 1
            for i in range(axes)
        )
        out = (x[0], weight[0], *sizes)
    _require(all(size >= 0 for size in out))
    return _work(call, _conv_flops(x, weight, out, transposed=transposed), (0, 1), prod(out))


def _swapped(shape: Shape) -> Shape:
    return (shape[1], shape[0], *shape[2:])


def _convolution_backward(call: Signature) -> Work:
    grad, x, weight = _shape(call, 0), _shape(call, 1), _shape(call, 2)
    _require(len(grad) == len(x) == len(weight) >= 3)
    transposed, mask = _flag(_text(call, 7)), _text(call, 10).strip("[]").replace(" ", "").split(",")
    _require(len(mask) == 3)
    flops = 0
    if _flag(mask[0]):
        flops += _conv_flops(grad, weight, x, transposed=not transposed)
    if _flag(mask[1]) and transposed:
        flops += _conv_flops(_swapped(grad), _swapped(x), _swapped(weight), transposed=False)
    elif _flag(mask[1]):
        flops += _conv_flops(_swapped(x), _swapped(grad), _swapped(weight), transposed=False)
    written = (prod(x) if _flag(mask[0]) else 0) + (prod(weight) if _flag(mask[1]) else 0)
    return _work(call, flops, (0, 1, 2), written)


# --- attention -------------------------------------------------------------------------------------------


def _attention_sizes(q: Shape, k: Shape, v: Shape, *, heads_axis: int) -> tuple[int, int, int, int, int, int]:
    """(batch, query heads, query positions, key positions, width of keys, width of values)."""
    positions = 3 - heads_axis
    _require(q[0] == k[0] == v[0] and k[heads_axis] == v[heads_axis] and q[3] == k[3])
    _require(k[positions] == v[positions])
    _require(k[heads_axis] > 0 and q[heads_axis] % k[heads_axis] == 0)
    return q[0], q[heads_axis], q[positions], k[positions], q[3], v[3]


def _attention(call: Signature, *, heads_axis: int = 1) -> Work:
    q, k, v = (_shape(call, place, 4) for place in range(3))
    b, h, s_q, s_k, width, value_width = _attention_sizes(q, k, v, heads_axis=heads_axis)
    flops = 2 * b * h * s_q * s_k * (width + value_width)
    return _work(call, flops, (0, 1, 2), b * h * s_q * value_width)


def _positions_first(call: Signature, lengths: int) -> Work:
    """Attention over (batch, positions, heads, width); not countable from shapes for packed sequences (``lengths``)."""
    _require(not _given(call, lengths))
    return _attention(call, heads_axis=2)


def _attention_backward(call: Signature) -> Work:
    q, k, v = (_shape(call, place, 4) for place in (1, 2, 3))
    b, h, s_q, s_k, width, value_width = _attention_sizes(q, k, v, heads_axis=1)
    # Scores again, their gradient, then those of value, query and key.
    flops = 2 * b * h * s_q * s_k * (3 * width + 2 * value_width)
    return _work(call, flops, (0, 1, 2, 3), prod(q) + prod(k) + prod(v))


_FORMULAS: dict[str, Callable[[Signature], Work]] = {
    "aten::mm": lambda call: _product(call, 0),
    "aten::addmm": lambda call: _product(call, 1),
    "aten::bmm": lambda call: _batched(call, 0),
    "aten::baddbmm": lambda call: _batched(call, 1),
    "aten::linear": _linear,
    "aten::_scaled_mm": lambda call: _product(call, 0),
    "aten::_grouped_mm": _grouped,
    "aten::_scaled_grouped_mm": _grouped,
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::scaled_dot_product_attention": _attention,
    "aten::_scaled_dot_product_flash_attention": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_efficient_attention": _attention,
    "aten::_scaled_dot_product_cudnn_attention": _attention,
    "aten::_scaled_dot_product_fused_attention_overrideable": _attention,
    "aten::_scaled_dot_product_flash_attention_backward": _attention_backward,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten::_scaled_dot_product_efficient_attention_backward": _attention_backward,
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention_backward,
    "aten::_flash_attention_forward": lambda call: _positions_first(call, 3),
    "aten::_efficient_attention_forward": lambda call: _positions_first(call, 4),
    "flash_attn::_flash_attn_forward": lambda call: _attention(call, heads_axis=2),
    # vLLM, csrc/torch_bindings.cpp: the output comes first. SGLang, sgl-kernel/csrc/common_extension.cc.
    "_C::cutlass_scaled_mm": lambda call: _product(call, 1),
    "sgl_kernel::fp8_scaled_mm": lambda call: _product(call, 0),
    # The same first five arguments in vLLM (fused_moe.py) and SGLang (fused_moe_triton).
    **{
        f"{engine}::{way}_fused_experts": _fused_experts
        for engine in ("vllm", "sglang")
        for way in ("inplace", "outplace")
    },
}
# vLLM, vllm/model_executor/layers/attention: positions of all requests one behind the other.
_ENGINE_ATTENTION = {"vllm::unified_attention": None, "vllm::unified_attention_with_output": 3}
"""Operator → place of its output, whose width is that of all heads' values."""
COUNTED_OPERATORS = frozenset((*_FORMULAS, *_ENGINE_ATTENTION))
"""Operators that have a formula; the outermost of them counts, what it calls is inside its count."""


def call_work(call: Signature, pairs: int | None = None) -> Work | None:
    """Return the work of a call; ``None`` where shapes are not sufficient.

    ``pairs``: query × cached positions of the engine's step around the call, which the shapes of its attention lack.
    """
    try:
        if call.name in _ENGINE_ATTENTION:
            work = _engine_attention(call, _ENGINE_ATTENTION[call.name], pairs)
        elif (formula := _FORMULAS.get(call.name)) is not None:
            work = formula(call)
        else:
            return None
    except _NotCounted:
        return None
    return work if work.flops <= _MOST_OF_ONE_CALL else None


def _engine_attention(call: Signature, out: int | None, pairs: int | None) -> Work:
    if pairs is None:
        raise _NotCounted
    q, v = _shape(call, 0), _shape(call, 2)
    width = prod(q[1:])
    if out is not None:
        value_width = prod(_shape(call, out)[1:])
    else:
        _require(len(q) == len(v) == 3)
        value_width = q[1] * v[2]
    # The cache that is read is not among the operands: their bytes are not known.
    return Work(2 * pairs * (width + value_width), operand_dtype(call, 0), None)


def needs_pairs(name: str) -> bool:
    """Whether an operator's work depends on the step of the engine around it."""
    return name in _ENGINE_ATTENTION
