"""Results of the commonest operators on the meta device, without torch's shape inference.

That inference is Python and takes most of the time of a count. The functions here handle the plain case (one
floating data type) and return ``None`` for everything else, which torch then does itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Result = Any
"""A tensor, a tuple of tensors, or ``None``."""
_aten = torch.ops.aten


def quick_result(operator: Any, args: tuple[Any, ...]) -> Result:
    """Return what ``operator`` gives for ``args`` (no keywords), or ``None`` to let torch work it out."""
    shape = _SHAPES.get(operator)
    return shape(args) if shape is not None else None


def _is_meta(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.device.type == "meta" and tensor.is_floating_point()


def _is_plain(tensor: Any) -> bool:
    """Pointwise results keep the order of strides, so only contiguous operands are simple."""
    return _is_meta(tensor) and tensor.is_contiguous()


def _pointwise(args: tuple[Any, ...]) -> Result:
    """The second operand is a number, or a tensor that spreads over the first."""
    first = args[0]
    if not _is_plain(first):
        return None
    for other in args[1:]:
        if isinstance(other, torch.Tensor):
            if (
                not _is_plain(other)
                or other.dtype != first.dtype
                or not _broadcasts_to(other.shape, first.shape)
            ):
                return None
        elif not isinstance(other, int | float):
            return None
    return torch.empty(first.shape, dtype=first.dtype, device="meta")


def _broadcasts_to(small: torch.Size, large: torch.Size) -> bool:
    """Whether broadcasting ``small`` against ``large`` gives ``large``."""
    offset = len(large) - len(small)
    return offset >= 0 and all(a in (1, b) for a, b in zip(small, large[offset:], strict=True))


def _matrix_product(left: Any, right: Any) -> Result:
    """A matrix product; the right side may be a transposed view."""
    if not _is_meta(left) or not _is_meta(right) or left.dtype != right.dtype:
        return None
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0]:
        return None
    return torch.empty((left.shape[0], right.shape[1]), dtype=left.dtype, device="meta")


def _layer_norm(args: tuple[Any, ...]) -> Result:
    values, sizes = args[0], args[1]
    if not _is_meta(values):
        return None
    outer = (*values.shape[: values.ndim - len(sizes)], *(1 for _ in sizes))
    statistic = torch.empty(outer, dtype=values.dtype, device="meta")
    return torch.empty(values.shape, dtype=values.dtype, device="meta"), statistic, statistic


def _linear_resize(args: tuple[Any, ...]) -> Result:
    values, size = args[0], args[1]
    if not _is_meta(values) or values.ndim != 3 or not size:
        return None
    return torch.empty((*values.shape[:2], int(size[0])), dtype=values.dtype, device="meta")


_POINTWISE = (
    _aten.add.Tensor,
    _aten.sub.Tensor,
    _aten.mul.Tensor,
    _aten.div.Tensor,
    _aten.silu.default,
    _aten.gelu.default,
    _aten.neg.default,
    _aten.sigmoid.default,
    _aten.pow.Tensor_Scalar,
    _aten.rsqrt.default,
    _aten.cos.default,
    _aten.sin.default,
    _aten.tanh.default,
)

_SHAPES: dict[Any, Callable[[tuple[Any, ...]], Result]] = {
    **dict.fromkeys(_POINTWISE, _pointwise),
    _aten.mm.default: lambda args: _matrix_product(args[0], args[1]),
    _aten.addmm.default: lambda args: _matrix_product(args[1], args[2]),
    _aten.native_layer_norm.default: _layer_norm,
    _aten.upsample_linear1d.default: _linear_resize,
}
