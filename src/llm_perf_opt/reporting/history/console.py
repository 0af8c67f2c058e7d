"""The history as text."""

from __future__ import annotations

from llm_perf_opt.core.escape import one_line
from llm_perf_opt.model.history import Change, FindingRecord, History, Trend
from llm_perf_opt.reporting.history.words import (
    came_words,
    change_words,
    drift_words,
    finding_words,
    left_out_lines,
    level,
    method_words,
    nothing_words,
    trend_name,
)


def history_console(history: History) -> str:
    """Lay out every trend with its changes, and what was left out."""
    lines = [f"{history.runs} runs in {history.directory}"]
    heading = None
    for trend in history.trends:
        here = f"{trend.label} on {trend.machine} (configuration {trend.config_hash})"
        if here != heading:
            lines.extend(["", one_line(here)])
            heading = here
        lines.append(f"  {one_line(_trend(trend))}")
        lines.extend(f"    {one_line(_change(trend, change))}" for change in trend.changes)
    if not history.trends:
        lines.append(nothing_words(history))
    if history.findings:
        lines.extend(["", "Advice that was tried (improve)"])
        lines.extend(f"  {one_line(_record(record))}" for record in history.findings)
    lines.extend(["", *left_out_lines(history.left_out), method_words(history.method)])
    return "\n".join(lines)


def _record(record: FindingRecord) -> str:
    name = f"{record.finding} ({record.phase})" if record.phase else record.finding
    return f"{name} on {record.device or 'an unnamed device'}: {finding_words(record)}"


def _trend(trend: Trend) -> str:
    last = trend.points[-1]
    told = trend.reason or (
        _many(trend.changes) if trend.changes else drift_words(trend) or "no change shown"
    )
    return f"{trend_name(trend)}: {level(trend, last.value)} in the last of {len(trend.points)} runs; {told}"


def _many(changes: list[Change]) -> str:
    return "1 change" if len(changes) == 1 else f"{len(changes)} changes"


def _change(trend: Trend, change: Change) -> str:
    return f"{change_words(trend, change)}; came with {came_words(change)}"
