"""The charts of a sweep: effects with their intervals, fronts, and panels for more keys."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.analysis.sweep.effects import largest_effects, settings_of
from llm_perf_opt.analysis.sweep.metrics import METRICS
from llm_perf_opt.core import units
from llm_perf_opt.model.sweep import Front, Sweep, SweepJob, SweptKey
from llm_perf_opt.reporting.charts.dots import Dot, DotRow, dot_chart
from llm_perf_opt.reporting.charts.lines import Line, line_chart
from llm_perf_opt.reporting.charts.markers import Kind
from llm_perf_opt.reporting.charts.scatter import Point, front_chart
from llm_perf_opt.reporting.sweep.tables import change_text, formatter, job_name, jobs_by_number

MOST_POINTS = 1500
"""Marks of a front's chart beside the front itself; more cannot be told apart, and make the page heavy."""
_MOST_PANELS = 6
_MOST_LINES = 8
_MOST_ROWS = 24

_FIRST = Kind("first value: compared with", "square", 6)
_BETTER = Kind("shown to be better", "circle", 2)
_WORSE = Kind("shown to be worse", "circle", 5)
_OPEN = Kind("no difference shown", "hollow")


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
                pairs = f"{effect.pairs} pair{'s' if effect.pairs > 1 else ''}"
                rows.append(DotRow(effect.value, [dot], f"{change_text(effect.change_ratio)}, {pairs}"))
        if len(rows) > 1:
            charts.append(
                dot_chart(
                    f"{METRICS[metric].title} by {key}",
                    rows,
                    x_label=f"against {key}={effects[0].value}, everything else equal; line: 95 % interval",
                    formatter=change_text,
                    reference=1.0,
                )
            )
    return charts


def _kind(metric: str, low: float | None, high: float | None) -> Kind:
    if low is None or high is None or low <= 1 <= high:
        return _OPEN
    lower = METRICS[metric].better == "lower"
    return _BETTER if (high < 1) == lower else _WORSE


def pareto_chart(sweep: Sweep, front: Front) -> str:
    """Draw all finished jobs by two metrics, and the front."""
    on_front = set(front.jobs)
    known = [
        job for job in sweep.jobs if job.status == "ok" and front.x in job.metrics and front.y in job.metrics
    ]
    behind = [job for job in known if job.number not in on_front]
    stride = -(-len(behind) // MOST_POINTS) if behind else 1
    shown = [*behind[::stride], *(jobs_by_number(sweep)[number] for number in front.jobs)]
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


def panel_charts(sweep: Sweep, metric: str) -> list[str]:
    """Draw a metric over the most telling number, a line for each value of the next key, a panel for each of a third."""
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
    """Medians of the jobs at each place, where further keys vary."""
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
