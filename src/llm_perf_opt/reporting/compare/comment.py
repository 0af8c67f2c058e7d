"""A comparison as a comment on a pull request: the conclusion, gates and metrics, and no more."""

from __future__ import annotations

from llm_perf_opt.core.escape import md_text
from llm_perf_opt.model.comparison import Comparison
from llm_perf_opt.reporting.compare import tables
from llm_perf_opt.reporting.compare.markdown import table_markdown
from llm_perf_opt.reporting.markdown.writer import bullets

MARK = "<!-- llm-perf-opt compare -->"
"""First line: by it a workflow finds the comment of its last run, and replaces it."""
_SIGNS = {"passed": "✅", "regression": "❌", "side failed": "❌"}
_MOST_NOTES = 8


def comparison_comment(comparison: Comparison) -> str:
    """Render the comment; far below the 65,536 characters that GitHub takes."""
    gates = [
        f"{_SIGNS.get(gate.status, '⚠️')} **{md_text(gate.metric)}**: {md_text(gate.status)}: {md_text(gate.reason)}"
        for gate in comparison.gates
    ]
    sides = [f"**{letter}**: {md_text(line)}" for letter, line in tables.side_facts(comparison)]
    notes = [f"Note: {md_text(note)}" for note in comparison.notes[:_MOST_NOTES]]
    shown = [row for row in comparison.metrics if not row.name.startswith("component.")]
    parts = [
        MARK,
        "### Performance",
        f"**{md_text(comparison.sentence)}**" if comparison.sentence else "",
        bullets(gates) if gates else "",
        table_markdown(tables.metric_table(shown)) if shown else "",
        bullets(sides),
        bullets(notes) if notes else "",
    ]
    if comparison.differences:
        differences = table_markdown(tables.difference_table(comparison))
        parts.append(f"<details><summary>What else differs</summary>\n\n{differences}\n</details>")
    return "\n\n".join(part for part in parts if part) + "\n"
