"""Processed inputs as plain values and back: what a static count needs to know of a batch of images or sounds.

Pixels are described by their shape, small integers (grids, sizes) by their values, large masks by their shape. Images
that only fill up a batch are all zero, and vision towers look for that: how many are none is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_MOST_VALUES = 256
_AXES_OF_PADDED_IMAGES = 5
"""``[batch, images, channels, height, width]``: batches of this form are filled up with empty images."""


def describe_inputs(inputs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return a description that JSON can hold and :func:`described_inputs` understands."""
    return {name: _describe(value) for name, value in sorted(inputs.items())}


def _describe(value: torch.Tensor) -> dict[str, Any]:
    shape = list(value.shape)
    if not value.is_floating_point():
        if value.numel() <= _MOST_VALUES and not value.dtype.is_complex:
            return {"values": value.tolist()}
        return {"shape": shape, "whole": True}
    if len(shape) == _AXES_OF_PADDED_IMAGES:
        filled = (value != 0).flatten(2).any(-1).sum(-1).tolist()
        if any(count < shape[1] for count in filled):
            return {"shape": shape, "filled": filled}
    return {"shape": shape}


def described_inputs(description: Mapping[str, Any], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return CPU tensors of the described shapes and values; pixels are ones that take no memory."""
    import torch

    return {name: _tensor(torch, entry, dtype) for name, entry in description.items()}


def _tensor(torch: Any, entry: Mapping[str, Any], dtype: torch.dtype) -> torch.Tensor:
    if "values" in entry:
        values: torch.Tensor = torch.tensor(entry["values"])
        return values
    ones: torch.Tensor = torch.ones((), dtype=torch.long if entry.get("whole") else dtype)
    ones = ones.expand(entry["shape"])
    if "filled" in entry:
        counts = torch.tensor(entry["filled"])
        real = torch.arange(entry["shape"][1]) < counts[:, None]
        ones = ones * real[:, :, None, None, None].to(ones.dtype)
    return ones
