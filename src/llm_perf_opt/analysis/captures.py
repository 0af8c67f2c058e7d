"""The captures of one run: the range each covers, whether it is complete, and the device work of all captures combined."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llm_perf_opt.analysis.facts import Capture, Facts
from llm_perf_opt.analysis.range_table import range_sections, rank_rows
from llm_perf_opt.analysis.ranks import join_host_ranks, join_ranks
from llm_perf_opt.analysis.timeline.attribution import NONE, Attribution
from llm_perf_opt.analysis.timeline.range_names import meaning_of
from llm_perf_opt.analysis.timeline.summary import (
    TimelineFacts,
    decode_steps_captured,
    joined_attribution,
    joined_budget,
    joined_busy_ratio,
    joined_copies,
    kernel_totals,
    set_kernel_shares,
    token_metrics,
)
from llm_perf_opt.analysis.verdicts import measured_passes
from llm_perf_opt.captures.ncu.launches import LaunchConfiguration
from llm_perf_opt.captures.timeline import (
    CaptureConfiguration,
    CapturedRange,
    Int64,
    KernelTotals,
    OpKind,
    RangeTotals,
    Timeline,
)
from llm_perf_opt.core import units
from llm_perf_opt.core.arrays import distinct, exact_sums
from llm_perf_opt.core.phases import DECODE, PHASES, WHOLE
from llm_perf_opt.summary import Kernel, Section, Static, StaticModule
from llm_perf_opt.summary.devices import Communication, DeviceUse, IdleGap, RankUse

if TYPE_CHECKING:
    from llm_perf_opt.captures.timings import WallClock

# Which range a kernel table covers: such a table has no time axis, but its file name or configuration may name one.


_WHOLE_NAMES = re.compile(r"\ball[-_ ]?stages?\b|\bwhole[-_ ]?(run|program)\b", re.IGNORECASE)


def captured_range(path: Path, configuration: CaptureConfiguration | None) -> CapturedRange | None:
    """Return the range of a table; ``None`` if it is unknown or the name contains several ranges."""
    by_name = _of_name(path.name) if path.suffix else None
    if configuration is None:
        return by_name
    if by_name is not None:
        same = configuration.label is not None and configuration.label.casefold() == by_name.name.casefold()
        passes = configuration.passes if same else None
        return CapturedRange(by_name.name, by_name.phase, by_name.component, passes, by_name.source)
    if configuration.label is None:
        return CapturedRange("all", None, None, None, configuration.source)
    meaning = meaning_of(configuration.label)
    if meaning.phase is None:
        return None
    return CapturedRange(
        configuration.label, meaning.phase, meaning.component, configuration.passes, configuration.source
    )


def _of_name(name: str) -> CapturedRange | None:
    """Parse names such as ``per-stage-sam.cuda_gpu_kern_sum.csv``. Only plain phase and component names are accepted."""
    source = "the file's name"
    if _WHOLE_NAMES.search(name.replace(".", " ")):
        return CapturedRange("all", None, None, None, source)
    found: dict[tuple[str, str | None], str] = {}
    for word in re.split(r"[^A-Za-z0-9]+", name.casefold()):
        meaning = meaning_of(word)
        if meaning.phase is not None and (word in PHASES or meaning.role == "component"):
            found[meaning.phase, meaning.component] = word
    if len(found) != 1:
        return None
    ((phase, component), word) = next(iter(found.items()))
    return CapturedRange(word, phase, component, None, source)


def split_by_phase(found: KernelTotals) -> list[tuple[KernelTotals, CapturedRange]]:
    """Return a table for each phase that the column of ranges names; nothing where it names none.

    Ranges of one phase may be nested (``decode`` around ``decode_step``) and then count a launch twice, so for each
    phase the one name with the most time is taken.
    """
    best: dict[str, RangeTotals] = {}
    for each in found.by_range:
        meaning = meaning_of(each.name)
        if meaning.role != "phase" or meaning.phase is None:
            continue
        known = best.get(meaning.phase)
        if known is None or _time(each) > _time(known):
            best[meaning.phase] = each
    return [
        (
            replace(found, kernels=each.kernels, by_range=()),
            CapturedRange(each.name, phase, None, _passes(phase, each), "the column NVTX Range"),
        )
        for phase, each in best.items()
    ]


def _passes(phase: str, each: RangeTotals) -> int | None:
    """A range around a single decode step does not identify a pass."""
    return None if phase == DECODE and "step" in each.name.casefold() else each.instances


def _time(each: RangeTotals) -> int:
    return sum(kernel.total_ns for kernel in each.kernels)


def place_in_range(facts: TimelineFacts, found: CapturedRange | None) -> None:
    """Put the kernels of a table into the phase of its range and add a note."""
    if found is None or found.phase is None:
        return
    for kernel in facts.kernels:
        kernel.phase, kernel.module = found.phase, kernel.module or found.component
    facts.families = {(found.phase, family): total for (_, family), total in facts.families.items()}
    part = f", of which {found.component} is a part" if found.component else ""
    facts.warnings.append(
        f"the kernel table is of the range {found.name} alone (by {found.source}): its kernels are assigned to "
        f"{found.phase}{part}, and other phases have none"
    )


# Whether a capture holds as many launches as the static model expects: with only a fraction of them it was truncated.


_FAR_FEWER = 0.5
"""Below this share of the expected launches a capture was cut. Fused projections (query, key and value in one, gate and
up in one) leave four launches of seven."""
_MATRIX = ("gemm", "gemv", "conv")
_MAYBE_MATRIX = ("moe", "triton", "other", "quantisation")
"""Families that may hold matrix products: counted as if they did, so that only a certain lack is reported."""
_HIDES_LAUNCHES = "graph"
_WEIGHTED = re.compile(r"Linear|^Conv\d?d?$|Conv[123]d", re.IGNORECASE)
_EXPERT = re.compile(r"\.experts?\.\d+\b")


@dataclass(frozen=True, slots=True)
class Shortage:
    """A capture with far fewer matrix launches than the model needs."""

    phase: str | None
    """``None``: all phases together."""
    launches: int
    """Seen, at most."""
    expected: float
    text: str


def matrix_modules(static: Static, phase: str, component: str | None = None) -> int:
    """Count the modules that need a matrix launch of their own in every pass. Routed experts are excluded, because they
    may be skipped or grouped.
    """
    return sum(_needs_launch(module, phase, component) for module in static.modules)


def _needs_launch(module: StaticModule, phase: str, component: str | None) -> bool:
    return (
        module.flops.get(phase, 0.0) > 0
        and (component is None or module.component == component)
        and _WEIGHTED.search(module.type) is not None
        and _EXPERT.search(module.name) is None
    )


def most_matrix_launches(kernels: Iterable[Kernel]) -> int | None:
    """Count the launches that may be matrix products; ``None`` where a graph hides launches, or launches were not counted."""
    rows = list(kernels)
    if not rows or any(row.family == _HIDES_LAUNCHES or row.launches is None for row in rows):
        return None
    return sum(row.launches or 0 for row in rows if row.family in (*_MATRIX, *_MAYBE_MATRIX))


def shortage(
    static: Static | None,
    kernels: Sequence[Kernel],
    phase: str | None,
    passes: Mapping[str, float],
    *,
    component: str | None = None,
) -> Shortage | None:
    """Compare the matrix launches of one phase (``None``: of all in ``passes``) with what the model needs.

    ``passes``: phase → how often the capture should hold it (decode: steps). ``None`` when nothing is missing, or when it
    cannot be determined: no static model, no such modules, launches hidden in graphs.
    """
    rows = [row for row in kernels if phase is None or row.phase == phase]
    seen = most_matrix_launches(rows)
    if static is None or seen is None:
        return None
    wanted = {name: count for name, count in passes.items() if phase is None or name == phase}
    modules = {name: matrix_modules(static, name, component) for name in wanted}
    expected = sum(modules[name] * count for name, count in wanted.items())
    if not expected or seen >= _FAR_FEWER * expected:
        return None
    needs = " + ".join(
        f"{modules[name]} modules × {units.number(count)} {'steps' if name == 'decode' else 'passes'} of {name}"
        for name, count in wanted.items()
        if modules[name]
    )
    of = f"{component} of {phase}" if component else phase or "the run"
    text = (
        f"The capture looks truncated: at most {seen:,} matrix launches of {of} are in it, the static model expects about "
        f"{expected:,.0f} ({needs}), {units.percent(seen / expected)} of them. Its times are of a part, and "
        "nothing is derived from them per token or per wall-clock."
    )
    return Shortage(phase, seen, expected, text)


def cut_pass(
    static: Static | None,
    kernels: Sequence[Kernel],
    phase: str,
    passes: float,
    *,
    component: str | None = None,
) -> Shortage | None:
    """Detect a capture that ends in the middle of a pass: it has fewer attention launches than expected, and not a
    multiple of the layers. ``None`` without a static model, and where attention has no kernel of its own.
    """
    launches = [row.launches for row in kernels if row.phase == phase and row.family == "attention"]
    layers = attention_layers(static, phase, component) if static is not None else 0
    seen = sum(count or 0 for count in launches)
    if not layers or not seen or None in launches or seen >= layers * passes or seen % layers == 0:
        return None
    of = f"{component} of {phase}" if component else phase
    text = (
        f"The capture looks truncated: {seen:,} attention launches of {of} are in it, and the static model has {layers} layers "
        f"with attention ({layers * passes:,.0f} launches expected): it ends in the middle of a pass. Its times are of a "
        "part, and nothing is derived from them per token or per wall-clock."
    )
    return Shortage(phase, seen, layers * passes, text)


def attention_layers(static: Static, phase: str, component: str | None = None) -> int:
    """Count the layers with attention of their own."""
    return sum(
        "attention" in module.type.casefold()
        and module.flops.get(phase, 0.0) > 0
        and (component is None or module.component == component)
        for module in static.modules
    )


# How often the run launches each kernel with each grid and block, by phase.


_WHOLE_GRAPH = "[CUDA graph]"


def launch_configurations(
    timeline: Timeline, attribution: Attribution, start_ns: Int64, shapes: Int64
) -> list[LaunchConfiguration] | None:
    """Group the kernels of a timeline by name, phase and shape; ``None`` when the shapes belong to other kernels."""
    ops = timeline.ops
    graphs = [number for number, name in enumerate(timeline.names) if name == _WHOLE_GRAPH]
    rows = np.flatnonzero((ops.kind == OpKind.KERNEL) & ~np.isin(ops.name, graphs))
    if len(rows) != len(start_ns) or not np.array_equal(ops.start_ns[rows], start_ns):
        return None
    columns = [ops.name[rows], attribution.op_phase[rows], *shapes.T]
    group = np.zeros(len(rows), np.int64)
    for column in columns:
        values, position = distinct(column.astype(np.int64))
        group = distinct(group * len(values) + position)[1]
    count = int(group.max(initial=-1)) + 1
    first = np.zeros(count, np.int64)
    first[group[::-1]] = np.arange(len(rows))[::-1]
    found = np.column_stack([column[first] for column in columns])
    launches = np.bincount(group, minlength=count).tolist()
    total = exact_sums(group, ops.end_ns[rows] - ops.start_ns[rows], count).tolist()
    return [
        LaunchConfiguration(
            timeline.names[name],
            attribution.phases[phase] if phase != NONE else None,
            (shape[0], shape[1], shape[2]),
            (shape[3], shape[4], shape[5]),
            often,
            time,
        )
        for (name, phase, *shape), often, time in zip(found.tolist(), launches, total, strict=True)
        if min(shape) > 0
    ]


# Compare the captures of a run with the launches its model needs, to find phases that were captured only in part.


def _find_shortages(
    static: Static | None,
    kernels: Sequence[Kernel],
    captures: Sequence[Capture],
    phase_counts: Mapping[str, int],
    clock: WallClock | None,
) -> list[Shortage]:
    """Return what is captured only in part; nothing without a static model.

    A timeline counts its phases itself. A table of one range holds it as often as configured, at least
    once; a table of the whole run holds all samples that were timed.
    """
    if static is None or not kernels:
        return []
    if any(capture.facts.budget for capture in captures):
        found = [shortage(static, kernels, phase, phase_counts) for phase in PHASES if phase in phase_counts]
        return [each for each in found if each is not None]
    ranges = [capture.range for capture in captures if capture.range is not None and capture.range.phase]
    if ranges:
        return [each for one in ranges if (each := _of_range(static, kernels, one, clock)) is not None]
    count = float(measured_passes(clock.workload) or 1) if clock is not None else 1.0
    passes = {phase: count * _steps(phase, clock) for phase in PHASES if phase in static.phases}
    whole = shortage(static, kernels, None, passes)
    return [whole] if whole is not None else []


def _of_range(
    static: Static, kernels: Sequence[Kernel], one: CapturedRange, clock: WallClock | None
) -> Shortage | None:
    phase = one.phase or ""
    count = (one.passes or 1) * _steps(phase, clock)
    return shortage(static, kernels, phase, {phase: count}, component=one.component) or cut_pass(
        static, kernels, phase, count, component=one.component
    )


def _steps(phase: str, clock: WallClock | None) -> float:
    """Return the model passes of a phase in one pass over a sample: in decode, its steps; one where they are not known."""
    if phase != DECODE or clock is None:
        return 1.0
    if clock.decode_steps:
        return clock.decode_steps
    tokens = clock.workload.new_tokens
    return max(1.0, tokens - 1) if tokens else 1.0


# The device work of all captures combined. The order of the captures does not matter.


_GAPS_SHOWN = 10


@dataclass(slots=True)
class CapturedWork:
    """The device work of all captures combined; fields with the name and type of a summary field are copied there."""

    facts: TimelineFacts = field(default_factory=TimelineFacts)
    """Of the captures in ``used``, each phase from one of them."""
    used: list[Capture] = field(default_factory=list)
    """The captures that ``facts`` comes from; none where no capture holds device work."""
    truncated: set[str | None] = field(default_factory=set)
    """Phases that are captured only in part; ``None``: the whole capture is."""
    devices: list[DeviceUse] = field(default_factory=list)
    idle_gaps: list[IdleGap] = field(default_factory=list)
    communication: Communication | None = None
    ranks: list[RankUse] = field(default_factory=list)
    ranks_joined: int = 1
    """Ranks whose work is added up in kernels, modules and counts of phases; budgets are means."""
    sections: list[Section] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rank_notes: list[str] = field(default_factory=list)
    """Which ranks are missing or do not fit together: shown before all other notes of the captures."""

    @property
    def has_time_axis(self) -> bool:
        """Whether the times come from a timeline; tables of totals have no time axis."""
        return any(capture.facts.budget for capture in self.used)

    @property
    def device_name(self) -> str | None:
        """The first device of the captures."""
        return next(iter(self.facts.devices.values()), None)


def join_captures(facts: Facts) -> CapturedWork:
    """Join the captures of the tool that disturbs the run least; each phase comes from one capture.

    Captures of different tools saw different passes, so their kernels are never mixed. Where two captures hold the same
    phase, the one with more device time of it is used, so the result does not depend on the order.
    """
    captures = facts.captures
    usable = sorted((c for c in captures if c.facts.kernels), key=lambda c: str(c.path))
    least = min((capture.disturbance for capture in usable), default=0)
    ranks = join_ranks([capture for capture in usable if capture.disturbance == least])
    work = CapturedWork(
        ranks=ranks.ranks,
        ranks_joined=ranks.joined,
        rank_notes=ranks.notes,
        notes=[warning for capture in captures for warning in capture.facts.warnings],
    )
    if ranks.captures:
        _join_device_work(work, ranks.captures, facts)
    else:
        work.sections = range_sections(captures)
    if not work.ranks and work.communication is None:
        host = join_host_ranks(facts.host_collectives)
        work.ranks, work.communication = host.ranks, host.communication
        work.notes += host.notes
    if not work.ranks:
        work.ranks = rank_rows(captures)
    return work


def _join_device_work(work: CapturedWork, usable: Sequence[Capture], facts: Facts) -> None:
    candidates = (
        [capture for capture in usable if capture.facts.budget] or _tables_of_ranges(usable) or usable[:1]
    )
    owners = _owners(candidates)
    work.used = [c for c in candidates if any(owner is c for owner in owners.values())]
    work.facts = _join_phases(work.used, owners)
    _add_totals(work.facts, work.used)
    _add_axes(work)
    shortages = _find_shortages(
        facts.static, work.facts.kernels, work.used, work.facts.phase_counts, facts.wall_clock
    )
    work.notes += [each.text for each in shortages]
    work.truncated = {each.phase for each in shortages}
    steps = _decode_steps(work, owners.get(DECODE), facts.wall_clock)
    work.facts.metrics |= token_metrics(work.facts.kernels, steps)


def _tables_of_ranges(captures: Sequence[Capture]) -> list[Capture]:
    """Return the tables that are known to cover one range each and can therefore be combined."""
    return [capture for capture in captures if capture.range is not None and capture.range.phase is not None]


def _owners(captures: Sequence[Capture]) -> dict[str | None, Capture]:
    """Return phase → the capture its numbers come from."""
    seconds: dict[str | None, list[tuple[float, int]]] = {}
    for number, capture in enumerate(captures):
        own: dict[str | None, float] = {}
        for kernel in capture.facts.kernels:
            own[kernel.phase] = own.get(kernel.phase, 0.0) + (kernel.total_s or 0.0)
        for phase, total in own.items():
            seconds.setdefault(phase, []).append((-total, number))
    return {phase: captures[min(found)[1]] for phase, found in seconds.items()}


def _join_phases(used: Sequence[Capture], owners: Mapping[str | None, Capture]) -> TimelineFacts:
    """Take every phase from its capture."""
    found = TimelineFacts()
    for phase, owner in owners.items():
        own = owner.facts
        found.kernels += [kernel for kernel in own.kernels if kernel.phase == phase]
        if phase is None:
            continue
        found.modules += [row for row in own.modules if row.phase == phase]
        if phase in own.budget:
            found.budget[phase] = own.budget[phase]
        if phase in own.device_busy_ratio:
            found.device_busy_ratio[phase] = own.device_busy_ratio[phase]
        if phase in own.phase_counts:
            found.phase_counts[phase] = own.phase_counts[phase]
        if phase in own.phase_ranges:
            found.phase_ranges[phase] = own.phase_ranges[phase]
    found.kernels.sort(key=lambda kernel: (-(kernel.total_s or 0.0), kernel.name, kernel.phase or ""))
    found.timeline = _drawing(used, owners)
    for capture in used:
        for number, name in capture.facts.devices.items():
            found.devices.setdefault(number, name)
    return found


def _drawing(used: Sequence[Capture], owners: Mapping[str | None, Capture]) -> dict[str, Any]:
    """Return the decode step to draw; without decode, what the first capture draws."""
    decode = owners.get(DECODE)
    candidates = [*([decode] if decode is not None else []), *used]
    return next((c.facts.timeline for c in candidates if c.facts.timeline), {})


def _add_totals(found: TimelineFacts, used: Sequence[Capture]) -> None:
    """Totals of several captures, one per range, are those of all of them."""
    if len(used) == 1:
        own = used[0].facts  # also phases without a kernel of their own
        found.budget |= own.budget
        found.device_busy_ratio |= {
            phase: ratio for phase, ratio in own.device_busy_ratio.items() if phase in own.budget
        }
        found.phase_counts |= own.phase_counts
        found.phase_ranges |= own.phase_ranges
        found.metrics = dict(own.metrics)
        found.time_attributed_ratio = own.time_attributed_ratio
        found.kernel_time_classified_ratio = own.kernel_time_classified_ratio
        return
    found.metrics = kernel_totals(found.kernels)
    set_kernel_shares(found.kernels, found.metrics["kernel_time_s"] or 0.0)
    unknown = found.metrics["unclassified_kernel_time_ratio"]
    found.kernel_time_classified_ratio = None if unknown is None else 1.0 - unknown
    if not _any_phase_twice(used):
        # Copies are known per capture, not per phase: for a phase captured twice they cannot be separated.
        found.metrics |= joined_copies(*(capture.facts.metrics for capture in used))
        found.time_attributed_ratio = joined_attribution(
            *((capture.facts.time_attributed_ratio, capture.facts.metrics) for capture in used)
        )
    if any(kernel.phase not in found.budget for kernel in found.kernels):
        return  # kernels outside every phase: their time is in no phase's budget
    whole = joined_budget(found.budget)
    busy = joined_busy_ratio(found.device_busy_ratio, found.budget)
    if whole is not None:
        found.budget[WHOLE] = whole
    if busy is not None:
        found.device_busy_ratio[WHOLE] = busy


def _any_phase_twice(captures: Sequence[Capture]) -> bool:
    seen: set[str | None] = set()
    for capture in captures:
        own = {kernel.phase for kernel in capture.facts.kernels}
        if own & seen:
            return True
        seen |= own
    return False


def _add_axes(work: CapturedWork) -> None:
    """Devices, gaps and communication of the captures that are used."""
    axes = [capture.facts.axis for capture in work.used if capture.facts.axis is not None]
    work.devices = [device for axis in axes for device in axis.devices]
    calls = [axis.communication for axis in axes if axis.communication is not None]
    work.communication = max(calls, key=lambda one: one.exposed_s, default=None)
    gaps = sorted((gap for axis in axes for gap in axis.gaps), key=lambda gap: -gap.seconds)
    work.idle_gaps = gaps[:_GAPS_SHOWN]


def _decode_steps(work: CapturedWork, owner: Capture | None, clock: WallClock | None) -> float | None:
    """Return how many decode steps the captured launches cover; ``None`` if unknown or only partly captured."""
    if owner is None or {DECODE, None} & work.truncated:
        return None
    workload = clock.workload if clock is not None else None
    passes = owner.range.passes if owner.range is not None else None
    if passes is None and owner.range is None and owner.covers_run:
        passes = (workload.samples if workload is not None else None) or 1
    return decode_steps_captured(
        work.facts.phase_counts.get(DECODE), passes, workload.new_tokens if workload is not None else None
    )
