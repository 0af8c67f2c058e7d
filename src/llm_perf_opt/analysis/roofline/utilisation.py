"""MFU and MBU: the share of the hardware a phase used, with numerator, denominator and source spelled out.

MFU = FLOPs the model needs ÷ (wall-clock × dense peak of the data type).
MBU = bytes the model must move (weights once, KV cache) ÷ (wall-clock × memory bandwidth).
Work is a mean over the samples, so the time is their mean too: samples of different size must not be mixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from llm_perf_opt.analysis.operators.work import OperatorWork, PhaseWork
from llm_perf_opt.analysis.roofline.limits import Ceiling, Limits, intensity, limits_for, reached_peak
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import BEFORE_PREFILL, ENCODE, PHASES, VISION, WHOLE
from llm_perf_opt.summary import (
    Hardware,
    Section,
    SectionTable,
    Stat,
    Static,
    StaticPhase,
    Timings,
    Utilisation,
)


@dataclass(frozen=True, slots=True)
class Work:
    """What was done in a measured time. ``None``: not counted."""

    flops: float | None
    weight_bytes: float | None
    kv_bytes: float | None


def utilisation(work: Work, seconds: float, limits: Limits) -> Utilisation:
    """Return MFU and MBU of ``work`` done in ``seconds`` of wall-clock; a missing part stays ``None``."""
    if seconds <= 0:
        return Utilisation(arithmetic="no wall-clock time was measured")
    mfu, mfu_text = _mfu(work, seconds, limits.peak)
    mbu, mbu_text = _mbu(work, seconds, limits.bandwidth)
    mfu_reached, mfu_reached_text = _share_of_reached("MFU", mfu, limits.peak, limits.reached_peak)
    mbu_reached, mbu_reached_text = _share_of_reached("MBU", mbu, limits.bandwidth, limits.reached_bandwidth)
    sentences = [
        text for text in (mfu_text, mfu_reached_text, mbu_text, mbu_reached_text, *limits.missing) if text
    ]
    return Utilisation(
        mfu_ratio=mfu,
        mbu_ratio=mbu,
        mfu_reached_ratio=mfu_reached,
        mbu_reached_ratio=mbu_reached,
        arithmetic="; ".join(sentences) or None,
    )


def _share_of_reached(
    name: str, ratio: float | None, limit: Ceiling | None, reached: Ceiling | None
) -> tuple[float | None, str]:
    """Return a share of the data sheet's limit as a share of what was measured, and a sentence that explains it."""
    if ratio is None or limit is None or reached is None:
        return None, ""
    share = ratio * limit.value / reached.value
    rate = units.bytes_per_s if name == "MBU" else units.flops_per_s
    return share, f"{name} {units.percent(share)} of the {rate(reached.value)} reached ({reached.source})"


def phase_utilisation(
    static: Static,
    timings: Timings,
    hardware: Hardware,
    dtype: str | None,
    *,
    decode_steps: float | None = None,
    prefill_includes_vision: bool = False,
) -> dict[str, Utilisation]:
    """Return the utilisation of ``vision`` or ``encode``, ``prefill``, ``ttft``, ``decode`` and ``total``, where measured.

    ``decode_steps`` is the number of model steps inside ``timings.decode_s``; without it decode is rated by
    the time per token. ``prefill_includes_vision``: the measured prefill ran the vision tower too, so its
    numerator holds the vision work (many runners nest it there; leaving it out halves the MFU or worse).
    """
    limits = limits_for(hardware, dtype)
    work = {name: _work(phase) for name, phase in static.phases.items()}
    prefill, step = work.get("prefill"), work.get("decode")
    before = [work[name] for name in BEFORE_PREFILL if name in work]
    both = _sum([*before, prefill]) if prefill is not None else None
    first_s = timings.prefill_s if prefill_includes_vision else timings.ttft_s
    decode = _times(step, decode_steps) if step is not None and decode_steps is not None else None
    rows: list[tuple[str, Work | None, Stat | None]] = [
        (VISION, work.get(VISION), timings.vision_s),
        (ENCODE, work.get(ENCODE), timings.encode_s),
        ("prefill", both if prefill_includes_vision else prefill, timings.prefill_s),
        ("ttft", both, first_s),
        (
            "decode",
            decode if decode is not None else step,
            timings.decode_s if decode is not None else timings.tpot_s,
        ),
    ]
    result = {
        name: utilisation(amount, stat.shown, limits)
        for name, amount, stat in rows
        if amount is not None and stat is not None
    }
    if both is not None and decode is not None and first_s is not None and timings.decode_s is not None:
        result["total"] = utilisation(_sum((both, decode)), first_s.shown + timings.decode_s.shown, limits)
    return result


def _mfu(work: Work, seconds: float, peak: Ceiling | None) -> tuple[float | None, str]:
    if work.flops is None or peak is None:
        return None, ""
    ratio = work.flops / (seconds * peak.value)
    text = (
        f"MFU {units.percent(ratio)} = {units.flops(work.flops)} ÷ ({units.seconds(seconds)} × "
        f"{units.flops_per_s(peak.value)} dense {peak.name}, {peak.source})"
    )
    return ratio, text


def _mbu(work: Work, seconds: float, bandwidth: Ceiling | None) -> tuple[float | None, str]:
    if work.weight_bytes is None or bandwidth is None:
        return None, ""
    kv_bytes = work.kv_bytes or 0.0
    could_move = seconds * bandwidth.value
    ratio = (work.weight_bytes + kv_bytes) / could_move
    text = (
        f"MBU {units.percent(ratio)} = ({units.size(work.weight_bytes)} weights + "
        f"{units.size(kv_bytes)} KV cache) ÷ "
        f"({units.seconds(seconds)} × {units.bytes_per_s(bandwidth.value)}, {bandwidth.source})"
    )
    if kv_bytes > 0:
        text += f", weights alone {units.percent(work.weight_bytes / could_move)}"
    return ratio, text


def _work(phase: StaticPhase) -> Work:
    return Work(phase.least_flops, phase.least_weight_bytes, phase.least_kv_bytes)


def _times(work: Work, factor: float) -> Work:
    def scaled(value: float | None) -> float | None:
        return None if value is None else value * factor

    return Work(scaled(work.flops), scaled(work.weight_bytes), scaled(work.kv_bytes))


def _sum(parts: Iterable[Work]) -> Work:
    """Add work; a part that was not counted makes the sum unknown rather than too small."""
    flops: float | None = 0.0
    weights: float | None = 0.0
    kv: float | None = 0.0
    for part in parts:
        flops = None if flops is None or part.flops is None else flops + part.flops
        weights = None if weights is None or part.weight_bytes is None else weights + part.weight_bytes
        kv = None if kv is None else kv + (part.kv_bytes or 0.0)
    return Work(flops, weights, kv)


# Utilisation of a trace made elsewhere: FLOPs from its recorded shapes over the time its device was busy.
#
# MFU here = FLOPs counted in the trace ÷ (device-busy time × dense peak of the data type). The wall-clock of a profiled
# program holds the profiler's own cost, the time a device is busy does not; so this is the share of the peak while the
# device works, and idle time further lowers that of the whole run. Work whose operators are not in the trace (behind graphs) is
# not counted, and where too much of a phase is not counted, no ratio is claimed.


_LEAST_COVERAGE = 0.95
"""Share of the matrix kernels' time that must be counted before a ratio is claimed."""
_LEAST_KNOWN_TYPE = 0.95
"""Share of the FLOPs whose data type must have a known peak."""
_WORTH_NAMING = 0.01
_FASTEST = 1e18
"""FLOP/s no single device reaches in any data type."""


@dataclass(frozen=True, slots=True)
class TracedPhase:
    """One phase against the hardware; unknown values are ``None``, with the reason."""

    phase: str
    work: PhaseWork
    mfu_busy_ratio: float | None
    peak: Ceiling | None
    """Of the mix of data types that was counted."""
    reason: str | None
    """Why no ratio is claimed."""
    reached: Ceiling | None = None
    """What was measured of the same mix; ``None`` where a type of it was not."""

    @property
    def achieved_flops_per_s(self) -> float | None:
        """FLOPs over device-busy time; ``None`` where too little was counted."""
        return None if _not_enough(self.work) is not None else self.work.flops / self.work.busy_s

    @property
    def intensity_flops_per_byte(self) -> float | None:
        """FLOPs over the bytes of all operands, per call."""
        if self.achieved_flops_per_s is None or self.work.operand_bytes is None:
            return None
        return intensity(self.work.flops, self.work.operand_bytes)


def traced_phases(found: OperatorWork, hardware: Hardware) -> list[TracedPhase]:
    """Relate every phase of a trace to the device's peak."""
    order = [*PHASES, *(name for name in found.phases if name not in (*PHASES, WHOLE)), WHOLE]
    return [
        _phase(name, found.phases[name], hardware, uses_tf32=found.uses_tf32)
        for name in order
        if name in found.phases
    ]


def _phase(name: str, work: PhaseWork, hardware: Hardware, *, uses_tf32: bool) -> TracedPhase:
    reason = _not_enough(work)
    if reason is not None:
        return TracedPhase(name, work, None, None, reason)
    peak, reason, reached = _peak_of(work, hardware, uses_tf32=uses_tf32)
    if peak is None:
        return TracedPhase(name, work, None, None, reason)
    return TracedPhase(name, work, work.flops / (work.busy_s * peak.value), peak, None, reached)


def _not_enough(work: PhaseWork) -> str | None:
    covered = work.coverage_ratio
    if covered is None or work.busy_s <= 0:
        return "no kernel of a matrix product in the trace"
    if covered >= _LEAST_COVERAGE:
        rate = work.flops / work.busy_s
        return (
            None
            if rate <= _FASTEST
            else f"{units.flops_per_s(rate)} is faster than any device: shapes or times are wrong"
        )
    text = f"shapes give the work of {units.percent(covered)} of the matrix kernels' time only"
    if work.graph_s > 0:
        text += f" ({units.percent(work.graph_s / work.matrix_s)} is behind graph launches)"
    return text


def _peak_of(
    work: PhaseWork, hardware: Hardware, *, uses_tf32: bool
) -> tuple[Ceiling | None, str | None, Ceiling | None]:
    """Return the peak of the mix (the least time the types need at their own peaks), and the share reached."""
    known: dict[str, tuple[int, Ceiling]] = {}
    missing: list[str] = []
    for dtype, flops in work.flops_by_dtype.items():
        wanted = "tf32" if dtype == "float32" and uses_tf32 else dtype
        limits = limits_for(hardware, wanted)
        if limits.peak is not None and wanted is not None:
            known[wanted] = (flops, limits.peak)
        elif flops:
            missing.append(limits.missing[0])
    counted = sum(flops for flops, _ in known.values())
    if counted < _LEAST_KNOWN_TYPE * work.flops or not counted:
        return None, missing[0] if missing else "no FLOPs were counted", None
    seconds = sum(flops / peak.value for flops, peak in known.values())
    largest = max(known, key=lambda name: known[name][0])
    named = sorted(name for name, (flops, _) in known.items() if flops >= _WORTH_NAMING * counted)
    name = f"{largest} peak" if len(named) == 1 else f"peak of {', '.join(named)} by their FLOPs"
    peak = Ceiling(name, counted / seconds, known[largest][1].source)
    return peak, None, _reached_of({dtype: flops for dtype, (flops, _) in known.items()}, hardware, largest)


def _reached_of(flops: dict[str, int], hardware: Hardware, largest: str) -> Ceiling | None:
    rates = {dtype: rate for dtype in flops if (rate := reached_peak(hardware, dtype)) is not None}
    counted = sum(flops[dtype] for dtype in rates)
    if largest not in rates or counted < _LEAST_KNOWN_TYPE * sum(flops.values()):
        return None
    seconds = sum(flops[dtype] / rate.value for dtype, rate in rates.items())
    return Ceiling(rates[largest].name, counted / seconds, rates[largest].source)


def add_traced_utilisation(
    utilisation: dict[str, Utilisation], phases: list[TracedPhase], span_s: Mapping[str, float]
) -> None:
    """Fill in the MFU of phases without a timing, over their captured span; a measured wall-clock counts first.

    ``span_s``: phase → captured time of one device.
    """
    for one in phases:
        if one.mfu_busy_ratio is None or one.peak is None:
            continue
        use = utilisation.setdefault(one.phase, Utilisation())
        use.mfu_busy_ratio = one.mfu_busy_ratio
        span = span_s.get(one.phase, 0.0) * one.work.devices
        if use.mfu_ratio is not None or span <= 0:
            continue
        use.mfu_ratio = min(one.mfu_busy_ratio, one.work.flops / (span * one.peak.value))
        use.mfu_reached_ratio, reached = _share_of_reached("MFU", use.mfu_ratio, one.peak, one.reached)
        text = (
            f"MFU {units.percent(use.mfu_ratio)} = {units.flops(one.work.flops)} from the trace's shapes ÷ "
            f"({units.seconds(span)} captured × {units.flops_per_s(one.peak.value)} dense {one.peak.name}, {one.peak.source}); "
            f"{units.percent(one.mfu_busy_ratio)} of the {units.seconds(one.work.busy_s)} in which the device was busy; "
            f"{units.percent(one.work.coverage_ratio)} of the matrix kernels' time is counted"
        )
        use.arithmetic = "; ".join(part for part in (use.arithmetic, text, reached) if part)


def traced_metrics(phases: list[TracedPhase]) -> dict[str, float | None]:
    """Return the counts as named scalars."""
    metrics: dict[str, float | None] = {}
    for one in phases:
        metrics[f"{one.phase}_traced_flops"] = float(one.work.flops) if one.work.calls else None
        metrics[f"{one.phase}_traced_flops_coverage_ratio"] = one.work.coverage_ratio
        metrics[f"{one.phase}_achieved_flops_per_s"] = one.achieved_flops_per_s
        metrics[f"{one.phase}_operand_intensity_flops_per_byte"] = one.intensity_flops_per_byte
    return metrics


def traced_section(stage: str, phases: list[TracedPhase], hardware: Hardware) -> list[Section]:
    """Return the roofline of a trace as a part of the report; nothing where no call was counted."""
    if not any(one.work.calls for one in phases):
        return []
    rows = [_row(one, hardware) for one in phases]
    paragraphs = [
        "FLOPs of matrix products, convolutions and attention, from the shapes the trace recorded (two per "
        "multiply-add; attention over all pairs of query and key positions, because masks are not recorded); time in "
        "which the device was busy. Intensity is over the operands of every call, as if nothing stayed in a cache.",
        *(f"{_name(one.phase)}: no ratio is claimed, because {one.reason}." for one in phases if one.reason),
    ]
    columns = ["phase", "FLOPs", "counted", "device busy", "achieved", "of peak", "FLOP/B", "nearer limit"]
    return [Section(stage, "Work counted from the trace", paragraphs, [SectionTable(columns, rows)])]


def _name(phase: str) -> str:
    return "Whole capture" if phase == WHOLE else phase.capitalize()


def _row(one: TracedPhase, hardware: Hardware) -> list[str]:
    return [
        "whole capture" if one.phase == WHOLE else one.phase,
        units.flops(one.work.flops),
        units.percent(one.work.coverage_ratio),
        units.seconds(one.work.busy_s),
        units.flops_per_s(one.achieved_flops_per_s),
        units.percent(one.mfu_busy_ratio),
        units.number(one.intensity_flops_per_byte),
        _nearer_limit(one, hardware) or units.MISSING,
    ]


def _nearer_limit(one: TracedPhase, hardware: Hardware) -> str | None:
    """Return the roof above this intensity."""
    bandwidth = hardware.bandwidth_bytes_per_s
    if one.peak is None or one.intensity_flops_per_byte is None or not bandwidth:
        return None
    ridge = one.peak.value / bandwidth
    return "compute" if one.intensity_flops_per_byte >= ridge else "memory"
