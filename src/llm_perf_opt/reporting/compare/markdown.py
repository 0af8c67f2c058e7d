"""``comparison.md`` and the console table of a comparison."""

from __future__ import annotations

from dataclasses import replace

from llm_perf_opt.core import units
from llm_perf_opt.core.escape import (
    md_cell,
    md_code,
    md_text,
    one_line,
)
from llm_perf_opt.model.comparison import Comparison
from llm_perf_opt.model.conclusion import Conclusion
from llm_perf_opt.reporting.compare import cause_tables, conclusion_tables, expected_tables, tables
from llm_perf_opt.reporting.content.tables import Cell, Table
from llm_perf_opt.reporting.markdown.writer import bullets, section, table

MOST_ROWS = 60


def comparison_markdown(comparison: Comparison) -> str:
    """Render the comparison; long tables are cut, ``comparison.json`` holds everything."""
    facts = "\n".join(f"- **{letter}**: {md_text(line)}" for letter, line in tables.side_facts(comparison))
    if common := tables.common_text(comparison):
        facts += f"\n- **both**: settings {md_text(common)}"
    return "".join(
        (
            f"# Comparison: {md_text(tables.heading(comparison))}\n\n",
            f"**{md_text(comparison.sentence)}**\n\n" if comparison.sentence else "",
            f"{facts}\n\n",
            bullets(f"Note: {md_text(note)}" for note in comparison.notes) + "\n\n"
            if comparison.notes
            else "",
            section("Gates", table_markdown(tables.gate_table(comparison.gates))),
            *(
                section(f"Why: {conclusion_tables.whole_name(each)}", _conclusion(each))
                for each in comparison.conclusions
            ),
            section("Devices", table_markdown(conclusion_tables.device_table(comparison.conclusions))),
            section("Metrics", table_markdown(tables.metric_table(comparison.metrics))),
            section("Predicted and measured", _expected(comparison)),
            section(
                "Where the change comes from", table_markdown(cause_tables.cause_table(comparison.splits))
            ),
            section("Sample by sample", table_markdown(_cut(cause_tables.sample_table(comparison.samples)))),
            section("What else differs", table_markdown(tables.difference_table(comparison))),
            section("Phases", table_markdown(tables.phase_table(comparison.phases))),
            section("Modules", table_markdown(tables.module_table(comparison.modules, MOST_ROWS))),
            section("Kernel families", table_markdown(tables.family_table(comparison.families))),
            section("Kernels", table_markdown(tables.kernel_table(comparison.kernels, MOST_ROWS))),
            section("How this was made", tables.method_text(comparison)),
        )
    )


def _expected(comparison: Comparison) -> str:
    found = comparison.expected
    if found is None:
        return ""
    said = md_text(expected_tables.expected_text(found))
    shown = expected_tables.expected_table(found)
    return f"{said}\n\n{table_markdown(shown)}" if shown.rows else f"{said}\n"


def _conclusion(conclusion: Conclusion) -> str:
    said = md_text(" ".join((conclusion.sentence, *conclusion_tables.facts(conclusion))))
    return f"{said}\n\n{table_markdown(conclusion_tables.conclusion_table(conclusion, MOST_ROWS))}"


def _cut(value: Table) -> Table:
    return replace(value, rows=value.rows[:MOST_ROWS], left_out=max(0, len(value.rows) - MOST_ROWS))


def table_markdown(value: Table) -> str:
    """Return a table of a comparison as Markdown."""
    header = [column.label for column in value.columns]
    numbers = [index for index, column in enumerate(value.columns) if column.number]
    text = table(header, [[_cell(cell) for cell in row.cells] for row in value.rows], numbers=numbers)
    return f"{text}\n{value.left_out} more in comparison.json.\n" if value.left_out else text


def _cell(cell: Cell) -> str:
    if cell.code:
        return md_code(cell.text, cell=True)
    return f"**{md_cell(cell.text)}**" if cell.strong else md_cell(cell.text)


def comparison_console(comparison: Comparison, *, most: int = 8) -> str:
    """Lay out the conclusion, sides, metrics, gates and the kernels that changed most, in plain text."""
    lines = [one_line(comparison.sentence), ""] if comparison.sentence else []
    lines.extend(f"{letter}: {one_line(line)}" for letter, line in tables.side_facts(comparison))
    lines.extend(
        one_line(f"differs: {row.what}: {row.a or units.MISSING} → {row.b or units.MISSING}")
        for row in comparison.differences
    )
    for number, conclusion in enumerate(comparison.conclusions):
        lines.extend(["", *_concluded(conclusion, most, first=number == 0)])
    if any(conclusion.moved for conclusion in comparison.conclusions):
        lines.extend(["", "devices", *_aligned(conclusion_tables.device_table(comparison.conclusions))])
    shown = [row for row in comparison.metrics if not row.name.startswith("component.")]
    lines.extend(["", *_aligned(tables.metric_table(shown))])
    if any(row.blocks for row in shown):
        lines.append(
            "  A, B: means over the samples both share; change: robust estimate over blocks, not their quotient"
        )
    if comparison.expected is not None:
        lines.extend(["", one_line(expected_tables.expected_text(comparison.expected))])
        shown_expected = expected_tables.expected_table(comparison.expected)
        lines.extend(_aligned(shown_expected) if shown_expected.rows else [])
    moved = sorted(comparison.families, key=lambda row: -abs((row.b_s or 0.0) - (row.a_s or 0.0)))[:most]
    if moved:
        lines.extend(["", "kernel families that changed most", *_aligned(tables.family_table(moved))])
    if comparison.gates:
        lines.append("")
        lines.extend(
            one_line(f"gate {gate.metric}: {gate.status}: {gate.reason}") for gate in comparison.gates
        )
    lines.extend(one_line(f"note: {note}") for note in comparison.notes)
    return "\n".join(lines)


def _concluded(conclusion: Conclusion, most: int, *, first: bool) -> list[str]:
    """Return why a whole changed; its sentence where it is not the one on top."""
    lines = [f"why: {conclusion_tables.whole_name(conclusion)} at equal work"]
    lines += [] if first else [f"  {one_line(conclusion.sentence)}"]
    lines += [f"  {one_line(fact)}" for fact in conclusion_tables.facts(conclusion)]
    table = conclusion_tables.conclusion_table(conclusion, most)
    return [*lines, *_aligned(table)] if table.rows else lines


def _aligned(value: Table) -> list[str]:
    """Columns padded with blanks; a table without rows is one line that says so."""
    if not value.rows:
        return ["nothing that both sides measured"]
    grid = [
        [column.label for column in value.columns],
        *([one_line(c.text) for c in row.cells] for row in value.rows),
    ]
    widths = [max(len(line[index]) for line in grid) for index in range(len(value.columns))]
    lines = []
    for line in grid:
        cells = [
            cell.rjust(width) if column.number else cell.ljust(width)
            for cell, width, column in zip(line, widths, value.columns, strict=True)
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines
