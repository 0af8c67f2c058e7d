"""Kernels as Nsight Compute saw them: several launches joined, intensity and rate, ceilings, verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llm_perf_opt.analysis.ncu.launch import (
    BoundVerdict,
    LaunchFacts,
    VendorVerdict,
    agreement,
    analyse_launch,
    classify,
    vendor_verdict,
)
from llm_perf_opt.analysis.ncu.launch_weights import profiled_phase
from llm_perf_opt.core import units

if TYPE_CHECKING:
    from llm_perf_opt.captures.ncu.launches import NcuCapture, NcuRule

_SUMMED = ("dram_bytes", "dram_read_bytes", "dram_write_bytes", "l2_bytes", "l1_bytes")
_REPORTED = (
    "compute_ratio", "memory_ratio", "dram_ratio", "l2_ratio", "l1_ratio", "l1_elapsed_ratio", "l1_hit_ratio",
    "l2_hit_ratio", "occupancy_ratio", "theoretical_occupancy_ratio", "waves", "issue_active_ratio",
    "eligible_warps", "tensor_pipe_ratio", "registers_per_thread", "sm_count", "sm_active_cycles",
    "elapsed_cycles", "sm_frequency_hz", "dram_frequency_hz", "dram_bytes_per_s",
)  # fmt: skip
_DTYPES = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "tensor_fp64": "float64",
    "tensor_tf32": "tf32",
    "tensor_bf16": "bfloat16",
    "tensor_fp16": "float16",
    "tensor_fp8": "float8",
    "tensor_fp16_bf16_tf32": "float16",
}


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Peaks from a catalogue, for captures without their own."""

    flops_per_s: Mapping[str, float] = field(default_factory=dict)
    """By data type (``bfloat16``)."""
    bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class PrecisionFacts:
    """Work of one precision against the roofline."""

    precision: str
    flops: float
    """Operations per launch (mean over launches)."""
    achieved_flops_per_s: float | None
    intensity_flops_per_byte: float | None
    """Per byte of DRAM traffic."""
    peak_flops_per_s: float | None
    peak_source: str | None
    """``counters`` (the device's own) or ``catalogue``."""


@dataclass(slots=True)
class NcuKernelFacts:
    """One kernel: all its profiled launches together."""

    kernel: str
    function: str
    launches: int
    phase: str | None
    """Phase they were profiled in; ``None`` if unknown."""
    rank: int | None
    nsys_name_md5: str | None
    device_name: str | None
    compute_capability: str | None
    grids: list[tuple[int, int, int]]
    blocks: list[tuple[int, int, int]]
    counters: dict[str, float | None]
    """For ``summary.json``: per launch, shares weighted by duration. Absent quantities are ``None``."""
    precision: str | None
    """Precision with the most work; the headline intensity and rate are its."""
    precisions: list[PrecisionFacts]
    peak_bytes_per_s: float | None
    bandwidth_source: str | None
    bound: BoundVerdict
    vendor: VendorVerdict | None
    agreement: str | None
    rules: list[NcuRule]
    violations: list[str]
    notes: list[str]
    """Why something is missing, and other remarks."""
    sources: list[str]
    parts: list[LaunchFacts] = field(repr=False, default_factory=list)

    @property
    def consistent(self) -> bool:
        """Return whether no number had to be withheld."""
        return not any(part.refused for part in self.parts)


def analyse_ncu(
    capture: NcuCapture,
    *,
    peak_flops_per_s: Mapping[str, float] | None = None,
    peak_bytes_per_s: float | None = None,
) -> list[NcuKernelFacts]:
    """Return one entry per kernel (name, phase), in the order of rank, then of time.

    Ceilings come from the capture's own counters and clocks; ``peak_flops_per_s`` (by data type, ``bfloat16``)
    and ``peak_bytes_per_s`` from a catalogue fill in what it does not carry.
    """
    groups: dict[tuple[str, str | None], list[LaunchFacts]] = {}
    for launch in capture.launches:
        groups.setdefault((launch.kernel, profiled_phase(launch)), []).append(analyse_launch(launch))
    ceilings = Ceilings(peak_flops_per_s or {}, peak_bytes_per_s)
    facts = [join_launches(parts, phase, ceilings) for (_, phase), parts in groups.items()]
    return sorted(facts, key=lambda each: (each.rank is None, each.rank or 0, -_total_time(each)))


def _total_time(facts: NcuKernelFacts) -> float:
    return (facts.counters.get("duration_s") or 0.0) * facts.launches


def join_launches(
    parts: list[LaunchFacts],
    phase: str | None,
    ceilings: Ceilings,
    weights: Sequence[float] | None = None,
) -> NcuKernelFacts:
    """Join the launches of a kernel; ``weights``: how many launches of the run each represents (default: equal)."""
    first = parts[0].launch
    weights = list(weights) if weights is not None else [1.0] * len(parts)
    bandwidth = ceilings.bytes_per_s
    notes = list(dict.fromkeys(note for part in parts for note in part.notes))
    counters = _counters(parts, weights, notes)
    own_bandwidth = _first(part.peak_bytes_per_s for part in parts)
    precisions = _precisions(parts, weights, counters, ceilings.flops_per_s, notes)
    head = precisions[0] if precisions and precisions[0].flops > 0 else None
    counters["intensity_flops_per_byte"] = head.intensity_flops_per_byte if head else None
    counters["achieved_flops_per_s"] = head.achieved_flops_per_s if head else None
    counters["flops"] = head.flops if head else None
    counters["peak_flops_per_s"] = head.peak_flops_per_s if head else None
    counters["peak_bytes_per_s"] = own_bandwidth or bandwidth
    if head is None:
        notes.append(_why_no_flops(parts))
    bound = classify(counters, has_arithmetic=_has_arithmetic(parts, first.kernel))
    vendor = vendor_verdict(rule for part in parts for rule in part.launch.rules)
    return NcuKernelFacts(
        kernel=first.kernel,
        function=first.function,
        launches=len(parts),
        phase=phase,
        rank=first.rank,
        nsys_name_md5=first.nsys_name_md5,
        device_name=first.device_name,
        compute_capability=first.compute_capability,
        grids=list(dict.fromkeys(part.launch.grid for part in parts if part.launch.grid)),
        blocks=list(dict.fromkeys(part.launch.block for part in parts if part.launch.block)),
        counters=counters,
        precision=head.precision if head else None,
        precisions=precisions,
        peak_bytes_per_s=own_bandwidth or bandwidth,
        bandwidth_source="counters" if own_bandwidth else "catalogue" if bandwidth else None,
        bound=bound,
        vendor=vendor,
        agreement=agreement(bound, vendor),
        rules=_distinct_rules(parts),
        violations=list(dict.fromkeys(each.text for part in parts for each in part.violations)),
        notes=notes,
        sources=list(dict.fromkeys(source for part in parts for source in part.launch.sources)),
        parts=parts,
    )


def _counters(
    parts: list[LaunchFacts], weights: Sequence[float], notes: list[str]
) -> dict[str, float | None]:
    """Join launches: time and bytes are means per launch of the run, shares are weighted by duration.

    A share of peak is work ÷ (peak × time), so the share over several launches is the time-weighted mean.
    """
    counters: dict[str, float | None] = {
        name: _mean([(part.get(name), weight) for part, weight in zip(parts, weights, strict=True)])
        for name in ("duration_s", *_SUMMED)
    }
    for name in _REPORTED:
        counters[name] = _by_time(
            [
                (part.get(name), part.get("duration_s"), weight)
                for part, weight in zip(parts, weights, strict=True)
            ]
        )
    for name, value in counters.items():
        missing = sum(part.get(name) is None for part in parts)
        if value is not None and missing:
            notes.append(f"{name} was collected for {len(parts) - missing} of {len(parts)} launches")
    notes.extend(
        f"withheld, because {violation.text}: {', '.join(sorted(violation.refused))}"
        for part in parts
        for violation in part.violations
        if violation.refused
    )
    return counters


def _precisions(
    parts: list[LaunchFacts],
    weights: Sequence[float],
    counters: Mapping[str, float | None],
    peaks: Mapping[str, float],
    notes: list[str],
) -> list[PrecisionFacts]:
    """Join the work of all launches. Intensity is Σ work ÷ Σ bytes, the rate Σ work ÷ Σ time."""
    totals: dict[str, list[tuple[float, float | None, float | None, float]]] = {}
    for part, weight in zip(parts, weights, strict=True):
        for work in part.work:
            sample = (work.flops, part.get("dram_bytes"), part.get("duration_s"), weight)
            totals.setdefault(work.precision, []).append(sample)
    found = []
    for precision, samples in totals.items():
        flops = sum(sample[0] * sample[3] for sample in samples)
        moved = [sample[1] * sample[3] for sample in samples if sample[1] is not None]
        spent = [sample[2] * sample[3] for sample in samples if sample[2] is not None]
        traffic = sum(moved) if len(moved) == len(samples) else 0.0
        time = sum(spent) if len(spent) == len(samples) else 0.0
        own = _first(part.peak_flops_per_s.get(precision) for part in parts)
        listed = peaks.get(_DTYPES.get(precision, precision)) if own is None else None
        found.append(
            PrecisionFacts(
                precision=precision,
                flops=flops / sum(sample[3] for sample in samples),
                achieved_flops_per_s=flops / time if time else None,
                intensity_flops_per_byte=flops / traffic if traffic else None,
                peak_flops_per_s=own or listed,
                peak_source="counters" if own else "catalogue" if listed else None,
            )
        )
    found.sort(key=lambda each: (-each.flops, each.precision))
    if found and found[0].flops > 0:
        _explain_head(found[0], counters, notes)
    return found


def _explain_head(head: PrecisionFacts, counters: Mapping[str, float | None], notes: list[str]) -> None:
    if head.intensity_flops_per_byte is None:
        moved = counters.get("dram_bytes")
        why = "no DRAM traffic was measured" if moved == 0 else "the DRAM bytes are not known"
        notes.append(f"no arithmetic intensity: {why}")
    peak, rate = head.peak_flops_per_s, head.achieved_flops_per_s
    if peak and rate and rate > 1.1 * peak:
        notes.append(
            f"{head.precision}: {units.flops_per_s(rate)} exceeds the ceiling {units.flops_per_s(peak)}; "
            "one of them is wrong"
        )


def _why_no_flops(parts: Iterable[LaunchFacts]) -> str:
    measured = sorted({work.precision for part in parts for work in part.work})
    if not measured:
        return (
            "no FLOPs: the capture counts no floating-point operations "
            "(collect SpeedOfLight_RooflineChart and sm__ops_path_tensor_src_*)"
        )
    return f"no FLOPs: none were executed in the precisions that were counted ({', '.join(measured)})"


_COPY_NAMES = (
    "copy",
    "memcpy",
    "memset",
    "fill",
    "transpose",
    "nchwtonhwc",
    "nhwctonchw",
    "catarray",
    "gather",
)


def _has_arithmetic(parts: Iterable[LaunchFacts], kernel: str) -> bool | None:
    """Return whether floating-point work was measured; kernels named as copies have none even if nothing was counted."""
    work = [each for part in parts for each in part.work]
    if any(each.flops > 0 for each in work):
        return True
    if work:
        return False
    return False if any(word in kernel.lower() for word in _COPY_NAMES) else None


def _distinct_rules(parts: Iterable[LaunchFacts]) -> list[NcuRule]:
    """Return each rule once, with the largest estimate any launch got."""
    best: dict[tuple[str, str], NcuRule] = {}
    for part in parts:
        for rule in part.launch.rules:
            key = (rule.section, rule.name)
            known = best.get(key)
            if known is None or (rule.speedup_ratio or 0.0) > (known.speedup_ratio or 0.0):
                best[key] = rule
    return list(best.values())


def _mean(values: Iterable[tuple[float | None, float]]) -> float | None:
    """Return the mean of (value, weight); what is missing does not count."""
    known = [(value, weight) for value, weight in values if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def _by_time(samples: Iterable[tuple[float | None, float | None, float]]) -> float | None:
    """Return the mean of (value, duration, weight) over all time the launches represent."""
    known = [(value, time, weight) for value, time, weight in samples if value is not None]
    if len(known) == 1 or not all(time for _, time, _ in known):
        return _mean((value, weight) for value, _, weight in known)
    return _mean((value, (time or 0.0) * weight) for value, time, weight in known)


def _first(values: Iterable[float | None]) -> float | None:
    return next((value for value in values if value), None)
