"""How far answers may lie from the truth: measured on the tables themselves, kept as data (``errors.yaml``).

Interpolation: a measured value was left out and asked for. Extrapolation: the outermost was. Roofline: every measured shape
against its roofline. ``python -m benchmarks.silicon_error --write`` makes the file again.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

from llm_perf_opt.core.packaged import packaged_yaml
from llm_perf_opt.hardware.silicon.dtypes import element_bytes
from llm_perf_opt.hardware.silicon.operators import (
    AllReduce,
    Attention,
    Gemm,
    LatentBlock,
    MoeLayer,
    Operator,
)
from llm_perf_opt.hardware.silicon.timing import How

FILE = "errors.yaml"
EVERY_SYSTEM = "all"


@dataclass(frozen=True, slots=True)
class Spread:
    """Measured ÷ answered, of nine in ten shapes that were asked for."""

    low_ratio: float
    """5th percentile."""
    high_ratio: float
    """95th percentile."""


EXACT = Spread(1.0, 1.0)
"""Of a shape that was measured itself; how well a measurement repeats is not in the tables."""


def kind_of(operator: Operator) -> tuple[str, int]:
    """Return the kind that errors are kept by, and the size that says how far along its table an operator lies."""
    match operator:
        case Gemm():
            return f"gemm {_width(operator.dtype)}", operator.m
        case Attention():
            return f"{operator.phase} attention", operator.tokens
        case LatentBlock():
            return f"{operator.phase} latent attention", operator.tokens
        case MoeLayer():
            return "experts", operator.tokens
        case AllReduce():
            return "all-reduce", operator.elements


def _width(dtype: str) -> str:
    size = element_bytes(dtype)
    return "bfloat16" if size >= 2 else "float8" if size >= 1 else "float4"


def spread_of(operator: Operator, how: How, system: str = EVERY_SYSTEM) -> Spread | None:
    """Return how far an answer may be off; ``None``: nobody measured that."""
    if how == "measured":
        return EXACT
    kind, size = kind_of(operator)
    return find_spread(kind, size, how, system)


def find_spread(kind: str, size: int, how: How, system: str = EVERY_SYSTEM) -> Spread | None:
    """Return the spread of a region; of a system that has none that of all together."""
    rows = _rows()
    for name in dict.fromkeys((system, EVERY_SYSTEM)):
        for up_to, spread in rows.get((how, kind, name), ()):
            if size <= up_to:
                return spread
    return None


@functools.cache
def _rows() -> dict[tuple[str, str, str], list[tuple[float, Spread]]]:
    return {
        (how, kind, system): [
            (math.inf if up_to is None else float(up_to), Spread(low, high))
            for up_to, low, high, _ in regions
        ]
        for how, kinds in content()["errors"].items()
        for kind, systems in kinds.items()
        for system, regions in systems.items()
    }


@functools.cache
def content() -> dict[str, Any]:
    """Return the file: of which package, when and how it was made, and how → operator → system → regions."""
    loaded: dict[str, Any] = packaged_yaml("llm_perf_opt.hardware.silicon", FILE)
    return loaded
