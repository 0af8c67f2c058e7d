"""Inputs, masks and routing on the meta device, for counting a model without its weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Processed inputs as plain values and back: the description of a batch of images or audio for a static count.
#
# Pixels are described by their shape, small integers (grids, sizes) by their values, large masks by their shape. Images
# that only pad a batch are all zero, and vision towers check for that: their number is kept.


_MOST_VALUES = 256
_AXES_OF_PADDED_IMAGES = 5
"""``[batch, images, channels, height, width]``: batches of this form are filled up with empty images."""


def describe_inputs(inputs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return a description that is valid JSON and can be read by :func:`described_inputs`."""
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


# Masks on the meta device: transformers checks whether a mask has padding, but there are no values.


@contextlib.contextmanager
def nothing_is_padded(model: Any) -> Iterator[None]:
    """Answer "no padding" wherever transformers checks for it; static counts never pad.

    Some models make a mask of ones themselves when none is given, others look for the padding token in the ids.
    """
    from transformers import masking_utils

    original = getattr(masking_utils, "fast_all", None)

    def all_true(mask: Any) -> Any:
        return True if mask.device.type == "meta" or original is None else original(mask)

    quiet = "warn_if_padding_and_no_attention_mask"
    if original is not None:
        masking_utils.fast_all = all_true
    asking = [module for module in model.modules() if hasattr(type(module), quiet)]
    for module in asking:
        setattr(module, quiet, lambda *_args, **_kwargs: None)
    try:
        yield
    finally:
        if original is not None:
            masking_utils.fast_all = original
        for module in asking:
            vars(module).pop(quiet, None)


# Routing on the meta device: some mixtures of experts read the number of positions per expert, but there are no values.


_ASKING = "JetMoeTopKGating"


@contextlib.contextmanager
def spread_evenly(model: Any) -> Iterator[None]:
    """Give every expert the same share of positions; the distribution does not change the total work."""
    routers = [module for module in model.modules() if type(module).__name__ == _ASKING]
    for router in routers:
        router.forward = _even_forward(router)
    try:
        yield
    finally:
        for router in routers:
            vars(router).pop("forward", None)


def _even_forward(router: Any) -> Any:
    import torch

    def forward(hidden_states: torch.Tensor) -> tuple[Any, ...]:
        logits = router.layer(hidden_states).float()
        chosen, indices = logits.topk(router.top_k, dim=1)
        gates = torch.softmax(chosen, dim=1).type_as(hidden_states).flatten()
        _, order = indices.flatten().sort(0)
        rows, experts = order.numel(), router.num_experts
        sizes = [rows // experts + (expert < rows % experts) for expert in range(experts)]
        return order, order.div(router.top_k, rounding_mode="trunc"), gates[order], sizes, logits

    return forward
