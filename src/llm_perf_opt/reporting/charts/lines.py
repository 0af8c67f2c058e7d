"""Lines over a number (memory against context, speed against batch) and histograms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.core import units
from llm_perf_opt.reporting.charts import svg
from llm_perf_opt.reporting.charts.axes import (
    Formatter,
    LabelSpace,
    Plot,
    Scale,
    axes,
    line_path,
    linear_scale,
    tidy,
)

_SYMBOL_RADIUS = 3.0
_LINES_HEIGHT, _HISTOGRAM_HEIGHT = 380.0, 320.0


@dataclass(frozen=True, slots=True)
class Line:
    """One series."""

    name: str
    points: Sequence[tuple[float, float | None]]
    """(x, y), ascending in x; ``None`` leaves a gap."""


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line to compare with: a memory size, a target."""

    label: str
    value: float


def line_chart(
    title: str,
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    levels: Sequence[Level] = (),
    x_format: Formatter = units.count,
    y_format: Formatter = units.size,
) -> str:
    """Draw series over a common axis, with a mark and a hover text at every point."""
    width, height = svg.chart_width(), _LINES_HEIGHT
    drawn = [(line, [p for p in line.points if _is_drawable(p)]) for line in lines]
    everything = [point for _, points in drawn for point in points]
    if not everything:
        return svg.no_data(title, "No data to draw.", kind="lines")
    marks = [level for level in levels if svg.usable(level.value)]
    plot = Plot(84.0, width - 24, 62.0, height - 50)
    ys = [float(py) for _, py in everything if py is not None] + [level.value for level in marks]
    x = _scale([px for px, _ in everything], plot.left, plot.right)
    y = linear_scale(ys, plot.bottom, plot.top, binary=y_format is units.size)
    shared = sorted({px for px, _ in everything})
    body = [svg.heading(title)]
    body.append(
        axes(
            plot,
            x,
            y,
            x_label=x_label,
            y_label=y_label,
            x_format=x_format,
            y_format=y_format,
            # A few measured positions (1, 2, 4, …) make better ticks than round numbers between them.
            x_ticks=shared if len(shared) <= 12 else None,
        )
    )
    body.extend(_levels(plot, y, marks, y_format))
    for index, (line, points) in enumerate(drawn):
        body.extend(_series(line, points, index, x, y, x_format, y_format))
    markup, used = svg.legend(
        [(line.name, index) for index, line in enumerate(lines)], 18, height - 4, width - 32, lines=True
    )
    description = _describe_lines(drawn, marks, x_format, y_format)
    return svg.document(title, description, width, height + used + 6, [*body, markup], kind="lines")


def histogram(
    title: str,
    values: Sequence[float],
    *,
    x_label: str,
    x_format: Formatter = units.seconds,
    x_log: bool = False,
    bins: int | None = None,
) -> str:
    """Draw a histogram of values."""
    width, height = svg.chart_width(), _HISTOGRAM_HEIGHT
    drawn = [value for value in values if (svg.positive(value) if x_log else svg.usable(value))]
    if not drawn:
        return svg.no_data(title, "No data to draw.", kind="histogram")
    edges = _edges(drawn, bins, x_log)
    counts = _binned(drawn, edges)
    plot = Plot(84.0, width - 24, 62.0, height - 50)
    x = Scale(edges[0], edges[-1], plot.left, plot.right, log=x_log)
    y = linear_scale([max(counts)], plot.bottom, plot.top)
    body = [svg.heading(title)]
    body.append(axes(plot, x, y, x_label=x_label, y_label="Count", x_format=x_format, y_format=units.count))
    for low, high, amount in zip(edges, edges[1:], counts, strict=False):
        if amount > 0:
            hover_text = f"{x_format(low)} to {x_format(high)}: {units.count(amount)}"
            left, right, top = x(low), x(high), y(amount)
            body.append(
                svg.element(
                    "rect",
                    svg.hover(hover_text),
                    x=left,
                    y=top,
                    width=max(right - left, 0.5),
                    height=plot.bottom - top,
                    class_="lpo-fill-1 lpo-edge",
                )
            )
    description = _describe_histogram(edges, counts, x_format, len(values) - len(drawn))
    return svg.document(title, description, width, height, body, kind="histogram")


def _is_drawable(point: tuple[float, float | None]) -> bool:
    return svg.usable(point[0]) and svg.usable(point[1])


def _scale(values: Sequence[float], start: float, end: float) -> Scale:
    low, high = min(values), max(values)
    return Scale(low, high if svg.positive(high - low) else low + (abs(low) or 1.0), start, end)


def _levels(plot: Plot, y: Scale, levels: Sequence[Level], y_format: Formatter) -> list[str]:
    """Draw comparison lines, with names that do not overlap other names or lines."""
    parts: list[str] = []
    space = LabelSpace(plot)
    for level in levels:
        at = y(level.value)
        space.reserve(plot.left, at - 1.5, plot.right, at + 1.5)
    for level in sorted(levels, key=lambda item: (item.value, item.label)):
        at = y(level.value)
        label = f"{level.label} ({tidy(y_format(level.value))})"
        path = line_path([(plot.left, at), (plot.right, at)])
        parts.append(svg.element("path", svg.hover(label), d=path, class_="lpo-roof lpo-dash"))
        spot = space.along(at, label, left_first=True)
        if spot is not None:
            parts.append(svg.text(spot[0], spot[1], label, role="muted lpo-halo"))
    return parts


def _series(
    line: Line,
    points: Sequence[tuple[float, float | None]],
    index: int,
    x: Scale,
    y: Scale,
    x_format: Formatter,
    y_format: Formatter,
) -> list[str]:
    kept = set(points)
    runs: list[list[tuple[float, float]]] = [[]]
    for px, py in line.points:
        if (px, py) in kept and py is not None:
            runs[-1].append((px, py))
        elif runs[-1]:
            runs.append([])
    colour = index % svg.PALETTE_SIZE + 1
    dash = " lpo-dash" if index >= svg.PALETTE_SIZE else ""
    parts: list[str] = []
    for run in runs:
        if len(run) > 1:
            path = line_path([(x(px), y(py)) for px, py in run])
            parts.append(svg.element("path", d=path, class_=f"lpo-line-{colour}{dash}", stroke_width=2))
        parts.extend(_dot(line.name, px, py, colour, x, y, x_format, y_format) for px, py in run)
    return parts


def _dot(
    name: str, px: float, py: float, colour: int, x: Scale, y: Scale, x_format: Formatter, y_format: Formatter
) -> str:
    return svg.element(
        "circle",
        svg.hover(f"{name}: {y_format(py)} at {x_format(px)}"),
        cx=x(px),
        cy=y(py),
        r=_SYMBOL_RADIUS,
        class_=f"lpo-fill-{colour}",
        data_name=name,
        data_x=repr(float(px)),
        data_y=repr(float(py)),
    )


def _edges(values: Sequence[float], bins: int | None, log: bool) -> list[float]:
    """Return equal bins (of the logarithm for log scales), as many as given by Sturges' rule or the caller."""
    low, high = min(values), max(values)
    if not svg.positive(high - low):
        half = abs(low) * 0.05 or 0.5
        low, high = low - half, high + half
    amount = max(bins or math.ceil(math.log2(len(values))) + 1, 1)
    amount = max(amount, 8) if bins is None and len(values) >= 8 else amount
    if log:
        ratio = (high / low) ** (1 / amount)
        return [low * ratio**place for place in range(amount)] + [high]
    return [low + (high - low) * place / amount for place in range(amount)] + [high]


def _binned(values: Sequence[float], edges: Sequence[float]) -> list[int]:
    counts = [0] * (len(edges) - 1)
    for value in values:
        place = next((i for i in range(len(counts)) if value < edges[i + 1]), len(counts) - 1)
        counts[place] += 1
    return counts


def _describe_lines(
    drawn: Sequence[tuple[Line, Sequence[tuple[float, float | None]]]],
    levels: Sequence[Level],
    x_format: Formatter,
    y_format: Formatter,
) -> str:
    sentences = []
    for line, points in drawn:
        if points:
            first, last = points[0], points[-1]
            sentences.append(
                f"{line.name}: {y_format(first[1])} at {x_format(first[0])} to "
                f"{y_format(last[1])} at {x_format(last[0])}"
            )
    sentences += [f"{level.label}: {y_format(level.value)}" for level in levels]
    return "; ".join(sentences)


def _describe_histogram(
    edges: Sequence[float],
    counts: Sequence[int],
    x_format: Formatter,
    left_out: int,
) -> str:
    description = f"{units.count(sum(counts))} between {x_format(edges[0])} and {x_format(edges[-1])}"
    return description + (f"; {left_out} values could not be drawn" if left_out else "")
