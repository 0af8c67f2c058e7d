"""Key-value caches as transformers cache layers: preallocated, and in fewer bits. Imported where a model runs: needs torch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, StaticLayer

from llm_perf_opt.config.schema import CacheDtype

# A key-value cache with room for the whole answer: tokens are written in place, nothing is copied to make it grow.
#
# transformers' ``DynamicCache`` joins old and new keys in a new tensor for every token and layer, which on a CPU can cost
# more than the step's arithmetic. Its ``StaticCache`` exposes its full capacity to attention, which needs a mask and reads entries that are
# not filled yet. Here attention sees a view of what is filled: the same shapes as with ``DynamicCache``, so the same
# kernels and tokens.


class PreallocatedLayer(DynamicLayer):  # type: ignore[misc]  # transformers has no types
    """One layer's keys and values: views of buffers allocated at the first update."""

    def __init__(self, capacity_tokens: int) -> None:
        super().__init__()
        self._capacity_tokens = capacity_tokens
        self._key_room: torch.Tensor | None = None
        self._value_room: torch.Tensor | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate the buffers at the sizes of the first keys and values."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self._key_room, self._value_room = self._room(key_states), self._room(value_states)
        self.keys, self.values = self._key_room[..., :0, :], self._value_room[..., :0, :]
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new keys and values after the old ones; return views of all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys = _append(self._key_room, self.keys, key_states)
        self.values = _append(self._value_room, self.values, value_states)
        return self.keys, self.values

    def reset(self) -> None:
        """Reset; the next update allocates again."""
        super().reset()
        self._key_room = self._value_room = None

    def _room(self, states: torch.Tensor) -> torch.Tensor:
        return states.new_empty(*states.shape[:-2], self._capacity_tokens, states.shape[-1])


def preallocated_cache(config: Any, capacity_tokens: int) -> DynamicCache:
    """Return an empty cache; layers that keep a window or a state are those of transformers for ``config``."""
    cache = DynamicCache(config=config)
    cache.layers = [
        PreallocatedLayer(capacity_tokens) if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    return cache


def _append(room: torch.Tensor | None, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    begin, end = old.shape[-2], old.shape[-2] + new.shape[-2]
    # Data no longer at the start of the buffer (reordered, moved), or too large for it, grows without the buffer.
    # An empty view has no address.
    in_room = room is not None and (begin == 0 or old.data_ptr() == room.data_ptr())
    if room is None or not in_room or end > room.shape[-2]:
        return torch.cat([old, new], dim=-2)
    room[..., begin:end, :] = new
    return room[..., :end, :]


# Keys and values kept in fewer bits than the model computes in.
#
# Every layer of a cache, growing, preallocated or static, narrows its inputs and widens its outputs: attention uses
# its own data type. Less memory is read for old positions, at the cost of one conversion of all of them in each step.


_TYPES = {
    CacheDtype.bfloat16: torch.bfloat16,
    CacheDtype.float16: torch.float16,
    CacheDtype.float8: torch.float8_e4m3fn,
}
_Update = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def keep_in(cache: Any, kind: CacheDtype) -> Any:
    """Make every layer of keys and values keep them in ``kind``; recurrent states are unchanged."""
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
    # Beyond the largest value there is only NaN. Concatenation and in-place writes are supported for whole bytes everywhere.
    largest = torch.finfo(kept).max
    return states.clamp(-largest, largest).to(kept).view(torch.uint8)


def _widen(states: torch.Tensor, kept: torch.dtype, wanted: torch.dtype) -> torch.Tensor:
    return (states if kept.itemsize > 1 else states.view(kept)).to(wanted)
