"""``comparison.html``: one file that opens offline, in the dress of ``report.html``."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.model.comparison import Comparison
from llm_perf_opt.model.conclusion import Conclusion
from llm_perf_opt.reporting.compare import (
    cause_tables,
    charts,
    conclusion_tables,
    expected_tables,
    tables,
)
from llm_perf_opt.reporting.content.tables import Table
from llm_perf_opt.reporting.html.blocks import Block, Section, chart_block, text_block
from llm_perf_opt.reporting.html.page import render_page

MOST_ROWS = 800


def comparison_html(comparison: Comparison) -> str:
    """Render the comparison."""
    common = tables.common_text(comparison)
    sections = [section for section in _sections(comparison) if section.blocks]
    return render_page(
        "compare.html.j2",
        title=f"{tables.heading(comparison)}: comparison",
        navigation=[Section("summary", "Summary", "Summary"), *sections],
        data={},
        context={
            "heading": tables.heading(comparison),
            "sentence": comparison.sentence,
            "sides": [*tables.side_facts(comparison), *([("both", f"settings {common}")] if common else [])],
            "notes": comparison.notes,
            "gates": [{"status": g.status, "metric": g.metric, "reason": g.reason} for g in comparison.gates],
            "method": tables.method_text(comparison),
            "sections": sections,
        },
    )


def _sections(comparison: Comparison) -> list[Section]:
    forest = charts.forest_chart(comparison.metrics)
    devices = conclusion_tables.device_table(comparison.conclusions)
    return [
        *(_conclusion(number, each) for number, each in enumerate(comparison.conclusions)),
        _section("devices", "Devices", devices),
        _section("metrics", "Metrics", tables.metric_table(comparison.metrics), [forest] if forest else []),
        Section("expected", "Predicted and measured", "Predicted", _expected(comparison)),
        Section("causes", "Where the change comes from", "Causes", _causes(comparison)),
        _section(
            "samples",
            "Sample by sample",
            cause_tables.sample_table(comparison.samples),
            charts.pair_charts(comparison),
        ),
        _section("differences", "What else differs", tables.difference_table(comparison)),
        _section("phases", "Phases", tables.phase_table(comparison.phases)),
        _section("modules", "Modules", tables.module_table(comparison.modules, MOST_ROWS)),
        _section("families", "Kernel families", tables.family_table(comparison.families)),
        _section("kernels", "Kernels", tables.kernel_table(comparison.kernels, MOST_ROWS)),
    ]


def _conclusion(number: int, conclusion: Conclusion) -> Section:
    """What a conclusion is made of; the sentence of the first stands on top of the page already."""
    name = conclusion_tables.whole_name(conclusion)
    drawn = charts.conclusion_chart(conclusion)
    table = conclusion_tables.conclusion_table(conclusion, MOST_ROWS)
    said = [*([conclusion.sentence] if number else []), *conclusion_tables.facts(conclusion)]
    blocks = [text_block(" ".join(said))]
    if drawn is not None:
        blocks.append(chart_block(drawn))
    if table.rows:
        blocks.append(text_block(conclusion_tables.EQUAL_WORK_TEXT))
        blocks.append(Block("table", id=f"why-{number}-table", table=table, label=f"Why: {name}"))
    return Section(f"why-{number}", f"Why: {name}", f"Why: {name}", blocks)


def _expected(comparison: Comparison) -> list[Block]:
    found = comparison.expected
    if found is None:
        return []
    table = expected_tables.expected_table(found)
    drawn = (
        [Block("table", id="expected-table", table=table, label="Predicted and measured")] if table else []
    )
    return [text_block(expected_tables.expected_text(found)), *drawn]


def _causes(comparison: Comparison) -> list[Block]:
    if not comparison.splits:
        return []
    return [
        text_block(cause_tables.SPLITS_TEXT),
        *(chart_block(svg) for svg in charts.split_charts(comparison.splits)),
        Block("table", id="causes-table", table=cause_tables.cause_table(comparison.splits), label="Causes"),
    ]


def _section(name: str, title: str, table: Table, drawn: Sequence[str] = ()) -> Section:
    blocks = [Block("table", id=f"{name}-table", table=table, label=title, filter=True)] if table else []
    return Section(name, title, title, [*(chart_block(svg) for svg in drawn), *blocks])
