"""Times of single operators, added up to the expected time of a pass."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from llm_perf_opt.analysis.roofline.demand import Point
from llm_perf_opt.analysis.roofline.expected_calls import (
    At,
    Call,
    Work,
    calls,
    reason_not_sharded,
    unfused_elementwise_work,
)
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import ENCODE
from llm_perf_opt.core.units import canonical_dtype
from llm_perf_opt.hardware.catalogue import Device
from llm_perf_opt.hardware.silicon import (
    AllReduce,
    Attention,
    Gemm,
    How,
    LatentBlock,
    MoeLayer,
    Operator,
    Silicon,
    Timing,
)
from llm_perf_opt.hardware.silicon.installation import describe_absence
from llm_perf_opt.hardware.silicon.operators import element_bytes
from llm_perf_opt.hardware.silicon.timing import Spread, kind_of, roofline_factor, roofline_spread
from llm_perf_opt.summary import Peak, SiliconUse, Static
from llm_perf_opt.summary.static import OperatorShapes

# Rooflines scaled by the usual measured ratio: at the limits alone almost every estimate would be too short.


@dataclass(frozen=True, slots=True)
class ScaledRoofline:
    """The time of an operator that no table covers."""

    seconds: float
    factor: float
    """Of it to its roofline."""
    low_s: float | None = None
    """Nine in ten measured operators of this kind and roofline lay between the ends; ``None``: none were measured."""
    high_s: float | None = None


def scale_roofline(operator: Operator, roofline_s: float) -> ScaledRoofline:
    """Return the roofline × the median of measured ÷ roofline, for this operator kind and roofline length.

    Short kernels are farther above their roofline (fixed costs, partly filled tiles), so the length is the best single
    predictor.
    """
    kind, _ = kind_of(operator)
    factor, spread = roofline_factor(kind, roofline_s), roofline_spread(kind, roofline_s)
    seconds = roofline_s * factor
    if spread is None:
        return ScaledRoofline(seconds, factor)
    return ScaledRoofline(seconds, factor, roofline_s * spread.low_ratio, roofline_s * spread.high_ratio)


# What an operator reads from memory in any model, regardless of how often a table's timing repeated it.
#
# Tables repeat one call. Where its weights fit into a cache, later repetitions find them there; a model reads other weights in
# between. No expected time is shorter than reading these bytes once.


def uncached_bytes(operator: Operator) -> float:
    """Return weights and cached keys and values; of experts those of one token, which others may share."""
    match operator:
        case Gemm():
            return float(operator.n) * operator.k * element_bytes(operator.dtype)
        case Attention(phase="generation"):
            seen = min(operator.tokens, operator.window) if operator.window else operator.tokens
            position = 2.0 * operator.kv_heads * operator.head_dim * element_bytes(operator.cache_dtype)
            return operator.batch * seen * position
        case MoeLayer(expert_parallel=1):
            expert = 3.0 * operator.hidden * operator.inter * element_bytes(operator.dtype)
            return operator.top_k * expert / operator.tensor_parallel
        case LatentBlock():
            seen = operator.tokens if operator.phase == "generation" else 0
            cached = operator.batch * seen * (operator.rank + operator.rotated)
            return operator.weights * element_bytes(operator.dtype) + cached * element_bytes(
                operator.cache_dtype
            )
        case Attention() | MoeLayer() | AllReduce():
            return 0.0


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
_USUAL_PER_MACHINE = 8
"""Devices of one machine, where nothing says otherwise."""
_OTHER_NAMES = {"fp8_block": "float8", "nvfp4": "float4", "int8_wo": "int8", "int4_wo": "int4"}
_ENGINES = ("vllm", "sglang", "trtllm")
_WIDENED = ("int8", "int4")
"""Weights of these types are widened, and the product runs in 16 bits."""


@dataclass(frozen=True, slots=True)
class Target:
    """The device for which times are estimated."""

    name: str
    peaks: Mapping[str, Peak]
    bandwidth_bytes_per_s: float | None
    link_bytes_per_s: float | None = None
    devices_per_machine: int | None = None
    """As many as its link reaches; ``None``: not known, and taken as ``_USUAL_PER_MACHINE``."""

    @property
    def linked(self) -> int:
        """How many devices the link joins."""
        return self.devices_per_machine or _USUAL_PER_MACHINE


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
        """Return the error of the sum: interpolated shapes share part of their variance, the rest is independent."""
        between = COMMON_SHARE * self.summed**2 + (1 - COMMON_SHARE) * self.squared
        return max(0.0, self.coarse) + math.sqrt(between)


@dataclass(slots=True)
class Band:
    """Error range of a sum, below and above."""

    below: Errors = field(default_factory=Errors)
    above: Errors = field(default_factory=Errors)
    is_known: bool = True

    def add(self, part: Part, share: float) -> None:
        """Add a part of a pass, of which only a share is on the critical path."""
        if part.low_s is None or part.high_s is None:
            self.is_known = False
            return
        coarse = part.how not in ("measured", "interpolated")
        self.below.add(share * (part.seconds - part.low_s), coarse=coarse)
        self.above.add(share * (part.high_s - part.seconds), coarse=coarse)

    def join(self, other: Band) -> None:
        """Add the band of a pass that follows."""
        self.below.join(other.below)
        self.above.join(other.above)
        self.is_known &= other.is_known

    def ends(self, seconds: float) -> tuple[float, float] | None:
        """Return the ends around a time; ``None``: not known."""
        if not self.is_known:
            return None
        return max(0.0, seconds - self.below.seconds), seconds + self.above.seconds


def _joined_ends(passes: Sequence[PassTime]) -> tuple[float, float] | None:
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
        """The part that rests on measurements: measured and interpolated shapes."""
        return self.by_how.get("measured", 0.0) + self.by_how.get("interpolated", 0.0)


def pass_time(
    found: Sequence[Call], target: Target, times: Silicon | None, framework: str | None
) -> PassTime | None:
    """Return the time of a pass; ``None`` when an operator has neither a table nor limits."""
    parts = []
    for call in found:
        timing = _timing(call, target, times, framework)
        if timing is None:
            return None
        parts.append(timing)
    routed = sum(p.seconds for p, c in zip(parts, found, strict=True) if isinstance(c.operator, MoeLayer))
    overlapped = sum(part.seconds for part, call in zip(parts, found, strict=True) if call.overlaps_experts)
    # Of two streams the longer one counts.
    hidden = min(routed, overlapped) / overlapped if overlapped else 0.0
    total = PassTime(parts=parts)
    for part, call in zip(parts, found, strict=True):
        share = 1.0 - hidden if call.overlaps_experts else 1.0
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


def _timing(call: Call, target: Target, times: Silicon | None, framework: str | None) -> Part | None:
    if not isinstance(call.operator, Work) and times is not None:
        known = times.time(call.operator, target.name, framework=framework)
        if isinstance(call.operator, MoeLayer) and call.operator.dtype == "float8":
            # Engines choose among kernels with one scale and with scales by block; on Hopper the former can be far slower.
            by_block = times.time(replace(call.operator, dtype="fp8_block"), target.name, framework=framework)
            known = min((one for one in (known, by_block) if one is not None), key=_seconds, default=None)
        if known is not None:
            return _known_part(call, call.operator, known, target)
    return _roofline_part(call, target)


def _seconds(known: Timing) -> float:
    return known.seconds


def _roofline_part(call: Call, target: Target) -> Part | None:
    """Return the roofline: unscaled for element-wise work, which no table could correct, scaled by measurements
    otherwise.
    """
    seconds = roofline_s(call.operator, target)
    if seconds is None:
        return None
    if isinstance(call.operator, Work):
        # Assumed to have the same error as products.
        return _part(call, seconds, "roofline", "roofline", roofline_spread("gemm bfloat16", seconds))
    usual = scale_roofline(call.operator, seconds)
    source = "roofline" if usual.factor == 1 else f"roofline × {usual.factor:.2f}"
    known = usual.low_s is not None and usual.high_s is not None
    ends = (
        Spread((usual.low_s or 0.0) / usual.seconds, (usual.high_s or 0.0) / usual.seconds) if known else None
    )
    return _part(call, usual.seconds, "roofline", source, ends)


def _known_part(call: Call, operator: Operator, known: Timing, target: Target) -> Part:
    """Return a part by its table; timings with cached weights are replaced by the limit that holds in a model."""
    least_s = _least_s(operator, target)
    source = known.source.describe() if known.source is not None else ""
    if known.seconds < least_s:
        return _part(call, least_s, "roofline", "roofline", _above_limit(known, least_s))
    if known.low_s is None or known.high_s is None:
        return _part(call, known.seconds, known.how, source, None)
    low_s = max(known.low_s, least_s)
    return _part(
        call, known.seconds, known.how, source, Spread(low_s / known.seconds, known.high_s / known.seconds)
    )


def _above_limit(known: Timing, least_s: float) -> Spread | None:
    return None if known.high_s is None else Spread(1.0, max(known.high_s, least_s) / least_s)


def _least_s(operator: Operator, target: Target) -> float:
    """Return the time of computing at the peak or of reading weights and cache once, the longer; 0 without limits."""
    peak, bandwidth = _peak_of(target, operator.dtype), target.bandwidth_bytes_per_s
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
    peak, bandwidth = _peak_of(target, operator.dtype), target.bandwidth_bytes_per_s
    if peak is None or bandwidth is None:
        return None
    computing = operator.flops / (peak * COMPUTE_SHARE)
    return max(computing, operator.moved_bytes / (bandwidth * MEMORY_SHARE)) + KERNEL_S


def _peak_of(target: Target, dtype: str) -> float | None:
    """Return the peak products of a type run at."""
    name = canonical_dtype(_OTHER_NAMES.get(dtype, dtype))
    names = ("bfloat16", "float16") if name in _WIDENED else (name,)
    known = [target.peaks[one].dense for one in names if one in target.peaks]
    if not known and name in ("bfloat16", "float16"):
        known = [target.peaks[one].dense for one in ("float16", "bfloat16") if one in target.peaks]
    return known[0] if known else None


# Expected times of a model at one point: first token and decode step, launched as graphs and one by one.


@dataclass(frozen=True, slots=True)
class Tables:
    """Measured times, and the preferred framework."""

    times: Silicon
    framework: str | None = None

    def knows(self, device: str) -> bool:
        """Return whether there are tables of a device."""
        return self.times.system(device) is not None

    def power_w(self, device: str) -> float | None:
        """Return the board power of a device."""
        system = self.times.system(device)
        return system.power_w if system is not None else None

    def devices_per_machine(self, device: str) -> int | None:
        """Return how many of a device one machine has."""
        system = self.times.system(device)
        return system.devices_per_node if system is not None else None


@dataclass(frozen=True, slots=True)
class Expectation:
    """Expected times on a device."""

    passes: tuple[PassTime, ...]
    """Up to the first token, in sequence; empty: not known."""
    step: PassTime | None
    eager_passes_s: tuple[float | None, ...] = ()
    """The device's work of each pass when nothing is fused."""
    eager_step_s: float | None = None

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token, launched as graphs."""
        return sum(one.seconds for one in self.passes) if self.passes else None

    @property
    def tpot_s(self) -> float | None:
        """Time of a decode step, launched as a graph."""
        return self.step.seconds if self.step is not None else None

    @property
    def ttft_ends_s(self) -> tuple[float, float] | None:
        """Ends of the time to the first token; ``None``: not known."""
        return _joined_ends(self.passes)

    @property
    def tpot_ends_s(self) -> tuple[float, float] | None:
        """Ends of the time of a decode step; ``None``: not known."""
        return self.step.band.ends(self.step.seconds) if self.step is not None else None

    def ttft_eager_s(self, launches_s: Sequence[float | None]) -> float | None:
        """Return the time to the first token with operators launched one by one, which takes ``launches_s`` per pass."""
        if not self.passes or len(launches_s) != len(self.eager_passes_s):
            return None
        longer = [_longer(one, host) for one, host in zip(self.eager_passes_s, launches_s, strict=True)]
        return None if None in longer else sum(seconds for seconds in longer if seconds is not None)

    def tpot_eager_s(self, launches_s: float | None) -> float | None:
        """Return the time of a decode step with operators launched one by one."""
        return _longer(self.eager_step_s, launches_s)

    @property
    def measured_share(self) -> float | None:
        """Share of the step's time (without one, of the first token's) that rests on measurements."""
        counted = [self.step] if self.step is not None else list(self.passes)
        total = sum(one.seconds for one in counted)
        return sum(one.measured_s for one in counted) / total if total else None

    def source(self) -> str | None:
        """Return the frameworks and versions of the tables, kernels left out."""
        every = [*self.passes, *([self.step] if self.step is not None else [])]
        names = {
            part.source.partition(",")[0] for one in every for part in one.parts if part.how != "roofline"
        }
        return ", ".join(sorted(names)) or None

    def mixed_frameworks(self) -> str | None:
        """Return ``vllm (83 %) and trtllm (17 %)``, by their part of the table times; ``None``: one engine's kernels only.

        Libraries of communication are no engines.
        """
        seconds: dict[str, float] = {}
        for one in (*self.passes, *([self.step] if self.step is not None else [])):
            for part in one.parts:
                name = part.source.partition(" ")[0]
                if part.how != "roofline" and name in _ENGINES:
                    seconds[name] = seconds.get(name, 0.0) + part.seconds
        if len(seconds) < 2:
            return None
        whole = sum(seconds.values())
        ordered = sorted(seconds, key=lambda name: -seconds[name])
        return " and ".join(f"{name} ({units.percent(seconds[name] / whole)})" for name in ordered)

    def main_framework(self) -> str | None:
        """Return the framework with which most of the step's time was measured; ``None``: no table covers it."""
        seconds: dict[str, float] = {}
        for part in self.step.parts if self.step is not None else ():
            if part.how != "roofline":
                name = part.source.partition(" ")[0]
                seconds[name] = seconds.get(name, 0.0) + part.seconds
        return max(seconds, key=lambda name: seconds[name], default=None)


def _longer(work_s: float | None, host_s: float | None) -> float | None:
    """Return the longer of launching and device work, because host and device work concurrently."""
    return None if work_s is None or host_s is None else max(work_s, host_s)


def expect(
    shapes: OperatorShapes, passes: Sequence[str], at: At, target: Target, tables: Tables | None
) -> Expectation | None:
    """Return the expected times at a point; ``None`` without tables and limits.

    ``passes`` are the phases up to the first token. Encoder-decoders are not estimated: their rows follow two lengths. Nor is
    a model whose heads so many devices cannot share.
    """
    if ENCODE in passes or reason_not_sharded(shapes, at.tensor_parallel) is not None:
        return None
    times = tables.times if tables is not None else None
    framework = tables.framework if tables is not None else None
    found = [pass_time(calls(shapes, phase, at), target, times, framework) for phase in passes]
    step = pass_time(calls(shapes, "decode", at), target, times, framework)
    known = [one for one in found if one is not None]
    if step is None and len(known) < len(found):
        return None
    if len(known) < len(found):
        known = []

    def eager(phase: str, timed: PassTime | None) -> float | None:
        return (
            None
            if timed is None
            else eager_work_s(timed, unfused_elementwise_work(shapes, phase, at), target)
        )

    return Expectation(
        tuple(known),
        step,
        tuple(eager(phase, one) for phase, one in zip(passes, known, strict=False)),
        eager("decode", step),
    )


# The tables of the extra, as expected times use them, and their entry in the summary.


def tables_of(silicon: Silicon | None, framework: str | None = None) -> Tables | None:
    """Return tables with one framework's kernels first (default: the one they were opened with); ``None`` without the extra."""
    return Tables(silicon, framework or silicon.framework) if silicon is not None else None


def silicon_use(silicon: Silicon | None, framework: str | None = None) -> SiliconUse:
    """Return which tables were used: version and excluded parts; without tables, the reason."""
    if silicon is None:
        return SiliconUse(None, reason=describe_absence())
    return SiliconUse(
        silicon.version,
        framework or silicon.framework,
        list(silicon.problems),
        package=silicon.installation.package,
        collected=silicon.installation.collected,
    )


# A point of a counted model and a device of the catalogue, translated to what expected times need.


_EIGHT_BITS = 1.0
"""Bytes per cached element that only a choice of its own gives."""
_TIMED_BLOCK = [128, 128]
"""The one size of blocks that tables have."""


def at_point(static: Static, point: Point, ranks: int | None = None) -> At:
    """Return the point for which a time is estimated; ``ranks``: instead of the point's own devices."""
    return At(
        point.batch_size,
        point.prompt_tokens,
        point.context_tokens,
        _table_dtype(static, point),
        cache_dtype(static, point),
        ranks or point.tensor_parallel,
    )


def _table_dtype(static: Static, point: Point) -> str:
    """Return the weight type as named in the tables: products with block scales have kernels of their own."""
    own = static.quantisation
    if own is None or (own.dtype, own.compute_dtype) != ("float8", "float8") or point.dtype != "float8":
        return point.dtype
    return "fp8_block" if own.block == _TIMED_BLOCK else point.dtype


def cache_dtype(static: Static, point: Point) -> str:
    """Return the type keys and values are kept in, as in floors."""
    own, scaling = static.quantisation, static.scaling
    if own is not None and point.dtype == own.dtype and own.cache_dtype is not None:
        return own.cache_dtype
    cached = scaling.cache_element_bytes if scaling is not None else None
    if cached is not None and cached <= _EIGHT_BITS:
        return "float8"
    is_own = own is not None and point.dtype == own.dtype
    return "float8" if point.dtype == "float8" and not is_own else "bfloat16"


def device_target(device: Device, tables: Tables) -> Target:
    """Return a catalogue device as a target of estimates."""
    link = device.link_bytes_per_s
    return target_of(device.name, device.peaks, device.bandwidth_bytes_per_s, link, tables)


def target_of(
    name: str,
    peaks: Mapping[str, Peak],
    bandwidth_bytes_per_s: float | None,
    link_bytes_per_s: float | None,
    tables: Tables | None,
) -> Target:
    """Return a device as a target of estimates."""
    per_machine = tables.devices_per_machine(name) if tables is not None else None
    return Target(name, peaks, bandwidth_bytes_per_s, link_bytes_per_s, per_machine)
