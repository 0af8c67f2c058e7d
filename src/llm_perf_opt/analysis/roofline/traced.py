"""Utilisation of a trace made elsewhere: FLOPs from its recorded shapes over the time its device was busy.

MFU here = FLOPs counted in the trace ÷ (device-busy time × dense peak of the data type). The wall-clock of a profiled
program holds the profiler's own cost, the time a device is busy does not; so this is the share of the peak while the
device works, and idle time lowers the whole run's further. Work whose operators are not in the trace (behind graphs) is
not counted, and where too much of a phase is not counted, no ratio is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_perf_opt.analysis.operators.work import OperatorWork, PhaseWork
from llm_perf_opt.analysis.roofline.limits import Ceiling, intensity, limits_for, reached_peak
from llm_perf_opt.analysis.roofline.utilisation import share_of_reached
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import PHASES, WHOLE
from llm_perf_opt.model.summary import Hardware, Section, SectionTable, Utilisation

LEAST_COVERAGE = 0.95
"""Share of the matrix kernels' time that must be counted before a ratio is claimed."""
LEAST_KNOWN_TYPE = 0.95
"""Share of the FLOPs whose data type must have a known peak."""
_WORTH_NAMING = 0.01
_FASTEST = 1e18
"""FLOP/s no single device reaches in any data type."""


@dataclass(frozen=True, slots=True)
class TracedPhase:
    """One phase against the hardware; what cannot be said is ``None``, with the reason."""

    phase: str
    work: PhaseWork
    mfu_ratio: float | None
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
        """FLOPs over the bytes of all operands, each call's by itself."""
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
    if covered >= LEAST_COVERAGE:
        rate = work.flops / work.busy_s
        return (
            None
            if rate <= _FASTEST
            else f"{units.flops_per_s(rate)} is faster than any device: shapes or times are wrong"
        )
    text = f"shapes tell the work of {units.percent(covered)} of the matrix kernels' time only"
    if work.graph_s > 0:
        text += f" ({units.percent(work.graph_s / work.matrix_s)} lies behind graph launches)"
    return text


def _peak_of(
    work: PhaseWork, hardware: Hardware, *, uses_tf32: bool
) -> tuple[Ceiling | None, str | None, Ceiling | None]:
    """Return the peak of the mix (the least time the types need at their own peaks), and what was reached of it."""
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
    if counted < LEAST_KNOWN_TYPE * work.flops or not counted:
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
    if largest not in rates or counted < LEAST_KNOWN_TYPE * sum(flops.values()):
        return None
    seconds = sum(flops[dtype] / rate.value for dtype, rate in rates.items())
    return Ceiling(rates[largest].name, counted / seconds, rates[largest].source)


def add_traced_utilisation(utilisation: dict[str, Utilisation], phases: list[TracedPhase]) -> None:
    """Fill in the MFU of phases that no timing gave one; a measured wall-clock counts first."""
    for one in phases:
        if one.mfu_ratio is None or one.peak is None:
            continue
        use = utilisation.setdefault(one.phase, Utilisation())
        if use.mfu_ratio is not None:
            continue
        use.mfu_ratio = one.mfu_ratio
        use.mfu_reached_ratio, reached = share_of_reached("MFU", one.mfu_ratio, one.peak, one.reached)
        text = (
            f"MFU {units.percent(one.mfu_ratio)} = {units.flops(one.work.flops)} from the trace's shapes ÷ "
            f"({units.seconds(one.work.busy_s)} of busy device × {units.flops_per_s(one.peak.value)} dense "
            f"{one.peak.name}, {one.peak.source}); {units.percent(one.work.coverage_ratio)} of the matrix kernels' "
            "time is counted"
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
    words = [
        "FLOPs of matrix products, convolutions and attention, from the shapes the trace recorded (two per "
        "multiply-add; attention over all pairs of query and key positions, because masks are not recorded); time in "
        "which the device was busy. Intensity is over the operands of every call, as if nothing stayed in a cache.",
        *(f"{_name(one.phase)}: no ratio is claimed, because {one.reason}." for one in phases if one.reason),
    ]
    columns = ["phase", "FLOPs", "counted", "device busy", "achieved", "of peak", "FLOP/B", "nearer limit"]
    return [Section(stage, "Work counted from the trace", words, [SectionTable(columns, rows)])]


def _name(phase: str) -> str:
    return "Whole capture" if phase == WHOLE else phase.capitalize()


def _row(one: TracedPhase, hardware: Hardware) -> list[str]:
    return [
        "whole capture" if one.phase == WHOLE else one.phase,
        units.flops(one.work.flops),
        units.percent(one.work.coverage_ratio),
        units.seconds(one.work.busy_s),
        units.flops_per_s(one.achieved_flops_per_s),
        units.percent(one.mfu_ratio),
        units.number(one.intensity_flops_per_byte),
        _nearer_limit(one, hardware) or units.MISSING,
    ]


def _nearer_limit(one: TracedPhase, hardware: Hardware) -> str | None:
    """Which roof stands over this intensity."""
    bandwidth = hardware.bandwidth_bytes_per_s
    if one.peak is None or one.intensity_flops_per_byte is None or not bandwidth:
        return None
    ridge = one.peak.value / bandwidth
    return "compute" if one.intensity_flops_per_byte >= ridge else "memory"
