"""The roof of a roofline: horizontal limits of arithmetic, slanted limits of memory, and their names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.core import units
from llm_perf_opt.reporting.charts import svg
from llm_perf_opt.reporting.charts.axes import LabelSpace, Plot, Scale, line_path


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


def draw_ceilings(
    plot: Plot, x: Scale, y: Scale, roofs: Sequence[Roof], slopes: Sequence[Roof], space: LabelSpace
) -> list[str]:
    """Draw every limit with its name where it covers no mark and no other name."""
    parts: list[str] = []
    top, fastest = max(roof.value for roof in roofs), max(slope.value for slope in slopes)
    for roof in roofs:
        space.reserve(x.clamp(roof.value / fastest), y(roof.value) - 1.5, plot.right, y(roof.value) + 1.5)
    for slope in sorted(slopes, key=lambda item: -item.value):
        parts.extend(_slope(x, y, slope, top, slope.value == fastest, space))
    for roof in sorted(roofs, key=lambda item: -item.value):
        start, at = x.clamp(roof.value / fastest), y(roof.value)
        label, dash = roof_text(roof, "FLOP/s"), "" if roof.value == top else " lpo-dash"
        path = line_path([(start, at), (plot.right, at)])
        parts.append(svg.element("path", svg.hover(label), d=path, class_=f"lpo-roof{dash}"))
        spot = space.along(at, label, begin=start)
        if spot is not None:
            parts.append(svg.text(spot[0], spot[1], label, role="muted lpo-halo"))
    return parts


def roof_text(roof: Roof, unit: str) -> str:
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
    label = roof_text(slope, "B/s")
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
