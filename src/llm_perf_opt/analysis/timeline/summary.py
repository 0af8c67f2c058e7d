"""A timeline, or totals without one, as the facts of the summary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llm_perf_opt.analysis.kernels.chains import CHAIN_METRICS, chain_metrics, find_chains
from llm_perf_opt.analysis.kernels.families import OTHER
from llm_perf_opt.analysis.timeline.attribution import (
    NONE,
    Attribution,
    Total,
    attribute,
    by_path_and_name,
)
from llm_perf_opt.analysis.timeline.drawing import draw_step
from llm_perf_opt.analysis.timeline.engines import unclaimed_behind_graphs
from llm_perf_opt.analysis.timeline.one_off import one_off_metrics
from llm_perf_opt.analysis.timeline.tables import (
    KernelRow,
    ModuleRow,
    classified_ratio,
    family_totals,
    kernel_rows,
    module_rows,
    phase_counts,
    phase_ranges,
    rows_of_totals,
)
from llm_perf_opt.analysis.timeline.time_axis import TimeAxis, time_axis
from llm_perf_opt.captures.timeline import KernelTotals, OpKind, Timeline
from llm_perf_opt.core.limits import Number
from llm_perf_opt.core.phases import DECODE, WHOLE
from llm_perf_opt.summary import Budget, BudgetPart, Kernel

_NS = 1e9


@dataclass(slots=True)
class TimelineFacts:
    """Everything the summary takes from a capture; ``None`` or empty where unknown."""

    kernels: list[Kernel] = field(default_factory=list)
    """By name and phase: most time first, then name, then phase."""
    budget: dict[str, Budget] = field(default_factory=dict)
    """Phase → split of its wall-clock; ``all`` is the whole capture."""
    device_busy_ratio: dict[str, float] = field(default_factory=dict)
    """Phase → share of its span in which a device is busy, mean over the devices; ``all`` as above."""
    busy_by_device: dict[str, dict[int, float]] = field(default_factory=dict)
    """The same for every device."""
    time_attributed_ratio: float | None = None
    """Device time (kernels, copies, memsets) that belongs to a phase."""
    kernel_time_classified_ratio: float | None = None
    """Kernel time whose family is known."""
    metrics: dict[str, Number | None] = field(default_factory=dict)
    """Named scalars, unit in the name."""
    families: dict[tuple[str | None, str], Total] = field(default_factory=dict)
    """(Phase, family) → launches and device time."""
    modules: list[ModuleRow] = field(default_factory=list)
    """Device time by module and phase, inner modules not included."""
    phase_counts: dict[str, int] = field(default_factory=dict)
    """Phase → how often the capture holds it (decode: steps)."""
    phase_ranges: dict[str, int] = field(default_factory=dict)
    """Phase → how many ranges of it the capture holds."""
    components: dict[str, Total] = field(default_factory=dict)
    """Component label → launches and device time of kernels."""
    timeline: dict[str, Any] = field(default_factory=dict)
    """One decode step, as ``Summary.timeline``."""
    devices: dict[int, str] = field(default_factory=dict)
    axis: TimeAxis | None = None
    """Devices, gaps and communication; ``None`` without a time axis."""
    source: str | None = None
    warnings: list[str] = field(default_factory=list)


def summarise_timeline(
    timeline: Timeline,
    *,
    attribution: Attribution | None = None,
    source: str | None = None,
) -> TimelineFacts:
    """Analyse a timeline; ``attribution`` if already computed."""
    attribution = attribution if attribution is not None else attribute(timeline)
    cells = by_path_and_name(timeline, unclaimed_behind_graphs(timeline, attribution))
    rows = kernel_rows(timeline, attribution, cells)
    facts = _facts_of_rows(rows, source or timeline.source)
    facts.devices = dict(timeline.devices)
    facts.modules = module_rows(attribution, cells)
    facts.phase_counts = phase_counts(timeline, attribution)
    facts.phase_ranges = phase_ranges(timeline, attribution)
    facts.components = _components(attribution, cells)
    facts.time_attributed_ratio = _attributed(timeline, attribution)
    facts.warnings += timeline.warnings
    if len(timeline.ops):
        _add_time_axis(facts, timeline, attribution)
    facts.metrics |= _copy_metrics(timeline)
    facts.metrics |= chain_metrics(find_chains(timeline))
    facts.metrics |= one_off_metrics(timeline)
    if attribution.phases == () and len(timeline.ops):
        facts.warnings.append(
            "no range in the capture names a phase: kernels and budget are for the whole capture"
        )
    return facts


def summarise_totals(
    found: KernelTotals,
    *,
    source: str | None = None,
) -> TimelineFacts:
    """Analyse totals from a summary table: kernels and families; no budget, no busy time, no phases."""
    rows = rows_of_totals(found.kernels)
    facts = _facts_of_rows(rows, source or found.source)
    facts.warnings += [
        *found.warnings,
        "a summary table has no time axis: no budget, no gaps, and device-busy time only as an upper bound",
    ]
    if found.copies:
        facts.metrics["copy_s"] = sum(one.total_ns for one in found.copies) / _NS
        facts.metrics["copies"] = float(sum(one.count for one in found.copies))
    return facts


def _facts_of_rows(rows: list[KernelRow], source: str) -> TimelineFacts:
    total = sum(row.total_ns for row in rows)
    launches = sum(row.launches for row in rows)
    kernels = [
        Kernel(
            name=row.name,
            short_name=row.short_name,
            family=row.family,
            phase=row.phase,
            module=row.module,
            launches=row.launches,
            total_s=row.total_ns / _NS,
            share_ratio=row.total_ns / total if total else None,
        )
        for row in rows
    ]
    known = classified_ratio(rows)
    metrics: dict[str, float | None] = {
        "kernel_launches": float(launches),
        "kernel_time_s": total / _NS,
        "mean_kernel_s": total / launches / _NS if launches else None,
        "unclassified_kernel_time_ratio": 1.0 - known if known is not None else None,
    }
    return TimelineFacts(
        kernels=kernels,
        kernel_time_classified_ratio=known,
        families=family_totals(rows),
        metrics=metrics,
        source=source,
    )


def _add_time_axis(facts: TimelineFacts, timeline: Timeline, attribution: Attribution) -> None:
    found = time_axis(timeline, attribution, facts.source)
    facts.axis = found
    facts.budget = found.budget
    facts.busy_by_device = found.busy_by_device
    facts.device_busy_ratio = found.busy_ratio
    facts.warnings += found.notes
    facts.timeline = draw_step(timeline, attribution)


def _components(attribution: Attribution, cells: dict[tuple[int, int], Total]) -> dict[str, Total]:
    found: dict[str, Total] = {}
    for (path, _), total in cells.items():
        label = attribution.path_component[path] if path != NONE else None
        if label is not None:
            before = found.get(label, Total(0, 0))
            found[label] = Total(before.launches + total.launches, before.total_ns + total.total_ns)
    return dict(sorted(found.items()))


def _attributed(timeline: Timeline, attribution: Attribution) -> float | None:
    durations = timeline.ops.end_ns - timeline.ops.start_ns
    total = int(durations.sum())
    if not total:
        return None
    return int(durations[attribution.op_phase != NONE].sum()) / total


def _copy_metrics(timeline: Timeline) -> dict[str, float | None]:
    metrics: dict[str, float | None] = {}
    ops = timeline.ops
    for kind, label in ((OpKind.COPY, "copy"), (OpKind.MEMSET, "memset")):
        rows = np.flatnonzero(ops.kind == kind)
        metrics[f"{label}_s"] = int((ops.end_ns[rows] - ops.start_ns[rows]).sum()) / _NS
        metrics[f"{label}_launches"] = float(len(rows))
        known = ops.bytes[rows] >= 0
        metrics[f"{label}_bytes"] = float(ops.bytes[rows][known].sum()) if known.any() else None
    return metrics | _copy_directions(timeline)


_DIRECTIONS = {
    "h2d": re.compile(r"HtoD|Host-to-Device|HostToDevice", re.IGNORECASE),
    "d2h": re.compile(r"DtoH|Device-to-Host|DeviceToHost", re.IGNORECASE),
    "d2d": re.compile(r"DtoD|PtoP|Device-to-Device|DeviceToDevice|Peer", re.IGNORECASE),
    "pageable": re.compile(r"pageable", re.IGNORECASE),
}


def _copy_directions(timeline: Timeline) -> dict[str, float | None]:
    """Device time of copies by direction, and from or to pageable memory; nothing without copies."""
    ops = timeline.ops
    rows = np.flatnonzero(ops.kind == OpKind.COPY)
    if not len(rows):
        return {}
    seconds = np.bincount(ops.name[rows], (ops.end_ns[rows] - ops.start_ns[rows]) / _NS)
    found: dict[str, float | None] = {f"copy_{way}_s": 0.0 for way in _DIRECTIONS}
    for name in np.flatnonzero(seconds).tolist():
        for way, pattern in _DIRECTIONS.items():
            if pattern.search(timeline.names[name]):
                found[f"copy_{way}_s"] = (found[f"copy_{way}_s"] or 0.0) + float(seconds[name])
    return found


# Totals over several captures of one run (one per range), each of which covers only its own part.


def kernel_totals(kernels: Sequence[Kernel]) -> dict[str, float | None]:
    """Return the metrics that sum over all kernels."""
    total = sum(kernel.total_s or 0.0 for kernel in kernels)
    launches = sum(kernel.launches or 0 for kernel in kernels)
    unknown = sum(kernel.total_s or 0.0 for kernel in kernels if kernel.family == OTHER)
    return {
        "kernel_time_s": total,
        "kernel_launches": float(launches),
        "mean_kernel_s": total / launches if launches else None,
        "unclassified_kernel_time_ratio": unknown / total if total else None,
    }


def token_metrics(kernels: Sequence[Kernel], decode_steps: float | None) -> dict[str, float | None]:
    """Launches per token: the launches of decode ÷ its steps in the capture (``None``: not known).

    Launches that are not known to be decode's are not divided by tokens: the whole of a run holds prefill and vision too.
    """
    decode = [kernel.launches or 0 for kernel in kernels if kernel.phase == DECODE]
    launches = float(sum(decode)) if decode else None
    per_token = launches / decode_steps if launches is not None and decode_steps else None
    return {"decode_launches": launches, "launches_per_token": per_token}


def decode_steps_captured(counted: int | None, passes: int | None, new_tokens: float | None) -> float | None:
    """Return the decode steps in a capture: as counted in it, else derived from its passes.

    The first token of a pass comes from prefill.
    """
    if counted:
        return float(counted)
    return passes * (new_tokens - 1) if passes and new_tokens and new_tokens > 1 else None


_COPY_METRICS = (
    "copies",
    "copy_s",
    "copy_launches",
    "copy_bytes",
    "memset_s",
    "memset_launches",
    "memset_bytes",
    *(f"copy_{way}_s" for way in _DIRECTIONS),
    "first_launches",
    "first_launch_s",
    "repeated_launches",
    "repeated_launch_s",
)
Metrics = Mapping[str, float | None]


def joined_copies(*captures: Metrics) -> dict[str, float | None]:
    """Add up copies, memsets, first launches and chains of captures of different ranges; missing values stay unknown."""
    found: dict[str, float | None] = {}
    for name in (*_COPY_METRICS, *CHAIN_METRICS):
        known = [value for metrics in captures if (value := metrics.get(name)) is not None]
        if known:
            found[name] = sum(known)
    return found


def joined_attribution(*captures: tuple[float | None, Metrics]) -> float | None:
    """Weigh the attributed share of every capture by its device time."""
    known = [
        (ratio, sum(metrics.get(name) or 0.0 for name in ("kernel_time_s", "copy_s", "memset_s")))
        for ratio, metrics in captures
        if ratio is not None
    ]
    device_s = sum(seconds for _, seconds in known)
    return sum(ratio * seconds for ratio, seconds in known) / device_s if device_s > 0 else None


def set_kernel_shares(kernels: Iterable[Kernel], total_s: float) -> None:
    """Rescale every kernel's share to the common total, so that they sum to one."""
    for kernel in kernels:
        kernel.share_ratio = kernel.total_s / total_s if kernel.total_s is not None and total_s > 0 else None


def joined_budget(budgets: Mapping[str, Budget]) -> Budget | None:
    """Add up the phases: phases never overlap, so their sum is the whole capture."""
    phases = [budget for phase, budget in budgets.items() if phase != WHOLE]
    span_s = sum(budget.span_s for budget in phases)
    if span_s <= 0:
        return None
    seconds: dict[str, float] = {}
    for part in (part for budget in phases for part in budget.parts):
        seconds[part.name] = seconds.get(part.name, 0.0) + part.seconds
    sources = dict.fromkeys(budget.source for budget in phases if budget.source)
    return Budget(
        span_s=span_s,
        parts=[BudgetPart(name, value, value / span_s) for name, value in seconds.items()],
        source=", ".join(sources) or None,
    )


def joined_busy_ratio(ratios: Mapping[str, float], budgets: Mapping[str, Budget]) -> float | None:
    """Weigh the busy share of every phase by its span."""
    known = [
        (ratios[phase], budget.span_s)
        for phase, budget in budgets.items()
        if phase != WHOLE and phase in ratios
    ]
    span_s = sum(span for _, span in known)
    return sum(ratio * span for ratio, span in known) / span_s if span_s > 0 else None
