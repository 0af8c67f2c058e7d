"""Times of single operators, added up to the expected time of a pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from llm_perf_opt.analysis.expected.calls import Call, Work
from llm_perf_opt.core.dtypes import canonical_dtype
from llm_perf_opt.hardware.silicon import AllReduce, How, MoeLayer, Operator, Timing
from llm_perf_opt.model.summary import Peak

COMPUTE_SHARE = 0.73
"""Of the catalogue's peak: what products that computing bounds reached in the median over all systems with tables."""
MEMORY_SHARE = 0.81
"""Of the catalogue's bandwidth: the same for products that reading weights bounds."""
KERNEL_S = 2.5e-6
"""What a kernel takes that does almost nothing: smallest products of the tables, 1.8 to 2.8 µs."""
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


@dataclass(frozen=True, slots=True)
class Part:
    """Operators of one kind in a pass."""

    name: str
    seconds: float
    how: How
    source: str
    calls: int


@dataclass(slots=True)
class PassTime:
    """The expected time of a pass."""

    seconds: float = 0.0
    kernels: int = 0
    fused_s: float = 0.0
    """Of it element-wise work, fused as serving engines do."""
    by_how: dict[How, float] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)

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
        seconds, how, source = timing
        parts.append(Part(call.name, seconds * call.times, how, source, call.times))
    routed = sum(p.seconds for p, c in zip(parts, found, strict=True) if isinstance(c.operator, MoeLayer))
    beside = sum(part.seconds for part, call in zip(parts, found, strict=True) if call.beside_experts)
    # Of two streams the longer is seen.
    hidden = min(routed, beside) / beside if beside else 0.0
    total = PassTime(parts=parts)
    for part, call in zip(parts, found, strict=True):
        seen = part.seconds * (1.0 - hidden) if call.beside_experts else part.seconds
        total.seconds += seen
        total.kernels += call.times
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


def _timing(
    call: Call, target: Target, times: OperatorTimes | None, framework: str | None
) -> tuple[float, How, str] | None:
    if not isinstance(call.operator, Work) and times is not None:
        known = times.time(call.operator, target.name, framework=framework)
        if known is not None:
            return known.seconds, known.how, known.source.words() if known.source is not None else ""
    seconds = roofline_s(call.operator, target)
    return None if seconds is None else (seconds, "roofline", "roofline")


def roofline_s(operator: Operator | Work, target: Target) -> float | None:
    """Return the time of an operator at the usual share of a device's limits; ``None``: those are not known."""
    if isinstance(operator, AllReduce):
        link = target.link_bytes_per_s
        return None if link is None else operator.moved_bytes / link + KERNEL_S
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
