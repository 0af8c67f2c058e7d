"""``report.md``: everything a performance engineer asks for, in the order they ask it."""

from __future__ import annotations

from llm_perf_opt.analysis.roofline.elsewhere import elsewhere, is_static_only, where_it_fits
from llm_perf_opt.analysis.shares import by_run_share
from llm_perf_opt.analysis.verdicts import worth_showing
from llm_perf_opt.core import units
from llm_perf_opt.core.escape import md_code, md_text
from llm_perf_opt.core.phases import PHASES, WHOLE
from llm_perf_opt.model.summary import Finding, Summary
from llm_perf_opt.reporting.content.detail import (
    DECODE_ROWS,
    elsewhere_table,
    environment_table,
    ledger_table,
    methods_table,
    operator_table,
    stages_table,
)
from llm_perf_opt.reporting.content.kernels import family_table, kernel_table
from llm_perf_opt.reporting.content.parallel import (
    collective_table,
    device_table,
    gap_table,
    owner_table,
    paper_table,
    rank_table,
    split_table,
)
from llm_perf_opt.reporting.content.sections import stage_table
from llm_perf_opt.reporting.content.telemetry import (
    energy_table,
    memory_table,
    memory_text,
    telemetry_table,
    telemetry_text,
)
from llm_perf_opt.reporting.content.time import (
    budget_table,
    sample_table,
    static_table,
    time_table,
    utilisation_table,
)
from llm_perf_opt.reporting.markdown.writer import (
    bullets,
    prose,
    render_table,
    section,
)
from llm_perf_opt.reporting.origins import hardware_text
from llm_perf_opt.reporting.wording import (
    BOUND_NAMES,
    IDLE_TEXT,
    SAMPLES_TEXT,
    budget_text,
    capitalised,
    communication_text,
    counted_text,
    coverage_facts,
    elsewhere_text,
    fit_text,
    gain_text,
    missing_sections,
    phase_name,
    phase_rank,
    sentence,
    shapes_text,
    title_of,
    why,
    workload_facts,
)

_TOP = 10
_EXPLAINED = (*PHASES, WHOLE)
"""Phases whose arithmetic is spelled out; the others are sums of these."""
_MOST_MODULES = 24
_MOST_SAMPLES = 24


def report_markdown(summary: Summary) -> str:
    """Render the full report."""
    return (
        "".join(
            (
                f"# Performance report: {md_text(title_of(summary))}\n\n",
                _introduction(summary),
                section("What limits each phase", _verdicts(summary)),
                section("What to change first", _findings(summary)),
                section("Time", render_table(time_table(summary)), _samples(summary), _budget(summary)),
                section("Who owns the idle time", *_idle(summary)),
                section("Devices, ranks and communication", *_parallel(summary)),
                section("Against the hardware", *_hardware(summary)),
                section("The model on paper", *_static(summary)),
                section("Module ledger", *_ledger(summary)),
                section("Kernels", *_kernels(summary)),
                section("Operators", *_operators(summary)),
                section("Memory", *_memory(summary)),
                section("Clock, power and heat", *_telemetry(summary)),
                *_stage_sections(summary),
                section("What if: the same model elsewhere", *_what_if(summary)),
                section("Stages", render_table(stages_table(summary))),
                section("Environment", render_table(environment_table(summary))),
                section("Not in this report", _missing(summary)),
                section("How each number was made", render_table(methods_table(summary))),
            )
        ).rstrip("\n")
        + "\n"
    )


def _stage_sections(summary: Summary) -> list[str]:
    """Render what stages say in their own words, plug-ins included."""
    return [
        section(
            md_text(said.title),
            *(md_text(paragraph) for paragraph in said.paragraphs),
            *(
                part
                for table in said.tables
                for part in (
                    f"**{md_text(table.title)}**" if table.title else "",
                    render_table(stage_table(table)),
                )
            ),
        )
        for said in summary.sections
    ]


def _introduction(summary: Summary) -> str:
    facts = ", ".join(f"{name} {md_text(value)}" for name, value in workload_facts(summary))
    lines = [
        f"Run {md_code(summary.run.id)}, status **{summary.run.status}**."
        + (f" {capitalised(facts)}." if facts else "")
    ]
    covered = ", ".join(f"{name} {value}" for name, value in coverage_facts(summary))
    if covered:
        lines.append(f"Coverage: {covered}.")
    if answer := _answer(summary):
        lines.append(answer.rstrip())
    lines.extend(f"> **Note.** {md_text(sentence(note))}" for note in summary.notes)
    return "\n\n".join(lines) + "\n\n"


def _verdicts(summary: Summary) -> str:
    parts = []
    for phase in sorted(worth_showing(summary.verdicts), key=phase_rank):
        verdict = summary.verdicts[phase]
        lines = [f"- **{md_text(phase_name(phase))}: {BOUND_NAMES[verdict.bound]}.** {md_text(why(verdict))}"]
        if verdict.lever:
            lines.append(f"  To move it: {md_text(verdict.lever)}.")
        if verdict.evidence:
            lines.append(f"  From {', '.join(md_text(item) for item in verdict.evidence)}.")
        parts.append("\n".join(lines))
    return "\n".join(parts)


def _findings(summary: Summary) -> str:
    parts = []
    for place, finding in enumerate(summary.findings, 1):
        where = md_text(phase_name(finding.phase)) if finding.phase else "whole run"
        parts.append(
            f"{place}. **{md_text(finding.title)}** ({where}; {gain_text(finding)}; {finding.confidence} confidence)\n"
            + "".join(f"   - evidence: {md_text(item)}\n" for item in finding.evidence)
            + f"   - arithmetic: {md_text(finding.arithmetic)}\n   - advice: {prose(finding.advice)}\n"
            + _experiment(finding)
        )
    return "\n".join(parts) + "\nGains are upper bounds; they overlap and do not add up.\n" if parts else ""


def _experiment(finding: Finding) -> str:
    """Say how the advice is tried, and how it did before."""
    if finding.improve_command is None:
        reason = finding.no_experiment
        return f"   - nothing for `llm-perf-opt improve` to try: {md_text(reason)}\n" if reason else ""
    before = f" ({md_text(finding.track_record)})" if finding.track_record else ""
    return f"   - try it: {md_code(finding.improve_command)}{before}\n"


def _samples(summary: Summary) -> str:
    if len(summary.samples) < 2:
        return ""
    return f"{SAMPLES_TEXT}\n\n{render_table(sample_table(summary), most=_MOST_SAMPLES)}"


def _answer(summary: Summary) -> str:
    fit = where_it_fits(summary) if is_static_only(summary) else None
    return md_text(fit_text(fit)) + "\n\n" if fit is not None else ""


def _budget(summary: Summary) -> str:
    table = render_table(budget_table(summary))
    return f"Wall-clock budget. {md_text(budget_text(summary))}\n\n{table}" if table else ""


def _idle(summary: Summary) -> list[str]:
    owners, gaps = render_table(owner_table(summary)), render_table(gap_table(summary))
    if not owners and not gaps:
        return []
    return [IDLE_TEXT, owners, f"The longest gaps:\n\n{gaps}" if gaps else ""]


def _parallel(summary: Summary) -> list[str]:
    if len(summary.devices) < 2 and not summary.ranks and summary.communication is None:
        return []
    return [
        md_text(communication_text(summary)),
        render_table(device_table(summary)),
        render_table(rank_table(summary)),
        render_table(collective_table(summary)),
        f"By rank, on paper:\n\n{paper}" if (paper := render_table(paper_table(summary))) else "",
    ]


def _hardware(summary: Summary) -> list[str]:
    table = utilisation_table(summary)
    if not table and summary.hardware.source == "none":
        return []
    arithmetic = bullets(
        f"{md_text(phase_name(row.key))}, {label}: {md_text(value)}"
        for row in table.rows
        if row.key in _EXPLAINED
        for label, value in row.details
    )
    return [md_text(hardware_text(summary.hardware)), render_table(table), arithmetic]


def _static(summary: Summary) -> list[str]:
    static = summary.static
    if static is None:
        return []
    params = ", ".join(
        f"{md_text(name)} {units.count(value)}" for name, value in static.params.components.items()
    )
    active = static.params.active_per_token
    conventions = bullets(
        f"{md_text(name.replace('_', ' '))}: {md_text(value)}" for name, value in static.conventions.items()
    )
    return [
        f"{units.count(static.params.total)} parameters ({params})"
        + (f", {units.count(active)} active per token" if active is not None else "")
        + f". KV cache {units.size(static.kv_bytes_per_token)} per token."
        + shapes_text(static),
        render_table(static_table(summary)),
        f"Over several ranks, on paper:\n\n{split}" if (split := render_table(split_table(summary))) else "",
        md_text(counted_text(static)),
        f"How it was counted:\n\n{conventions}" if conventions else "",
    ]


def _ledger(summary: Summary) -> list[str]:
    components = [row for row in summary.ledger if row.depth == 0]
    modules = [row for row in summary.ledger if row.depth > 0]
    disagreements = bullets(
        f"sources disagree on {md_code(row.module)} in {md_text(phase_name(row.phase))}: {md_text(row.disagreement)}"
        for row in summary.ledger
        if row.disagreement
    )
    parts = [render_table(ledger_table(components), most=_MOST_MODULES)] if components else []
    if components and modules:
        parts.append(f"The module tree ({len(modules)} rows, by depth) is in report.html and summary.json.")
    elif modules:
        parts.append(render_table(ledger_table(modules), most=_MOST_MODULES))
    if any(row.phase == "decode" for row in summary.ledger):
        parts.append(DECODE_ROWS)
    return [*parts, disagreements]


def _kernels(summary: Summary) -> list[str]:
    if not summary.kernels:
        return []
    count = len(summary.kernels)
    return [
        render_table(family_table(summary)),
        f"The {min(_TOP, count)} longest of {count}; all in [kernels.md](kernels.md).",
        render_table(kernel_table(summary.kernels[:_TOP])),
    ]


def _operators(summary: Summary) -> list[str]:
    if not summary.operators:
        return []
    phased = any(op.phase for op in summary.operators)
    return [
        "The largest shares of the run first, from one profiled pass (compare shares, not seconds); all in "
        "[torch_profiler/operators.md](torch_profiler/operators.md).",
        render_table(operator_table(by_run_share(summary.operators)[:_TOP], phased=phased)),
    ]


def _memory(summary: Summary) -> list[str]:
    table = render_table(memory_table(summary))
    return [table, memory_text(summary)] if table else []


def _telemetry(summary: Summary) -> list[str]:
    told = summary.telemetry
    if told is None:
        return []
    return [
        md_text(telemetry_text(told)),
        render_table(telemetry_table(told)),
        render_table(energy_table(told)),
    ]


def _what_if(summary: Summary) -> list[str]:
    """Show the devices people choose between at this run's own point; the whole table is in ``report.html``."""
    if not summary.what_if:
        return []
    shown = elsewhere(summary)
    more = len(summary.what_if) - sum(each.row is not None for each in shown)
    return [
        md_text(elsewhere_text(summary)),
        render_table(elsewhere_table(shown, summary.what_if)),
        f"{more} more {'row' if more == 1 else 'rows'} (devices, data types, batch sizes, contexts) in report.html and summary.json."
        if more
        else "",
    ]


def _missing(summary: Summary) -> str:
    return bullets(
        f"**{capitalised(name)}**: needs {prose(need)}." for name, need in missing_sections(summary)
    )
