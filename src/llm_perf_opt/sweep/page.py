"""The pages of a sweep: ``sweep.html``, ``sweep.md`` and the console."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from llm_perf_opt.core import units
from llm_perf_opt.core.escape import one_line
from llm_perf_opt.reporting.charts.axes import Kind
from llm_perf_opt.reporting.charts.dots import Dot, DotRow, Point, dot_chart, front_chart
from llm_perf_opt.reporting.charts.lines import Line, line_chart
from llm_perf_opt.reporting.document import (
    Block,
    Chart,
    Details,
    Document,
    Links,
    Note,
    Points,
    Section,
    Text,
    chart,
    charts_for,
)
from llm_perf_opt.reporting.html.page import write_html
from llm_perf_opt.reporting.markdown import write_markdown
from llm_perf_opt.reporting.tables import Cell, Column, Row, Table, code, columns, num, text
from llm_perf_opt.sweep.analysis import largest_effects, settings_of, shown_metrics
from llm_perf_opt.sweep.data import BAD, Best, Effect, Front, JobMetric, Sweep, SweepJob, SweptKey
from llm_perf_opt.sweep.metrics import METRICS

# The tables of a sweep, as data.


_MOST_JOBS = 1000
"""Rows of the table of jobs; the rest are in ``sweep.json``."""
_MOST_LETTERS = 30
"""Of a reason in the table of all jobs; the whole unfolds, and stands in the table of those that did not finish."""
STATUS_NAMES = {
    "ok": "done",
    "failed": "failed",
    "interrupted": "interrupted",
    "killed": "killed",
    "running": "running",
    "pending": "not begun",
}


def formatter(metric: str) -> Callable[[float | None], str]:
    """Return the formatter of a metric."""
    return {
        "s": units.seconds,
        "bytes": units.size,
        "J": lambda value: units.number(value, "J"),
        "1/s": lambda value: units.number(value, "/s"),
    }[METRICS[metric].unit]


def format_value(metric: str, value: JobMetric | None) -> str:
    """``1.23 ms (1.20 to 1.26)``."""
    shown = formatter(metric)
    if value is None:
        return units.MISSING
    if value.low is None or value.high is None:
        return shown(value.value)
    return f"{shown(value.value)} ({shown(value.low)} to {shown(value.high)})"


def _brief(metric: str, value: JobMetric | None) -> str:
    """``1.23 ms ± 2.4 %``: half the interval, in a table with many columns; its ends are folded."""
    if value is None or value.low is None or value.high is None or not value.value:
        return format_value(metric, value)
    return (
        f"{formatter(metric)(value.value)} ± {(value.high - value.low) / 2 / abs(value.value):.1%}".replace(
            "%", " %"
        )
    )


def format_change(ratio: float | None) -> str:
    """``1.031`` → ``+3.1 %``."""
    return units.MISSING if ratio is None else f"{(ratio - 1) * 100:+.1f} %"


def job_name(sweep: Sweep, job: SweepJob, keys: Sequence[str] | None = None) -> str:
    """Name a job by its swept keys, without their sections."""
    settings = settings_of(job)
    chosen = [key for key in (sweep.keys if keys is None else keys) if key in settings]
    return ", ".join(f"{key.rpartition('.')[2]}={settings[key]}" for key in chosen) or f"job {job.number}"


def _job_table(sweep: Sweep) -> Table:
    """All jobs, in their order; further settings and long reasons are folded."""
    metrics, keys = shown_metrics(sweep.jobs), list(sweep.keys)
    header = columns(
        "Job", "Status", *keys, *(Column(METRICS[name].title, True) for name in metrics), "Took#", "Reason"
    )
    rows = []
    for job in sweep.jobs[:_MOST_JOBS]:
        settings = settings_of(job)
        cells = [_number(job), _status(job), *(_setting(settings, key) for key in keys)]
        for name in metrics:
            metric = job.metrics.get(name)
            cells.append(Cell(_brief(name, metric), None if metric is None else metric.value))
        cells += [num(job.seconds, units.seconds), text(_short(_reason(job)))]
        rows.append(Row(cells, group=STATUS_NAMES[job.status], details=_details(job)))
    return _jobs_table(header, rows, len(sweep.jobs))


def _bad_table(sweep: Sweep) -> Table:
    """Jobs that did not finish, with the reason first."""
    keys, listed = list(sweep.keys), _bad_jobs(sweep)
    rows = []
    for job in listed[:_MOST_JOBS]:
        settings = settings_of(job)
        cells = [_number(job), _status(job), text(_reason(job)), *(_setting(settings, key) for key in keys)]
        cells.append(num(job.seconds, units.seconds))
        rows.append(Row(cells, group=STATUS_NAMES[job.status], details=_details(job)))
    return _jobs_table(columns("Job", "Status", "Reason", *keys, "Took#"), rows, len(listed))


def _jobs_table(header: Sequence[Column], rows: Sequence[Row], jobs: int) -> Table:
    table = Table(header, rows, left_out=max(0, jobs - _MOST_JOBS), grouped_by="Status", rest_in="sweep.json")
    return table.without_empty_columns()


def _number(job: SweepJob) -> Cell:
    return Cell(str(job.number), float(job.number), code=True)


def _status(job: SweepJob) -> Cell:
    return text(STATUS_NAMES[job.status], strong=job.status in BAD)


def _setting(settings: Mapping[str, str], key: str) -> Cell:
    return code(settings[key]) if key in settings else text(None)


def _reason(job: SweepJob) -> str | None:
    return job.reason or (f"device shared: {job.shared}" if job.shared else None)


def _short(reason: str | None) -> str | None:
    return (
        reason
        if reason is None or len(reason) <= _MOST_LETTERS
        else f"{reason[: _MOST_LETTERS - 1].rstrip()}…"
    )


def _details(job: SweepJob) -> list[tuple[str, str]]:
    where = f"process {job.pid} on {job.host}" if job.host else None
    pairs = [
        ("reason", reason if (reason := _reason(job)) is not None and len(reason) > _MOST_LETTERS else None),
        ("settings", " ".join(job.overrides)),
        ("directory", job.run_dir),
        ("process", where),
        ("began", job.started),
        ("device", f"shared: {job.shared}" if job.shared else None),
        *((METRICS[name].title, format_value(name, value)) for name, value in job.metrics.items()),
    ]
    return [(label, value) for label, value in pairs if value]


def _effect_table(key: str, swept: SweptKey) -> Table:
    """What each value of a key does to each metric."""
    header = columns(
        "Metric",
        key,
        Column("Jobs", True),
        Column("Median", True),
        Column("Change", True, "against the first value, between jobs that are equal in every other key"),
        Column("95 % interval", True),
        Column("Pairs", True),
    )
    rows = []
    for metric, effects in swept.effects.items():
        shown = formatter(metric)
        for effect in effects:
            span = (
                f"{format_change(effect.low)} to {format_change(effect.high)}"
                if effect.low is not None
                else "too few repeats"
                if effect.change_ratio is not None
                else None
            )
            rows.append(
                Row(
                    [
                        text(METRICS[metric].title),
                        code(effect.value),
                        num(float(effect.jobs), lambda value: f"{value:.0f}"),
                        num(effect.median, shown),
                        Cell(format_change(effect.change_ratio), effect.change_ratio),
                        text(span),
                        num(
                            float(effect.pairs) if effect.pairs else None,
                            lambda v: units.MISSING if v is None else f"{v:.0f}",
                        ),
                    ],
                    group=METRICS[metric].title,
                )
            )
    return Table(header, rows, grouped_by="Metric", rest_in="sweep.json")


def _best_table(sweep: Sweep) -> Table:
    by_number = _jobs_by_number(sweep)
    rows = [
        Row(
            [
                text(METRICS[best.metric].title),
                num(float(best.job), lambda value: f"{value:.0f}"),
                text(job_name(sweep, by_number[best.job])),
                text(format_value(best.metric, by_number[best.job].metrics[best.metric])),
                text(_tied(best)),
            ]
        )
        for best in sweep.best
    ]
    return Table(columns("Best by", "Job#", "Settings", "Value", "Tied with"), rows, rest_in="sweep.json")


def _tied(best: Best) -> str:
    numbers = ", ".join(map(str, best.tied[:12]))
    return f"job {numbers}{' …' if len(best.tied) > 12 else ''}" if best.tied else ""


def _front_table(sweep: Sweep, x: str, y: str, numbers: Sequence[int]) -> Table:
    """The jobs of a front, along its first metric."""
    by_number = _jobs_by_number(sweep)
    rows = [
        Row(
            [
                num(float(number), lambda value: f"{value:.0f}"),
                text(job_name(sweep, by_number[number])),
                text(format_value(x, by_number[number].metrics[x])),
                text(format_value(y, by_number[number].metrics[y])),
            ]
        )
        for number in numbers
    ]
    return Table(columns("Job#", "Settings", METRICS[x].title, METRICS[y].title), rows, rest_in="sweep.json")


def _bad_jobs(sweep: Sweep) -> list[SweepJob]:
    """Jobs that failed, were interrupted or killed."""
    return [job for job in sweep.jobs if job.status in BAD]


def _jobs_by_number(sweep: Sweep) -> Mapping[int, SweepJob]:
    return {job.number: job for job in sweep.jobs}


def _describe_counts(sweep: Sweep) -> str:
    """``12 jobs: 10 done, 1 failed, 1 killed``."""
    parts = ", ".join(f"{count} {STATUS_NAMES[status]}" for status, count in sweep.counts.items())
    return f"{len(sweep.jobs)} jobs: {parts}" if parts else "no jobs"


# The charts of a sweep: effects with their intervals, fronts, and panels for more keys.


MOST_POINTS = 1500
"""Marks of a front's chart next to the front itself; more cannot be distinguished, and make the page heavy."""
_MOST_PANELS = 6
_MOST_LINES = 8
_MOST_ROWS = 24
_FIRST = Kind("first value: compared with", "diamond", 6)
_BETTER = Kind("better", "circle", 2)
_WORSE = Kind("worse", "circle", 5)
_OPEN = Kind("no significant difference", "hollow")
_TOO_FEW = Kind("too few repeats for an interval", "square", 6)


def effect_charts(key: str, swept: SweptKey) -> list[str]:
    """Draw the change of each metric by the values of a key, one chart per metric."""
    charts = []
    for metric, effects in swept.effects.items():
        rows = []
        for place, effect in enumerate(effects[:_MOST_ROWS]):
            if place == 0 and effect.change_ratio is None:
                rows.append(DotRow(effect.value, [Dot(1.0, _FIRST)], formatter(metric)(effect.median)))
            elif effect.change_ratio is not None:
                dot = Dot(
                    effect.change_ratio, _kind(metric, effect.low, effect.high), effect.low, effect.high
                )
                rows.append(DotRow(effect.value, [dot], _change_note(effect)))
        if len(rows) > 1:
            charts.append(
                dot_chart(
                    f"{METRICS[metric].title} by {key}",
                    rows,
                    x_label=f"against {key}={effects[0].value}, everything else equal; line: 95 % interval",
                    formatter=format_change,
                    reference=1.0,
                )
            )
    return charts


def _change_note(effect: Effect) -> str:
    pairs = f"{effect.pairs} pair{'s' if effect.pairs > 1 else ''}"
    few = ": too few repeats" if effect.low is None else ""
    return f"{format_change(effect.change_ratio)}, {pairs}{few}"


def _kind(metric: str, low: float | None, high: float | None) -> Kind:
    if low is None or high is None:
        return _TOO_FEW
    if low <= 1 <= high:
        return _OPEN
    lower = METRICS[metric].better == "lower"
    return _BETTER if (high < 1) == lower else _WORSE


def _pareto_chart(sweep: Sweep, front: Front) -> str:
    """Draw all finished jobs by two metrics, and the front."""
    on_front = set(front.jobs)
    known = [
        job for job in sweep.jobs if job.status == "ok" and front.x in job.metrics and front.y in job.metrics
    ]
    behind = [job for job in known if job.number not in on_front]
    stride = -(-len(behind) // MOST_POINTS) if behind else 1
    shown = [*behind[::stride], *(_jobs_by_number(sweep)[number] for number in front.jobs)]
    x, y = METRICS[front.x], METRICS[front.y]
    return front_chart(
        f"{y.title} against {x.title[0].lower()}{x.title[1:]}",
        [
            Point(
                f"job {job.number} ({job_name(sweep, job)})",
                job.metrics[front.x].value,
                job.metrics[front.y].value,
                job.number in on_front,
                job_name(sweep, job) if len(sweep.keys) <= 3 else f"job {job.number}",
                f"job {job.number}",
            )
            for job in shown
        ],
        x_label=x.title,
        y_label=y.title,
        x_format=formatter(front.x),
        y_format=formatter(front.y),
        x_lower_is_better=x.better == "lower",
        y_lower_is_better=y.better == "lower",
        note=f"Every {stride}th of the {len(behind)} jobs behind the front is drawn." if stride > 1 else "",
    )


def _panel_charts(sweep: Sweep, metric: str) -> list[str]:
    """Draw a metric over the number with the largest effect, a line for each value of the next key, a panel for each of a third."""
    order = largest_effects(sweep.keys, metric)
    axis = next((key for key in order if _numbers(sweep.keys[key].values) is not None), None)
    rest = [key for key in order if key != axis and len(sweep.keys[key].values) <= _MOST_LINES]
    if axis is None or not rest:
        return []
    lines_by, panels_by = rest[0], rest[1] if len(rest) > 1 else None
    jobs = [(job, settings_of(job)) for job in sweep.jobs if job.status == "ok" and metric in job.metrics]
    panels = sweep.keys[panels_by].values[:_MOST_PANELS] if panels_by else [None]
    charts = []
    for panel in panels:
        inside = [(job, each) for job, each in jobs if panels_by is None or each.get(panels_by) == panel]
        lines = [
            Line(f"{lines_by}={value}", _points(inside, axis, lines_by, value, metric))
            for value in sweep.keys[lines_by].values
        ]
        if sum(len(line.points) for line in lines) < 2:
            continue
        where = f", {panels_by}={panel}" if panels_by else ""
        charts.append(
            line_chart(
                f"{METRICS[metric].title} over {axis}{where}",
                lines,
                x_label=axis,
                y_label=METRICS[metric].title,
                x_format=units.count,
                y_format=formatter(metric),
            )
        )
    return charts


def _points(
    jobs: Sequence[tuple[SweepJob, dict[str, str]]], axis: str, key: str, value: str, metric: str
) -> list[tuple[float, float | None]]:
    """Medians of the jobs at each point, over further keys."""
    found: dict[float, list[float]] = {}
    for job, settings in jobs:
        number = _numbers([settings.get(axis, "")])
        if settings.get(key) == value and number is not None:
            found.setdefault(number[0], []).append(job.metrics[metric].value)
    return [(place, sorted(values)[len(values) // 2]) for place, values in sorted(found.items())]


def _numbers(values: Sequence[str]) -> list[float] | None:
    try:
        return [float(value) for value in values]
    except ValueError:
        return None


# The sentences of a sweep.


EFFECTS = (
    "Each value is compared with the first one of its key, between jobs that are equal in every other key; the change is "
    "the geometric mean over such pairs. From three pairs on its interval is Student's over the pairs, below that it "
    "comes from the intervals of the measurements."
)
_NO_EFFECTS = "too many for a comparison of each; the trade-offs and the table of jobs have them."
METHOD = (
    "Read from the manifest and the summary of each job. A value is the one in the job's report (each sample's median over "
    "its repeats, averaged over the samples), with its 95 % interval. A job counts as killed if its manifest says that it "
    "runs and its process no longer exists. To make this page again: `llm-perf-opt sweep-report DIR`."
)


def heading(sweep: Sweep) -> str:
    """Name the sweep by its directory."""
    return f"Sweep {sweep.directory.rstrip('/').rpartition('/')[2]}"


def sentence(sweep: Sweep) -> str:
    """Describe the outcome and the best job."""
    line = f"{_describe_counts(sweep)}."
    if sweep.best:
        best = next((each for each in sweep.best if each.metric == "tokens_per_s"), sweep.best[0])
        job = _jobs_by_number(sweep)[best.job]
        value = formatter(best.metric)(best.value)
        others = "one other job" if len(best.tied) == 1 else f"{len(best.tied)} other jobs"
        tied = f", tied with {others}" if best.tied else ""
        title = METRICS[best.metric].title
        line += f" Best by {title[0].lower()}{title[1:]}: {job_name(sweep, job)} ({value}{tied})."
    return line


def facts(sweep: Sweep) -> list[tuple[str, str]]:
    """Return the facts of the sweep by label."""
    keys = "; ".join(f"{key} ({len(swept.values)} values)" for key, swept in sweep.keys.items())
    pairs = [
        ("Swept", keys or "none: all jobs have the same settings"),
        ("Launcher", sweep.launcher),
        ("Began", sweep.started),
        ("Directory", sweep.directory),
        ("Command", shlex.join(sweep.command) if sweep.command else None),
    ]
    return [(label, value) for label, value in pairs if value]


def _describe_failures(sweep: Sweep) -> list[tuple[str, str]]:
    """Describe what did not finish, and what to do."""
    found = []
    bad = _bad_jobs(sweep)
    if bad:
        found.append(
            (
                f"{len(bad)} of {len(sweep.jobs)} jobs did not finish",
                f"Their reasons are below; run them again with: llm-perf-opt run --resume={sweep.directory}",
            )
        )
    waiting = sum(sweep.counts.get(status, 0) for status in ("running", "pending"))
    if waiting:
        found.append((f"{waiting} jobs run or have not begun", "This page is of the moment it was made."))
    return found


_MOST_KEYS = 12
_MOST_LINKS = 1000
_MARKDOWN_MOST_ROWS = 200
_MOST_CONSOLE = 20


def sweep_html(sweep: Sweep) -> str:
    """Render ``sweep.html``."""
    return write_html(sweep_document(sweep))


def sweep_markdown(sweep: Sweep) -> str:
    """Render ``sweep.md``; long tables are cut, ``sweep.json`` holds everything."""
    return write_markdown(sweep_document(sweep))


def sweep_document(sweep: Sweep) -> Document:
    """Return the sweep: the outcome and the best job, then trade-offs, effects and all jobs."""
    trust: list[Block] = [Note(text, title) for title, text in _describe_failures(sweep)]
    trust += [Note(note, level="info") for note in sweep.notes]
    opening: list[Block] = [
        Text(sentence(sweep), "answer"),
        Points(facts(sweep)),
        Details("How far to trust this", trust, "trust"),
    ]
    bad = [_placed(_bad_table(sweep), "failed", filter=True)] if _bad_jobs(sweep) else []
    sections = [
        Section("best", "Best configurations", [_placed(_best_table(sweep), "best")], "Best"),
        Section("failed", "Jobs that did not finish", bad, "Failed"),
        Section("pareto", "Trade-offs", _fronts(sweep), "Trade-offs"),
        Section("effects", "What each key does", _effects(sweep), "Effects"),
        Section("panels", "Keys together", _panels(sweep), "Together"),
        Section(
            "jobs", "All jobs", [_placed(_job_table(sweep), "jobs", filter=True), *_links(sweep)], "Jobs"
        ),
        Section("left-out", "Left out", _left_out(sweep)),
        Section("method", "How this was made", [Text(METHOD)], "Method"),
    ]
    return Document(heading(sweep), heading(sweep), opening, sections, ["sweep.json"])


def _placed(table: Table, name: str, *, filter: bool = False) -> Table:
    return table.named(name, filter=filter, most=_MARKDOWN_MOST_ROWS)


def _fronts(sweep: Sweep) -> list[Block]:
    blocks: list[Block] = []
    for front in sweep.pareto:
        blocks.append(chart(partial(_pareto_chart, sweep, front)))
        table = _front_table(sweep, front.x, front.y, front.jobs[:_MOST_JOBS])
        title = f"{len(front.jobs)} of {front.compared} jobs on this front: no other job is better in both"
        blocks.append(Details(title, [_placed(table, f"front-{front.x}-{front.y}")]))
    return blocks


def _effects(sweep: Sweep) -> list[Block]:
    blocks: list[Block] = [Text(EFFECTS)] if sweep.keys else []
    metric = next(iter(shown_metrics(sweep.jobs)), None)
    order = largest_effects(sweep.keys, metric) if metric else list(sweep.keys)
    for key in order[:_MOST_KEYS]:
        swept = sweep.keys[key]
        if not swept.effects:
            blocks.append(Text(f"{key} has {len(swept.values)} values: {_NO_EFFECTS}", "quiet"))
            continue
        blocks += charts_for(partial(effect_charts, key, swept))
        blocks.append(
            Details(f"{key} in numbers", [_placed(_effect_table(key, swept), f"effect-{key}", filter=True)])
        )
    if len(order) > _MOST_KEYS:
        blocks.append(Text(f"{len(order) - _MOST_KEYS} more keys are in sweep.json.", "quiet"))
    return blocks if len(blocks) > 1 else []


def _panels(sweep: Sweep) -> list[Chart]:
    metrics = shown_metrics(sweep.jobs)[:3]
    return charts_for(lambda: [svg for metric in metrics for svg in _panel_charts(sweep, metric)])


def _links(sweep: Sweep) -> list[Block]:
    linked = [job for job in sweep.jobs if job.report]
    links = [(f"job {job.number} {job_name(sweep, job)}", job.report or "") for job in linked[:_MOST_LINKS]]
    more = len(linked) - len(links)
    rest = Text(f"{more} more in sweep.json." if more else "", "quiet")
    return [Details("Reports of the jobs", [Links(links), rest])] if links else []


def _left_out(sweep: Sweep) -> list[Block]:
    if not sweep.left_out_count:
        return []
    about = Text(f"{sweep.left_out_count} entries of the directory are not jobs of this sweep.")
    return [about, Points([(item.path, item.reason) for item in sweep.left_out])]


def sweep_console(sweep: Sweep, page: Path) -> str:
    """Describe the outcome briefly, with the reasons for failures."""
    lines = ["", one_line(sentence(sweep))]
    bad = _bad_jobs(sweep)
    for job in bad[:_MOST_CONSOLE]:
        status = STATUS_NAMES[job.status]
        lines.append(one_line(f"  job {job.number} {status} ({job_name(sweep, job)}): {job.reason}"))
    if len(bad) > _MOST_CONSOLE:
        lines.append(f"  and {len(bad) - _MOST_CONSOLE} more: see {page.with_suffix('.md')}")
    lines.extend(one_line(f"  note: {note}") for note in sweep.notes)
    if bad:
        lines.append(f"  run them again: llm-perf-opt run --resume={sweep.directory}")
    return "\n".join([*lines, f"report: {page}"])
