"""A timeline, or totals without one, as the facts of the summary."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llm_perf_opt.analysis.kernels.chains import chain_metrics, find_chains
from llm_perf_opt.analysis.timeline.attribution import (
    NONE,
    Attribution,
    Total,
    attribute,
    by_path_and_name,
    totals,
)
from llm_perf_opt.analysis.timeline.drawing import draw_step
from llm_perf_opt.analysis.timeline.graphs import unclaimed_behind_graphs
from llm_perf_opt.analysis.timeline.kernel_tables import (
    KernelRow,
    ModuleRow,
    classified_ratio,
    family_totals,
    kernel_rows,
    module_rows,
    rows_of_totals,
)
from llm_perf_opt.analysis.timeline.module_times import phase_counts, phase_ranges
from llm_perf_opt.analysis.timeline.time_axis import TimeAxis, time_axis
from llm_perf_opt.model.summary import Budget, Kernel
from llm_perf_opt.model.timeline import KernelTotals, OpKind, Timeline

_NS = 1e9


@dataclass(slots=True)
class TimelineFacts:
    """Everything a capture says that the summary wants; ``None`` and empty where it does not say."""

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
    metrics: dict[str, float | None] = field(default_factory=dict)
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
    """Analyse a timeline; ``attribution`` where it was made already."""
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
        rows = ops.kind == kind
        found = totals(timeline, np.zeros(len(ops), np.int64), rows).get(0, Total(0, 0))
        metrics[f"{label}_s"] = found.total_ns / _NS
        metrics[f"{label}_launches"] = float(found.launches)
        known = rows & (ops.bytes >= 0)
        metrics[f"{label}_bytes"] = float(ops.bytes[known].sum()) if known.any() else None
    return metrics
