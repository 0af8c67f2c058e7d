"""Kernels and modules of a timeline as tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from llm_perf_opt.analysis.kernels.demangle import demangled
from llm_perf_opt.analysis.kernels.families import OTHER, family_of
from llm_perf_opt.analysis.kernels.names import short_name
from llm_perf_opt.analysis.timeline.attribution import NONE, Attribution, Total, by_path_and_name
from llm_perf_opt.model.timeline import NamedTotal, Timeline

_LAYER_NUMBER = re.compile(r"(?<![\w])\d+(?![\w])|(?<=[._])\d+(?=[._]|$)")


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One kernel in one phase."""

    name: str
    short_name: str
    family: str
    phase: str | None
    module: str | None
    """Module of all its launches, layer numbers as ``*``; ``None`` when several or none."""
    launches: int
    total_ns: int


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """Device time of one module in one phase, without its inner modules."""

    module: str
    phase: str | None
    launches: int
    total_ns: int


def kernel_rows(
    timeline: Timeline, attribution: Attribution, cells: Mapping[tuple[int, int], Total] | None = None
) -> list[KernelRow]:
    """Kernels by name and phase: most time first, then name, then phase."""
    cells = by_path_and_name(timeline, attribution) if cells is None else cells
    grouped: dict[tuple[int, int], tuple[int, int, set[str | None]]] = {}
    for (path, name), total in cells.items():
        phase = int(attribution.path_phase[path]) if path != NONE else NONE
        launches, time, modules = grouped.get((phase, name), (0, 0, set()))
        modules.add(_numberless(attribution.path_module[path]) if path != NONE else None)
        grouped[phase, name] = (launches + total.launches, time + total.total_ns, modules)
    rows = []
    for (phase, name), (launches, time, modules) in grouped.items():
        full = demangled(timeline.names[name])
        module = next(iter(modules)) if len(modules) == 1 else None
        label = attribution.phases[phase] if phase != NONE else None
        rows.append(KernelRow(full, short_name(full), family_of(full), label, module, launches, time))
    return sort_rows(rows)


def rows_of_totals(kernels: Iterable[NamedTotal]) -> list[KernelRow]:
    """Kernels of a summary table, which knows neither phases nor modules."""
    named = ((demangled(one.name), one) for one in kernels)
    return sort_rows(
        KernelRow(name, short_name(name), family_of(name), None, None, one.count, one.total_ns)
        for name, one in named
    )


def sort_rows(rows: Iterable[KernelRow]) -> list[KernelRow]:
    """Order that does not depend on the run: most time first, then name, then phase."""
    return sorted(rows, key=lambda row: (-row.total_ns, row.name, row.phase or ""))


def module_rows(attribution: Attribution, cells: Mapping[tuple[int, int], Total]) -> list[ModuleRow]:
    """Device time by module and phase, each launch counted for its innermost module only."""
    grouped: dict[tuple[str, str | None], tuple[int, int]] = {}
    for (path, _), total in cells.items():
        module = attribution.path_module[path] if path != NONE else None
        if module is None:
            continue
        phase = int(attribution.path_phase[path])
        key = (module, attribution.phases[phase] if phase != NONE else None)
        launches, time = grouped.get(key, (0, 0))
        grouped[key] = (launches + total.launches, time + total.total_ns)
    rows = [ModuleRow(module, phase, launches, time) for (module, phase), (launches, time) in grouped.items()]
    return sorted(rows, key=lambda row: (-row.total_ns, row.module, row.phase or ""))


def family_totals(rows: Iterable[KernelRow]) -> dict[tuple[str | None, str], Total]:
    """Launches and device time by (phase, family)."""
    found: dict[tuple[str | None, str], Total] = {}
    for row in rows:
        before = found.get((row.phase, row.family), Total(0, 0))
        found[row.phase, row.family] = Total(before.launches + row.launches, before.total_ns + row.total_ns)
    return found


def classified_ratio(rows: Iterable[KernelRow]) -> float | None:
    """Share of kernel time whose family is known; ``None`` without kernels."""
    known = total = 0
    for row in rows:
        total += row.total_ns
        known += row.total_ns if row.family != OTHER else 0
    return known / total if total else None


def _numberless(module: str | None) -> str | None:
    """``model.layers.3.mlp`` → ``model.layers.*.mlp``."""
    return _LAYER_NUMBER.sub("*", module) if module is not None else None
