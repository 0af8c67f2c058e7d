"""What the nsys stage saw of every phase: the tables from which the kernels to profile are chosen."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llm_perf_opt.analysis.ncu.phases import phase_of_filter
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.phases import PHASES, REQUEST_PHASES
from llm_perf_opt.vendor.ncu.command import nvtx_includes
from llm_perf_opt.vendor.ncu.targets import KernelTime, read_kernel_summary

AUTO = "auto"
"""As ``nvtx.include``: the phases that the nsys capture holds; without one, every phase there can be."""
Tables = Mapping[str, Sequence[KernelTime]]
"""Phase or captured label → its kernels; the label is empty where a capture does not tell."""


@dataclass(frozen=True, slots=True)
class Captured:
    """What nsys saw."""

    tables: Tables = field(default_factory=dict)
    ranges: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Phase → names of the ranges it is made of, where an export tells."""


@dataclass(frozen=True, slots=True)
class PhaseGroup:
    """What one profiling run looks at."""

    phase: str
    """Empty: everything in one run."""
    include: tuple[str, ...]
    tables: Tables = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def read_captured(folder: Path) -> Captured:
    """Read the kernels that the nsys stage saw, by phase; empty when there are none.

    The exports tell every kernel's phase; without them, there are the tables of ``nsys stats``, one per captured label.
    """
    found = _of_exports(folder)
    if found.tables:
        return found
    tables: dict[str, list[KernelTime]] = {}
    whole = folder / "summary.csv"
    for path in sorted(folder.glob("summary.*.csv")):
        tables |= _read_table(path, path.name.removeprefix("summary.").removesuffix(".csv"))
    return Captured(tables or (_read_table(whole, "") if whole.is_file() else {}))


def _read_table(path: Path, label: str) -> dict[str, list[KernelTime]]:
    try:
        kernels = read_kernel_summary(path)
    except InputError:
        return {}  # another report of nsys stats, not kernels
    return {label: kernels} if kernels else {}


def _of_exports(folder: Path) -> Captured:
    """Return the kernels of each phase from the capture that has most of it; without phases, nothing."""
    exports = sorted(folder.glob("run*.sqlite")) if folder.is_dir() else []
    best: dict[str, Sequence[KernelTime]] = {}
    ranges: dict[str, tuple[str, ...]] = {}
    for path in exports:
        try:
            own = _of_export(path)
        except InputError:
            continue  # the nsys stage has said what is wrong with it; the tables of nsys stats may still be there
        for phase, kernels in own.tables.items():
            if _total(kernels) > _total(best.get(phase, ())):
                best[phase], ranges[phase] = kernels, own.ranges[phase]
    order = sorted(best, key=lambda phase: (_place(phase), phase))
    return Captured({phase: best[phase] for phase in order}, ranges)


def _of_export(path: Path) -> Captured:
    from llm_perf_opt.analysis.timeline.attribution import NONE, attribute
    from llm_perf_opt.analysis.timeline.kernel_tables import kernel_rows
    from llm_perf_opt.ingest.nsys.reader import read_nsys
    from llm_perf_opt.model.timeline import Timeline

    timeline = read_nsys(path)
    if not isinstance(timeline, Timeline) or not len(timeline.ops):
        return Captured()
    attribution = attribute(timeline)
    found: dict[str, list[KernelTime]] = {}
    for row in kernel_rows(timeline, attribution):
        if row.phase is not None:
            found.setdefault(row.phase, []).append(KernelTime(row.name, float(row.total_ns), row.launches))
    ranges: dict[str, dict[str, None]] = {phase: {} for phase in found}
    for path_number, (parent, name) in enumerate(
        zip(attribution.paths.parent, attribution.paths.name, strict=True)
    ):
        phase = attribution.path_phase[path_number]
        outer = attribution.path_phase[parent] if parent != NONE else NONE
        if phase not in (NONE, outer) and attribution.phases[phase] in ranges:
            ranges[attribution.phases[phase]][timeline.names[name]] = None
    return Captured(found, {phase: tuple(names) for phase, names in ranges.items()})


def range_filters(names: Sequence[str]) -> tuple[str, ...]:
    """Return ncu's filters for push/pop ranges of these names; numbers in them may be any (``step 12``)."""
    return tuple(dict.fromkeys(_range_filter(name) for name in names))


def _range_filter(name: str) -> str:
    if re.fullmatch(r"[A-Za-z_]+", name):
        return f"{name}/"
    # Marks mean something to ncu, each its own way and not all of them after a backslash: any character will do.
    return f"regex:{re.sub(r'[^A-Za-z0-9_ ]', '.', re.sub('[0-9]+', '0', name)).replace('0', '[0-9]+')}/"


def _total(kernels: Sequence[KernelTime]) -> float:
    return sum(kernel.total_ns for kernel in kernels)


def _place(phase: str) -> int:
    return PHASES.index(phase) if phase in PHASES else len(PHASES)


def phase_groups(
    include: str | Sequence[str] | None, captured: Captured, *, per_phase: bool
) -> list[PhaseGroup]:
    """Decide which runs there are: one for each phase that is asked for and was captured, else one for all.

    A run of its own per phase, because ncu counts launches over the whole program: the first phase would use up those
    of a kernel that runs in a later one too.
    """
    tables = captured.tables
    labels = [label for label in tables if label]
    if include == AUTO:
        wanted = {label: range_filters(captured.ranges.get(label, (label,))) for label in labels}
        everywhere = tuple(nvtx_includes([f"{phase}*" for phase in REQUEST_PHASES]))
    else:
        everywhere = tuple(nvtx_includes(include))
        wanted = {
            label: matching
            for label in labels
            if (matching := tuple(each for each in everywhere if _selects(each, label)))
        }
    if not labels or (include != AUTO and not everywhere):
        return [PhaseGroup("", everywhere, tables)]
    if not wanted:
        words = (
            f"no phase of the nsys capture ({', '.join(labels)}) is what ncu_cli.nvtx.include names "
            f"({', '.join(everywhere)}): kernels are chosen from all phases together"
        )
        return [PhaseGroup("", everywhere, tables, (words,))]
    groups = [PhaseGroup(label, own, {label: tables[label]}) for label, own in wanted.items()]
    if len(groups) == 1:
        return [PhaseGroup("", groups[0].include, groups[0].tables)]
    if per_phase:
        return groups
    ranges = tuple(dict.fromkeys(each for group in groups for each in group.include))
    return [PhaseGroup("", ranges, {label: tables[label] for label in wanted})]


def _selects(expression: str, label: str) -> bool:
    """Whether a range filter of ncu selects the phase of a captured label."""
    phase = phase_of_filter(expression)
    return phase is not None and phase == (phase_of_filter(f"{label}/") or label)
