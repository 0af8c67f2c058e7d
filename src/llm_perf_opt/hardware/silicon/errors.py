"""How far answers may lie from the truth: measured on the tables themselves, kept as data (``errors.yaml``).

Interpolation: a measured value was left out and asked for. Extrapolation: the outermost was. Roofline: every measured shape
against its roofline. ``python -m benchmarks.silicon_error --write`` makes the file again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    """Measured ÷ answered, of shapes that were asked for; nine in ten lie between the ends."""

    low_ratio: float
    """5th percentile."""
    high_ratio: float
    """95th percentile."""
    middle_ratio: float = 1.0
    """Median: what a roofline is multiplied by, so that as many lie below it as above."""


@dataclass(frozen=True, slots=True)
class Region:
    """Sizes up to an end."""

    up_to: float
    spread: Spread | None
    """``None``: too few shapes were asked for, or answers are far off to one side."""
    typical_size: float | None = None
    """Geometric mean of the sizes asked for; of rooflines."""


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


def of_size(operator: Operator, size: int) -> Operator:
    """Return the operator with another size along its table."""
    match operator:
        case Gemm():
            return replace(operator, m=size)
        case AllReduce():
            return replace(operator, elements=size)
        case _:
            return replace(operator, tokens=size)


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
    """Return the spread of the region a size lies in; where a system has none there, that of all systems there.

    Another region's is never taken. Rooflines have theirs at the regions' typical sizes; in between it changes evenly.
    """
    rows = _rows()
    for name in dict.fromkeys((system, EVERY_SYSTEM)):
        regions = rows.get((how, kind, name), ())
        own = next((region for region in regions if size <= region.up_to), None)
        if own is not None and own.spread is not None:
            return own.spread if own.typical_size is None else _between(regions, size)
    return None


def typical_sizes(kind: str) -> list[float]:
    """Return the sizes at which the spread of a kind's rooflines is known, ascending."""
    regions = _rows().get(("roofline", kind, EVERY_SYSTEM), ())
    return [one.typical_size for one in regions if one.spread is not None and one.typical_size is not None]


def _between(regions: Sequence[Region], size: int) -> Spread:
    """Return ratios that change with the logarithm of the size: a step would make a larger shape faster."""
    known = [(one.typical_size, one.spread) for one in regions if one.spread is not None and one.typical_size]
    below = [one for one in known if one[0] <= size] or known[:1]
    above = [one for one in known if one[0] > size] or known[-1:]
    (small, first), (large, second) = below[-1], above[0]
    share = math.log(size / small) / math.log(large / small) if small < size < large else 0.0

    def ratio(one: float, other: float) -> float:
        return math.exp((1 - share) * math.log(one) + share * math.log(other))

    return Spread(
        ratio(first.low_ratio, second.low_ratio),
        ratio(first.high_ratio, second.high_ratio),
        ratio(first.middle_ratio, second.middle_ratio),
    )


@functools.cache
def _rows() -> dict[tuple[str, str, str], list[Region]]:
    return {
        (how, kind, system): [_region(*written) for written in regions]
        for how, kinds in content()["errors"].items()
        for kind, systems in kinds.items()
        for system, regions in systems.items()
    }


def _region(
    up_to: float | None,
    low: float | None,
    middle: float | None,
    high: float | None,
    _shapes: int,
    typical_size: float | None = None,
) -> Region:
    end = math.inf if up_to is None else float(up_to)
    if low is None or middle is None or high is None:
        return Region(end, None)
    return Region(end, Spread(low, high, middle), typical_size)


@functools.cache
def content() -> dict[str, Any]:
    """Return the file: of which package, when and how it was made, and how → operator → system → regions."""
    loaded: dict[str, Any] = packaged_yaml("llm_perf_opt.hardware.silicon", FILE)
    return loaded
