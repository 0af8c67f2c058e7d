"""Rooflines as measurements usually lie to them: at their limits alone almost every answer would be too short."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llm_perf_opt.hardware.silicon import Operator
from llm_perf_opt.hardware.silicon.errors import find_spread, kind_of, of_size, typical_sizes


@dataclass(frozen=True, slots=True)
class Usual:
    """The time of an operator that no table reaches."""

    seconds: float
    factor: float
    """Of it to its roofline."""
    low_s: float | None = None
    """Nine in ten measured shapes of this kind and size lay between the ends; ``None``: none were measured."""
    high_s: float | None = None


def usual_time(operator: Operator, roofline_s: Callable[[Operator], float | None]) -> Usual | None:
    """Return the roofline × the median of measured ÷ roofline for this kind and size; ``None`` without limits.

    The median changes with the size, mostly falling (small kernels have fixed costs), but a larger operator never takes less time
    than a smaller one: a time lies between those at the sizes around it that the median is known at.
    """
    own_s = roofline_s(operator)
    if own_s is None:
        return None
    kind, size = kind_of(operator)
    spread = find_spread(kind, size, "roofline")
    if spread is None:
        return Usual(own_s, 1.0)
    seconds = _in_order(kind, size, own_s * spread.middle_ratio, lambda at: roofline_s(of_size(operator, at)))
    low_s, high_s = own_s * spread.low_ratio, own_s * spread.high_ratio
    return Usual(seconds, seconds / own_s, min(seconds, low_s), max(seconds, high_s))


def _in_order(kind: str, size: int, seconds: float, roofline_s: Callable[[int], float | None]) -> float:
    """Return the time held between those at the nearest typical sizes, which themselves never fall."""
    longest_s = 0.0
    for at in (max(1, round(one)) for one in typical_sizes(kind)):
        there_s, ratios = roofline_s(at), find_spread(kind, at, "roofline")
        if there_s is None or ratios is None:
            continue
        if at > size:
            return max(longest_s, min(seconds, there_s * ratios.middle_ratio))
        longest_s = max(longest_s, there_s * ratios.middle_ratio)
    return max(longest_s, seconds)
