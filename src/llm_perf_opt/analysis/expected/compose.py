"""Times of single operators, added up to the expected time of a pass."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from llm_perf_opt.analysis.expected.calls import Call, Work
from llm_perf_opt.analysis.expected.uncached import uncached_bytes
from llm_perf_opt.analysis.expected.usual import usual_time
from llm_perf_opt.core.dtypes import canonical_dtype
from llm_perf_opt.hardware.silicon import AllReduce, How, MoeLayer, Operator, Timing
from llm_perf_opt.hardware.silicon.errors import Spread, roofline_spread
from llm_perf_opt.model.summary import Peak

COMPUTE_SHARE = 0.70
"""Of the catalogue's peak: what products of more than 50 µs that computing bounds reached in the median over the newest tables of all
systems (``benchmarks/silicon_error.py`` computes this and the next two)."""
MEMORY_SHARE = 0.77
"""Of the catalogue's bandwidth: the same for products that moving their operands bounds."""
KERNEL_S = 2.2e-6
"""What a kernel takes that does almost nothing: the smallest hundredth of a table's products, in the median over the tables."""
COMMON_SHARE = 0.5
"""Of the variance of interpolation errors at one number of positions, what all shapes have in common: up to 0.6 by operator and
device (``benchmarks/silicon_ranges.py``)."""
USUAL_PER_MACHINE = 8
"""Devices of one machine, where nothing says otherwise."""
_OTHER_NAMES = {"fp8_block": "float8", "nvfp4": "float4", "int8_wo": "int8", "int4_wo": "int4"}
_WIDENED = ("int8", "int4")
"""Weights of these types are widened, and the product runs in 16 bits."""


class OperatorTimes(Protocol):
    """Where times of operators come from."""

    def time(self, operator: Operator, device: str, *, framework: str | None = None) -> Timing | None:
        """Return how long an operator takes on a device; ``None``: not known."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """A device that times are asked for."""

    name: str
    peaks: Mapping[str, Peak]
    bandwidth_bytes_per_s: float | None
    link_bytes_per_s: float | None = None
    devices_per_machine: int | None = None
    """As many as its link reaches; ``None``: not known, and taken as ``USUAL_PER_MACHINE``."""

    @property
    def linked(self) -> int:
        """How many devices the link joins."""
        return self.devices_per_machine or USUAL_PER_MACHINE


@dataclass(frozen=True, slots=True)
class Part:
    """Operators of one kind in a pass."""

    name: str
    seconds: float
    how: How
    source: str
    calls: int
    low_s: float | None = None
    """Ends of where nine in ten such answers lie; ``None``: how wrong this one may be is not known."""
    high_s: float | None = None


@dataclass(slots=True)
class Errors:
    """Errors on one side of a sum: of interpolated shapes, and of rooflines and extrapolations."""

    summed: float = 0.0
    squared: float = 0.0
    coarse: float = 0.0
    """Rooflines and extrapolations err alike wherever they are used: theirs add."""

    def add(self, seconds: float, *, coarse: bool) -> None:
        """Add the error of one part."""
        if coarse:
            self.coarse += seconds
        else:
            self.summed += seconds
            self.squared += seconds**2

    def join(self, other: Errors) -> None:
        """Add the errors of another sum."""
        self.summed += other.summed
        self.squared += other.squared
        self.coarse += other.coarse

    @property
    def seconds(self) -> float:
        """Of the sum: interpolated shapes have a part of their variance in common, the rest is each one's own."""
        between = COMMON_SHARE * self.summed**2 + (1 - COMMON_SHARE) * self.squared
        return max(0.0, self.coarse) + math.sqrt(between)


@dataclass(slots=True)
class Band:
    """How far a sum of answers may be off, below and above."""

    below: Errors = field(default_factory=Errors)
    above: Errors = field(default_factory=Errors)
    is_known: bool = True

    def add(self, part: Part, share: float) -> None:
        """Add a part of a pass, of which only a share is seen."""
        if part.low_s is None or part.high_s is None:
            self.is_known = False
            return
        coarse = part.how not in ("measured", "interpolated")
        self.below.add(share * (part.seconds - part.low_s), coarse=coarse)
        self.above.add(share * (part.high_s - part.seconds), coarse=coarse)

    def join(self, other: Band) -> None:
        """Add the band of a pass that comes after."""
        self.below.join(other.below)
        self.above.join(other.above)
        self.is_known &= other.is_known

    def ends(self, seconds: float) -> tuple[float, float] | None:
        """Return the ends around a time; ``None``: not known."""
        if not self.is_known:
            return None
        return max(0.0, seconds - self.below.seconds), seconds + self.above.seconds


def joined_ends(passes: Sequence[PassTime]) -> tuple[float, float] | None:
    """Return the ends around the time of several passes in sequence."""
    total = Band()
    for one in passes:
        total.join(one.band)
    return total.ends(sum(one.seconds for one in passes)) if passes else None


@dataclass(slots=True)
class PassTime:
    """The expected time of a pass."""

    seconds: float = 0.0
    fused_s: float = 0.0
    """Of it element-wise work, fused as serving engines do."""
    by_how: dict[How, float] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    band: Band = field(default_factory=Band)

    @property
    def measured_s(self) -> float:
        """What rests on measurements: measured shapes and those between them."""
        return self.by_how.get("measured", 0.0) + self.by_how.get("interpolated", 0.0)


def pass_time(
    found: Sequence[Call], target: Target, times: OperatorTimes | None, framework: str | None
) -> PassTime | None:
    """Return the time of a pass; ``None`` when an operator has neither a table nor limits."""
    parts = []
    for call in found:
        timing = _timing(call, target, times, framework)
        if timing is None:
            return None
        parts.append(timing)
    routed = sum(p.seconds for p, c in zip(parts, found, strict=True) if isinstance(c.operator, MoeLayer))
    beside = sum(part.seconds for part, call in zip(parts, found, strict=True) if call.beside_experts)
    # Of two streams the longer is seen.
    hidden = min(routed, beside) / beside if beside else 0.0
    total = PassTime(parts=parts)
    for part, call in zip(parts, found, strict=True):
        share = 1.0 - hidden if call.beside_experts else 1.0
        seen = part.seconds * share
        total.seconds += seen
        total.band.add(part, share)
        total.fused_s += seen if isinstance(call.operator, Work) and call.operator.moved_bytes else 0.0
        total.by_how[part.how] = total.by_how.get(part.how, 0.0) + seen
    return total


def eager_work_s(timed: PassTime, small: tuple[Work, int] | None, target: Target) -> float | None:
    """Return the device's work when element-wise operators run one by one; ``None`` where they were not counted."""
    bandwidth = target.bandwidth_bytes_per_s
    if small is None or bandwidth is None:
        return None
    work, kernels = small
    return timed.seconds - timed.fused_s + work.moved_bytes / (bandwidth * MEMORY_SHARE) + kernels * KERNEL_S


def _timing(call: Call, target: Target, times: OperatorTimes | None, framework: str | None) -> Part | None:
    if not isinstance(call.operator, Work) and times is not None:
        known = times.time(call.operator, target.name, framework=framework)
        if known is not None:
            return _known_part(call, call.operator, known, target)
    return _roofline_part(call, target)


def _roofline_part(call: Call, target: Target) -> Part | None:
    """Return the roofline of element-wise work as it is, which no table could correct; of the rest as measurements lie to it."""
    seconds = roofline_s(call.operator, target)
    if seconds is None:
        return None
    if isinstance(call.operator, Work):
        # Taken to be as far off as products are.
        return _part(call, seconds, "roofline", "roofline", roofline_spread("gemm bfloat16", seconds))
    usual = usual_time(call.operator, seconds)
    source = "roofline" if usual.factor == 1 else f"roofline × {usual.factor:.2f}"
    known = usual.low_s is not None and usual.high_s is not None
    ends = (
        Spread((usual.low_s or 0.0) / usual.seconds, (usual.high_s or 0.0) / usual.seconds) if known else None
    )
    return _part(call, usual.seconds, "roofline", source, ends)


def _known_part(call: Call, operator: Operator, known: Timing, target: Target) -> Part:
    """Return a part by its table; what was timed with its weights in a cache by the limit that holds in a model."""
    least_s = _least_s(operator, target)
    words = known.source.words() if known.source is not None else ""
    if known.seconds < least_s:
        return _part(call, least_s, "roofline", "roofline", _above_limit(known, least_s))
    if known.low_s is None or known.high_s is None:
        return _part(call, known.seconds, known.how, words, None)
    low_s = max(known.low_s, least_s)
    return _part(
        call, known.seconds, known.how, words, Spread(low_s / known.seconds, known.high_s / known.seconds)
    )


def _above_limit(known: Timing, least_s: float) -> Spread | None:
    return None if known.high_s is None else Spread(1.0, max(known.high_s, least_s) / least_s)


def _least_s(operator: Operator, target: Target) -> float:
    """Return the time of computing at the peak or of reading weights and cache once, the longer; 0 without limits."""
    peak, bandwidth = peak_of(target, operator.dtype), target.bandwidth_bytes_per_s
    computing = operator.flops / peak if peak else 0.0
    return max(computing, uncached_bytes(operator) / bandwidth if bandwidth else 0.0)


def _part(call: Call, seconds: float, how: How, source: str, spread: Spread | None) -> Part:
    whole = seconds * call.times
    if spread is None:
        return Part(call.name, whole, how, source, call.times)
    ends = whole * spread.low_ratio, whole * spread.high_ratio
    return Part(call.name, whole, how, source, call.times, *ends)


def roofline_s(operator: Operator | Work, target: Target) -> float | None:
    """Return the time of an operator at the share of a device's limits that products reach; ``None``: those are not known."""
    if isinstance(operator, AllReduce):
        link = target.link_bytes_per_s
        if link is None or operator.ranks > target.linked:
            return None
        return operator.moved_bytes / link + KERNEL_S
    peak, bandwidth = peak_of(target, operator.dtype), target.bandwidth_bytes_per_s
    if peak is None or bandwidth is None:
        return None
    computing = operator.flops / (peak * COMPUTE_SHARE)
    return max(computing, operator.moved_bytes / (bandwidth * MEMORY_SHARE)) + KERNEL_S


def peak_of(target: Target, dtype: str) -> float | None:
    """Return the peak products of a type run at."""
    name = canonical_dtype(_OTHER_NAMES.get(dtype, dtype))
    names = ("bfloat16", "float16") if name in _WIDENED else (name,)
    known = [target.peaks[one].dense for one in names if one in target.peaks]
    if not known and name in ("bfloat16", "float16"):
        known = [target.peaks[one].dense for one in ("float16", "bfloat16") if one in target.peaks]
    return known[0] if known else None
