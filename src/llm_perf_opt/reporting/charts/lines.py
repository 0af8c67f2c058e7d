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
    log_scale,
    tidy,
)

_SYMBOL_RADIUS = 3.0


@dataclass(frozen=True, slots=True)
class Line:
    """One series."""

    name: str
    points: Sequence[tuple[float, float | None]]
    """(x, y), ascending in x; ``None`` leaves a gap."""
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line to compare with: a memory size, a target."""

    label: str
    value: float


@dataclass(frozen=True, slots=True)
class Marker:
    """A vertical line in a histogram: median, p95."""

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
    x_log: bool = False,
    y_log: bool = False,
    description: str = "",
    width: float = svg.DEFAULT_WIDTH,
    height: float = 380.0,
) -> str:
    """Draw series over a common axis, with a mark and a hover text at every point."""
    drawn = [(line, [p for p in line.points if _fits(p, x_log, y_log)]) for line in lines]
    everything = [point for _, points in drawn for point in points]
    if not everything:
        return svg.no_data(title, "No data to draw.", kind="lines", width=width)
    marks = [level for level in levels if _fits((1.0, level.value), False, y_log)]
    plot = Plot(84.0, width - 24, 62.0, height - 50)
    ys = [float(py) for _, py in everything if py is not None] + [level.value for level in marks]
    x = _scale([px for px, _ in everything], plot.left, plot.right, x_log, from_zero=False)
    y = _scale(ys, plot.bottom, plot.top, y_log, from_zero=True, binary=y_format is units.size)
    shared = sorted({px for px, _ in everything})
    body = [svg.text(16, 24, svg.fit(title, width - 32, 14), role="head")]
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
    told = description or _tell_lines(drawn, marks, x_format, y_format)
    return svg.document(title, told, width, height + used + 6, [*body, markup], kind="lines")


def histogram(
    title: str,
    values: Sequence[float],
    *,
    x_label: str,
    y_label: str = "Count",
    x_format: Formatter = units.seconds,
    x_log: bool = False,
    bins: int | None = None,
    markers: Sequence[Marker] = (),
    weights: Sequence[float] | None = None,
    y_format: Formatter = units.count,
    description: str = "",
    width: float = svg.DEFAULT_WIDTH,
    height: float = 320.0,
) -> str:
    """Draw how values spread. ``weights`` (one per value) sums them instead of counting."""
    amounts = weights if weights is not None else [1.0] * len(values)
    pairs = [(v, w) for v, w in zip(values, amounts, strict=True) if _fits((v, w), x_log, False)]
    if not pairs:
        return svg.no_data(title, "No data to draw.", kind="histogram", width=width)
    edges = _edges([value for value, _ in pairs], bins, x_log)
    heights = _binned(pairs, edges)
    plot = Plot(84.0, width - 24, 62.0, height - 50)
    x = Scale(edges[0], edges[-1], plot.left, plot.right, log=x_log)
    # Room above the bars for the names of the markers.
    y = linear_scale([max(heights) * (1.2 if markers else 1.0)], plot.bottom, plot.top)
    body = [svg.text(16, 24, svg.fit(title, width - 32, 14), role="head")]
    body.append(axes(plot, x, y, x_label=x_label, y_label=y_label, x_format=x_format, y_format=y_format))
    for low, high, amount in zip(edges, edges[1:], heights, strict=False):
        if amount > 0:
            told = f"{x_format(low)} to {x_format(high)}: {y_format(amount)}"
            left, right, top = x(low), x(high), y(amount)
            body.append(
                svg.element(
                    "rect",
                    svg.hover(told),
                    x=left,
                    y=top,
                    width=max(right - left, 0.5),
                    height=plot.bottom - top,
                    class_="lpo-fill-1 lpo-edge",
                )
            )
    body.extend(_markers(plot, x, markers, x_format))
    told = description or _tell_histogram(
        edges, heights, markers, x_format, y_format, len(values) - len(pairs)
    )
    return svg.document(title, told, width, height, body, kind="histogram")


def _fits(point: tuple[float, float | None], x_log: bool, y_log: bool) -> bool:
    px, py = point
    x_good = svg.positive(px) if x_log else svg.usable(px)
    return x_good and (svg.positive(py) if y_log else svg.usable(py))


def _scale(
    values: Sequence[float], start: float, end: float, log: bool, *, from_zero: bool, binary: bool = False
) -> Scale:
    if log:
        return log_scale(values, start, end, padding=1.25)
    if from_zero:
        return linear_scale(values, start, end, binary=binary)
    low, high = min(values), max(values)
    return Scale(low, high if svg.positive(high - low) else low + (abs(low) or 1.0), start, end)


def _levels(plot: Plot, y: Scale, levels: Sequence[Level], y_format: Formatter) -> list[str]:
    """Draw comparison lines, each name where it touches neither another name nor another line."""
    parts: list[str] = []
    space = LabelSpace(plot)
    for level in levels:
        at = y(level.value)
        space.take(plot.left, at - 1.5, plot.right, at + 1.5)
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
    dash = " lpo-dash" if line.dashed or index >= svg.PALETTE_SIZE else ""
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
    """Return equal bins (of the logarithm, if asked), as many as Sturges' rule or the caller says."""
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


def _binned(pairs: Sequence[tuple[float, float]], edges: Sequence[float]) -> list[float]:
    heights = [0.0] * (len(edges) - 1)
    for value, amount in pairs:
        place = next((i for i in range(len(heights)) if value < edges[i + 1]), len(heights) - 1)
        heights[place] += amount
    return heights


def _markers(plot: Plot, x: Scale, markers: Sequence[Marker], x_format: Formatter) -> list[str]:
    """Draw vertical lines, each name beside its line where it touches neither a name nor another line."""
    shown = [m for m in markers if x.low <= m.value <= x.high]
    space = LabelSpace(plot)
    for marker in shown:
        space.take(x(marker.value) - 1.5, plot.top, x(marker.value) + 1.5, plot.bottom)
    parts: list[str] = []
    for marker in sorted(shown, key=lambda item: (item.value, item.label)):
        at = x(marker.value)
        label = f"{marker.label} {x_format(marker.value)}"
        path = line_path([(at, plot.top), (at, plot.bottom)])
        parts.append(svg.element("path", svg.hover(label), d=path, class_="lpo-roof lpo-dash"))
        spot = space.beside(at, label)
        if spot is not None:
            parts.append(svg.text(spot[0], spot[1], label, role="text lpo-halo"))
    return parts


def _tell_lines(
    drawn: Sequence[tuple[Line, Sequence[tuple[float, float | None]]]],
    levels: Sequence[Level],
    x_format: Formatter,
    y_format: Formatter,
) -> str:
    told = []
    for line, points in drawn:
        if points:
            first, last = points[0], points[-1]
            told.append(
                f"{line.name}: {y_format(first[1])} at {x_format(first[0])} to "
                f"{y_format(last[1])} at {x_format(last[0])}"
            )
    told += [f"{level.label}: {y_format(level.value)}" for level in levels]
    return "; ".join(told)


def _tell_histogram(
    edges: Sequence[float],
    heights: Sequence[float],
    markers: Sequence[Marker],
    x_format: Formatter,
    y_format: Formatter,
    left_out: int,
) -> str:
    told = f"{y_format(sum(heights))} between {x_format(edges[0])} and {x_format(edges[-1])}"
    told += "".join(f"; {marker.label}: {x_format(marker.value)}" for marker in markers)
    return told + (f"; {left_out} values could not be drawn" if left_out else "")
