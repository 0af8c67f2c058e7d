"""``sweep.md`` and the last words of a sweep on the console."""

from __future__ import annotations

from pathlib import Path

from llm_perf_opt.core.escape import md_code, md_target, md_text, one_line
from llm_perf_opt.model.sweep import Sweep
from llm_perf_opt.reporting.content.tables import Table
from llm_perf_opt.reporting.markdown.writer import bullets, prose, render_table, section
from llm_perf_opt.reporting.sweep import tables, words

_MOST_ROWS = 200
_MOST_CONSOLE = 20


def sweep_markdown(sweep: Sweep) -> str:
    """Render the sweep; long tables are cut, ``sweep.json`` holds everything."""
    bad = tables.bad_jobs(sweep)
    return "".join(
        (
            f"# {md_text(words.heading(sweep))}\n\n**{md_text(words.sentence(sweep))}**\n\n",
            bullets(f"{label}: {md_text(value)}" for label, value in words.facts(sweep)) + "\n\n",
            bullets(f"Note: {prose(note)}" for note in sweep.notes) + "\n\n" if sweep.notes else "",
            bullets(f"**{md_text(head)}.** {md_text(rest)}" for head, rest in words.trouble(sweep)) + "\n\n"
            if words.trouble(sweep)
            else "",
            section("Best configurations", _table(tables.best_table(sweep))),
            section("Jobs that did not finish", _table(tables.bad_table(sweep)) if bad else ""),
            section("What is traded for what", *_fronts(sweep)),
            section("What each key does", *_effects(sweep)),
            section("All jobs", _table(tables.job_table(sweep)), _links(sweep)),
            section("Left out", _left_out(sweep)),
            section("How this was made", md_text(words.METHOD)),
        )
    )


def _table(value: Table) -> str:
    return render_table(value, most=_MOST_ROWS)


def _fronts(sweep: Sweep) -> list[str]:
    found = []
    for front in sweep.pareto:
        numbers = front.jobs[:_MOST_ROWS]
        found.append(
            f"{len(front.jobs)} of {front.compared} jobs are beaten by none in both:\n\n"
            + _table(tables.front_table(sweep, front.x, front.y, numbers))
        )
    return found


def _effects(sweep: Sweep) -> list[str]:
    found = [_table(tables.effect_table(key, swept)) for key, swept in sweep.keys.items() if swept.effects]
    return [md_text(words.EFFECTS), *found] if found else []


def _links(sweep: Sweep) -> str:
    linked = [job for job in sweep.jobs if job.report][:_MOST_ROWS]
    lines = [f"[job {job.number}]({md_target(job.report or '')})" for job in linked]
    return "Reports: " + ", ".join(lines) if lines else ""


def _left_out(sweep: Sweep) -> str:
    if not sweep.left_out_count:
        return ""
    lines = [f"{md_code(item.path)}: {md_text(item.reason)}" for item in sweep.left_out]
    return f"{sweep.left_out_count} entries of the directory are no jobs of this sweep.\n\n{bullets(lines)}"


def sweep_console(sweep: Sweep, page: Path) -> str:
    """Say how it went in a few lines, with the reasons of what failed."""
    lines = ["", one_line(words.sentence(sweep))]
    bad = tables.bad_jobs(sweep)
    for job in bad[:_MOST_CONSOLE]:
        status = tables.STATUS_NAMES[job.status]
        lines.append(one_line(f"  job {job.number} {status} ({tables.job_name(sweep, job)}): {job.reason}"))
    if len(bad) > _MOST_CONSOLE:
        lines.append(f"  and {len(bad) - _MOST_CONSOLE} more: see {page.with_suffix('.md')}")
    lines.extend(one_line(f"  note: {note}") for note in sweep.notes)
    if bad:
        lines.append(f"  run them again: llm-perf-opt run --resume={sweep.directory}")
    return "\n".join([*lines, f"report: {page}"])
