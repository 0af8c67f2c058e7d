"""A trend as a chart: a mark per run with its interval, the levels between changes, and where they are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from llm_perf_opt.core import units
from llm_perf_opt.model.history import Trend
from llm_perf_opt.model.statistics import percentile
from llm_perf_opt.reporting.charts import svg
from llm_perf_opt.reporting.charts.axes import Plot, Scale, axes, line_path
from llm_perf_opt.reporting.history.words import formatter, trend_name

_HEIGHT = 330.0
_COLOURS = {"worse": 2, "better": 3, "changed": 1}


def trend_chart(trend: Trend) -> str:
    """Draw the runs in their order; runs, not days, are evenly spaced, because the test knows only their order."""
    show = formatter(trend.unit)
    title = f"{trend_name(trend)}, {len(trend.points)} runs"
    width = svg.DEFAULT_WIDTH
    plot = Plot(84.0, width - 24, 76.0, _HEIGHT - 50)
    edges = [value for p in trend.points for value in (p.value, p.low, p.high) if value is not None]
    x = Scale(0.5, len(trend.points) + 0.5, plot.left, plot.right)
    y = _close_scale(edges, plot)
    body = [svg.text(16, 24, svg.fit(title, width - 32, 14), role="head")]
    body.append(
        axes(
            plot,
            x,
            y,
            x_label="Run, in the order they began",
            y_label="Median of the run; the axis does not begin at zero",
            x_format=units.count,
            y_format=show,
        )
    )
    for change in trend.changes:
        at = x(change.place + 0.5)
        words = f"{change.outcome}: {(change.ratio - 1) * 100:+.1f} %"
        line = line_path([(at, plot.top), (at, plot.bottom)])
        body.append(
            svg.element(
                "path",
                svg.hover(words),
                d=line,
                class_=f"lpo-line-{_COLOURS[change.outcome]} lpo-dash",
                stroke_width=2,
            )
        )
        room = plot.right - at > svg.text_width(words) + 8
        body.append(
            svg.text(
                at + (5 if room else -5),
                plot.bottom - 6 if change.ratio > 1 else plot.top + 12,
                words,
                anchor="start" if room else "end",
                role="halo",
            )
        )
    body.extend(_levels(trend, x, y))
    for number, point in enumerate(trend.points, 1):
        at, commit = x(number), f", commit {point.commit[:12]}" if point.commit else ""
        text = f"{point.run}: {show(point.value)} ({point.started}{commit})"
        if point.low is not None and point.high is not None:
            body.append(
                svg.element("path", d=line_path([(at, y(point.low)), (at, y(point.high))]), class_="lpo-axis")
            )
        body.append(
            svg.element("circle", svg.hover(text), cx=at, cy=y(point.value), r=3.0, class_="lpo-fill-1")
        )
    return svg.document(title, _description(trend), width, _HEIGHT, body, kind="trend")


def _close_scale(values: Sequence[float], plot: Plot) -> Scale:
    """Return a scale around the values: a change of some percent is what the chart is for."""
    low, high = min(values), max(values)
    room = max((high - low) * 0.15, abs(high) * 0.01) or 1.0
    return Scale(max(0.0, low - room) if low >= 0 else low - room, high + room, plot.bottom, plot.top)


def _levels(trend: Trend, x: Scale, y: Scale) -> list[str]:
    """Draw the median between changes."""
    edges = [0, *(change.place for change in trend.changes), len(trend.points)]
    parts = []
    for start, end in pairwise(edges):
        middle = percentile(sorted(point.value for point in trend.points[start:end]), 0.5)
        path = line_path([(x(start + 0.5), y(middle)), (x(end + 0.5), y(middle))])
        parts.append(svg.element("path", d=path, class_="lpo-roof"))
    return parts


def _description(trend: Trend) -> str:
    show = formatter(trend.unit)
    first, last = trend.points[0], trend.points[-1]
    steps = "; ".join(
        f"{c.outcome} by {(c.ratio - 1) * 100:+.1f} % at run {c.place + 1}" for c in trend.changes
    )
    return (
        f"{show(first.value)} in the first run, {show(last.value)} in the last; {steps or 'no change shown'}"
    )
