"""The parts of ``report.html`` about limits: this device's rooflines, and the same model on other devices."""

from __future__ import annotations

from typing import Any

from llm_perf_opt.analysis.roofline.elsewhere import elsewhere
from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Summary
from llm_perf_opt.reporting.charts import figures as charts
from llm_perf_opt.reporting.content.detail import elsewhere_table, what_if_table
from llm_perf_opt.reporting.content.kernels import kernel_details
from llm_perf_opt.reporting.content.time import utilisation_table
from llm_perf_opt.reporting.html.blocks import Block, chart_block, points_block, table_block, text_block
from llm_perf_opt.reporting.origins import hardware_text
from llm_perf_opt.reporting.wording import BOUND_NAMES, elsewhere_text, phase_name

MOST_DEVICES = 600


def hardware_blocks(summary: Summary) -> list[Block]:
    """Return what the run is measured against, and its rooflines; nothing where no limit is known."""
    blocks = [text_block(hardware_text(summary.hardware))]
    rooflines = [*_phase_roofline(summary), *_kernel_roofline(summary)]
    table = utilisation_table(summary)
    if not rooflines and not table and summary.hardware.source == "none":
        return []
    if table:
        blocks.append(table_block(table, "utilisation"))
    return blocks + rooflines


def _phase_roofline(summary: Summary) -> list[Block]:
    static, dtype = summary.static, summary.workload.dtype
    if static is None or dtype is None or not summary.predictions:
        return []
    svg = charts.phase_roofline(static, summary.hardware, dtype, summary.predictions, focusable=True)
    return [points_block("phase-point", svg, {name: _phase_point(summary, name) for name in static.phases})]


def _phase_point(summary: Summary, phase: str) -> dict[str, Any]:
    facts: list[tuple[str, str]] = []
    if phase in summary.verdicts:
        facts.append(("bound by", BOUND_NAMES[summary.verdicts[phase].bound]))
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
    svg = charts.kernel_roofline(summary.kernels, compute=compute, memory=memory, focusable=True)
    return [points_block("kernel-point", svg, drawn)]


def _roofs(summary: Summary) -> tuple[list[charts.Roof], list[charts.Roof]]:
    """Return the device's ceilings; without a known device, the ones the counters themselves tell."""
    hardware = summary.hardware
    names = dict.fromkeys((summary.workload.dtype or "bfloat16", "bfloat16", "float32"))
    compute = [
        charts.Roof(name, hardware.peak_flops_per_s[name].dense)
        for name in names
        if name in hardware.peak_flops_per_s
    ]
    memory = (
        [charts.Roof("memory", hardware.bandwidth_bytes_per_s)]
        if hardware.bandwidth_bytes_per_s is not None
        else []
    )
    return compute or _roofs_from_counters(summary, "peak_flops_per_s"), memory or _roofs_from_counters(
        summary, "peak_bytes_per_s"
    )


def _roofs_from_counters(summary: Summary, counter: str) -> list[charts.Roof]:
    values = [value for k in summary.kernels if (value := k.counters.get(counter))]
    return [charts.Roof("by the counters", max(values))] if values else []


def elsewhere_blocks(summary: Summary) -> list[Block]:
    """Return a dozen devices as charts and table, and everything priced on demand."""
    if not summary.what_if:
        return []
    shown = elsewhere(summary)
    everything = what_if_table(summary, most=MOST_DEVICES)
    folded = table_block(everything, "what-if", filter=True)
    several = ", several devices" if any(row.tensor_parallel > 1 for row in summary.what_if) else ""
    folded.fold = f"All {len(summary.what_if)} rows: devices, data types, batch sizes, contexts{several}"
    return [
        text_block(elsewhere_text(summary)),
        chart_block(charts.elsewhere_chart(shown)),
        *(
            [chart_block(charts.elsewhere_chart(shown, first_token=True))]
            if any(e.ttft_floor_s for e in shown)
            else []
        ),
        table_block(
            elsewhere_table(shown, summary.what_if),
            "elsewhere",
            "A dozen devices" if len(shown) > 11 else "Devices",
        ),
        folded,
    ]
