"""One whole from the facts of all stages. A pure function; the order of the captures does not matter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from llm_perf_opt.analysis.captures.truncation import find_shortages
from llm_perf_opt.analysis.facts import Capture, Facts, ModulePhase, ProfiledPass
from llm_perf_opt.analysis.memory.prediction import join_memory
from llm_perf_opt.analysis.operators.work import OperatorWork
from llm_perf_opt.analysis.ranks.host import join_host_ranks
from llm_perf_opt.analysis.ranks.join import join_ranks
from llm_perf_opt.analysis.targets.calls import ShapedCalls, TracedKernel
from llm_perf_opt.analysis.timeline.totals import (
    decode_steps_captured,
    joined_attribution,
    joined_budget,
    joined_busy_ratio,
    joined_copies,
    kernel_totals,
    set_kernel_shares,
    token_metrics,
)
from llm_perf_opt.core.phases import DECODE, WHOLE
from llm_perf_opt.model.counters import NcuCapture
from llm_perf_opt.model.summary import (
    Budget,
    Finding,
    Kernel,
    MemoryUse,
    Operator,
    Section,
    Static,
    Telemetry,
)
from llm_perf_opt.model.summary.parallel import Communication, DeviceUse, IdleGap, RankUse
from llm_perf_opt.model.summary.profiled import CounterConditions
from llm_perf_opt.model.wall_clock import WallClock

T = TypeVar("T")
_GAPS_SHOWN = 10


@dataclass(slots=True)
class Joined:
    """What all stages say together."""

    clock: WallClock | None = None
    static: Static | None = None
    model: dict[str, str] = field(default_factory=dict)
    operators: list[Operator] = field(default_factory=list)
    operator_work: OperatorWork | None = None
    shaped_calls: list[ShapedCalls] = field(default_factory=list)
    traced_kernels: list[TracedKernel] = field(default_factory=list)
    """All kernels of the traces that ``shaped_calls`` is from; their times may differ from those of ``kernels``."""
    kernels: list[Kernel] = field(default_factory=list)
    budget: dict[str, Budget] = field(default_factory=dict)
    device_busy_ratio: dict[str, float] = field(default_factory=dict)
    timeline: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float | None] = field(default_factory=dict)
    device_times: dict[ModulePhase, tuple[float, int]] = field(default_factory=dict)
    """Module and phase → device seconds and launches of the whole capture."""
    phase_counts: dict[str, int] = field(default_factory=dict)
    """Phase → how often the captures of ``device_times`` hold it (decode: steps)."""
    phase_ranges: dict[str, int] = field(default_factory=dict)
    """Phase → how many ranges of it those captures hold."""
    module_shares: dict[ModulePhase, float] = field(default_factory=dict)
    module_times: dict[ModulePhase, float] = field(default_factory=dict)
    """Module and phase → seconds a stage measured itself."""
    host_seconds: dict[str, float] = field(default_factory=dict)
    """Phase → what its ranges took under the profiler, where the work ran on the host."""
    profiled: ProfiledPass | None = None
    time_attributed_ratio: float | None = None
    kernel_time_classified_ratio: float | None = None
    has_time_axis: bool = False
    device_name: str | None = None
    counters: NcuCapture | None = None
    devices: list[DeviceUse] = field(default_factory=list)
    ranks: list[RankUse] = field(default_factory=list)
    ranks_joined: int = 1
    """Ranks whose work is added up in kernels, modules and counts of phases; budgets are means."""
    communication: Communication | None = None
    idle_gaps: list[IdleGap] = field(default_factory=list)
    conditions: CounterConditions | None = None
    """How the counters were measured."""
    truncated: set[str | None] = field(default_factory=set)
    """Phases that are captured only in part; ``None``: the whole capture is."""
    used_captures: list[Capture] = field(default_factory=list)
    """The captures that ``kernels`` and ``budget`` come from."""
    memory: dict[str, MemoryUse] = field(default_factory=dict)
    telemetry: Telemetry | None = None
    findings: list[Finding] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def join(facts: Sequence[Facts]) -> Joined:
    """Join facts in pipeline order: where several stages say the same, the first that says it counts."""
    joined = Joined(
        clock=_first(each.wall_clock for each in facts),
        static=_first(each.static for each in facts),
        counters=_first(each.counters for each in facts),
        profiled=_first(each.profiled for each in facts),
        operators=next((each.operators for each in facts if each.operators), []),
        operator_work=_first(each.operator_work for each in facts),
        shaped_calls=[calls for each in facts for calls in each.shaped_calls],
        traced_kernels=[kernel for each in facts for kernel in each.traced_kernels],
        telemetry=_first(each.telemetry for each in facts),
        findings=[finding for each in facts for finding in each.findings],
        sections=[section for each in facts for section in each.sections],
        notes=[note for each in facts for note in each.notes],
    )
    join_captures(joined, [capture for each in facts for capture in each.captures])
    if not joined.ranks and joined.communication is None:
        host = join_host_ranks([one for each in facts for one in each.host_collectives])
        joined.ranks, joined.communication = host.ranks, host.communication
        joined.notes += host.notes
    if not joined.ranks:
        from llm_perf_opt.analysis.range_table import rank_rows

        joined.ranks = rank_rows([capture for each in facts for capture in each.captures])
    for each in facts:
        _fill_in(joined.model, each.model)
        _fill_in(joined.budget, each.budget)
        _fill_in(joined.module_shares, each.module_shares)
        _fill_in(joined.module_times, each.module_times)
        _fill_in(joined.host_seconds, each.host_seconds)
        join_memory(joined.memory, each.memory)
        _fill_in(joined.metrics, each.metrics)
        if each.profiled is not None:
            _fill_in(joined.metrics, _profiled_metrics(each.profiled, joined.clock))
        if each.counters is not None and joined.device_name is None:
            joined.device_name = _first(launch.device_name for launch in each.counters.launches)
    joined.notes = list(dict.fromkeys(joined.notes))
    return joined


def _first(values: Iterable[T | None]) -> T | None:
    return next((value for value in values if value is not None), None)


def _fill_in(target: dict[Any, Any], more: Mapping[Any, Any]) -> None:
    for key, value in more.items():
        target.setdefault(key, value)


def _profiled_metrics(profiled: ProfiledPass, clock: WallClock | None) -> dict[str, float | None]:
    """How many decode steps our own profiler stage recorded, and how much it slowed them down."""
    steps = profiled.active_passes * (profiled.new_tokens - 1)
    found: dict[str, float | None] = {"profiled_decode_steps": float(steps) if steps > 0 else None}
    plain = clock.sample_totals.get("+".join(profiled.sample_ids)) if clock is not None else None
    # The profiled pass may be cut short; only equal work tells what the profiler costs.
    if plain is not None and plain.new_tokens == profiled.new_tokens and plain.seconds > 0:
        found["profiled_over_unprofiled_ratio"] = profiled.seconds / profiled.active_passes / plain.seconds
    return found


def join_captures(joined: Joined, captures: Sequence[Capture]) -> None:
    """Join captures of the tool that disturbs the run least; each phase comes from one capture.

    Captures of different tools saw different passes, so their kernels are never mixed. Where two captures hold the same
    phase, the one with more device time of it is used: which was read first must not decide.
    """
    joined.notes += [warning for capture in captures for warning in capture.facts.warnings]
    usable = sorted((c for c in captures if c.facts.kernels), key=lambda c: str(c.path))
    least = min((capture.disturbance for capture in usable), default=0)
    ranks = join_ranks([capture for capture in usable if capture.disturbance == least])
    usable = ranks.captures
    joined.ranks, joined.notes = ranks.ranks, [*ranks.notes, *joined.notes]
    joined.ranks_joined = ranks.joined
    if not usable:
        from llm_perf_opt.analysis.range_table import range_sections

        joined.sections += range_sections(captures)
        return
    with_axis = [capture for capture in usable if capture.facts.budget]
    candidates = with_axis or _tables_of_ranges(usable) or usable[:1]
    owners = _owners(candidates)
    used = [c for c in candidates if any(owner is c for owner in owners.values())]
    joined.has_time_axis = bool(with_axis)
    joined.used_captures = used
    joined.kernels = sorted(
        (
            kernel
            for phase, owner in owners.items()
            for kernel in owner.facts.kernels
            if kernel.phase == phase
        ),
        key=lambda kernel: (-(kernel.total_s or 0.0), kernel.name, kernel.phase or ""),
    )
    for phase, owner in owners.items():
        _take_phase(joined, phase, owner)
    joined.timeline = _drawing(used, owners)
    _take_axes(joined, used)
    joined.device_name = _first(next(iter(c.facts.devices.values()), None) for c in used)
    _join_totals(joined, used, owners)
    shortages = find_shortages(joined.static, joined.kernels, used, joined.phase_counts, joined.clock)
    joined.notes += [each.text for each in shortages]
    joined.truncated = {each.phase for each in shortages}
    joined.metrics |= token_metrics(joined.kernels, _decode_steps(joined, owners.get(DECODE)))


def _tables_of_ranges(captures: Sequence[Capture]) -> list[Capture]:
    """Return the tables that are known to be of one range each: they can stand beside one another."""
    return [capture for capture in captures if capture.range is not None and capture.range.phase is not None]


def _decode_steps(joined: Joined, owner: Capture | None) -> float | None:
    """Return how many decode steps the captured launches are of; ``None`` when not known, or captured in part."""
    if owner is None or {DECODE, None} & joined.truncated:
        return None
    workload = joined.clock.workload if joined.clock is not None else None
    passes = owner.range.passes if owner.range is not None else None
    if passes is None and owner.range is None and owner.covers_run:
        passes = (workload.samples if workload is not None else None) or 1
    return decode_steps_captured(
        joined.phase_counts.get(DECODE), passes, workload.new_tokens if workload is not None else None
    )


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


def _take_phase(joined: Joined, phase: str | None, owner: Capture) -> None:
    facts = owner.facts
    if phase is None:
        return
    if phase in facts.budget:
        joined.budget[phase] = facts.budget[phase]
    if phase in facts.device_busy_ratio:
        joined.device_busy_ratio[phase] = facts.device_busy_ratio[phase]
    if phase in facts.phase_counts:
        joined.phase_counts[phase] = facts.phase_counts[phase]
    if phase in facts.phase_ranges:
        joined.phase_ranges[phase] = facts.phase_ranges[phase]
    for row in facts.modules:
        if row.phase == phase:
            joined.device_times[row.module, phase] = (row.total_ns / 1e9, row.launches)


def _take_axes(joined: Joined, used: Sequence[Capture]) -> None:
    """Devices, gaps and communication of the captures that count."""
    axes = [capture.facts.axis for capture in used if capture.facts.axis is not None]
    if len(axes) == 1:
        joined.devices, joined.communication = axes[0].devices, axes[0].communication
    else:
        joined.devices = [device for axis in axes for device in axis.devices]
        talk = [axis.communication for axis in axes if axis.communication is not None]
        joined.communication = max(talk, key=lambda one: one.exposed_s, default=None)
    gaps = sorted((gap for axis in axes for gap in axis.gaps), key=lambda gap: -gap.seconds)
    joined.idle_gaps = gaps[:_GAPS_SHOWN]


def _drawing(used: Sequence[Capture], owners: Mapping[str | None, Capture]) -> dict[str, Any]:
    """One decode step is the picture to draw; without decode, whatever the first capture drew."""
    decode = owners.get(DECODE)
    candidates = [*([decode] if decode is not None else []), *used]
    return next((c.facts.timeline for c in candidates if c.facts.timeline), {})


def _join_totals(joined: Joined, used: Sequence[Capture], owners: Mapping[str | None, Capture]) -> None:
    """Totals of several captures, one per range, are those of all of them."""
    if len(used) == 1:
        facts = used[0].facts
        for phase, budget in facts.budget.items():  # also phases without a kernel of their own
            joined.budget.setdefault(phase, budget)
            if phase in facts.device_busy_ratio:
                joined.device_busy_ratio.setdefault(phase, facts.device_busy_ratio[phase])
        _fill_in(joined.phase_counts, facts.phase_counts)
        _fill_in(joined.phase_ranges, facts.phase_ranges)
        joined.metrics |= facts.metrics
        joined.time_attributed_ratio = facts.time_attributed_ratio
        joined.kernel_time_classified_ratio = facts.kernel_time_classified_ratio
        return
    joined.metrics |= kernel_totals(joined.kernels)
    set_kernel_shares(joined.kernels, joined.metrics["kernel_time_s"] or 0.0)
    unknown = joined.metrics["unclassified_kernel_time_ratio"]
    joined.kernel_time_classified_ratio = None if unknown is None else 1.0 - unknown
    if not _any_phase_twice(used):
        # Copies are known per capture, not per phase: of a phase seen twice they cannot be told apart.
        joined.metrics |= joined_copies(*(capture.facts.metrics for capture in used))
        joined.time_attributed_ratio = joined_attribution(
            *((capture.facts.time_attributed_ratio, capture.facts.metrics) for capture in used)
        )
    if any(kernel.phase not in joined.budget for kernel in joined.kernels):
        return  # kernels outside every phase: their time is in no phase's budget
    whole = joined_budget(joined.budget)
    busy = joined_busy_ratio(joined.device_busy_ratio, joined.budget)
    if whole is not None:
        joined.budget[WHOLE] = whole
    if busy is not None:
        joined.device_busy_ratio[WHOLE] = busy


def _any_phase_twice(captures: Sequence[Capture]) -> bool:
    seen: set[str | None] = set()
    for capture in captures:
        own = {kernel.phase for kernel in capture.facts.kernels}
        if own & seen:
            return True
        seen |= own
    return False
