"""Marks of points and what they mean: one shape per kind, and a legend entry for every kind that is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from llm_perf_opt.reporting.charts import svg

Shape = Literal["circle", "hollow", "diamond", "square", "triangle", "large", "dashed"]
"""``large`` and ``dashed`` stand for a size and a line in legends only."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of mark: what the legend calls it, its shape and its colour (``None``: that of the text)."""

    name: str
    shape: Shape
    colour: int | None = None


def mark(kind: Kind, x: float, y: float, r: float, hover_text: str, **extra: str | float | None) -> str:
    """Draw one mark that tells about itself."""
    inside = svg.hover(hover_text)
    if kind.shape == "diamond":
        reach = r * 1.25
        path = (
            f"M{svg.number(x)} {svg.number(y - reach)}l{svg.number(reach)} {svg.number(reach)}"
            f"l{svg.number(-reach)} {svg.number(reach)}l{svg.number(-reach)} {svg.number(-reach)}z"
        )
        return svg.element("path", inside, d=path, class_=_fill(kind), **extra)
    if kind.shape == "triangle":
        reach = r * 1.2
        path = (
            f"M{svg.number(x)} {svg.number(y - reach)}l{svg.number(reach)} {svg.number(2 * reach)}"
            f"l{svg.number(-2 * reach)} 0z"
        )
        return svg.element("path", inside, d=path, class_=_fill(kind), **extra)
    if kind.shape == "square":
        return svg.element(
            "rect", inside, x=x - r, y=y - r, width=2 * r, height=2 * r, class_=_fill(kind), **extra
        )
    return svg.element("circle", inside, cx=x, cy=y, r=r, class_=_fill(kind), **extra)


def _fill(kind: Kind) -> str:
    index = kind.colour
    if kind.shape == "hollow":
        line = "lpo-outline" if index is None else f"lpo-line-{index % svg.PALETTE_SIZE + 1}"
        return f"lpo-hollow {line}"
    return "lpo-solid lpo-edge" if index is None else f"{svg.colour_class(index)} lpo-edge"


def legend(kinds: Sequence[Kind], x: float, y: float, width: float) -> tuple[str, float]:
    """Lay out the kinds in rows; return the markup and the height it takes."""
    parts: list[str] = []
    left, top = x, y
    for kind in kinds:
        label = svg.fit(kind.name, width - 24)
        needed = 20 + svg.text_width(label) + 14
        if left > x and left + needed > x + width:
            left, top = x, top + svg.LINE_HEIGHT + 3
        parts.append(_sample(kind, left + 6, top + 6))
        parts.append(svg.text(left + 18, top + 10, label))
        left += needed
    return "".join(parts), top + svg.LINE_HEIGHT - y


def _sample(kind: Kind, x: float, y: float) -> str:
    name = {"data_legend": kind.name}
    if kind.shape == "dashed":
        path = f"M{svg.number(x - 7)} {svg.number(y)}h14"
        return svg.element("path", d=path, class_="lpo-roof lpo-dash", **name)
    if kind.shape == "large":
        small = svg.element("circle", cx=x - 4, cy=y, r=2.5, class_="lpo-solid", **name)
        return small + svg.element("circle", cx=x + 3, cy=y, r=5, class_="lpo-solid")
    return mark(kind, x, y, 5, kind.name, **name)
