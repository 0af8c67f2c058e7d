"""The sections of a report in reading order, written once for HTML and Markdown; one without data is left out."""

from __future__ import annotations

import re
from typing import Any

from llm_perf_opt.analysis.roofline.what_if import on_other_devices
from llm_perf_opt.analysis.shares import by_run_share
from llm_perf_opt.analysis.verdicts import shown_bound
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import PHASES, WHOLE
from llm_perf_opt.reporting.charts import figures as charts
from llm_perf_opt.reporting.charts.roofline import Roof
from llm_perf_opt.reporting.detail_tables import (
    DECODE_ROWS,
    environment_table,
    ledger_table,
    methods_table,
    operator_table,
    other_device_table,
    stages_table,
    what_if_table,
)
from llm_perf_opt.reporting.document import (
    Block,
    Details,
    Links,
    Only,
    Points,
    Section,
    Text,
    chart,
    charts_for,
    source_line,
)
from llm_perf_opt.reporting.kernel_tables import family_table, kernel_details, kernel_table, vendor_rule_table
from llm_perf_opt.reporting.parallel_tables import (
    collective_table,
    device_table,
    gap_table,
    owner_table,
    rank_table,
    split_table,
    static_rank_table,
)
from llm_perf_opt.reporting.serving_page import serving_blocks
from llm_perf_opt.reporting.tables import Table, stage_table
from llm_perf_opt.reporting.telemetry_tables import (
    describe_memory,
    describe_telemetry,
    energy_table,
    memory_table,
    telemetry_table,
)
from llm_perf_opt.reporting.time_tables import (
    budget_table,
    sample_table,
    static_table,
    time_table,
    utilisation_table,
)
from llm_perf_opt.reporting.wording import (
    BOUND_NAMES,
    IDLE_TEXT,
    SAMPLES_TEXT,
    capitalised,
    describe_budget,
    describe_communication,
    describe_counted,
    describe_hardware,
    describe_other_devices,
    describe_shapes,
    missing_sections,
    phase_name,
)
from llm_perf_opt.summary import Summary

MOST_DEVICES = 600
_MOST_KERNELS = 500
_MOST_OPERATORS = 400
MOST_MODULES = 1500
_MARKDOWN_KERNELS = 10
_MARKDOWN_MODULES = 24
_MARKDOWN_SAMPLES = 24
_MARKDOWN_RULES = 20
_EXPLAINED = (*PHASES, WHOLE)
"""Phases whose arithmetic is spelled out in Markdown; the others are sums of these."""


def report_sections(summary: Summary) -> list[Section]:
    """Return every section; writers leave out those without blocks."""
    return [
        Section("serving", "Serving", serving_blocks(summary)),
        Section("time", "Time", _time(summary)),
        Section("budget", "Wall-clock budget", _budget(summary), "Budget"),
        Section("idle", "Who owns the idle time", _idle(summary), "Idle"),
        Section("parallel", "Devices, ranks and communication", _parallel(summary), "Devices"),
        Section("hardware", "Against the hardware", _hardware(summary), "Hardware"),
        Section("model", "Static model", _model(summary), "Model"),
        Section("modules", "Module ledger", _modules(summary), "Modules"),
        Section("timeline", _timeline_title(summary), _timeline(summary), "Timeline"),
        Section("kernels", "Kernels", _kernels(summary)),
        Section("operators", "Operators", _operators(summary)),
        Section("memory", "Memory", _memory(summary)),
        Section("telemetry", "Clock, power and heat", _telemetry(summary), "Telemetry"),
        *_stage_sections(summary),
        Section("what-if", "What if: the same model elsewhere", _what_if(summary), "What if"),
        Section("environment", "Environment", [environment_table(summary).named("environment")]),
        Section("stages", "Stages", [stages_table(summary).named("stages")]),
        Section("absent", "Not in this report", _missing(summary), "Missing"),
        Section("methods", "How each number was made", _methods(summary), "Methods"),
    ]


def _time(summary: Summary) -> list[Block]:
    table = time_table(summary)
    source = summary.sources.get("timings") or summary.timings.source
    blocks: list[Block] = [table.named("time"), *source_line(source)] if table else []
    if len(summary.samples) > 1:
        blocks += [
            Text(SAMPLES_TEXT),
            chart(lambda: charts.sample_chart(summary.samples)),
            sample_table(summary).named("samples", "By sample", filter=True, most=_MARKDOWN_SAMPLES),
        ]
    return blocks


def _budget(summary: Summary) -> list[Block]:
    if not summary.budget:
        return []
    return [
        Text(describe_budget(summary)),
        chart(
            lambda: charts.budget_chart({phase_name(phase): each for phase, each in summary.budget.items()})
        ),
        budget_table(summary).named("budget"),
        *source_line(summary.sources.get("nsys") or summary.sources.get("trace")),
    ]


def _idle(summary: Summary) -> list[Block]:
    owners, gaps = owner_table(summary), gap_table(summary)
    if not owners and not gaps:
        return []
    return [Text(IDLE_TEXT), owners.named("owners", "By part"), gaps.named("gaps", "The longest gaps")]


def _parallel(summary: Summary) -> list[Block]:
    if len(summary.devices) < 2 and not summary.ranks and summary.communication is None:
        return []
    blocks: list[Block] = [
        Text(describe_communication(summary)),
        device_table(summary).named("devices", "By device"),
        rank_table(summary).named("ranks", "By rank"),
        collective_table(summary).named("collectives", "Collectives"),
        static_rank_table(summary).named("ranks-static", "By rank (static analysis)"),
    ]
    return blocks


def _hardware(summary: Summary) -> list[Block]:
    """Return the hardware limits of the run and its rooflines; empty if no limit is known."""
    rooflines = [*_phase_roofline(summary), *_kernel_roofline(summary)]
    table = utilisation_table(summary)
    if not rooflines and not table and summary.hardware.source == "none":
        return []
    arithmetic = [
        ("", f"{phase_name(row.key)}, {label}: {value}")
        for row in table.rows
        if row.key in _EXPLAINED
        for label, value in row.details
    ]
    return [
        Text(describe_hardware(summary.hardware)),
        table.named("utilisation"),
        Only("markdown", [Points(arithmetic)]),
        *rooflines,
    ]


def _phase_roofline(summary: Summary) -> list[Block]:
    static, dtype = summary.static, summary.workload.dtype
    if static is None or dtype is None or not summary.predictions:
        return []
    points = {name: _phase_point(summary, name) for name in static.phases}
    hardware = summary.hardware
    return [
        chart(
            lambda: charts.phase_roofline(static, hardware, dtype, summary.predictions, focusable=True),
            "phase-point",
            points,
        )
    ]


def _phase_point(summary: Summary, phase: str) -> dict[str, Any]:
    facts: list[tuple[str, str]] = []
    if phase in summary.verdicts:
        facts.append(("verdict", BOUND_NAMES[shown_bound(summary, phase) or "unknown"]))
    use, floor = summary.utilisation.get(phase), summary.predictions.get(phase)
    if use is not None:
        facts += [("MFU", units.percent(use.mfu_ratio)), ("MBU", units.percent(use.mbu_ratio))]
        reached = (("MFU of reached", use.mfu_reached_ratio), ("MBU of reached", use.mbu_reached_ratio))
        facts += [(name, units.percent(ratio)) for name, ratio in reached if ratio is not None]
    if floor is not None:
        facts += [("floor", units.seconds(floor.floor_s)), ("arithmetic of the floor", floor.arithmetic)]
    if use is not None and use.arithmetic:
        facts.append(("arithmetic of the utilisation", use.arithmetic))
    return {"title": phase_name(phase), "facts": facts}


def _kernel_roofline(summary: Summary) -> list[Block]:
    drawn = {
        str(place): {"title": k.short_name, "facts": [("family", k.family), *kernel_details(k)]}
        for place, k in enumerate(summary.kernels)
        if charts.kernel_place(k) is not None
    }
    compute, memory = _roofs(summary)
    if not drawn or not compute or not memory:
        return []

    def draw() -> str:
        return charts.kernel_roofline(summary.kernels, compute=compute, memory=memory, focusable=True)

    return [chart(draw, "kernel-point", drawn)]


def _roofs(summary: Summary) -> tuple[list[Roof], list[Roof]]:
    """Return the device's ceilings; without a known device, those of the counters."""
    hardware = summary.hardware
    names = dict.fromkeys((summary.workload.dtype or "bfloat16", "bfloat16", "float32"))
    peaks = hardware.peak_flops_per_s
    compute = [Roof(name, peaks[name].dense) for name in names if name in peaks]
    bandwidth = hardware.bandwidth_bytes_per_s
    memory = [Roof("memory", bandwidth)] if bandwidth is not None else []
    return (
        compute or _roofs_from_counters(summary, "peak_flops_per_s"),
        memory or _roofs_from_counters(summary, "peak_bytes_per_s"),
    )


def _roofs_from_counters(summary: Summary, counter: str) -> list[Roof]:
    values = [value for k in summary.kernels if (value := k.counters.get(counter))]
    return [Roof("by the counters", max(values))] if values else []


def _model(summary: Summary) -> list[Block]:
    static = summary.static
    if static is None:
        return []
    parts = ", ".join(f"{name} {units.count(value)}" for name, value in static.params.components.items())
    active = static.params.active_per_token
    return [
        Text(
            f"{units.count(static.params.total)} parameters ({parts})"
            + (f", {units.count(active)} active per token" if active is not None else "")
            + f". KV cache {units.size(static.kv_bytes_per_token)} per token."
            + describe_shapes(static)
        ),
        static_table(summary).named("model"),
        *([chart(lambda: charts.component_chart(static))] if static.components else []),
        split_table(summary).named("splits", "Over several ranks (static analysis)"),
        Text(describe_counted(static), "quiet"),
        Details(
            "Counting conventions",
            [Points([(name.replace("_", " "), value) for name, value in static.conventions.items()])],
        ),
        *source_line(summary.sources.get("static") or static.source),
    ]


def _modules(summary: Summary) -> list[Block]:
    components = [row for row in summary.ledger if row.depth == 0]
    modules = [row for row in summary.ledger if row.depth > 0]
    blocks: list[Block] = []
    if components:
        blocks.append(
            ledger_table(components).named("components", "Components", filter=True, most=_MARKDOWN_MODULES)
        )
    if modules:
        shown = ledger_table(modules[:MOST_MODULES], tree=True)
        tree = Table(shown.columns, shown.rows, len(modules) - len(shown.rows))
        where = Text(f"The module tree ({len(modules)} rows, by depth) is in report.html and summary.json.")
        flat = ledger_table(modules).named("modules", most=_MARKDOWN_MODULES)
        blocks.append(Only("html", [tree.named("modules", "Module tree", filter=True)]))
        blocks.append(Only("markdown", [where if components else flat]))
    if any(row.phase == "decode" for row in summary.ledger):
        blocks.append(Text(DECODE_ROWS, "quiet"))
    disagreements = [
        ("", f"sources disagree on `{row.module}` in {phase_name(row.phase)}: {row.disagreement}")
        for row in summary.ledger
        if row.disagreement
    ]
    return [*blocks, Only("markdown", [Points(disagreements)])] if blocks else []


def _timeline_title(summary: Summary) -> str:
    phase = summary.timeline.get("phase")
    if phase is None:
        return "Timeline of a part of the capture"
    return "Timeline of one decode step" if phase == "decode" else f"Timeline of {phase_name(phase)}"


def _timeline(summary: Summary) -> list[Block]:
    if not summary.timeline.get("lanes"):
        return []
    title = f"{_timeline_title(summary)}, {units.seconds(summary.timeline.get('span_s'))}"
    return [chart(lambda: charts.timeline_chart(summary.timeline, title))]


def _kernels(summary: Summary) -> list[Block]:
    if not summary.kernels:
        return []
    shown, few = summary.kernels[:_MOST_KERNELS], summary.kernels[:_MARKDOWN_KERNELS]
    count = len(summary.kernels)
    narrow = kernel_table(shown, left_out=count - len(shown), narrow=True)
    longest = f"The {len(few)} longest of {count}"
    return [
        family_table(summary).named("families", "By family"),
        Only("html", [narrow.named("kernels", "By time", filter=True)]),
        Only(
            "markdown", [kernel_table(few).named("kernels", longest), Links([("All kernels", "kernels.md")])]
        ),
        vendor_rule_table(summary).named(
            "rules", "NVIDIA's rules, by what each could gain", filter=True, most=_MARKDOWN_RULES
        ),
        *source_line(
            ", ".join(summary.sources[kind] for kind in ("nsys", "trace", "ncu") if kind in summary.sources)
        ),
    ]


def _operators(summary: Summary) -> list[Block]:
    if not summary.operators:
        return []
    shown = by_run_share(summary.operators)[:_MOST_OPERATORS]
    phased = any(op.phase for op in summary.operators)
    table = operator_table(shown, left_out=len(summary.operators) - len(shown), phased=phased)
    return [
        Text(
            "The largest share of the run first. From one profiled pass; the profiler adds time of its own, so "
            "compare shares, not seconds. Self leaves out what an operator called; total includes it."
        ),
        table.named("operators", filter=True, most=_MARKDOWN_KERNELS),
        Only("markdown", [Links([("All operators", "torch_profiler/operators.md")])]),
        *source_line(summary.sources.get("trace")),
    ]


def _memory(summary: Summary) -> list[Block]:
    if not summary.memory:
        return []
    return [
        memory_table(summary).named("memory"),
        Text(describe_memory(summary), "quiet"),
        *source_line(summary.sources.get("memory")),
    ]


def _telemetry(summary: Summary) -> list[Block]:
    found = summary.telemetry
    if found is None:
        return []
    return [
        Text(describe_telemetry(found)),
        *charts_for(lambda: charts.telemetry_charts(found)),
        telemetry_table(found).named("telemetry", "Over the samples"),
        energy_table(found).named("energy", "Energy"),
        *source_line(summary.sources.get("telemetry")),
    ]


def _stage_sections(summary: Summary) -> list[Section]:
    """Return the sections that stages provide, including plug-ins."""
    found = []
    for place, part in enumerate(summary.sections):
        name = f"stage-{place}-{re.sub(r'[^a-z0-9]+', '-', part.stage.lower()).strip('-') or 'section'}"
        blocks: list[Block] = [Text(paragraph) for paragraph in part.paragraphs]
        blocks += [
            stage_table(table).named(f"{name}-{number}", table.title)
            for number, table in enumerate(part.tables)
        ]
        found.append(Section(name, part.title, blocks))
    return found


def _what_if(summary: Summary) -> list[Block]:
    """Return a dozen devices as charts and table, and the full table, folded."""
    if not summary.what_if:
        return []
    shown = on_other_devices(summary)
    several = ", several devices" if any(row.tensor_parallel > 1 for row in summary.what_if) else ""
    everything = f"All {len(summary.what_if)} rows: devices, data types, batch sizes, contexts{several}"
    more = len(summary.what_if) - sum(each.row is not None for each in shown)
    rows = f"{more} more {'row' if more == 1 else 'rows'} (devices, data types, batch sizes, contexts) in report.html and summary.json."
    return [
        Text(describe_other_devices(summary)),
        chart(lambda: charts.other_device_chart(shown)),
        *(
            [chart(lambda: charts.other_device_chart(shown, first_token=True))]
            if any(each.ttft_floor_s for each in shown)
            else []
        ),
        other_device_table(shown, summary.what_if).named(
            "elsewhere", "A dozen devices" if len(shown) > 11 else "Devices"
        ),
        Only("markdown", [Text(rows)] if more else []),
        Only(
            "html",
            [Details(everything, [what_if_table(summary, most=MOST_DEVICES).named("what-if", filter=True)])],
        ),
    ]


def _missing(summary: Summary) -> list[Block]:
    pairs = [(capitalised(name), f"needs {need}.") for name, need in missing_sections(summary)]
    return [Points(pairs)] if pairs else []


def _methods(summary: Summary) -> list[Block]:
    pairs = [(kind, f"`{path}`" if "`" not in path else path) for kind, path in summary.sources.items()]
    table = methods_table(summary)
    return [
        *([table.named("methods")] if table else []),
        *([Details("Source files", [Points(pairs)])] if pairs else []),
    ]
