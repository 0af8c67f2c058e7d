"""Mixtures of experts: whether a model is one, and how its experts run while it decodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


def has_routed_experts(config: Any) -> bool:
    """Whether a language model's transformers configuration has routed experts."""
    return any(
        getattr(config, name, None) for name in ("num_experts", "n_routed_experts", "num_local_experts")
    )


@contextlib.contextmanager
def batched_experts(model: Any) -> Iterator[None]:
    """Run every mixture of experts inside as batched products."""
    before = model.get_experts_implementation()
    model.set_experts_implementation(
        {part: "batched_mm" if chosen is not None else None for part, chosen in before.items()}
    )
    try:
        yield
    finally:
        model.set_experts_implementation(before)
