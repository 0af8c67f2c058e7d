"""``improve.md``."""

from __future__ import annotations

from llm_perf_opt.core.escape import md_code, md_text
from llm_perf_opt.model.improve import Improvement
from llm_perf_opt.reporting.improve import tables, words
from llm_perf_opt.reporting.markdown.writer import bullets, render_table, section


def improve_markdown(result: Improvement) -> str:
    """Render the search."""
    return "".join(
        (
            f"# What to change: {words.METRIC_NAMES[result.metric]}\n\n",
            f"**{md_text(words.headline(result))}**\n\n",
            f"Run it: {md_code(result.best.command)}\n\n" if result.best.command else "",
            bullets(f"**{name}**: {md_text(value)}" for name, value in words.facts(result)) + "\n\n",
            f"{bullets(f'Note: {md_text(note)}' for note in result.notes)}\n\n" if result.notes else "",
            section("From baseline to best", render_table(tables.ladder_table(result))),
            section("Tried alone", render_table(tables.trial_table(result, "single"))),
            section("Tried together", render_table(tables.trial_table(result, "combination"))),
            section("Measured again", render_table(tables.trial_table(result, "confirmation"))),
            section("Findings, graded", render_table(tables.grade_table(result.grades))),
            section("Not tried", render_table(tables.not_tried_table(result))),
            section("Comparisons", bullets(_links(result))),
            section("How this was made", md_text(words.method_words(result))),
        )
    )


def _links(result: Improvement) -> list[str]:
    """Name the pages beside this one; paths are ours and need no escaping."""
    found = [f"{md_code(words.name_of(t))}: {t.comparison}" for t in result.tried if t.comparison]
    run = result.baseline.run
    return [f"baseline: {md_text(run)}/report.html", *found] if run else found
