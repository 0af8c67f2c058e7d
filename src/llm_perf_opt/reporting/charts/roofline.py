"""The roofline: attainable speed over arithmetic intensity, with every kernel or phase as a point."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from llm_perf_opt.core import units
from llm_perf_opt.reporting.charts import axes as charts_axes
from llm_perf_opt.reporting.charts import svg
from llm_perf_opt.reporting.charts.axes import LabelSpace, Plot, Scale, axes, line_path, log_scale

# The roof of a roofline: horizontal limits of arithmetic, slanted limits of memory, and their names.


@dataclass(frozen=True, slots=True)
class Roof:
    """One horizontal (FLOP/s) or slanted (B/s) limit."""

    label: str
    value: float


def merged(roofs: Sequence[Roof]) -> list[Roof]:
    """Join ceilings of one height (bfloat16 and float16 often are) under one name."""
    names: dict[float, list[str]] = {}
    for roof in roofs:
        if svg.positive(roof.value):
            names.setdefault(roof.value, []).append(roof.label)
    return [Roof(", ".join(dict.fromkeys(labels)), value) for value, labels in names.items()]


def _draw_ceilings(
    plot: Plot, x: Scale, y: Scale, roofs: Sequence[Roof], slopes: Sequence[Roof], space: LabelSpace
) -> list[str]:
    """Draw every limit with its name where it does not overlap marks or other names."""
    parts: list[str] = []
    top, fastest = max(roof.value for roof in roofs), max(slope.value for slope in slopes)
    for roof in roofs:
        space.reserve(x.clamp(roof.value / fastest), y(roof.value) - 1.5, plot.right, y(roof.value) + 1.5)
    for slope in sorted(slopes, key=lambda item: -item.value):
        parts.extend(_slope(x, y, slope, top, slope.value == fastest, space))
    for roof in sorted(roofs, key=lambda item: -item.value):
        start, at = x.clamp(roof.value / fastest), y(roof.value)
        label, dash = _describe_roof(roof, "FLOP/s"), "" if roof.value == top else " lpo-dash"
        path = line_path([(start, at), (plot.right, at)])
        parts.append(svg.element("path", svg.hover(label), d=path, class_=f"lpo-roof{dash}"))
        spot = space.along(at, label, begin=start)
        if spot is not None:
            parts.append(svg.text(spot[0], spot[1], label, role="muted lpo-halo"))
    return parts


def _describe_roof(roof: Roof, unit: str) -> str:
    """Name a limit with its value."""
    return (
        f"{roof.label} {units.flops_per_s(roof.value) if unit == 'FLOP/s' else units.bytes_per_s(roof.value)}"
    )


def _slope(x: Scale, y: Scale, slope: Roof, top: float, fastest: bool, space: LabelSpace) -> list[str]:
    low = max(x.low, y.low / slope.value)
    high = min(x.high, top / slope.value)
    if low >= high:
        return []
    x1, y1, x2, y2 = x(low), y(low * slope.value), x(high), y(high * slope.value)
    label = _describe_roof(slope, "B/s")
    dash = "" if fastest else " lpo-dash"
    parts = [
        svg.element("path", svg.hover(label), d=line_path([(x1, y1), (x2, y2)]), class_=f"lpo-roof{dash}")
    ]
    for step in range(int((x2 - x1) // 5) + 1):
        share = step * 5 / max(x2 - x1, 1.0)
        bx, by = x1 + (x2 - x1) * share, y1 + (y2 - y1) * share
        space.reserve(bx - 2, by - 2, bx + 2, by + 2)
    width, length = svg.text_width(label), math.hypot(x2 - x1, y2 - y1)
    if length > width + 20:
        # Above the fastest line, below a slower one, so that two slanted names keep apart.
        shift = -6.0 if fastest else 15.0
        cx, cy = x1 + (x2 - x1) * 0.45, y1 + (y2 - y1) * 0.45
        angle = math.atan2(y2 - y1, x2 - x1)
        turn = f"rotate({svg.number(math.degrees(angle))} {svg.number(cx)} {svg.number(cy)})"
        parts.append(svg.text(cx, cy + shift, label, anchor="middle", role="muted lpo-halo", transform=turn))
        for step in range(-4, 5):
            along = step / 8 * width
            bx = cx + along * math.cos(angle) - (shift - 4) * math.sin(angle)
            by = cy + along * math.sin(angle) + (shift - 4) * math.cos(angle)
            space.reserve(bx - 8, by - 8, bx + 8, by + 8)
    return parts


_LABELLED = 14
"""Points that get a printed name; all have one on hover."""
_HEIGHT, _LOW_HEIGHT = 460.0, 320.0
_FEW_POINTS = 3
"""So many points, and a low chart shows them as well."""


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """One kernel, module or phase."""

    label: str
    intensity_flops_per_byte: float
    flops_per_s: float | None
    """Achieved; ``None``: not measured, drawn hollow on the roof."""
    weight: float = 1.0
    """Share of time or the like: sets the size of the mark and who is named first."""
    group: str = ""
    detail: str = ""
    data: Mapping[str, str] = field(default_factory=dict)
    best_flops_per_s: float | None = None
    """What the same work was measured at elsewhere: a diamond above or below the point."""


def roofline(
    title: str,
    points: Sequence[RooflinePoint],
    *,
    compute: Sequence[Roof],
    memory: Sequence[Roof],
    x_label: str = "Arithmetic intensity (FLOP per byte)",
    focusable: bool = False,
    colours: Mapping[str, int] | None = None,
) -> str:
    """Draw points under their ceilings, both axes logarithmic. Needs at least one ceiling of each kind."""
    width, height = svg.chart_width(), _HEIGHT if len(points) > _FEW_POINTS else _LOW_HEIGHT
    roofs, slopes = merged(compute), merged(memory)
    if not roofs or not slopes:
        return svg.no_data(title, "The limits of this device are not known.", kind="roofline")
    top_compute = max(roof.value for roof in roofs)
    top_memory = max(roof.value for roof in slopes)
    shown = [
        point
        for point in points
        if svg.positive(point.intensity_flops_per_byte) and _drawable(point.flops_per_s)
    ]
    heights = {id(p): _height(p, top_compute, top_memory) for p in shown}
    groups = svg.colour_indices((point.group for point in shown if point.group), colours)
    plot = Plot(84.0, width - 20, 62.0, height - 50)
    x, y = _scales(plot, shown, heights, roofs, slopes)
    space = LabelSpace(plot)
    body = [svg.heading(title)]
    body.append(
        axes(
            plot,
            x,
            y,
            x_label=x_label,
            y_label="Speed (FLOP/s)",
            x_format=_format_intensity,
            y_format=units.flops_per_s,
        )
    )
    radii = _reserve_marks(shown, heights, x, y, space)
    body.extend(_draw_ceilings(plot, x, y, roofs, slopes, space))
    body.extend(_best_marks(shown, heights, x, y, groups))
    body.extend(_marks(shown, heights, radii, x, y, groups, space, focusable))
    total_height = height
    if groups:
        markup, used = svg.legend(list(groups.items()), 16, total_height - 4, width - 32)
        body.append(markup)
        total_height += used + 2
    markup, used = charts_axes.legend(
        _kinds(shown, len(roofs) + len(slopes) > 2), 16, total_height - 2, width - 32
    )
    body.append(markup)
    total_height += used + 6
    description = _describe(shown, heights, roofs, slopes, len(points) - len(shown))
    return svg.document(title, description, width, total_height, body, kind="roofline", focusable=focusable)


def _kinds(points: Sequence[RooflinePoint], lower: bool) -> list[charts_axes.Kind]:
    """Return the legend of all drawn kinds of marks and lines."""
    measured = [point for point in points if point.flops_per_s is not None]
    kinds = [charts_axes.Kind("measured", "circle")] if measured else []
    if len(measured) < len(points):
        kinds.append(charts_axes.Kind("not measured: at the limit it could reach", "hollow"))
    if any(svg.positive(point.best_flops_per_s) for point in points):
        kinds.append(charts_axes.Kind("the best measured for this shape", "diamond"))
    if len({point.weight for point in points}) > 1:
        kinds.append(charts_axes.Kind("larger: more of the time", "large"))
    return [*kinds, charts_axes.Kind("lower limit", "dashed")] if lower else kinds


def _drawable(speed: float | None) -> bool:
    return speed is None or svg.positive(speed)


def _format_intensity(value: float | None) -> str:
    """Format an intensity: 0.01, 1, 1 000."""
    if value is None:
        return units.MISSING
    return f"{value:,.0f}".replace(",", " ") if value >= 1 else f"{value:.6f}".rstrip("0").rstrip(".")


def _height(point: RooflinePoint, peak: float, bandwidth: float) -> float:
    if point.flops_per_s is not None:
        return point.flops_per_s
    return min(peak, point.intensity_flops_per_byte * bandwidth)


def _scales(
    plot: Plot,
    points: Sequence[RooflinePoint],
    heights: Mapping[int, float],
    roofs: Sequence[Roof],
    slopes: Sequence[Roof],
) -> tuple[Scale, Scale]:
    """Return scales that include every point, every ridge and some of the flat and slanted parts of the roof."""
    ridges = [roof.value / slope.value for roof in roofs for slope in slopes]
    across = [p.intensity_flops_per_byte for p in points] + ridges
    across += [max(ridges) * 10, min(ridges) / 30]
    x = log_scale(across, plot.left, plot.right)
    best = [p.best_flops_per_s for p in points if p.best_flops_per_s and svg.positive(p.best_flops_per_s)]
    up = list(heights.values()) + best + [roof.value * 1.3 for roof in roofs]
    up.append(min(slope.value for slope in slopes) * min(ridges) / 30)
    return x, log_scale(up, plot.bottom, plot.top)


def _reserve_marks(
    points: Sequence[RooflinePoint], heights: Mapping[int, float], x: Scale, y: Scale, space: LabelSpace
) -> dict[int, float]:
    """Reserve the boxes of all marks before names are placed; return their radii."""
    heaviest = max((p.weight for p in points if svg.positive(p.weight)), default=1.0)
    radii = {id(p): 4.0 + 6.0 * math.sqrt(max(p.weight, 0.0) / heaviest) for p in points}
    for point in points:
        px, py, r = x(point.intensity_flops_per_byte), y(heights[id(point)]), radii[id(point)]
        space.reserve(px - r, py - r, px + r, py + r)
    return radii


def _best_marks(
    points: Sequence[RooflinePoint],
    heights: Mapping[int, float],
    x: Scale,
    y: Scale,
    groups: Mapping[str, int],
) -> list[str]:
    """Draw the best measured rate of the same work, linked to the point, below the marks."""
    drawn: list[str] = []
    for point in points:
        best = point.best_flops_per_s
        if best is None or not svg.positive(best):
            continue
        px = x(point.intensity_flops_per_byte)
        kind = charts_axes.Kind("best", "diamond", groups.get(point.group, 0))
        drawn.append(
            svg.element(
                "path",
                d=line_path([(px, y(heights[id(point)])), (px, y(best))]),
                class_="lpo-axis lpo-dash",
                pointer_events="none",
            )
        )
        text = f"{point.label}: the best measured reaches {units.flops_per_s(best)}"
        drawn.append(charts_axes.mark(kind, px, y(best), 3.5, text, data_best=repr(float(best))))
    return drawn


def _marks(
    points: Sequence[RooflinePoint],
    heights: Mapping[int, float],
    radii: Mapping[int, float],
    x: Scale,
    y: Scale,
    groups: Mapping[str, int],
    space: LabelSpace,
    focusable: bool,
) -> list[str]:
    ordered = sorted(points, key=lambda p: (-p.weight, p.label))
    marks: list[str] = []
    labels: list[str] = []
    for place, point in enumerate(ordered):
        px, py, r = x(point.intensity_flops_per_byte), y(heights[id(point)]), radii[id(point)]
        marks.append(_mark(point, px, py, r, groups.get(point.group, 0), heights[id(point)], focusable))
        if place < _LABELLED:
            labels.extend(_name(point, px, py, r, space))
    return marks + labels


def _name(point: RooflinePoint, px: float, py: float, r: float, space: LabelSpace) -> list[str]:
    """Print the full name next to its mark, else farther away; shortened only if it fits nowhere."""
    for label in dict.fromkeys(
        (svg.clean(point.label), svg.fit(point.label, 300), svg.fit(point.label, 190))
    ):
        for gap in (r + 4, r + 14, r + 26, r + 40):
            spot = space.place(px, py, label, gap)
            if spot is not None:
                name = svg.text(spot[0], spot[1], label, role="text lpo-halo", pointer_events="none")
                return [name] if gap == r + 4 else [_leader(px, py, r, spot, label), name]
    return []


def _leader(px: float, py: float, r: float, spot: tuple[float, float], label: str) -> str:
    """Draw a leader line from a mark to its name if they do not touch."""
    left, baseline = spot
    nearest = min(max(px, left), left + svg.text_width(label))
    edge = baseline + 3 if baseline < py else baseline - 10
    away = r if edge > py else -r
    return svg.element(
        "path", d=line_path([(px, py + away), (nearest, edge)]), class_="lpo-axis", pointer_events="none"
    )


def _mark(
    point: RooflinePoint, px: float, py: float, r: float, index: int, speed: float, focusable: bool
) -> str:
    hover_text = _describe_point(point, speed)
    extra = svg.data_attributes(
        {
            "name": point.label,
            "intensity": repr(float(point.intensity_flops_per_byte)),
            "flops-per-s": "" if point.flops_per_s is None else repr(float(point.flops_per_s)),
            **point.data,
        }
    )
    hollow = f"lpo-hollow lpo-line-{index % svg.PALETTE_SIZE + 1}"
    return svg.element(
        "circle",
        svg.hover(hover_text),
        cx=px,
        cy=py,
        r=r,
        class_=hollow if point.flops_per_s is None else f"{svg.colour_class(index)} lpo-edge",
        tabindex="0" if focusable else None,
        role="img" if focusable else None,
        aria_label=hover_text if focusable else None,
        **extra,
    )


def _describe_point(point: RooflinePoint, speed: float) -> str:
    measured = "reaches" if point.flops_per_s is not None else "could reach"
    intensity = units.number(point.intensity_flops_per_byte)
    text = f"{point.label}: {intensity} FLOP/byte, {measured} {units.flops_per_s(speed)}"
    return f"{text}, {point.detail}" if point.detail else text


def _describe(
    points: Sequence[RooflinePoint],
    heights: Mapping[int, float],
    roofs: Sequence[Roof],
    slopes: Sequence[Roof],
    left_out: int,
) -> str:
    limits = [_describe_roof(roof, "FLOP/s") for roof in roofs] + [
        _describe_roof(roof, "B/s") for roof in slopes
    ]
    named = [_describe_point(point, heights[id(point)]) for point in points[:20]]
    more = [f"{len(points) - 20} further points"] if len(points) > 20 else []
    absent = [f"{left_out} points without a positive value are not drawn"] if left_out else []
    return "Ceilings: " + "; ".join(limits) + ". " + "; ".join(named + more + absent)
