"""Which parameters a rule of a quantised checkpoint takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llm_perf_opt.analysis.static.quantised.formats import WeightFormat

_EXPERT_PARTS = {
    "gate_up_proj": ("gate_proj", "up_proj", "w1", "w3"),
    "down_proj": ("down_proj", "w2"),
    "up_proj": ("up_proj", "w1"),
}
"""Stacked parameter → what checkpoints call the single experts' matrices."""


class NotKnown(Exception):
    """A variant of a method whose sizes are not known here."""


@dataclass(frozen=True, slots=True)
class Target:
    """One weight matrix (or stack of experts) as rules see it."""

    path: str
    """Module that owns it."""
    parameter: str
    """Its name in the module."""
    type: str
    """Class of the module."""
    is_experts: bool

    @property
    def is_linear(self) -> bool:
        """Whether it is the weight of a plain linear layer."""
        return self.type == "Linear" and self.parameter == "weight"

    @property
    def names(self) -> tuple[str, ...]:
        """Module names a list may call it by: stacked experts also by those of their single layers."""
        if not self.is_experts:
            return (self.path,)
        parts = _EXPERT_PARTS.get(self.parameter, (self.parameter,))
        return (self.path, *(f"{self.path}.0.{part}" for part in parts))


@dataclass(frozen=True, slots=True)
class Rule:
    """Parameters that are stored alike; without a format they stay as they are."""

    covers: Callable[[Target], bool]
    format: WeightFormat | None


def is_left_out(target: Target, patterns: Sequence[str]) -> bool:
    """Whether a list of modules not to convert names this one, by transformers' rule.

    A pattern holds from the start of a name up to a module's end, as a regular expression, or as the end of the name.
    """
    return any(_named(name, pattern) for name in target.names for pattern in patterns)


def _named(name: str, pattern: str) -> bool:
    if name.endswith(pattern):
        return True
    try:
        return re.match(rf"(?:{pattern})(?:(?<=\.)|(?=\.|$))", name) is not None
    except re.error:
        return False


def number(value: Any) -> int | None:
    """Return a positive whole number; ``None`` for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
