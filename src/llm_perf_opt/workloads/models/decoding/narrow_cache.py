"""Keys and values kept in fewer bits than the model computes in.

Every layer of a cache, growing, preallocated or static, narrows what it is given and widens what it returns: attention sees
the data type it knows. Less memory is read for old positions, at the cost of one conversion of all of them in each step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer, StaticLayer

from llm_perf_opt.config.schema import CacheDtype

_TYPES = {
    CacheDtype.bfloat16: torch.bfloat16,
    CacheDtype.float16: torch.float16,
    CacheDtype.float8: torch.float8_e4m3fn,
}
_Update = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def keep_in(cache: Any, kind: CacheDtype) -> Any:
    """Make every layer of keys and values keep them in ``kind``; recurrent states stay as they are."""
    for layer in cache.layers:
        if isinstance(layer, DynamicLayer | StaticLayer):
            layer.update = _narrowed(layer.update, _TYPES[kind])
    return cache


def _narrowed(update: _Update, kept: torch.dtype) -> _Update:
    @functools.wraps(update)
    def narrowed(
        keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        all_keys, all_values = update(_narrow(keys, kept), _narrow(values, kept), *args, **kwargs)
        return _widen(all_keys, kept, keys.dtype), _widen(all_values, kept, values.dtype)

    return narrowed


def _narrow(states: torch.Tensor, kept: torch.dtype) -> torch.Tensor:
    if kept.itemsize > 1:
        return states.to(kept)
    # Beyond the largest value there is only "not a number". Joins and in-place writes exist for whole bytes everywhere.
    largest = torch.finfo(kept).max
    return states.clamp(-largest, largest).to(kept).view(torch.uint8)


def _widen(states: torch.Tensor, kept: torch.dtype, wanted: torch.dtype) -> torch.Tensor:
    return (states if kept.itemsize > 1 else states.view(kept)).to(wanted)
