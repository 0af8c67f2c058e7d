"""The result of a look-up: a time, how it was obtained, and from which table."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llm_perf_opt.core.files import packaged_yaml
from llm_perf_opt.hardware.silicon.operators import (
    AllReduce,
    Attention,
    Gemm,
    LatentBlock,
    MoeLayer,
    Operator,
    element_bytes,
)

How = Literal["measured", "interpolated", "extrapolated", "roofline"]
"""``measured``: this very shape; ``interpolated``: between measured shapes; ``extrapolated``: beyond the outermost
measured shape by a stated factor at most, at its efficiency; ``roofline``: no table reaches it."""
RESTS_ON_TABLES: tuple[How, ...] = ("measured", "interpolated")


@dataclass(frozen=True, slots=True)
class Source:
    """The source table of a result."""

    framework: str
    """``vllm``, ``sglang``, ``trtllm``, ``nccl`` …: whose kernels were timed."""
    version: str
    table: str
    """Path below the data directory."""
    kernel: str = ""
    """The kernel as the table names it; of an interpolated time that of the nearest measured shape."""

    def describe(self) -> str:
        """Return ``vllm 0.24.0, torch.nn.functional.linear``."""
        name = f"{self.framework} {self.version}"
        return f"{name}, {self.kernel}" if self.kernel else name


@dataclass(frozen=True, slots=True)
class TableTime:
    """The result of one table."""

    seconds: float
    how: How
    source: Source
    distance_octaves: float = 0.0
    """To the nearest measured shape, in factors of two over all its sizes."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long an operator takes on a device."""

    seconds: float
    """The expected time: of the framework asked for, else the median of all."""
    how: How
    source: Source | None
    """``None``: a roofline."""
    tables: tuple[TableTime, ...] = ()
    """The answers the time was taken from."""
    low_s: float | None = None
    """Nine in ten shapes left out of the tables at this distance lay between these; ``None``: not measured."""
    high_s: float | None = None
    distance_octaves: float = 0.0
    """To the nearest measured shape."""

    @property
    def rests_on_tables(self) -> bool:
        """Whether the time is a measurement or lies between measurements."""
        return self.how in RESTS_ON_TABLES


# Errors of the estimates, measured on the tables themselves and stored as data (``errors.yaml``).
#
# Interpolation: a measured shape is estimated with it and its neighbours left out. Extrapolation: with the outer part of the
# table left out. Both by size and by distance to what is left. Roofline: measured shapes against its roofline.
# ``python -m benchmarks.silicon_error --write`` regenerates the file.


FILE = "errors.yaml"
EVERY_SYSTEM = "all"


@dataclass(frozen=True, slots=True)
class Spread:
    """Measured ÷ estimated; the ends enclose 90 % of the shapes."""

    low_ratio: float
    """5th percentile."""
    high_ratio: float
    """95th percentile."""
    middle_ratio: float = 1.0
    """Median: what a roofline is multiplied by, so that as many lie below it as above."""


@dataclass(frozen=True, slots=True)
class Region:
    """Sizes up to an end; of rooflines their own time in seconds."""

    up_to: float
    spread: Spread | None
    """``None``: too few shapes were asked for, or answers are far off to one side."""
    typical_s: float = 0.0
    """Of rooflines: geometric mean of those in the region."""
    up_to_octaves: float = math.inf
    """Of interpolation and extrapolation: the largest distance to a measured shape."""


_EXACT = Spread(1.0, 1.0)
"""Of a shape that was measured itself; how well a measurement repeats is not in the tables."""


def kind_of(operator: Operator) -> tuple[str, int]:
    """Return the kind for which errors are stored, and the size that locates an operator in its table.

    The size is what separates errors best: positions of a product, tokens of a prompt, keys of a cache that is read.
    """
    match operator:
        case Gemm():
            return f"gemm {_width(operator.dtype)}", operator.m
        case Attention(phase="generation"):
            return "generation attention", operator.batch * operator.tokens * operator.kv_heads
        case Attention():
            return f"{operator.phase} attention", operator.tokens
        case LatentBlock(phase="generation"):
            return "generation latent attention", operator.batch * operator.tokens
        case LatentBlock():
            return f"{operator.phase} latent attention", operator.tokens
        case MoeLayer():
            return "experts", operator.tokens
        case AllReduce():
            return "all-reduce", operator.elements


def _width(dtype: str) -> str:
    size = element_bytes(dtype)
    return "bfloat16" if size >= 2 else "float8" if size >= 1 else "float4"


def spread_of(
    operator: Operator, how: How, system: str = EVERY_SYSTEM, distance_octaves: float = 0.0
) -> Spread | None:
    """Return the error range of an estimate; ``None``: not measured."""
    if how == "measured":
        return _EXACT
    kind, size = kind_of(operator)
    return find_spread(kind, size, how, system, distance_octaves)


def find_spread(
    kind: str, size: int, how: How, system: str = EVERY_SYSTEM, distance_octaves: float = 0.0
) -> Spread | None:
    """Return the spread for the region of a size and distance; for a system without one, that of all systems.

    A distance that was not measured takes the region of the next larger one. A region whose errors give no usable range gives
    ``None``. Other sizes and smaller distances are never used.
    """
    rows = _rows()
    for name in dict.fromkeys((system, EVERY_SYSTEM)):
        found = select_spread(rows.get((how, kind, name), ()), size, distance_octaves)
        if found is not None:
            return found
    return None


def select_spread(regions: Sequence[Region], size: float, distance_octaves: float) -> Spread | None:
    """Return the spread of the first region that reaches a distance, among those of a size; ``None``: none does."""
    own = _containing(regions, size)
    for region in regions if own is not None else ():
        if own is not None and region.up_to == own.up_to and distance_octaves <= region.up_to_octaves:
            return region.spread
    return None


def roofline_spread(kind: str, roofline_s: float) -> Spread | None:
    """Return the measured ÷ roofline spread for a kind and roofline length; ``None``: none were measured."""
    regions = _rooflines(kind)
    own = _containing(regions, roofline_s)
    return _between(regions, roofline_s) if own is not None and own.spread is not None else None


def roofline_factor(kind: str, roofline_s: float) -> float:
    """Return the median of measured ÷ roofline; shorter or longer than any measured, that of the nearest; 1 without any."""
    regions = [region for region in _rooflines(kind) if region.spread is not None]
    return _between(regions, roofline_s).middle_ratio if regions else 1.0


def _rooflines(kind: str) -> Sequence[Region]:
    return _rows().get(("roofline", kind, EVERY_SYSTEM), ())


def _containing(regions: Sequence[Region], size: float) -> Region | None:
    return next((region for region in regions if size <= region.up_to), None)


def _between(regions: Sequence[Region], roofline_s: float) -> Spread:
    """Interpolate ratios between typical times: with steps, a longer roofline could become faster."""
    known = [(one.typical_s, one.spread) for one in regions if one.spread is not None]
    below = [one for one in known if one[0] <= roofline_s] or known[:1]
    above = [one for one in known if one[0] > roofline_s] or known[-1:]
    (short, first), (long, second) = below[-1], above[0]
    share = math.log(roofline_s / short) / math.log(long / short) if short < roofline_s < long else 0.0

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
        (how, kind, system): [_region(how, *written) for written in regions]
        for how, kinds in content()["errors"].items()
        for kind, systems in kinds.items()
        for system, regions in systems.items()
    }


def _region(how: str, up_to: float | None, *values: float | None) -> Region:
    """Rooflines: low, middle, high, shapes, typical time in µs; others: distance, low, high."""
    end = math.inf if up_to is None else up_to
    if how != "roofline":
        octaves, low, high = values
        spread = None if low is None or high is None else Spread(low, high)
        return Region(end, spread, 0.0, math.inf if octaves is None else octaves)
    low, middle, high, _shapes, *typical_us = values
    if low is None or middle is None or high is None:
        return Region(end * 1e-6, None)
    return Region(end * 1e-6, Spread(low, high, middle), (typical_us[0] or 0.0) * 1e-6)


@functools.cache
def content() -> dict[str, Any]:
    """Return the file: of which package, when and how it was made, and how → operator → system → regions."""
    loaded: dict[str, Any] = packaged_yaml("llm_perf_opt.hardware.silicon", FILE)
    return loaded
