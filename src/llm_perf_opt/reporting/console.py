"""The last lines of a run: where the time went, the numbers, what to change first, where the report is."""

from __future__ import annotations

import textwrap
from pathlib import Path

from llm_perf_opt.analysis.verdicts import worth_showing
from llm_perf_opt.core import units
from llm_perf_opt.core.escape import one_line
from llm_perf_opt.model.summary import Summary
from llm_perf_opt.reporting.wording import (
    BOUND_NAMES,
    gain_text,
    phase_name,
    phase_rank,
)

_WIDTH = 79
_BAR_WIDTH = 30
_MOST_STAGES = 3
_MOST_NOTES = 2


def console_summary(summary: Summary, report: Path) -> str:
    """Lay the summary out in about a screenful of plain text, 80 columns wide; a path is never broken."""
    lines = [
        *_wrapped(_headline(summary), ""),
        *_stage_lines(summary),
        *_time_lines(summary),
        *_numbers(summary),
        *_work_lines(summary),
        *_verdicts(summary),
        *_first_finding(summary),
        *_notes(summary),
        f"report: {report}",
    ]
    return "\n".join(lines)


def _wrapped(text: str, indent: str = "  ", *, most: int | None = 3) -> list[str]:
    """Break text into lines that fit; what is cut after ``most`` lines is in the report."""
    return textwrap.wrap(
        one_line(text),
        width=_WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        max_lines=most,
        placeholder=" …",
        break_on_hyphens=False,
    )


def _headline(summary: Summary) -> str:
    workload = summary.workload
    parts = [
        workload.model,
        f"{workload.weights} weights" if workload.weights else None,
        workload.device or summary.hardware.name,
        workload.dtype,
        f"{workload.samples} sample{'s' if workload.samples != 1 else ''}" if workload.samples else None,
    ]
    return f"{summary.run.status}: " + (", ".join(part for part in parts if part) or summary.run.id)


def _stage_lines(summary: Summary) -> list[str]:
    troubled = [(name, stage) for name, stage in summary.stages.items() if stage.status != "ok"]
    lines = []
    for name, stage in troubled[:_MOST_STAGES]:
        lines.extend(_stage_reason(f"{name} {stage.status}: {stage.reason or 'no reason given'}"))
    if len(troubled) > _MOST_STAGES:
        lines.append(f"  and {len(troubled) - _MOST_STAGES} more stages, see the report")
    return lines


def _stage_reason(text: str) -> list[str]:
    """Show a reason in two lines, and the whole fix: one that is cut helps nobody."""
    reason, separator, fix = text.partition(" (fix: ")
    if not separator or len(_wrapped(text, most=None)) <= 2:
        return _wrapped(text, most=2)
    return [*_wrapped(reason, most=2), *_wrapped(f"fix: {fix.removesuffix(')')}", "    ", most=None)]


def _time_lines(summary: Summary) -> list[str]:
    if summary.wall_clock is None:
        return []
    lines = ["where the time goes (median per sample)"]
    for part in summary.wall_clock.parts:
        bar = "█" * max(1, round(_BAR_WIDTH * part.share_ratio))
        lines.append(
            f"  {part.name:<11} {units.seconds(part.seconds):>9}  {units.percent(part.share_ratio):>7}  {bar}"
        )
    return lines


def _numbers(summary: Summary) -> list[str]:
    timings, metrics = summary.timings, summary.metrics
    parts = [
        f"first token {units.seconds(timings.ttft_s.median)}" if timings.ttft_s else "",
        f"per output token {units.seconds(timings.tpot_s.median)}" if timings.tpot_s else "",
        f"{units.number(timings.tokens_per_s.median)} tokens/s" if timings.tokens_per_s else "",
    ]
    if timings.program_s is not None:
        runs = f"{timings.program_s.n} run{'s' if timings.program_s.n != 1 else ''}"
        parts = [f"wall-clock of the program {units.seconds(timings.program_s.median)} (median of {runs})"]
    if timings.program_s is not None or not any(parts):
        total, launches = metrics.get("kernel_time_s"), metrics.get("kernel_launches")
        parts += [
            f"kernel time {units.seconds(total)}" if total is not None else "",
            f"{units.count(launches)} launches of {len(summary.kernels)} kernels" if launches else "",
        ]
    shown = ", ".join(part for part in parts if part)
    return _wrapped(shown, "") if shown else []


def _work_lines(summary: Summary) -> list[str]:
    """What the model must do, where nothing was measured: the answer of a static run."""
    static = summary.static
    if static is None or summary.wall_clock is not None:
        return []
    lines = ["what the model must do (one batch; decode: one step)"]
    for name in sorted(static.phases, key=phase_rank):
        phase, floor = static.phases[name], summary.predictions.get("tpot" if name == "decode" else name)
        work = units.flops(phase.flops) if phase.flops is not None else "not counted"
        read = (
            f", reads {units.size(phase.weight_bytes)} of weights" if phase.weight_bytes is not None else ""
        )
        least = f", at best {units.seconds(floor.floor_s)} here" if floor is not None else ""
        lines.extend(_wrapped(f"{name:<8} {work}{read}{least}"))
    needed = static.resident_bytes.get("total")
    lines += [f"  memory   {units.size(needed)}"] if needed else []
    if summary.what_if:
        names = {row.device for row in summary.what_if}
        expected = any(row.tpot_expected_s is not None for row in summary.what_if)
        what = "expected times and floors" if expected else "floors"
        lines.append(f"  {what} on {len(names)} devices are in the report")
    return lines


def _verdicts(summary: Summary) -> list[str]:
    limits = [
        f"{phase_name(phase)}: {BOUND_NAMES[summary.verdicts[phase].bound]}"
        for phase in sorted(worth_showing(summary.verdicts), key=phase_rank)
    ]
    return _wrapped(f"limited by: {'; '.join(limits)}", "", most=2) if limits else []


def _first_finding(summary: Summary) -> list[str]:
    if not summary.findings:
        return []
    finding = summary.findings[0]
    return _wrapped(f"change first: {finding.title} ({gain_text(finding)})", "", most=2)


def _notes(summary: Summary) -> list[str]:
    lines = [line for note in summary.notes[:_MOST_NOTES] for line in _wrapped(f"note: {note}", "", most=2)]
    if len(summary.notes) > _MOST_NOTES:
        more = len(summary.notes) - _MOST_NOTES
        lines.append(f"and {more} more {'note' if more == 1 else 'notes'} in the report")
    return lines
