"""From joined facts to the summary: relate work, time and limits, then judge. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from llm_perf_opt.analysis.busy_from_totals import busy_from_totals
from llm_perf_opt.analysis.cautions import cautions
from llm_perf_opt.analysis.cpu.section import work_section
from llm_perf_opt.analysis.cpu.work import cpu_work
from llm_perf_opt.analysis.facts import Facts, ModulePhase
from llm_perf_opt.analysis.findings import find_all, rank_findings
from llm_perf_opt.analysis.join import Joined
from llm_perf_opt.analysis.kernels.apart import name_apart
from llm_perf_opt.analysis.ledger import ModuleTime, build_ledger
from llm_perf_opt.analysis.memory.prediction import predict_memory
from llm_perf_opt.analysis.operators.work import OperatorWork
from llm_perf_opt.analysis.roofline.demand import compute_dtypes
from llm_perf_opt.analysis.roofline.limits import fastest_dtype
from llm_perf_opt.analysis.roofline.predictions import missing_reasons, predict_phases
from llm_perf_opt.analysis.roofline.traced import (
    add_traced_utilisation,
    traced_metrics,
    traced_phases,
    traced_section,
)
from llm_perf_opt.analysis.roofline.utilisation import phase_utilisation
from llm_perf_opt.analysis.shares import add_shares
from llm_perf_opt.analysis.timeline.budget import WORKING
from llm_perf_opt.analysis.timeline.module_times import split_by_shares
from llm_perf_opt.analysis.unprofiled import against_wall_clock, occurrences
from llm_perf_opt.analysis.verdicts import judge
from llm_perf_opt.core.phases import captured_count_name
from llm_perf_opt.hardware.catalogue import Catalogue
from llm_perf_opt.hardware.silicon import Silicon
from llm_perf_opt.model.summary import (
    CoverageSummary,
    Hardware,
    RunInfo,
    StageInfo,
    Summary,
    Timings,
    Utilisation,
    Workload,
)

RANDOM_WEIGHTS_NOTE = "Random weights: the timings are real, the generated text is meaningless."


@dataclass(slots=True)
class Subject:
    """What a summary is about, besides what stages say."""

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
    joined: Joined,
    hardware: Hardware,
    catalogue: Catalogue | None,
    silicon: Silicon | None = None,
) -> Summary:
    """Put everything in its place and explain it; ``silicon`` has measured times of operators."""
    clock = joined.clock
    workload = merge_workload(subject, joined)
    summary = Summary(
        run=subject.run,
        environment=subject.environment,
        hardware=hardware,
        workload=workload,
        notes=list(dict.fromkeys([*subject.notes, *joined.notes])),
        stages=subject.stages,
        timings=clock.timings if clock is not None else Timings(),
        samples=clock.samples if clock is not None else [],
        static=joined.static,
        sources=subject.sources,
        operators=joined.operators,
        kernels=joined.kernels,
        budget=joined.budget,
        timeline=joined.timeline,
        repeat_spread=clock.repeat_spread if clock is not None else {},
        metrics={
            **(clock.metrics if clock is not None else {}),
            **{captured_count_name(phase): float(count) for phase, count in joined.phase_counts.items()},
            **joined.metrics,
        },
        sections=joined.sections,
        memory=joined.memory,
        telemetry=joined.telemetry,
        devices=joined.devices,
        ranks=joined.ranks,
        communication=joined.communication,
        idle_gaps=joined.idle_gaps,
        counters=joined.conditions,
    )
    dtype = workload.dtype or subject.dtype
    name_apart(summary.kernels)
    predict_memory(summary.memory, summary.static, workload)
    _relate(summary, joined, dtype)
    _explain(summary, joined, dtype, catalogue, silicon)
    add_shares(summary, prefill_includes_vision=clock is not None and clock.prefill_includes_vision)
    if workload.weights == "random" and RANDOM_WEIGHTS_NOTE not in summary.notes:
        summary.notes.insert(0, RANDOM_WEIGHTS_NOTE)
    return summary


def merge_workload(subject: Subject, joined: Joined) -> Workload:
    """Prefer what was measured over what was configured."""
    workload = joined.clock.workload if joined.clock is not None else Workload()
    for name in Workload.__dataclass_fields__:
        if getattr(workload, name) is None:
            setattr(workload, name, getattr(subject.workload, name))
    workload.dtype = workload.dtype or subject.dtype or joined.model.get("dtype")
    workload.model = workload.model or joined.model.get("name")
    workload.architecture = workload.architecture or joined.model.get("architecture")
    return workload


def _relate(summary: Summary, joined: Joined, dtype: str | None) -> None:
    """Relate work, time and limits: floors, utilisation, coverage."""
    clock = joined.clock
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
            summary.notes.extend(
                reason
                for reason in missing_reasons(summary.static, summary.hardware, computing)
                if reason not in summary.notes
            )
    if joined.operator_work is not None:
        _add_traced_work(summary, joined.operator_work)
    summary.notes.extend(cautions(summary))
    for phase, ratio in joined.device_busy_ratio.items():
        summary.utilisation.setdefault(phase, Utilisation()).device_busy_ratio = ratio
    _against_wall_clock(summary, joined)
    busy_from_totals(summary, joined)
    summary.coverage = CoverageSummary(
        time_attributed_ratio=joined.time_attributed_ratio,
        kernel_time_classified_ratio=joined.kernel_time_classified_ratio,
        flops_counted_ratio=summary.static.coverage.counted_ratio if summary.static is not None else None,
    )


def _against_wall_clock(summary: Summary, joined: Joined) -> None:
    """Measure budgets against the wall-clock without a profiler, where there is one."""
    clock = joined.clock
    if clock is None or not summary.budget or None in joined.truncated:
        return
    counts = occurrences(joined.phase_counts, joined.phase_ranges, clock.decode_steps)
    counts = {phase: count for phase, count in counts.items() if phase not in joined.truncated}
    summary.budget, notes = against_wall_clock(
        summary.budget,
        {phase: count // joined.ranks_joined or 1 for phase, count in counts.items()},
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
    add_traced_utilisation(summary.utilisation, phases)
    summary.metrics |= traced_metrics(phases)
    if work.products is not None:
        summary.metrics |= {
            "narrow_product_flops": float(work.products.narrow_flops),
            "narrow_product_s": work.products.narrow_s,
            "wide_product_flops_per_s": work.products.wide_flops_per_s,
        }
    summary.sections += traced_section("torch_profiler", phases, summary.hardware)


def _device_times(joined: Joined) -> dict[ModulePhase, ModuleTime]:
    """Device time per pass, in decode per step: what the static model counts the work of.

    The capture itself tells how often it holds a phase; where it does not, its times are of an unknown number.
    """
    return {
        (module, phase): ModuleTime(total_s / count, round(launches / count))
        for (module, phase), (total_s, launches) in joined.device_times.items()
        if (count := joined.phase_counts.get(phase))
    }


def _host_times(summary: Summary, joined: Joined) -> dict[ModulePhase, float]:
    """Measured time of modules: what a stage timed itself, and on a CPU the phases split by the profiler's shares."""
    if summary.hardware.kind == "gpu" or (summary.workload.device or "cpu") != "cpu":
        return dict(joined.module_times)
    nested = joined.clock is not None and joined.clock.prefill_includes_vision
    split = split_by_shares(summary.timings, joined.module_shares, prefill_includes_vision=nested)
    return {**split, **joined.module_times}


def _explain(
    summary: Summary,
    joined: Joined,
    dtype: str | None,
    catalogue: Catalogue | None,
    silicon: Silicon | None,
) -> None:
    """Ledger, verdicts, findings and what-if: all from what the summary already holds."""
    summary.ledger = build_ledger(
        summary.static,
        summary.timings,
        summary.hardware,
        fastest_dtype(summary.hardware, compute_dtypes(summary.static, dtype)) if dtype else dtype,
        _device_times(joined),
        _host_times(summary, joined),
    )
    summary.cpu_work = cpu_work(summary, joined.host_seconds, joined.profiled)
    summary.sections += work_section(summary.cpu_work)
    summary.verdicts = judge(summary)
    summary.findings = rank_findings([*find_all(summary), *joined.findings])
    if summary.static is not None and dtype is not None and catalogue is not None:
        from llm_perf_opt.analysis.expected.tables import silicon_use, tables_of
        from llm_perf_opt.analysis.roofline.host_cost import started_in
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
        # The work is a mean over the samples, so it is compared with their mean time.
        note_beaten_floors(
            summary.what_if,
            summary.hardware.name,
            timed.ttft_s.mean if timed.ttft_s is not None else None,
            timed.tpot_s.mean if timed.tpot_s is not None else None,
        )


def missing_clock_note(facts: Sequence[Facts]) -> list[str]:
    """Say that nothing was timed, unless a stage already said why."""
    if any(each.wall_clock is not None for each in facts):
        return []
    if any(note.startswith("The timings could not be read") for each in facts for note in each.notes):
        return []
    return ["No wall-clock timings: phases are not timed, so there is no MFU and no MBU of wall-clock."]
