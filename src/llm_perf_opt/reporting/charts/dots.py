"""Dots on a common axis, one row each: floors of devices next to a measurement, changes with their intervals."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.core import units
from llm_perf_opt.reporting.charts import axes, svg
from llm_perf_opt.reporting.charts.axes import (
    Formatter,
    LabelSpace,
    Plot,
    Scale,
    line_path,
    linear_scale,
    log_scale,
    tidy,
)
from llm_perf_opt.reporting.charts.axes import axes as axes_axes

_PAD = 16.0
_ROW = 24.0
_TOP = 62.0
_LABEL_SHARE = 0.36


@dataclass(frozen=True, slots=True)
class Dot:
    """One value; an interval is drawn as a line through it."""

    value: float
    kind: axes.Kind
    low: float | None = None
    high: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DotRow:
    """One line of the chart."""

    label: str
    dots: Sequence[Dot]
    note: str = ""
    """Printed at the right end."""
    strong: bool = False


def dot_chart(
    title: str,
    rows: Sequence[DotRow],
    *,
    x_label: str,
    formatter: Formatter = units.seconds,
    log: bool = False,
    reference: float | None = None,
    focusable: bool = True,
) -> str:
    """Draw rows of dots; ``reference`` is a value to compare with, drawn as a line through all rows."""
    usable = svg.positive if log else svg.usable
    drawn = [(row, [dot for dot in row.dots if usable(dot.value)]) for row in rows]
    values = [value for _, dots in drawn for dot in dots for value in _extent(dot) if usable(value)]
    if not values:
        return svg.no_data(title, "No data to draw.", kind="dots")
    width = svg.chart_width()
    label_width = min(max(svg.text_width(row.label) for row in rows), width * _LABEL_SHARE)
    note_width = max((svg.text_width(row.note) for row in rows), default=0.0)
    left, right = _PAD + label_width + 14, width - _PAD - (note_width + 12 if note_width else 8)
    values += [reference] if reference is not None else []
    x = log_scale(values, left, right) if log else _around(values, left, right)
    bottom = _TOP + _ROW * len(rows)
    body = [svg.heading(title)]
    body += _axis(x, bottom, formatter, reference)
    for place, (row, dots) in enumerate(drawn):
        body += _row(row, dots, _TOP + _ROW * (place + 0.5), x, label_width, width, formatter, focusable)
    body.append(svg.axis_label((left + right) / 2, bottom + 16, x_label, "muted"))
    kinds = list(dict.fromkeys(dot.kind for _, dots in drawn for dot in dots))
    legend, used = axes.legend(kinds, _PAD, bottom + 26, width - 2 * _PAD)
    description = "; ".join(
        f"{row.label}: " + ", ".join(_text(dot, formatter) for dot in dots) for row, dots in drawn if dots
    )
    return svg.document(
        title, description, width, bottom + 26 + used + 10, [*body, legend], kind="dots", focusable=focusable
    )


def _extent(dot: Dot) -> list[float]:
    return [value for value in (dot.low, dot.value, dot.high) if value is not None]


def _around(values: Sequence[float], left: float, right: float) -> Scale:
    """A linear axis around the values, zero only where it is near."""
    low, high = min(values), max(values)
    middle, half = (low + high) / 2, max((high - low) / 2, abs(high) * 0.01, 1e-12) * 1.15
    fitted = linear_scale([0.0, 2 * half], left, right)
    return Scale(middle - half, middle + half, left, right, unit=fitted.unit)


def _axis(x: Scale, bottom: float, formatter: Formatter, reference: float | None) -> list[str]:
    parts: list[str] = []
    end = -1e9
    for value in x.ticks(7):
        at, label = x(value), tidy(formatter(value))
        parts.append(svg.element("path", d=line_path([(at, _TOP - 6), (at, bottom)]), class_="lpo-grid"))
        half = svg.text_width(label) / 2
        if at - half > end + 6:
            parts.append(svg.text(at, _TOP - 12, label, anchor="middle", role="muted"))
            end = at + half
    if reference is not None:
        path = line_path([(x(reference), _TOP - 6), (x(reference), bottom)])
        parts.append(svg.element("path", d=path, class_="lpo-roof lpo-dash"))
    return parts


def _row(
    row: DotRow,
    dots: Sequence[Dot],
    y: float,
    x: Scale,
    label_width: float,
    width: float,
    formatter: Formatter,
    focusable: bool,
) -> list[str]:
    shown = svg.fit(row.label, label_width)
    weight = {"font_weight": "700"} if row.strong else {}
    name = svg.text(x.start - 14, y + 4, shown, anchor="end", **weight)
    parts = [name if shown == row.label else svg.element("g", svg.hover(row.label) + name)]
    base = line_path([(x.start, y), (x.end, y)])
    parts.append(svg.element("path", d=base, class_="lpo-grid"))
    for dot in dots:
        text = f"{row.label}: {_text(dot, formatter)}"
        if dot.low is not None and dot.high is not None:
            span = line_path([(x.clamp(dot.low), y), (x.clamp(dot.high), y)])
            ends = "".join(
                f"M{svg.number(x.clamp(end))} {svg.number(y - 5)}v10" for end in (dot.low, dot.high)
            )
            parts.append(svg.element("path", d=span + ends, class_="lpo-roof"))
        extra: dict[str, str | float | None] = {"data_name": row.label, "data_value": repr(float(dot.value))}
        if focusable:
            extra |= {"tabindex": "0", "role": "img", "aria_label": text}
        parts.append(axes.mark(dot.kind, x(dot.value), y, 5.5, text, **extra))
    if row.note:
        parts.append(svg.text(width - _PAD, y + 4, row.note, anchor="end", role="muted"))
    return parts


def _text(dot: Dot, formatter: Formatter) -> str:
    text = f"{dot.kind.name} {formatter(dot.value)}"
    if dot.low is not None and dot.high is not None:
        text += f" ({formatter(dot.low)} to {formatter(dot.high)})"
    return f"{text}, {dot.detail}" if dot.detail else text


# Points of two metrics, and the Pareto front.


_HEIGHT = 400.0
_RADIUS = 4.5
_MOST_LABELS = 40
_ON_FRONT = axes.Kind("no other job is better in both", "circle", 0)
_BEHIND = axes.Kind("another job is better in both", "hollow", 6)


@dataclass(frozen=True, slots=True)
class Point:
    """One job, run or configuration."""

    name: str
    x: float
    y: float
    front: bool = False
    label: str = ""
    """Written next to the mark where there is room."""
    short: str = ""
    """Written where there is no room for the label."""


def front_chart(
    title: str,
    points: Sequence[Point],
    *,
    x_label: str,
    y_label: str,
    x_format: Formatter,
    y_format: Formatter,
    x_lower_is_better: bool = True,
    y_lower_is_better: bool = True,
    note: str = "",
) -> str:
    """Draw points, those on the front joined by steps; axes fit the values and need not include zero."""
    drawn = [point for point in points if svg.usable(point.x) and svg.usable(point.y)]
    if not drawn:
        return svg.no_data(title, "No data to draw.", kind="front")
    width = svg.chart_width()
    plot = Plot(96.0, width - 24, 66.0, _HEIGHT - 50)
    x = _scatter_around([point.x for point in drawn], plot.left, plot.right)
    y = _scatter_around([point.y for point in drawn], plot.bottom, plot.top)
    better = f"better: {'left' if x_lower_is_better else 'right'} and {'down' if y_lower_is_better else 'up'}"
    body = [
        svg.heading(title),
        svg.text(plot.right, plot.top - 13, better, anchor="end", role="muted"),
        axes_axes(plot, x, y, x_label=x_label, y_label=y_label, x_format=x_format, y_format=y_format),
    ]
    front = sorted((point for point in drawn if point.front), key=lambda point: point.x)
    body.append(_steps(front, x, y))
    space = LabelSpace(plot)
    for point in drawn:
        space.reserve(x(point.x) - 5, y(point.y) - 5, x(point.x) + 5, y(point.y) + 5)
    # The front last: its marks are on top.
    ordered = sorted(drawn, key=lambda point: point.front)
    body += [_mark(point, x, y, x_format, y_format) for point in ordered]
    behind = [point for point in drawn if not point.front]
    for point in [*front, *behind][:_MOST_LABELS]:
        body += _label(point, x(point.x), y(point.y), space)
    kinds = [
        kind for kind in (_ON_FRONT, _BEHIND) if any(point.front == (kind is _ON_FRONT) for point in drawn)
    ]
    legend, used = axes.legend(kinds, 18, _HEIGHT - 2, width - 36)
    bottom = _HEIGHT - 2 + used + 6
    if note:
        body.append(svg.text(18, bottom + 10, svg.fit(note, width - 36), role="muted"))
        bottom += 18
    description = "; ".join(_describe_dot(point, x_format, y_format) for point in front)
    return svg.document(
        title, f"On the front: {description}", width, bottom, [*body, legend], kind="front", focusable=True
    )


def _label(point: Point, x: float, y: float, space: LabelSpace) -> list[str]:
    """Name a point: by its label, else by its short one, if there is room."""
    for label in (point.label, point.short):
        place = space.place(x, y, label, 9) if label else None
        if place is not None:
            left, base = place
            space.reserve(left, base - 11, left + svg.text_width(label), base + 3)
            return [svg.text(left, base, label, role="text lpo-halo" if point.front else "muted lpo-halo")]
    return []


def _mark(point: Point, x: Scale, y: Scale, x_format: Formatter, y_format: Formatter) -> str:
    text = _describe_dot(point, x_format, y_format)
    extra: dict[str, str | float | None] = {"data_name": point.name}
    if point.front:  # the others would add hundreds of keyboard stops
        extra |= {"tabindex": "0", "role": "img", "aria_label": text}
    kind = _ON_FRONT if point.front else _BEHIND
    radius = _RADIUS if point.front else _RADIUS - 1
    return axes.mark(kind, x(point.x), y(point.y), radius, text, **extra)


def _describe_dot(point: Point, x_format: Formatter, y_format: Formatter) -> str:
    return f"{point.name}: {x_format(point.x)}, {y_format(point.y)}"


def _steps(front: Sequence[Point], x: Scale, y: Scale) -> str:
    """Join the front by steps: nothing is known between two of its points."""
    if len(front) < 2:
        return ""
    path: list[tuple[float, float]] = []
    for before, after in itertools.pairwise(front):
        path += [(x(before.x), y(before.y)), (x(after.x), y(before.y))]
    path.append((x(front[-1].x), y(front[-1].y)))
    return svg.element("path", d=line_path(path), class_="lpo-roof lpo-dash")


def _scatter_around(values: Sequence[float], start: float, end: float) -> Scale:
    low, high = min(values), max(values)
    room = max((high - low) * 0.08, abs(high) * 0.01, 1e-12)
    return Scale(low - room, high + room, start, end)
