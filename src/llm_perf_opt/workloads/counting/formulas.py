"""FLOPs of single operators: torch's own registry, and operators missing in it.

torch counts nothing for grouped expert products, for attention on CPU, for packed low-precision products and
for operators that libraries register; without them a mixture-of-experts model loses half of its arithmetic
in silence. Formulas are found by qualified name, so those libraries need not be installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch.utils.flop_counter import flop_registry

Formula = Callable[[Sequence[Any], Any], int]
"""Positional arguments and the result of an operator → FLOPs, a multiply-add counted as two."""
Cost = Literal["formula", "small", "free", "unknown"]


def attention_flops(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> int:
    """Both products of attention over the full rectangle; layout ``[..., heads, positions, size]``."""
    *batch, queries, size = query
    return int(2 * math.prod(batch) * queries * key[-2] * (size + value[-1]))


def _attention_heads_first(args: Sequence[Any], _out: Any) -> int:
    return attention_flops(args[0].shape, args[1].shape, args[2].shape)


def _attention_positions_first(args: Sequence[Any], _out: Any) -> int:
    """Attention in the layout ``[batch, positions, heads, size]`` of the flash-attn package."""
    batch, queries, heads, size = args[0].shape
    return int(2 * batch * heads * queries * args[1].shape[1] * (size + args[2].shape[-1]))


def _grouped_mm(args: Sequence[Any], _out: Any) -> int:
    """Grouped product: every row is multiplied by one of the stacked matrices, whichever way rows are grouped."""
    left, right = args[0].shape, args[1].shape
    groups = left[0] if len(left) == 3 and len(right) == 3 else 1
    return int(2 * groups * left[-2] * left[-1] * right[-1])


def _packed_mm(args: Sequence[Any], out: Any) -> int:
    """Product with a packed weight: the inner size is the last axis of the left operand."""
    return int(2 * out.numel() * args[0].shape[-1])


def _mv(args: Sequence[Any], _out: Any) -> int:
    return int(2 * args[0].numel())


def _addmv(args: Sequence[Any], _out: Any) -> int:
    return int(2 * args[1].numel())


def _addmm(args: Sequence[Any], out: Any) -> int:
    """``bias + left @ right`` with the bias first."""
    return int(2 * out.numel() * args[1].shape[-1])


def _addbmm(args: Sequence[Any], _out: Any) -> int:
    batch, rows, inner = args[1].shape
    return int(2 * batch * rows * inner * args[2].shape[-1])


EXTRA_FORMULAS: dict[str, Formula] = {
    "aten::_grouped_mm": _grouped_mm,
    "aten::_scaled_grouped_mm": _grouped_mm,
    "transformers::grouped_mm_fallback": _grouped_mm,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention_heads_first,
    "aten::_scaled_dot_product_fused_attention_overrideable": _attention_heads_first,
    "aten::_scaled_dot_product_attention_math_for_mps": _attention_heads_first,
    "flash_attn::_flash_attn_forward": _attention_positions_first,
    "flash_attn_3::fwd": _attention_positions_first,
    "flash_attn_3::_flash_attn_forward": _attention_positions_first,
    "aten::_int_mm": _packed_mm,
    "aten::_weight_int8pack_mm": _packed_mm,
    "aten::_weight_int4pack_mm": _packed_mm,
    "aten::_weight_int4pack_mm_for_cpu": _packed_mm,
    "mkldnn::_linear_pointwise": _packed_mm,
    "aten::linear": _packed_mm,
    "aten::mkldnn_linear": _packed_mm,
    "aten::mv": _mv,
    "aten::dot": _mv,
    "aten::vdot": _mv,
    "aten::addmv": _addmv,
    "aten::_addmm_activation": _addmm,
    "aten::addbmm": _addbmm,
}
ATTENTION_OPERATORS = frozenset(
    {
        name
        for name, formula in EXTRA_FORMULAS.items()
        if formula in (_attention_heads_first, _attention_positions_first)
    }
    | {
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::_flash_attention_forward",
        "aten::_efficient_attention_forward",
    }
)
# Operators with about one FLOP per element that have neither of torch's two tags.
_SMALL_NAMES = """
_softmax _safe_softmax _log_softmax native_layer_norm native_group_norm native_batch_norm _fused_rms_norm
_native_batch_norm_legit_no_training cudnn_batch_norm batch_norm rms_norm cumsum cumprod logcumsumexp topk
sort argsort kthvalue histc bincount one_hot avg_pool2d avg_pool1d avg_pool3d _adaptive_avg_pool2d
_adaptive_avg_pool3d max_pool2d_with_indices upsample_bicubic2d _upsample_bicubic2d_aa upsample_bilinear2d
_upsample_bilinear2d_aa upsample_linear1d upsample_nearest1d upsample_nearest2d grid_sampler_2d
linalg_vector_norm norm var_mean std_mean renorm index_add index_add_ scatter_add scatter_add_
index_reduce scatter_reduce segment_reduce native_dropout glu _fft_r2c _fft_c2r _fft_c2c cross
_cdist_forward multinomial polar softplus exponential_ floor_divide remainder searchsorted bucketize
_foreach_mul _foreach_add
"""
# Operators that only move, create or look up data.
_FREE_NAMES = """
_to_copy clone copy_ copy contiguous cat stack embedding index index_select gather index_put index_put_
_index_put_impl_ index_copy index_copy_ index_fill index_fill_ take take_along_dim select_scatter
slice_scatter scatter scatter_ masked_fill masked_fill_ masked_scatter masked_scatter_ masked_select where
nonzero nonzero_static repeat repeat_interleave roll flip rot90 constant_pad_nd reflection_pad1d
reflection_pad2d replication_pad2d tril triu tril_ triu_ tril_indices triu_indices empty empty_like
empty_strided new_empty new_empty_strided new_zeros new_ones new_full zeros zeros_like ones ones_like full
full_like arange linspace eye scalar_tensor fill fill_ zero_ zero rand rand_like randn randn_like randint
random_ uniform_ normal_ bernoulli bernoulli_ _local_scalar_dense item lift lift_fresh lift_fresh_copy
detach alias _unsafe_view unique_consecutive _unique2 resize_ set_ is_same_size equal im2col col2im
pixel_shuffle pixel_unshuffle channel_shuffle _pack_padded_sequence unfold_copy slice_copy expand_copy
_reshape_copy meshgrid argmax argmin device _assert_async _assert_tensor_metadata record_stream
split_with_sizes_copy
"""
# Those of them that need no work on the device.
_IDLE_NAMES = """
empty empty_like empty_strided new_empty new_empty_strided scalar_tensor _local_scalar_dense item lift lift_fresh detach alias
_unsafe_view resize_ set_ is_same_size device _assert_async _assert_tensor_metadata record_stream meshgrid
"""
_IDLE = frozenset(_IDLE_NAMES.split())
_SMALL = frozenset(_SMALL_NAMES.split())
_FREE = frozenset(_FREE_NAMES.split())


def qualified_name(operator: torch._ops.OpOverload) -> str:
    """``aten::mm`` of ``aten.mm.default``."""
    return str(operator._schema.name)


def formula_of(operator: torch._ops.OpOverload) -> Formula | None:
    """Return how to count an operator, or ``None`` if no formula is known."""
    extra = EXTRA_FORMULAS.get(qualified_name(operator))
    if extra is not None:
        return extra
    stock = flop_registry.get(operator._overloadpacket) or flop_registry.get(operator)
    if stock is None:
        return None
    return _stock_formula(stock)


def _stock_formula(stock: Callable[..., Any]) -> Formula:
    def count(args: Sequence[Any], out: Any) -> int:
        return int(stock(*args, out_val=out))

    return count


def cost_of(operator: torch._ops.OpOverload) -> Cost:
    """Classify an operator: counted by a formula, cheap arithmetic, no arithmetic at all, or not known."""
    if formula_of(operator) is not None:
        return "formula"
    namespace, _, name = qualified_name(operator).partition("::")
    if operator.is_view or namespace in ("prim", "profiler") or (namespace == "aten" and name in _FREE):
        return "free"
    if namespace == "aten" and name in _SMALL:
        return "small"
    if {torch.Tag.pointwise, torch.Tag.reduction} & set(operator.tags):
        return "small"
    return "unknown"


def starts_work(operator: torch._ops.OpOverload, cost: Cost) -> bool:
    """Whether an operator causes work on the device: arithmetic or data movement."""
    if cost != "free":
        return True
    namespace, _, name = qualified_name(operator).partition("::")
    return namespace == "aten" and not operator.is_view and name not in _IDLE
