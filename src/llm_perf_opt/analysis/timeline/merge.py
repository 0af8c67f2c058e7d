"""Facts of several ranks as those of one: work is added up, times are means, owners come from the rank with the largest part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from llm_perf_opt.analysis.timeline.attribution import Total
from llm_perf_opt.analysis.timeline.summary import (
    TimelineFacts,
    joined_attribution,
    joined_copies,
    kernel_totals,
    set_kernel_shares,
)
from llm_perf_opt.analysis.timeline.tables import ModuleRow
from llm_perf_opt.analysis.timeline.time_axis import TimeAxis
from llm_perf_opt.summary import Budget, BudgetPart, Kernel
from llm_perf_opt.summary.devices import Collective, Communication

K = TypeVar("K")
_GAPS_SHOWN = 10


def merge_facts_of_ranks(by_rank: Mapping[int, TimelineFacts]) -> TimelineFacts:
    """Merge the facts of the ranks, in order of rank."""
    all_facts = [by_rank[rank] for rank in sorted(by_rank)]
    kernels = _kernels(all_facts)
    metrics = kernel_totals(kernels)
    set_kernel_shares(kernels, metrics["kernel_time_s"] or 0.0)
    metrics |= joined_copies(*(one.metrics for one in all_facts))
    unknown = metrics["unclassified_kernel_time_ratio"]
    phases = list(dict.fromkeys(phase for one in all_facts for phase in one.budget))
    return TimelineFacts(
        kernels=kernels,
        budget={
            phase: mean_budget([f.budget[phase] for f in all_facts if phase in f.budget]) for phase in phases
        },
        device_busy_ratio={
            phase: _mean([f.device_busy_ratio[phase] for f in all_facts if phase in f.device_busy_ratio])
            for phase in phases
        },
        time_attributed_ratio=joined_attribution(
            *((one.time_attributed_ratio, one.metrics) for one in all_facts)
        ),
        kernel_time_classified_ratio=None if unknown is None else 1.0 - unknown,
        metrics=metrics,
        families=_added([one.families for one in all_facts]),
        modules=_modules(all_facts),
        phase_counts=_counts([one.phase_counts for one in all_facts]),
        phase_ranges=_counts([one.phase_ranges for one in all_facts]),
        components=_added([one.components for one in all_facts]),
        timeline=all_facts[0].timeline,
        devices=dict(item for one in all_facts for item in one.devices.items()),
        axis=_axis(by_rank),
        source=", ".join(dict.fromkeys(one.source for one in all_facts if one.source)) or None,
        warnings=list(dict.fromkeys(text for one in all_facts for text in one.warnings)),
    )


def mean_budget(budgets: Sequence[Budget]) -> Budget:
    """Return the mean of budgets; the owner of a part is that of the rank with the largest part."""
    count = len(budgets)
    span = sum(one.span_s for one in budgets) / count
    names = list(dict.fromkeys(part.name for one in budgets for part in one.parts))
    parts = []
    for name in names:
        found = [part for one in budgets for part in one.parts if part.name == name]
        seconds = sum(part.seconds for part in found) / count
        most = max(found, key=lambda part: part.seconds)
        parts.append(
            BudgetPart(
                name,
                seconds,
                seconds / span if span > 0 else 0.0,
                most.owner,
                _most([p.count for p in found]),
            )
        )
    sources = dict.fromkeys(one.source for one in budgets if one.source)
    return Budget(span, parts, ", ".join(sources) or None)


def _most(counts: Sequence[int | None]) -> int | None:
    return max((count for count in counts if count is not None), default=None)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _kernels(all_facts: Sequence[TimelineFacts]) -> list[Kernel]:
    found: dict[tuple[str, str | None], Kernel] = {}
    for one in (kernel for facts in all_facts for kernel in facts.kernels):
        before = found.get((one.name, one.phase))
        if before is None:
            found[one.name, one.phase] = replace(one, work=[replace(work) for work in one.work])
            continue
        _add_work(before, one)
        before.launches = (before.launches or 0) + (one.launches or 0)
        before.total_s = (before.total_s or 0.0) + (one.total_s or 0.0)
        if before.module != one.module:
            before.module = None
    return sorted(found.values(), key=lambda one: (-(one.total_s or 0.0), one.name, one.phase or ""))


def _add_work(kernel: Kernel, other: Kernel) -> None:
    """Add the shapes that a kernel ran on another rank."""
    known = {(work.shape, work.dtype): work for work in kernel.work}
    for work in other.work:
        before = known.get((work.shape, work.dtype))
        if before is None:
            kernel.work.append(replace(work))
        else:
            before.calls += work.calls
            before.total_s += work.total_s
    kernel.work.sort(key=lambda work: (-work.total_s, work.shape))


def _added(tables: Sequence[Mapping[K, Total]]) -> dict[K, Total]:
    found: dict[K, Total] = {}
    for table in tables:
        for key, total in table.items():
            before = found.get(key, Total(0, 0))
            found[key] = Total(before.launches + total.launches, before.total_ns + total.total_ns)
    return found


def _modules(all_facts: Sequence[TimelineFacts]) -> list[ModuleRow]:
    found: dict[tuple[str, str | None], ModuleRow] = {}
    for row in (row for facts in all_facts for row in facts.modules):
        before = found.get((row.module, row.phase))
        launches, total = (before.launches, before.total_ns) if before is not None else (0, 0)
        found[row.module, row.phase] = ModuleRow(
            row.module, row.phase, launches + row.launches, total + row.total_ns
        )
    return sorted(found.values(), key=lambda row: (-row.total_ns, row.module, row.phase or ""))


def _counts(tables: Sequence[Mapping[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for table in tables:
        for phase, count in table.items():
            found[phase] = found.get(phase, 0) + count
    return found


def _axis(by_rank: Mapping[int, TimelineFacts]) -> TimeAxis:
    merged = TimeAxis()
    talk = []
    for rank in sorted(by_rank):
        axis = by_rank[rank].axis
        if axis is None:
            continue
        merged.devices += [replace(one, rank=rank) for one in axis.devices]
        merged.gaps += [replace(one, rank=rank) for one in axis.gaps]
        merged.notes += axis.notes
        if axis.communication is not None:
            talk.append(axis.communication)
    merged.gaps = sorted(merged.gaps, key=lambda gap: -gap.seconds)[:_GAPS_SHOWN]
    if talk:
        merged.communication = _communication(talk, len(by_rank))
    return merged


def _communication(parts: Sequence[Communication], ranks: int) -> Communication:
    """Mean over the ranks; a rank without communication counts as zero."""
    rows: dict[str, list[Collective]] = {}
    for one in (row for part in parts for row in part.collectives):
        rows.setdefault(one.name, []).append(one)
    table = []
    for name, found in rows.items():
        sizes = [one.bytes for one in found]
        groups = {one.group_size for one in found}
        table.append(
            replace(
                found[0],
                count=max(one.count for one in found),
                bytes=None if any(size is None for size in sizes) else max(size or 0.0 for size in sizes),
                total_s=sum(one.total_s for one in found) / ranks,
                exposed_s=sum(one.exposed_s for one in found) / ranks,
                group_size=next(iter(groups)) if len(groups) == 1 else None,
                devices=sum(one.devices or 0 for one in found),
                name=name,
            )
        )
    table.sort(key=lambda one: (-one.exposed_s, -one.total_s, one.name))
    shares = [one.share_ratio for one in parts if one.share_ratio is not None]
    return Communication(
        table,
        sum(one.total_s for one in parts) / ranks,
        sum(one.exposed_s for one in parts) / ranks,
        sum(shares) / ranks if shares else None,
    )
