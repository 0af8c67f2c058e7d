"""Dimensions that no model can have, found by name before anything is built: transformers takes them all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_POSITIVE = frozenset(
    {
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
        "image_size",
        "patch_size",
        "mlp_dim",
        "head_dim",
    }
)
_COUNTED = ("_size", "_dim", "_heads", "_layers", "_experts", "_per_tok", "_rank", "_channels")
"""Endings of further dimensions. Zero means "none of these" (``v_head_dim`` without latent attention)."""
_WINDOW = "window"
"""In the names of windows, below zero means "without end"."""


@dataclass(frozen=True, slots=True)
class WrongDimension:
    """One value that is no dimension."""

    key: str
    """Dotted, relative to what was looked at."""
    value: Any
    meaning: str
    """What it must be, in words."""


def wrong_dimensions(document: Mapping[str, Any], prefix: str = "") -> Iterator[WrongDimension]:
    """Yield what cannot be, at every level; ``None`` leaves a dimension to the model's own default."""
    for name, value in document.items():
        key = f"{prefix}{name}"
        sizes = value if isinstance(value, list) else [value]
        if isinstance(value, Mapping):
            yield from wrong_dimensions(value, f"{key}.")
        elif value is None:
            continue
        elif name in _POSITIVE and not all(_is_positive(size) for size in sizes):
            yield WrongDimension(key, value, "a positive whole number")
        elif _is_counted(str(name)) and any(_is_negative(size) for size in sizes):
            yield WrongDimension(key, value, "at least 0")


def _is_counted(name: str) -> bool:
    return name.endswith(_COUNTED) and _WINDOW not in name


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_negative(value: object) -> bool:
    return isinstance(value, int | float) and value < 0
