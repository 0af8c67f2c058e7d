"""``improve.html``: one file that opens offline, in the dress of ``report.html``."""

from __future__ import annotations

from llm_perf_opt.model.improve import Improvement
from llm_perf_opt.reporting.content.tables import Table
from llm_perf_opt.reporting.html.blocks import Block, Section, chart_block, text_block
from llm_perf_opt.reporting.html.page import render_page
from llm_perf_opt.reporting.improve import charts, tables, words


def improve_html(result: Improvement) -> str:
    """Render the search."""
    sections = [section for section in _sections(result) if section.blocks]
    heading = f"What to change: {words.METRIC_NAMES[result.metric]}"
    return render_page(
        "improve.html.j2",
        title=f"{heading}: {result.baseline.model or 'improve'}",
        navigation=[Section("summary", "Summary", "Summary"), *sections],
        data={},
        context={
            "heading": heading,
            "sentence": words.headline(result),
            "command": result.best.command,
            "facts": words.facts(result),
            "notes": result.notes,
            "method": words.method_words(result),
            "links": _links(result),
            "sections": sections,
        },
    )


def _sections(result: Improvement) -> list[Section]:
    ladder, trials = charts.ladder_chart(result), charts.trial_chart(result)
    return [
        _section("ladder", "From baseline to best", tables.ladder_table(result), ladder),
        _section("alone", "Tried alone", tables.trial_table(result, "single"), trials),
        _section("together", "Tried together", tables.trial_table(result, "combination")),
        _section("again", "Measured again", tables.trial_table(result, "confirmation")),
        _section("grades", "Findings, graded", tables.grade_table(result.grades)),
        _section("not-tried", "Not tried", tables.not_tried_table(result)),
    ]


def _section(name: str, title: str, table: Table, chart: str | None = None) -> Section:
    blocks = [chart_block(chart)] if chart is not None else []
    if table:
        blocks.append(Block("table", id=f"{name}-table", table=table, label=title))
    if name == "grades" and blocks:
        blocks.insert(
            0,
            text_block(
                "What was predicted of a finding's remedies against the best of them, each measured alone. A bound is the most a "
                "remedy could save; times of measured operators are what to expect."
            ),
        )
    return Section(name, title, title, blocks)


def _links(result: Improvement) -> list[tuple[str, str]]:
    found = [(words.name_of(trial), trial.comparison) for trial in result.tried if trial.comparison]
    run = result.baseline.run
    return [("the baseline's report", f"{run}/report.html"), *found] if run else found
