"""The sections of ``report.html`` in reading order; one without data is left out and named in the last ones."""

from __future__ import annotations

import re

from llm_perf_opt.analysis.shares import by_run_share
from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Summary
from llm_perf_opt.reporting.charts import figures as charts
from llm_perf_opt.reporting.content.detail import (
    DECODE_ROWS,
    environment_table,
    ledger_table,
    methods_table,
    operator_table,
    stages_table,
)
from llm_perf_opt.reporting.content.kernels import (
    family_table,
    kernel_table,
    vendor_rule_table,
)
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
from llm_perf_opt.reporting.content.tables import Table
from llm_perf_opt.reporting.content.time import (
    budget_table,
    sample_table,
    static_table,
    time_table,
)
from llm_perf_opt.reporting.html.blocks import (
    Block,
    Section,
    chart_block,
    source_block,
    table_block,
    text_block,
)
from llm_perf_opt.reporting.html.limits import elsewhere_blocks, hardware_blocks
from llm_perf_opt.reporting.html.telemetry import memory_blocks, telemetry_blocks
from llm_perf_opt.reporting.wording import (
    IDLE_TEXT,
    SAMPLES_TEXT,
    budget_text,
    communication_text,
    counted_text,
    missing_sections,
    phase_name,
    shapes_text,
)

__all__ = ["Block", "Section", "sections_of"]

MOST_KERNELS = 500
MOST_OPERATORS = 400
MOST_MODULES = 1500


def sections_of(summary: Summary) -> list[Section]:
    """Return every section that has something to show."""
    sections = [
        Section("time", "Time", "Time", _time(summary)),
        Section("budget", "Wall-clock budget", "Budget", _budget(summary)),
        Section("idle", "Who owns the idle time", "Idle", _idle(summary)),
        Section("parallel", "Devices, ranks and communication", "Devices", _parallel(summary)),
        Section("hardware", "Against the hardware", "Hardware", hardware_blocks(summary)),
        Section("model", "The model on paper", "Model", _model(summary)),
        Section("modules", "Module ledger", "Modules", _modules(summary)),
        Section("timeline", _timeline_title(summary), "Timeline", _timeline(summary)),
        Section("kernels", "Kernels", "Kernels", _kernels(summary)),
        Section("operators", "Operators", "Operators", _operators(summary)),
        Section("memory", "Memory", "Memory", memory_blocks(summary)),
        Section("telemetry", "Clock, power and heat", "Telemetry", telemetry_blocks(summary)),
        *_stage_sections(summary),
        Section("what-if", "What if: the same model elsewhere", "What if", elsewhere_blocks(summary)),
        Section(
            "environment",
            "Environment",
            "Environment",
            [table_block(environment_table(summary), "environment")],
        ),
        Section("stages", "Stages", "Stages", _stages(summary)),
        Section("absent", "Not in this report", "Missing", _missing(summary)),
        Section("methods", "How each number was made", "Methods", _methods(summary)),
    ]
    return [section for section in sections if section.blocks]


def _time(summary: Summary) -> list[Block]:
    blocks = []
    if summary.wall_clock is not None:
        blocks.append(
            chart_block(charts.budget_chart({"one sample": summary.wall_clock}, "One sample, by phase"))
        )
    table = time_table(summary)
    if table:
        blocks += [
            table_block(table, "time"),
            *source_block(summary.sources.get("timings") or summary.timings.source),
        ]
    return blocks + _samples(summary)


def _samples(summary: Summary) -> list[Block]:
    if len(summary.samples) < 2:
        return []
    return [
        text_block(SAMPLES_TEXT),
        chart_block(charts.sample_chart(summary.samples)),
        table_block(sample_table(summary), "samples", "By sample", filter=True),
    ]


def _budget(summary: Summary) -> list[Block]:
    if not summary.budget:
        return []
    source = summary.sources.get("nsys") or summary.sources.get("trace")
    return [
        text_block(budget_text(summary)),
        chart_block(charts.budget_chart({phase_name(phase): each for phase, each in summary.budget.items()})),
        table_block(budget_table(summary), "budget"),
        *source_block(source),
    ]


def _idle(summary: Summary) -> list[Block]:
    owners, gaps = owner_table(summary), gap_table(summary)
    if not owners and not gaps:
        return []
    blocks = [text_block(IDLE_TEXT)]
    if owners:
        blocks.append(table_block(owners, "owners", "By part"))
    if gaps:
        blocks.append(table_block(gaps, "gaps", "The longest gaps"))
    return blocks


def _parallel(summary: Summary) -> list[Block]:
    if len(summary.devices) < 2 and not summary.ranks and summary.communication is None:
        return []
    tables = (
        (device_table(summary), "devices", "By device"),
        (rank_table(summary), "ranks", "By rank"),
        (collective_table(summary), "collectives", "Collectives"),
        (paper_table(summary), "ranks-on-paper", "By rank, on paper"),
    )
    words = communication_text(summary)
    return [
        *([text_block(words)] if words else []),
        *(table_block(table, name, title) for table, name, title in tables if table),
    ]


def _model(summary: Summary) -> list[Block]:
    static = summary.static
    if static is None:
        return []
    parts = ", ".join(f"{name} {units.count(value)}" for name, value in static.params.components.items())
    active = static.params.active_per_token
    return [
        text_block(
            f"{units.count(static.params.total)} parameters ({parts})"
            + (f", {units.count(active)} active per token" if active is not None else "")
            + f". KV cache {units.size(static.kv_bytes_per_token)} per token."
            + shapes_text(static)
        ),
        table_block(static_table(summary), "model"),
        *([chart_block(charts.component_chart(static))] if static.components else []),
        *(
            [table_block(splits, "splits", "Over several ranks, on paper")]
            if (splits := split_table(summary))
            else []
        ),
        text_block(counted_text(static), quiet=True),
        Block(
            "list",
            title="Counting conventions",
            pairs=[(name.replace("_", " "), value) for name, value in static.conventions.items()],
        ),
        *source_block(summary.sources.get("static") or static.source),
    ]


def _modules(summary: Summary) -> list[Block]:
    components = [row for row in summary.ledger if row.depth == 0]
    modules = [row for row in summary.ledger if row.depth > 0]
    blocks = []
    if components:
        blocks.append(table_block(ledger_table(components), "components", "Components", filter=True))
    if modules:
        shown = ledger_table(modules[:MOST_MODULES], tree=True)
        table = Table(shown.columns, shown.rows, len(modules) - len(shown.rows))
        blocks.append(table_block(table, "modules", "Module tree", filter=True))
    if any(row.phase == "decode" for row in summary.ledger):
        blocks.append(text_block(DECODE_ROWS, quiet=True))
    return blocks


def _timeline_title(summary: Summary) -> str:
    phase = summary.timeline.get("phase")
    if phase is None:
        return "Timeline of a part of the capture"
    return "Timeline of one decode step" if phase == "decode" else f"Timeline of {phase_name(phase)}"


def _timeline(summary: Summary) -> list[Block]:
    if not summary.timeline.get("lanes"):
        return []
    span = summary.timeline.get("span_s")
    title = f"{_timeline_title(summary)}, {units.seconds(span)}"
    return [chart_block(charts.timeline_chart(summary.timeline, title))]


def _kernels(summary: Summary) -> list[Block]:
    if not summary.kernels:
        return []
    shown = summary.kernels[:MOST_KERNELS]
    table = kernel_table(shown, left_out=len(summary.kernels) - len(shown), narrow=True)
    blocks = [table_block(family_table(summary), "families", "By family")] if summary.kernel_families else []
    source = ", ".join(summary.sources[kind] for kind in ("nsys", "trace", "ncu") if kind in summary.sources)
    blocks.append(table_block(table, "kernels", "By time", filter=True))
    rules = vendor_rule_table(summary)
    if rules:
        blocks.append(table_block(rules, "rules", "NVIDIA's rules, by what each could gain", filter=True))
    return [*blocks, *source_block(source)]


def _operators(summary: Summary) -> list[Block]:
    if not summary.operators:
        return []
    shown = by_run_share(summary.operators)[:MOST_OPERATORS]
    phased = any(op.phase for op in summary.operators)
    table = operator_table(shown, left_out=len(summary.operators) - len(shown), phased=phased)
    return [
        text_block(
            "The largest share of the run first. From one profiled pass; the profiler adds time of its own, so "
            "compare shares, not seconds. Self leaves out what an operator called; total includes it."
        ),
        table_block(table, "operators", filter=True),
        *source_block(summary.sources.get("trace")),
    ]


def _stage_sections(summary: Summary) -> list[Section]:
    """Return what stages say in their own words, plug-ins included."""
    found = []
    for place, said in enumerate(summary.sections):
        name = f"stage-{place}-{re.sub(r'[^a-z0-9]+', '-', said.stage.lower()).strip('-') or 'section'}"
        blocks = [text_block(paragraph) for paragraph in said.paragraphs]
        blocks += [
            table_block(stage_table(table), f"{name}-{number}", table.title)
            for number, table in enumerate(said.tables)
            if table.rows
        ]
        found.append(Section(name, said.title, said.title, blocks))
    return found


def _stages(summary: Summary) -> list[Block]:
    return [table_block(stages_table(summary), "stages")] if summary.stages else []


def _missing(summary: Summary) -> list[Block]:
    pairs = [(name[:1].upper() + name[1:], f"needs {need}.") for name, need in missing_sections(summary)]
    return [Block("list", pairs=pairs)] if pairs else []


def _methods(summary: Summary) -> list[Block]:
    pairs = [(kind, f"`{path}`" if "`" not in path else path) for kind, path in summary.sources.items()]
    blocks = [table_block(methods_table(summary), "methods")] if methods_table(summary) else []
    return [*blocks, *([Block("list", title="Source files", pairs=pairs)] if pairs else [])]
