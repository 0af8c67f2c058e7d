"""Kernels and modules of a timeline as tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.analysis.kernels.demangle import demangled
from llm_perf_opt.analysis.kernels.families import OTHER, family_of
from llm_perf_opt.analysis.kernels.names import short_name
from llm_perf_opt.analysis.timeline.attribution import NONE, Attribution, Total, by_path_and_name
from llm_perf_opt.analysis.timeline.engines import inside_a_step
from llm_perf_opt.captures.timeline import NamedTotal, Timeline
from llm_perf_opt.core.phases import WHOLE
from llm_perf_opt.summary import Timings

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
    return _sort_rows(rows)


def rows_of_totals(kernels: Iterable[NamedTotal]) -> list[KernelRow]:
    """Kernels of a summary table, which has neither phases nor modules."""
    named = ((demangled(one.name), one) for one in kernels)
    return _sort_rows(
        KernelRow(name, short_name(name), family_of(name), None, None, one.count, one.total_ns)
        for name, one in named
    )


def _sort_rows(rows: Iterable[KernelRow]) -> list[KernelRow]:
    """Deterministic order: most time first, then name, then phase."""
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


# Time of modules from the ranges of a capture: how often each phase was run, and how its host time is split.


Key = tuple[str, str]
"""(Module or component, phase)."""


def phase_counts(timeline: Timeline, attribution: Attribution) -> dict[str, int]:
    """Return phase → how often the capture holds it; decode counts steps, and is left out where steps have no range.

    The whole (:data:`WHOLE`) counts ranges around steps of any kind.
    """
    counts: dict[str, int] = {}
    ranges = np.bincount(attribution.paths.of_range, minlength=len(attribution.meanings))
    for path in _phase_paths(attribution):
        name = attribution.phases[int(attribution.path_phase[path])]
        label = timeline.names[attribution.paths.name[path]]
        is_step = "step" in label.casefold() or attribution.meanings[path].step is not None
        wanted = (
            is_step and not inside_a_step(attribution, path)
            if name == "decode"
            else not _inside_its_phase(attribution, path)
        )
        if wanted:
            counts[name] = counts.get(name, 0) + int(ranges[path])
    steps = _steps(timeline)
    return counts | ({WHOLE: steps} if steps else {})


_STEP = re.compile(
    r"^(?:ProfilerStep|(?:train(?:ing)?[_ ])?(?:step|iter(?:ation)?))[ _#:]*\d*$", re.IGNORECASE
)


def _steps(timeline: Timeline) -> int:
    """Return how many ranges around a whole step there are, by their name; those of the thread with most of them."""
    is_step = np.array([bool(_STEP.match(name)) for name in timeline.names] or [False])
    threads = timeline.ranges.thread[is_step[timeline.ranges.name]]
    return int(np.unique(threads, return_counts=True)[1].max()) if len(threads) else 0


def phase_ranges(timeline: Timeline, attribution: Attribution) -> dict[str, int]:
    """Return phase → how many ranges of it there are, a range inside one of the same phase not counted."""
    counts: dict[str, int] = {}
    ranges = np.bincount(attribution.paths.of_range, minlength=len(attribution.meanings))
    for path in _phase_paths(attribution):
        if not _inside_its_phase(attribution, path):
            name = attribution.phases[int(attribution.path_phase[path])]
            counts[name] = counts.get(name, 0) + int(ranges[path])
    return counts


def phase_host_seconds(timeline: Timeline, attribution: Attribution) -> dict[str, float]:
    """Return phase → host time of its ranges; phases inside a phase are not part of it."""
    seconds = _seconds_by_path(timeline, attribution)
    phases: dict[str, float] = {}
    for path in _phase_paths(attribution):
        if not _inside_its_phase(attribution, path):
            name = attribution.phases[int(attribution.path_phase[path])]
            phases[name] = phases.get(name, 0.0) + seconds[path]
    return phases


def module_host_shares(timeline: Timeline, attribution: Attribution) -> dict[Key, float]:
    """Return each module's share of the host time of its phase."""
    seconds = _seconds_by_path(timeline, attribution)
    phases = phase_host_seconds(timeline, attribution)
    times = _module_times(attribution, seconds)
    return {key: own / phases[key[1]] for key, (own, _calls) in times.items() if phases.get(key[1], 0.0) > 0}


def _module_times(attribution: Attribution, seconds: Sequence[float]) -> dict[Key, tuple[float, int]]:
    ranges = np.bincount(attribution.paths.of_range, minlength=len(attribution.meanings))
    found: dict[Key, tuple[float, int]] = {}
    for path, own in enumerate(seconds):
        label = _label(attribution, path)
        phase = _phase_around(attribution, path)
        if label is None or phase is None or _called_by_itself(attribution, path, label):
            continue
        before = found.get((label, phase), (0.0, 0))
        found[label, phase] = (before[0] + own, before[1] + int(ranges[path]))
    return found


def split_by_shares(
    timings: Timings, shares: Mapping[Key, float], *, prefill_includes_vision: bool = False
) -> dict[Key, float]:
    """Split each phase's measured time, in decode that of one step, by shares.

    The profiler slows everything, so its own seconds are not used. Where the measured prefill holds the vision
    encoder, its time is taken off; where that is not known, prefill is not split.
    """
    prefill = timings.prefill_s.shown if timings.prefill_s is not None else None
    if prefill is not None and prefill_includes_vision:
        if timings.vision_s is not None:
            prefill = max(0.0, prefill - timings.vision_s.shown)
        elif any(phase == "vision" for _, phase in shares):
            prefill = None
    whole = {
        "vision": timings.vision_s.shown if timings.vision_s is not None else None,
        "encode": timings.encode_s.shown if timings.encode_s is not None else None,
        "prefill": prefill,
        "decode": timings.tpot_s.shown if timings.tpot_s is not None else None,
    }
    found = {
        (module, phase): share * seconds
        for (module, phase), share in shares.items()
        if (seconds := whole.get(phase)) is not None
    }
    return _with_containers(found)


def _with_containers(times: Mapping[Key, float]) -> dict[Key, float]:
    """Add containers that are never called (a list of layers) as the sum of the highest called modules inside."""
    found = dict(times)
    for (module, phase), seconds in times.items():
        above = module.rpartition(".")[0]
        while above and (above, phase) not in times:
            found[above, phase] = found.get((above, phase), 0.0) + seconds
            above = above.rpartition(".")[0]
    return found


def _phase_paths(attribution: Attribution) -> Iterator[int]:
    return (path for path, meaning in enumerate(attribution.meanings) if meaning.role == "phase")


def _seconds_by_path(timeline: Timeline, attribution: Attribution) -> list[float]:
    """Duration of all ranges of each path, without ranges of another phase inside them."""
    durations = (timeline.ranges.end_ns - timeline.ranges.start_ns) / 1e9
    whole = np.bincount(attribution.paths.of_range, durations, len(attribution.meanings)).tolist()
    own: list[float] = list(whole)
    for path in _phase_paths(attribution):
        for above in attribution.paths.ancestors(path)[1:]:
            if attribution.path_phase[above] != attribution.path_phase[path]:
                own[above] -= whole[path]
            if attribution.meanings[above].role == "phase":
                break  # outer ranges contain their own phase, which was already subtracted
    return own


def _phase_around(attribution: Attribution, path: int) -> str | None:
    """Return the phase of a path if the nearest range that is a phase names it."""
    for above in attribution.paths.ancestors(path)[1:]:
        if attribution.meanings[above].role == "phase":
            same = attribution.path_phase[above] == attribution.path_phase[path]
            return attribution.phases[int(attribution.path_phase[path])] if same else None
    return None


def _inside_its_phase(attribution: Attribution, path: int) -> bool:
    """Return whether a range around this one names the same phase, as ``decode`` around ``decode_step`` does."""
    return any(
        attribution.meanings[above].role == "phase"
        and attribution.path_phase[above] == attribution.path_phase[path]
        for above in attribution.paths.ancestors(path)[1:]
    )


def _label(attribution: Attribution, path: int) -> str | None:
    meaning = attribution.meanings[path]
    return meaning.module if meaning.role == "module" else meaning.component


def _called_by_itself(attribution: Attribution, path: int, label: str) -> bool:
    return any(_label(attribution, above) == label for above in attribution.paths.ancestors(path)[1:])
