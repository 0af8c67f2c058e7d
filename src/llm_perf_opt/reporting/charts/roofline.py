"""The roofline: attainable speed over arithmetic intensity, with every kernel or phase as a point."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from llm_perf_opt.core import units
from llm_perf_opt.reporting.charts import markers, svg
from llm_perf_opt.reporting.charts.axes import (
    LabelSpace,
    Plot,
    Scale,
    axes,
    line_path,
    log_scale,
)
from llm_perf_opt.reporting.charts.ceilings import Roof, draw_ceilings, merged, roof_text

_LABELLED = 14
"""Points that get a printed name; all have one on hover."""


_HEIGHT = 460.0


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
    width, height = svg.DEFAULT_WIDTH, _HEIGHT
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
    body = [svg.text(16, 24, svg.fit(title, width - 32, 14), role="head")]
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
    body.extend(draw_ceilings(plot, x, y, roofs, slopes, space))
    body.extend(_best_marks(shown, heights, x, y, groups))
    body.extend(_marks(shown, heights, radii, x, y, groups, space, focusable))
    total_height = height
    if groups:
        markup, used = svg.legend(list(groups.items()), 16, total_height - 4, width - 32)
        body.append(markup)
        total_height += used + 2
    markup, used = markers.legend(
        _kinds(shown, len(roofs) + len(slopes) > 2), 16, total_height - 2, width - 32
    )
    body.append(markup)
    total_height += used + 6
    description = _describe(shown, heights, roofs, slopes, len(points) - len(shown))
    return svg.document(title, description, width, total_height, body, kind="roofline", focusable=focusable)


def _kinds(points: Sequence[RooflinePoint], lower: bool) -> list[markers.Kind]:
    """Return what every kind of mark and line that is drawn means."""
    measured = [point for point in points if point.flops_per_s is not None]
    kinds = [markers.Kind("measured", "circle")] if measured else []
    if len(measured) < len(points):
        kinds.append(markers.Kind("not measured: at the limit it could reach", "hollow"))
    if any(svg.positive(point.best_flops_per_s) for point in points):
        kinds.append(markers.Kind("the best measured for this shape", "diamond"))
    if len({point.weight for point in points}) > 1:
        kinds.append(markers.Kind("larger: more of the time", "large"))
    return [*kinds, markers.Kind("lower limit", "dashed")] if lower else kinds


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
    """Hold every point, every ridge and some of the flat and slanted parts of the roof."""
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
    """Take the places of all marks before any name is placed; return their radii."""
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
    """Draw where the same work was measured at its best, tied to the point; below the marks, which stay readable."""
    drawn: list[str] = []
    for point in points:
        best = point.best_flops_per_s
        if best is None or not svg.positive(best):
            continue
        px = x(point.intensity_flops_per_byte)
        kind = markers.Kind("best", "diamond", groups.get(point.group, 0))
        drawn.append(
            svg.element(
                "path",
                d=line_path([(px, y(heights[id(point)])), (px, y(best))]),
                class_="lpo-axis lpo-dash",
                pointer_events="none",
            )
        )
        text = f"{point.label}: the best measured reaches {units.flops_per_s(best)}"
        drawn.append(markers.mark(kind, px, y(best), 3.5, text, data_best=repr(float(best))))
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
    """Print the whole name where it fits beside its mark, else farther away; shortened only where it fits nowhere."""
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
    """Lead from a mark to its name where the two do not touch."""
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
    hover_text = _point_text(point, speed)
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


def _point_text(point: RooflinePoint, speed: float) -> str:
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
    limits = [roof_text(roof, "FLOP/s") for roof in roofs] + [roof_text(roof, "B/s") for roof in slopes]
    named = [_point_text(point, heights[id(point)]) for point in points[:20]]
    more = [f"{len(points) - 20} further points"] if len(points) > 20 else []
    absent = [f"{left_out} points without a positive value are not drawn"] if left_out else []
    return "Ceilings: " + "; ".join(limits) + ". " + "; ".join(named + more + absent)
