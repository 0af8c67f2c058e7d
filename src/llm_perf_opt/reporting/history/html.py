"""``history.html``: one file that opens offline, in the dress of ``report.html``."""

from __future__ import annotations

from itertools import groupby

from llm_perf_opt.core import units
from llm_perf_opt.model.history import History, Trend
from llm_perf_opt.reporting.compare.tables import change as change_text
from llm_perf_opt.reporting.content.tables import Table, columns, num, simple, text
from llm_perf_opt.reporting.history.charts import trend_chart
from llm_perf_opt.reporting.history.words import (
    came_words,
    change_words,
    drift_words,
    finding_words,
    formatter,
    level,
    method_words,
    nothing_words,
    trend_name,
)
from llm_perf_opt.reporting.html.blocks import Block, Section, chart_block, text_block
from llm_perf_opt.reporting.html.page import render_page
from llm_perf_opt.reporting.wording import sentence

MOST_SERIES, MOST_ROWS = 100, 800


def history_html(history: History) -> str:
    """Render the history; those with a change of level first, and of many configurations the first hundred."""
    groups = [
        list(items) for _, items in groupby(history.trends, key=lambda t: (t.label, t.machine, t.config_hash))
    ]
    groups.sort(key=lambda group: not any(trend.changes for trend in group))
    shown = groups[:MOST_SERIES]
    sections = [_section(number, group) for number, group in enumerate(shown)]
    notes = []
    if len(groups) > len(shown):
        notes.append(f"{len(groups) - len(shown)} more configurations are in history.json.")
    if not groups:
        notes.append(sentence(nothing_words(history)))
    changes = _changes(history)
    if changes:
        sections.insert(0, Section("changes", "Changes of level", "Changes", [_table("changes", changes)]))
    findings = _findings(history)
    if findings:
        told = Section("findings", "Advice that was tried", "Advice", [_table("findings", findings)])
        sections.insert(1 if changes else 0, told)
    left_out = simple(
        columns("Directory", "Reason"), [[text(e.path), text(e.reason)] for e in history.left_out[:MOST_ROWS]]
    )
    if left_out:
        sections.append(Section("left-out", "Left out", "Left out", [_table("left-out", left_out)]))
    many = sum(len(trend.changes) for trend in history.trends)
    return render_page(
        "history.html.j2",
        title="History of runs",
        navigation=[Section("summary", "Summary", "Summary"), *sections],
        data={},
        context={
            "heading": "History of runs",
            "sentence": f"{history.runs} runs; configurations and machines: {len(groups)}; changes of level: {many}; "
            f"left out: {len(history.left_out)}.",
            "directory": history.directory,
            "notes": notes,
            "method": method_words(history.method),
            "sections": sections,
        },
    )


def _section(number: int, group: list[Trend]) -> Section:
    first = group[0]
    blocks = [text_block(f"{first.machine} · configuration {first.config_hash}", quiet=True)]
    for trend in group:
        if len(trend.points) > 1:
            blocks.append(chart_block(trend_chart(trend)))
        else:
            blocks.append(
                text_block(f"{trend_name(trend)}: {level(trend, trend.points[0].value)} in the only run.")
            )
        if trend.reason:
            blocks.append(text_block(f"No change was looked for: {trend.reason}.", quiet=True))
        if (drift := drift_words(trend)) is not None:
            blocks.append(text_block(f"{trend_name(trend)}: {drift}."))
        blocks.extend(
            text_block(f"{change_words(trend, found)}; came with {came_words(found)}.")
            for found in trend.changes
        )
    return Section(f"series-{number}", first.label, " · ".join(first.label.split(" · ")[:2]), blocks)


def _changes(history: History) -> Table:
    rows = [
        [
            text(trend.label),
            text(trend.machine),
            text(trend_name(trend)),
            num(found.before, formatter(trend.unit)),
            num(found.after, formatter(trend.unit)),
            num(found.ratio, change_text),
            text(found.outcome, strong=found.outcome == "worse"),
            text(trend.points[found.place].run),
            text(came_words(found)),
        ]
        for trend in history.trends
        for found in trend.changes
    ]
    header = columns(
        "Configuration",
        "Machine",
        "Metric",
        "Before#",
        "After#",
        "Change#",
        "Outcome",
        "First run",
        "Came with",
    )
    return simple(header, rows[:MOST_ROWS])


def _findings(history: History) -> Table:
    """One row per rule and machine: what ``improve`` found when it tried the advice."""
    rows = [
        [
            text(record.finding),
            text(record.phase),
            text(record.device),
            text(finding_words(record), strong=record.trials > 0 and record.helped == 0),
            num(record.predicted_gain_s, units.seconds),
            num(record.measured_gain_s, units.seconds),
            text(record.last),
        ]
        for record in history.findings
    ]
    header = columns(
        "Finding",
        "Phase",
        "Machine",
        "Record",
        "Named at most#",
        "Measured#",
        "Last tried",
    )
    return simple(header, rows[:MOST_ROWS])


def _table(name: str, table: Table) -> Block:
    return Block("table", id=f"{name}-table", table=table, label=name, filter=True)
