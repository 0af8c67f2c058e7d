"""From facts and captured work to the summary: relate work, time and limits, then classify. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from llm_perf_opt.analysis.captures import CapturedWork
from llm_perf_opt.analysis.cpu import cpu_work, work_section
from llm_perf_opt.analysis.facts import NO_DEVICE_EVENTS, TIMINGS, Facts, ModulePhase, add_fields
from llm_perf_opt.analysis.findings import find_all, rank_findings
from llm_perf_opt.analysis.kernels.names import make_short_names_distinct
from llm_perf_opt.analysis.ledger import ModuleTime, build_ledger
from llm_perf_opt.analysis.operators.work import OperatorWork
from llm_perf_opt.analysis.roofline.demand import compute_dtypes
from llm_perf_opt.analysis.roofline.limits import fastest_dtype
from llm_perf_opt.analysis.roofline.predictions import missing_reasons, predict_phases
from llm_perf_opt.analysis.roofline.utilisation import (
    add_traced_utilisation,
    phase_utilisation,
    traced_metrics,
    traced_phases,
    traced_section,
)
from llm_perf_opt.analysis.serving.section import add_step_floors
from llm_perf_opt.analysis.shares import add_shares
from llm_perf_opt.analysis.targets import (
    add_profiled_targets,
    add_targets,
    has_shapes,
    look_up_in,
    missing_section,
    target_section,
    traced_times,
)
from llm_perf_opt.analysis.telemetry import predict_memory
from llm_perf_opt.analysis.timeline.budget import WORKING
from llm_perf_opt.analysis.timeline.summary import TimelineFacts
from llm_perf_opt.analysis.timeline.tables import split_by_shares
from llm_perf_opt.analysis.unprofiled import against_wall_clock, busy_from_totals, occurrences
from llm_perf_opt.analysis.validation import cautions
from llm_perf_opt.analysis.verdicts import judge
from llm_perf_opt.captures.timings import WallClock
from llm_perf_opt.core.phases import captured_count_name
from llm_perf_opt.hardware.catalogue import Catalogue
from llm_perf_opt.hardware.silicon import Silicon
from llm_perf_opt.summary import CoverageSummary, Hardware, RunInfo, StageInfo, Summary, Utilisation, Workload

if TYPE_CHECKING:
    from llm_perf_opt.analysis.ncu.summary import CounterFacts

# Kernel targets from the measured tables of the extra ``silicon``: looked up here, compared in ``analysis.targets``.


_STAGE = "torch_profiler"


def add_kernel_targets(
    summary: Summary, facts: Facts, silicon: Silicon | None, counters: CounterFacts | None = None
) -> None:
    """Add targets to the kernels whose shapes are known, and report what could not be compared and why.

    Nothing is reported if there is nothing to compare: no shapes, or the extra is missing and has no tables for the
    device.
    """
    from llm_perf_opt.hardware.silicon.installation import describe_absence

    hardware = summary.hardware
    shaped_ranges = counters is not None and has_shapes(facts.counters)
    if hardware.name is None or not (facts.shaped_calls or shaped_ranges):
        return
    if silicon is None:
        if hardware.reached_flops_per_s:  # a device the tables hold
            reason = describe_absence()
            summary.sections += missing_section(_STAGE, f"{reason[0].upper()}{reason[1:]}.")
        return
    name = hardware.name
    if silicon.system(name) is None:
        reason = f"No measured table is of {name}, so its kernels have no target."
        summary.sections += missing_section(_STAGE, reason)
        _add_notes(summary, _problem_notes(silicon))
        return
    look_up = look_up_in(lambda operator: silicon.time(operator, name), hardware)
    traced_s = traced_times(facts.traced_kernels)
    coverage = add_targets(summary.kernels, facts.shaped_calls, look_up, traced_s)
    profiled = None
    if counters is not None:
        profiled = add_profiled_targets(summary.kernels, counters.facts, counters.matches, look_up)
    summary.metrics |= {
        "kernel_targets_compared_s": coverage.compared_s,
        "kernel_targets_outside_s": coverage.outside_s,
        "kernel_targets_at_stake_s": coverage.at_stake_s,
    }
    origin = f"tables of {silicon.installation.describe()}"
    summary.sections += target_section(_STAGE, coverage, origin, profiled)
    _add_notes(summary, _problem_notes(silicon))


def _problem_notes(silicon: Silicon) -> list[str]:
    return [f"Measured tables: {problem}" for problem in silicon.problems]


def _add_notes(summary: Summary, notes: Iterable[str]) -> None:
    summary.notes = list(dict.fromkeys([*summary.notes, *notes]))


_RANDOM_WEIGHTS_NOTE = "Random weights: the timings are real, the generated text is meaningless."


@dataclass(slots=True)
class Subject:
    """The subject of a summary, besides the facts of stages."""

    run: RunInfo
    environment: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, StageInfo] = field(default_factory=dict)
    workload: Workload = field(default_factory=Workload)
    """As configured; what was measured counts first."""
    dtype: str | None = None
    sources: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def summarise(
    subject: Subject,
    facts: Facts,
    work: CapturedWork,
    hardware: Hardware,
    *,
    counters: CounterFacts | None = None,
    catalogue: Catalogue | None = None,
    silicon: Silicon | None = None,
) -> Summary:
    """Build the summary from facts and captured work.

    ``facts`` are those of all stages, ``work`` their combined captures; ``silicon`` has measured times of operators.
    """
    clock = facts.wall_clock
    workload = _merge_workload(subject, facts)
    summary = Summary(
        run=subject.run,
        environment=subject.environment,
        hardware=hardware,
        workload=workload,
        notes=[*subject.notes, *missing_clock_note(facts), *work.rank_notes],
        stages=subject.stages,
        sources=subject.sources,
    )
    for source in (work.facts, facts, work):
        add_fields(summary, source)
    if clock is not None:
        summary.timings, summary.samples = clock.timings, clock.samples
        summary.repeat_spread = clock.repeat_spread
    summary.metrics = {
        **(clock.metrics if clock is not None else {}),
        **{captured_count_name(phase): float(count) for phase, count in work.facts.phase_counts.items()},
        **summary.metrics,
    }
    if facts.profiled is not None:
        for name, value in facts.profiled.metrics(clock).items():
            summary.metrics.setdefault(name, value)
    if counters is not None:
        summary.kernels, summary.counters = counters.kernels, counters.conditions
        summary.notes += counters.notes
    _add_notes(summary, ())
    if facts.shaped_calls or counters is not None:
        add_kernel_targets(summary, facts, silicon, counters)
    dtype = workload.dtype or subject.dtype
    make_short_names_distinct(summary.kernels)
    predict_memory(summary.memory, summary.static, workload)
    _relate(summary, facts, work, dtype)
    _explain(summary, facts, work, dtype, catalogue, silicon)
    add_shares(summary, prefill_includes_vision=clock is not None and clock.prefill_includes_vision)
    if counters is not None and counters.facts:
        from llm_perf_opt.analysis.ncu.vendor_rules import vendor_rules

        summary.vendor_rules = vendor_rules(summary, counters.facts, counters.matches)
    summary.notes.sort(key=lambda note: not note.startswith(NO_DEVICE_EVENTS))
    if workload.weights == "random" and _RANDOM_WEIGHTS_NOTE not in summary.notes:
        summary.notes.insert(0, _RANDOM_WEIGHTS_NOTE)
    return summary


def _merge_workload(subject: Subject, facts: Facts) -> Workload:
    """Prefer measured over configured values."""
    workload = replace(facts.wall_clock.workload) if facts.wall_clock is not None else Workload()
    for name in Workload.__dataclass_fields__:
        if getattr(workload, name) is None:
            setattr(workload, name, getattr(subject.workload, name))
    workload.dtype = workload.dtype or subject.dtype or facts.model.get("dtype")
    workload.model = workload.model or facts.model.get("name")
    workload.architecture = workload.architecture or facts.model.get("architecture")
    return workload


def _relate(summary: Summary, facts: Facts, work: CapturedWork, dtype: str | None) -> None:
    """Relate work, time and limits: floors, utilisation, coverage."""
    clock = facts.wall_clock
    nested = clock.prefill_includes_vision if clock is not None else False
    steps = clock.decode_steps if clock is not None else None
    computing = fastest_dtype(summary.hardware, compute_dtypes(summary.static, dtype)) if dtype else dtype
    if summary.static is not None:
        summary.predictions = predict_phases(
            summary.static,
            summary.hardware,
            computing,
            summary.timings,
            decode_steps=steps,
            prefill_includes_vision=nested,
        )
        summary.utilisation = phase_utilisation(
            summary.static,
            summary.timings,
            summary.hardware,
            computing,
            decode_steps=steps,
            prefill_includes_vision=nested,
        )
        if not summary.predictions:
            _add_notes(summary, missing_reasons(summary.static, summary.hardware, computing))
        if summary.serving is not None and dtype is not None:
            add_step_floors(summary.serving, summary.static, summary.hardware, dtype)
    if facts.operator_work is not None:
        _add_traced_work(summary, facts.operator_work)
    summary.notes.extend(cautions(summary))
    for phase, ratio in work.facts.device_busy_ratio.items():
        summary.utilisation.setdefault(phase, Utilisation()).device_busy_ratio = ratio
    if clock is not None:
        _against_wall_clock(summary, work, clock)
    busy_from_totals(summary, work)
    summary.coverage = CoverageSummary(
        time_attributed_ratio=work.facts.time_attributed_ratio,
        kernel_time_classified_ratio=work.facts.kernel_time_classified_ratio,
        flops_counted_ratio=summary.static.coverage.counted_ratio if summary.static is not None else None,
    )


def _against_wall_clock(summary: Summary, work: CapturedWork, clock: WallClock) -> None:
    """Measure budgets against the wall-clock without a profiler."""
    if not summary.budget or None in work.truncated:
        return
    counts = occurrences(work.facts.phase_counts, work.facts.phase_ranges, clock.decode_steps)
    counts = {phase: count for phase, count in counts.items() if phase not in work.truncated}
    summary.budget, notes = against_wall_clock(
        summary.budget,
        {phase: count // work.ranks_joined or 1 for phase, count in counts.items()},
        summary.timings,
        summary.workload,
        prefill_includes_vision=clock.prefill_includes_vision,
    )
    summary.notes += notes
    for phase, budget in summary.budget.items():
        if budget.profiled_span_s is not None:
            share = sum(part.share_ratio for part in budget.parts if part.name in WORKING)
            summary.utilisation.setdefault(phase, Utilisation()).device_busy_ratio = min(1.0, share)


def _add_traced_work(summary: Summary, work: OperatorWork) -> None:
    phases = traced_phases(work, summary.hardware)
    spans = {phase: budget.span_s for phase, budget in summary.budget.items()}
    add_traced_utilisation(summary.utilisation, phases, spans)
    summary.metrics |= traced_metrics(phases)
    if work.products is not None:
        summary.metrics |= {
            "narrow_product_flops": float(work.products.narrow_flops),
            "narrow_product_s": work.products.narrow_s,
            "wide_product_flops_per_s": work.products.wide_flops_per_s,
        }
    summary.sections += traced_section("torch_profiler", phases, summary.hardware)


def _device_times(captured: TimelineFacts) -> dict[ModulePhase, ModuleTime]:
    """Device time per pass, in decode per step, matching the work counted by the static model.

    The number of occurrences comes from the capture; if unknown, so is the time per pass.
    """
    return {
        (row.module, row.phase): ModuleTime(row.total_ns / 1e9 / count, round(row.launches / count))
        for row in captured.modules
        if row.phase is not None and (count := captured.phase_counts.get(row.phase))
    }


def _host_times(summary: Summary, facts: Facts) -> dict[ModulePhase, float]:
    """Measured time of modules: timed by a stage, and on a CPU the phases split by the profiler's shares."""
    if summary.hardware.kind == "gpu" or (summary.workload.device or "cpu") != "cpu":
        return dict(facts.module_times)
    nested = facts.wall_clock is not None and facts.wall_clock.prefill_includes_vision
    split = split_by_shares(summary.timings, facts.module_shares, prefill_includes_vision=nested)
    return {**split, **facts.module_times}


def _explain(
    summary: Summary,
    facts: Facts,
    work: CapturedWork,
    dtype: str | None,
    catalogue: Catalogue | None,
    silicon: Silicon | None,
) -> None:
    """Ledger, verdicts, findings and what-if, from the summary alone."""
    summary.ledger = build_ledger(
        summary.static,
        summary.timings,
        summary.hardware,
        fastest_dtype(summary.hardware, compute_dtypes(summary.static, dtype)) if dtype else dtype,
        _device_times(work.facts),
        _host_times(summary, facts),
    )
    summary.cpu_work = cpu_work(summary, facts.host_seconds, facts.profiled)
    summary.sections += work_section(summary.cpu_work)
    summary.verdicts = judge(summary)
    summary.findings = rank_findings([*find_all(summary), *summary.findings])
    if summary.static is not None and dtype is not None and catalogue is not None:
        from llm_perf_opt.analysis.roofline.expected_times import silicon_use, tables_of
        from llm_perf_opt.analysis.roofline.launches import started_in
        from llm_perf_opt.analysis.roofline.what_if import FOCUS, note_beaten_floors, what_if

        focus = [*FOCUS, *(device.name for device in catalogue.devices if device.origin == "user")]
        tables = tables_of(silicon)
        summary.what_if = what_if(
            summary.static,
            catalogue,
            dtype=dtype,
            focus=focus,
            started=started_in(summary, tables),
            tables=tables,
        )
        summary.silicon = silicon_use(silicon)
        timed = summary.timings
        note_beaten_floors(
            summary.what_if,
            summary.hardware.name,
            timed.ttft_s.shown if timed.ttft_s is not None else None,
            timed.tpot_s.shown if timed.tpot_s is not None else None,
        )


def missing_clock_note(facts: Facts) -> list[str]:
    """Return a note that nothing was timed, unless a note already explains why."""
    if facts.wall_clock is not None or facts.serving is not None or TIMINGS in facts.unreadable:
        return []
    return ["No wall-clock timings: phases are not timed, so there is no MFU and no MBU of wall-clock."]
