"""State of transformers models: which argument carries it, what creates it, how large it is.

Most decoders take a ``Cache`` that the caller makes. State-space models take it under another name, and some make a
state of their own in the prefill and hand it back. A model that gets its cache under the wrong name silently
decodes without its past, so a class that fits none of these is rejected.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.errors import ConfigError

if TYPE_CHECKING:
    import torch

_ARGUMENTS = ("past_key_values", "cache_params", "state")
"""Names under which ``forward`` takes the state and its output returns it, in the order they are looked for."""
_KEYS_AND_VALUES = ("keys", "values")
_CROSS_ATTENTION = "cross_attention_cache"
"""Attribute of an encoder-decoder's cache: keys and values of what the encoder read. They are filled once by the prefill
and never grow, so they are counted as a state of fixed size that is only read."""
_ONE_SEQUENCE_ONLY = {"rwkv": "transformers' decode step mixes the sequences of a batch"}
"""Model type → why a batch of it gives wrong tokens, in ``generate()`` as well."""
_READS_ALL_AGAIN = {"cpmant": "its forward wants all tokens so far at every step, not the last one"}
"""Model type → why it cannot be fed one token at a time."""

_NO_STATIC_CACHE = {
    "bloom": "its position bias covers the tokens read so far, not the whole room of the cache",
    "deepseek_v4": "transformers has no static cache for its compressed attention",
    **dict.fromkeys(
        ("deepseek_v32", "glm_moe_dsa", "hy_v4"),
        "its indexer also selects positions that are not written yet, which changes the tokens",
    ),
    "gpt_neo": "its local attention takes the room of the cache for its length, which changes the tokens",
}
"""Model type → why ``model.cache=static`` fails or gives other tokens than a growing cache."""


@dataclass(slots=True)
class OwnState:
    """State the model makes itself: empty before the prefill, replaced by the result of each call."""

    value: Any = None


@dataclass(frozen=True, slots=True)
class StateProtocol:
    """How state is passed to a model class."""

    argument: str
    """Keyword of ``forward``, and attribute of its output."""
    made_by_model: bool
    accepts: frozenset[str]
    """Keywords ``forward`` names."""

    def inputs(self, state: Any) -> dict[str, Any]:
        """Return the keywords that pass the state."""
        return {self.argument: state.value if isinstance(state, OwnState) else state}

    def keep(self, state: Any, output: Any) -> None:
        """Store the state from an output, if the model creates it."""
        if isinstance(state, OwnState):
            state.value = getattr(output, self.argument)

    def named(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Drop arguments that a state-space model does not take (positions); others take all."""
        if self.argument == "past_key_values":
            return dict(inputs)
        return {name: value for name, value in inputs.items() if name in self.accepts}

    @property
    def masks_decode(self) -> bool:
        """Whether a decode step needs the mask: a recurrent state has already left the padding out."""
        return self.argument == "past_key_values"


def state_protocol(kind: Any, model_type: str) -> StateProtocol:
    """Determine from a model class how state is passed; reject a class that cannot continue from a state."""
    names = frozenset(inspect.signature(kind.forward).parameters)
    argument = next((name for name in _ARGUMENTS if name in names), None)
    reason = _READS_ALL_AGAIN.get(model_type) or ("its forward takes no cache" if argument is None else None)
    if argument is None or reason is not None:
        raise ConfigError(
            f"a '{model_type}' model cannot be decoded token by token: {reason}",
            hint="choose a decoder with a key-value cache or a recurrent state",
            key="model.arch.model_type",
        )
    # transformers has no public name for the check of its generate().
    takes_cache = getattr(kind, "_supports_default_dynamic_cache", lambda: True)()
    return StateProtocol(argument, not takes_cache, names)


def refuse_static_cache(model_type: str) -> None:
    """Reject ``model.cache=static`` for models that are incorrect with it in transformers."""
    reason = _NO_STATIC_CACHE.get(model_type)
    if reason is not None:
        raise ConfigError(
            f"model.cache=static: not for a '{model_type}' model: {reason}",
            hint="use model.cache=dynamic or model.cache=preallocated (and neither model.compile nor model.cuda_graphs)",
            key="model.cache",
        )


def refuse_batches(model_type: str, batch_size: int) -> None:
    """Reject batches if the model's own code is correct for one sequence only."""
    reason = _ONE_SEQUENCE_ONLY.get(model_type)
    if reason is not None and batch_size > 1:
        raise ConfigError(
            f"infer.batch_size={batch_size}: a '{model_type}' model is right for one sequence only: {reason}",
            hint="use infer.batch_size=1",
            key="infer.batch_size",
        )


def state_bytes(model: torch.nn.Module, state: Any) -> dict[str, float]:
    """Return the bytes of all state besides cached keys and values, by where it is kept.

    Found by walking the objects, so that unknown kinds of state are included: recurrent and convolution states,
    keys of an indexer, compressed entries.
    """
    found = dict(_tensors(state.value if isinstance(state, OwnState) else state, ""))
    if getattr(model, "_is_stateful", False):
        found.update(_module_states(model))
    return {
        path: tensor.numel() * tensor.element_size()
        for path, tensor in found.items()
        if path.rpartition(".")[2] not in _KEYS_AND_VALUES or _CROSS_ATTENTION in path
    }


def only_read(places: Iterable[str]) -> frozenset[str]:
    """Return the places whose state no step writes again once it is there."""
    return frozenset(place for place in places if _CROSS_ATTENTION in place)


def _module_states(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield states that modules keep as plain attributes, neither parameters nor buffers."""
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if "state" in attribute and not attribute.startswith("_"):
                yield from _tensors(value, f"{name}.{attribute}")


def _tensors(node: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors of a cache, its layers, lists and mappings; counters (at most one axis) are excluded."""
    import torch

    if isinstance(node, torch.Tensor):
        if node.ndim > 1:
            yield path, node
    elif isinstance(node, Mapping):
        for key, value in node.items():
            yield from _tensors(value, f"{path}.{key}")
    elif isinstance(node, list | tuple):
        for place, value in enumerate(node):
            yield from _tensors(value, f"{path}.{place}")
    elif _is_cache(node):
        yield from _tensors(vars(node), path)


def _is_cache(value: Any) -> bool:
    from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionCacheLayerMixin

    known = isinstance(value, Cache | CacheLayerMixin | LinearAttentionCacheLayerMixin)
    return known or "cache" in type(value).__name__.lower()
