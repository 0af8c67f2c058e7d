"""Points of two numbers each, and the line of those that nobody beats."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.reporting.charts import markers, svg
from llm_perf_opt.reporting.charts.axes import Formatter, LabelSpace, Plot, Scale, axes, line_path

_HEIGHT = 400.0
_RADIUS = 4.5
_MOST_LABELS = 12

ON_FRONT = markers.Kind("no other job is better in both", "circle", 0)
BEHIND = markers.Kind("another job is better in both", "hollow", 6)


@dataclass(frozen=True, slots=True)
class Point:
    """One job, run or configuration."""

    name: str
    x: float
    y: float
    front: bool = False
    label: str = ""
    """Written beside the mark where there is room."""


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
    """Draw points, those on the front joined by steps; axes are round the values, not from zero."""
    drawn = [point for point in points if svg.usable(point.x) and svg.usable(point.y)]
    if not drawn:
        return svg.no_data(title, "No data to draw.", kind="front")
    width = svg.DEFAULT_WIDTH
    plot = Plot(96.0, width - 24, 66.0, _HEIGHT - 50)
    x = _around([point.x for point in drawn], plot.left, plot.right)
    y = _around([point.y for point in drawn], plot.bottom, plot.top)
    better = f"better: {'left' if x_lower_is_better else 'right'} and {'down' if y_lower_is_better else 'up'}"
    body = [
        svg.text(16, 24, svg.fit(title, width - 32, 14), role="head"),
        svg.text(plot.right, plot.top - 13, better, anchor="end", role="muted"),
        axes(plot, x, y, x_label=x_label, y_label=y_label, x_format=x_format, y_format=y_format),
    ]
    front = sorted((point for point in drawn if point.front), key=lambda point: point.x)
    body.append(_steps(front, x, y))
    space = LabelSpace(plot)
    for point in drawn:
        space.reserve(x(point.x) - 5, y(point.y) - 5, x(point.x) + 5, y(point.y) + 5)
    # The front last: its marks lie on top.
    ordered = sorted(drawn, key=lambda point: point.front)
    body += [_mark(point, x, y, x_format, y_format) for point in ordered]
    for point in front[:_MOST_LABELS]:
        place = space.place(x(point.x), y(point.y), point.label, 9) if point.label else None
        if place is not None:
            left, base = place
            space.reserve(left, base - 11, left + svg.text_width(point.label), base + 3)
            body.append(svg.text(left, base, point.label, role="text lpo-halo"))
    kinds = [kind for kind in (ON_FRONT, BEHIND) if any(point.front == (kind is ON_FRONT) for point in drawn)]
    legend, used = markers.legend(kinds, 18, _HEIGHT - 2, width - 36)
    bottom = _HEIGHT - 2 + used + 6
    if note:
        body.append(svg.text(18, bottom + 10, svg.fit(note, width - 36), role="muted"))
        bottom += 18
    description = "; ".join(_words(point, x_format, y_format) for point in front)
    return svg.document(
        title, f"On the front: {description}", width, bottom, [*body, legend], kind="front", focusable=True
    )


def _mark(point: Point, x: Scale, y: Scale, x_format: Formatter, y_format: Formatter) -> str:
    words = _words(point, x_format, y_format)
    extra: dict[str, str | float | None] = {"data_name": point.name}
    if point.front:  # the others would be hundreds of stops for a keyboard
        extra |= {"tabindex": "0", "role": "img", "aria_label": words}
    kind = ON_FRONT if point.front else BEHIND
    radius = _RADIUS if point.front else _RADIUS - 1
    return markers.mark(kind, x(point.x), y(point.y), radius, words, **extra)


def _words(point: Point, x_format: Formatter, y_format: Formatter) -> str:
    return f"{point.name}: {x_format(point.x)}, {y_format(point.y)}"


def _steps(front: Sequence[Point], x: Scale, y: Scale) -> str:
    """Join the front by steps: between two of its points nothing is known to be possible."""
    if len(front) < 2:
        return ""
    path: list[tuple[float, float]] = []
    for before, after in itertools.pairwise(front):
        path += [(x(before.x), y(before.y)), (x(after.x), y(before.y))]
    path.append((x(front[-1].x), y(front[-1].y)))
    return svg.element("path", d=line_path(path), class_="lpo-roof lpo-dash")


def _around(values: Sequence[float], start: float, end: float) -> Scale:
    low, high = min(values), max(values)
    room = max((high - low) * 0.08, abs(high) * 0.01, 1e-12)
    return Scale(low - room, high + room, start, end)
