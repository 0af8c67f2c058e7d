"""Rooflines as measurements usually lie to them: at their limits alone almost every answer would be too short."""

from __future__ import annotations

from dataclasses import dataclass

from llm_perf_opt.hardware.silicon import Operator
from llm_perf_opt.hardware.silicon.errors import kind_of, roofline_factor, roofline_spread


@dataclass(frozen=True, slots=True)
class Usual:
    """The time of an operator that no table reaches."""

    seconds: float
    factor: float
    """Of it to its roofline."""
    low_s: float | None = None
    """Nine in ten measured operators of this kind and roofline lay between the ends; ``None``: none were measured."""
    high_s: float | None = None


def usual_time(operator: Operator, roofline_s: float) -> Usual:
    """Return the roofline × the median of measured ÷ roofline, for this kind and length of a roofline.

    Short kernels lie farther above theirs (fixed costs, tiles half empty), so that the length tells more than any one size does.
    """
    kind, _ = kind_of(operator)
    factor, spread = roofline_factor(kind, roofline_s), roofline_spread(kind, roofline_s)
    seconds = roofline_s * factor
    if spread is None:
        return Usual(seconds, factor)
    return Usual(seconds, factor, roofline_s * spread.low_ratio, roofline_s * spread.high_ratio)
