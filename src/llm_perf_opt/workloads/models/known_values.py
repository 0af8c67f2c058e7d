"""Run a model on the meta device with known input values: image sizes, positions of placeholders, masks.

Image towers read values while they run: how many patches an image has, which images are padding. A meta tensor has
none. Here integers and booleans stay real, on the CPU, and anything combined with a weight becomes a meta tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

_aten = torch.ops.aten
_INDEXING = frozenset({_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default})


class KnownValues(TorchDispatchMode):  # type: ignore[misc]  # torch has no types for it
    """Keeps integers on the CPU; operators with a meta input get meta tensors only."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
        if any(tensor.device.type == "meta" for tensor in tensors):
            if func is _aten._to_copy.default:
                kwargs["device"] = torch.device("meta")  # to the device of ids that kept their values
            if func in _INDEXING:
                args = (args[0], _places(args[1]), *args[2:])
            args, kwargs = tree_map_only(torch.Tensor, _hollow, (args, kwargs))
        elif _goes_to_meta(kwargs) and _is_whole(kwargs.get("dtype"), tensors):
            kwargs["device"] = torch.device("cpu")
        return func(*args, **kwargs)


def _hollow(tensor: torch.Tensor) -> torch.Tensor:
    """Return a meta tensor of the same shape; scalars are unchanged, as torch accepts them anywhere."""
    if tensor.device.type == "meta" or tensor.ndim == 0:
        return tensor
    return torch.empty_like(tensor, device="meta")


def _places(indices: Any) -> list[Any]:
    """Convert masks with known values to indices, whose number determines the result shape."""
    found: list[Any] = []
    for index in indices:
        known = isinstance(index, torch.Tensor) and index.dtype == torch.bool and index.device.type == "cpu"
        found.extend(index.nonzero(as_tuple=True) if known else [index])
    return found


def _goes_to_meta(kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == "meta"


def _is_whole(dtype: torch.dtype | None, tensors: list[torch.Tensor]) -> bool:
    """Whether an operator creates or copies integers or booleans."""
    if dtype is None:
        return bool(tensors) and not any(tensor.is_floating_point() for tensor in tensors)
    return not (dtype.is_floating_point or dtype.is_complex)
