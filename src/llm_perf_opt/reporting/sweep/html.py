"""``sweep.html``: one file that opens offline, in the dress of ``report.html``."""

from __future__ import annotations

from urllib.parse import quote

from llm_perf_opt.analysis.sweep.effects import largest_effects
from llm_perf_opt.analysis.sweep.summarise import shown_metrics
from llm_perf_opt.model.sweep import Sweep
from llm_perf_opt.reporting.content.tables import Table
from llm_perf_opt.reporting.html.blocks import Block, Section, chart_block, table_block, text_block
from llm_perf_opt.reporting.html.page import render_page
from llm_perf_opt.reporting.sweep import charts, tables, words

_MOST_KEYS = 12
_MOST_LINKS = 1000


def sweep_html(sweep: Sweep) -> str:
    """Render the sweep."""
    sections = [section for section in _sections(sweep) if section.blocks]
    linked = [job for job in sweep.jobs if job.report]
    return render_page(
        "sweep.html.j2",
        title=f"{words.heading(sweep)}: sweep",
        navigation=[Section("summary", "Summary", "Summary"), *sections],
        data={},
        context={
            "heading": words.heading(sweep),
            "sentence": words.sentence(sweep),
            "facts": words.facts(sweep),
            "notes": sweep.notes,
            "bad": words.trouble(sweep),
            "sections": sections,
            "links": [
                {"number": job.number, "target": quote(job.report or ""), "name": tables.job_name(sweep, job)}
                for job in linked[:_MOST_LINKS]
            ],
            "links_left_out": max(0, len(linked) - _MOST_LINKS),
            "method": words.METHOD,
        },
    )


def _sections(sweep: Sweep) -> list[Section]:
    bad = tables.bad_jobs(sweep)
    return [
        Section("best", "Best configurations", "Best", _table(tables.best_table(sweep), "best")),
        Section("failed", "Jobs that did not finish", "Failed", _failed(sweep) if bad else []),
        Section("pareto", "What is traded for what", "Trade-offs", _fronts(sweep)),
        Section("effects", "What each key does", "Effects", _effects(sweep)),
        Section("panels", "Keys together", "Together", _panels(sweep)),
        Section("jobs", "All jobs", "Jobs", _table(tables.job_table(sweep), "jobs", filter=True)),
        Section("left-out", "Left out", "Left out", _left_out(sweep)),
    ]


def _table(table: Table, name: str, *, filter: bool = False) -> list[Block]:
    return [table_block(table, name, filter=filter)] if table else []


def _failed(sweep: Sweep) -> list[Block]:
    return _table(tables.bad_table(sweep), "failed", filter=True)


def _fronts(sweep: Sweep) -> list[Block]:
    blocks: list[Block] = []
    for front in sweep.pareto:
        blocks.append(chart_block(charts.pareto_chart(sweep, front)))
        table = tables.front_table(sweep, front.x, front.y, front.jobs[: tables.MOST_JOBS])
        name = f"front-{front.x}-{front.y}"
        block = table_block(table, name)
        block.fold = f"The {len(front.jobs)} jobs of this front, of {front.compared}"
        blocks.append(block)
    return blocks


def _effects(sweep: Sweep) -> list[Block]:
    blocks = [text_block(words.EFFECTS)] if sweep.keys else []
    metric = next(iter(shown_metrics(sweep.jobs)), None)
    order = largest_effects(sweep.keys, metric) if metric else list(sweep.keys)
    for key in order[:_MOST_KEYS]:
        swept = sweep.keys[key]
        if not swept.effects:
            blocks.append(text_block(f"{key} has {len(swept.values)} values: {words.NO_EFFECTS}", quiet=True))
            continue
        blocks += [chart_block(svg) for svg in charts.effect_charts(key, swept)]
        block = table_block(tables.effect_table(key, swept), f"effect-{key}", filter=True)
        block.fold = f"{key} in numbers"
        blocks.append(block)
    if len(order) > _MOST_KEYS:
        blocks.append(text_block(f"{len(order) - _MOST_KEYS} more keys are in sweep.json.", quiet=True))
    return blocks if len(blocks) > 1 else []


def _panels(sweep: Sweep) -> list[Block]:
    drawn = [svg for metric in shown_metrics(sweep.jobs)[:3] for svg in charts.panel_charts(sweep, metric)]
    return [chart_block(svg) for svg in drawn]


def _left_out(sweep: Sweep) -> list[Block]:
    if not sweep.left_out_count:
        return []
    lines = [(item.path, item.reason) for item in sweep.left_out]
    said = text_block(f"{sweep.left_out_count} entries of the directory are no jobs of this sweep.")
    return [said, Block("list", pairs=lines)]
