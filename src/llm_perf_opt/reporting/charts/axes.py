"""Scales, ticks and the frame around a plot."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from llm_perf_opt.reporting.charts import svg

Formatter = Callable[[float | None], str]
_WIDER_FONTS = 1.06
"""Room for fonts that run wider than most, so that a name never touches its mark."""
_LOG_PADDING = 1.6
"""Factor of room on both sides of the values of a logarithmic axis."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to pixels, linearly or by decades."""

    low: float
    high: float
    start: float
    """Pixel of ``low``."""
    end: float
    """Pixel of ``high``; smaller than ``start`` for a vertical axis."""
    log: bool = False
    unit: float = 1.0
    """Ticks are round multiples of this: 2**30 for an axis in GiB."""

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        return self.start + self._share(value) * (self.end - self.start)

    def _share(self, value: float) -> float:
        """How far along the axis a value lies, from 0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def clamp(self, value: float) -> float:
        """Return the pixel of a value, kept inside the axis."""
        return self(min(max(value, self.low), self.high))

    def ticks(self, most: int = 8) -> list[float]:
        """Return round values inside the axis, at most about ``most``."""
        if self.log:
            return _log_ticks(self.low, self.high, most)
        return [v * self.unit for v in _linear_ticks(self.low / self.unit, self.high / self.unit, most)]


def linear_scale(values: Iterable[float], start: float, end: float, *, binary: bool = False) -> Scale:
    """Return a scale with round ends that includes zero and all values; ``binary``: round in KiB, MiB, GiB."""
    known = list(values)
    unit = _binary_unit(max(abs(value) for value in known)) if binary else 1.0
    low, high = min(*known, 0.0) / unit, max(*known, 0.0) / unit
    if not svg.positive(high - low):
        high = low + max(abs(low), 1.0)
    step = _round_step((high - low) / 6)
    first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
    return Scale(first * step * unit, last * step * unit, start, end, unit=unit)


def _binary_unit(largest: float) -> float:
    return next((2.0**power for power in (40, 30, 20, 10) if largest >= 2.0**power), 1.0)


def log_scale(values: Iterable[float], start: float, end: float) -> Scale:
    """Return a logarithmic scale around all (positive) values."""
    known = list(values)
    low, high = min(known) / _LOG_PADDING, max(known) * _LOG_PADDING
    if high / low < 10:
        middle = math.sqrt(low * high)
        low, high = middle / math.sqrt(10), middle * math.sqrt(10)
    return Scale(low, high, start, end, log=True)


def _round_step(rough: float) -> float:
    magnitude = 10.0 ** math.floor(math.log10(rough))
    return next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= rough * (1 - 1e-9))


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    step = _round_step((high - low) / max(most, 1))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    stride = max(1, math.ceil((last - first + 1) / max(most, 1)))
    decades = [10.0**power for power in range(first, last + 1, stride)]
    if len(decades) >= 3:
        return decades
    steps = [factor * 10.0**power for power in range(first - 1, last + 1) for factor in (1, 2, 5)]
    return [value for value in steps if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]


@dataclass(frozen=True, slots=True)
class Plot:
    """The rectangle between the axes."""

    left: float
    right: float
    top: float
    bottom: float


def axes(
    plot: Plot,
    x: Scale,
    y: Scale,
    *,
    x_label: str,
    y_label: str,
    x_format: Formatter,
    y_format: Formatter,
    x_ticks: Sequence[float] | None = None,
) -> str:
    """Draw grid, ticks and axis titles."""
    parts: list[str] = []
    for value, label in _labelled(y.ticks(6), y_format):
        at = y(value)
        parts.append(svg.element("path", d=_line(plot.left, at, plot.right, at), class_="lpo-grid"))
        parts.append(svg.text(plot.left - 6, at + 4, label, anchor="end", role="muted"))
    last_end = -math.inf
    for value, label in _labelled(x_ticks if x_ticks is not None else x.ticks(), x_format):
        at = x(value)
        half = svg.text_width(label) / 2
        parts.append(svg.element("path", d=_line(at, plot.top, at, plot.bottom), class_="lpo-grid"))
        if at - half > last_end + 6:
            parts.append(svg.text(at, plot.bottom + 17, label, anchor="middle", role="muted"))
            last_end = at + half
    border = (
        f"M{svg.number(plot.left)} {svg.number(plot.top)}V{svg.number(plot.bottom)}H{svg.number(plot.right)}"
    )
    parts.append(svg.element("path", d=border, class_="lpo-axis"))
    middle = (plot.left + plot.right) / 2
    parts.append(svg.axis_label(middle, plot.bottom + 36, x_label))
    parts.append(svg.text(16, plot.top - 13, y_label))
    return "".join(parts)


def _labelled(ticks: Sequence[float], formatter: Formatter) -> list[tuple[float, str]]:
    """Pair ticks with short labels; ticks whose labels would read the same are thinned out."""
    kept = list(ticks)
    while True:
        labels = [tidy(formatter(value)) for value in kept]
        if len(set(labels)) == len(labels) or len(kept) <= 2:
            return list(zip(kept, labels, strict=True))
        kept = kept[::2]


def tidy(label: str) -> str:
    """Drop redundant zeros on an axis: ``10.0 ms`` → ``10 ms``, ``2.50 GiB`` → ``2.5 GiB``."""
    return re.sub(r"(\d)\.0+(?!\d)|(\.\d*[1-9])0+(?!\d)", r"\1\2", label)


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f"M{svg.number(x1)} {svg.number(y1)}L{svg.number(x2)} {svg.number(y2)}"


def line_path(points: Sequence[tuple[float, float]]) -> str:
    """Return path data through pixel positions."""
    return "".join(
        f"{'L' if place else 'M'}{svg.number(px)} {svg.number(py)}" for place, (px, py) in enumerate(points)
    )


class LabelSpace:
    """Tracks occupied boxes, so that labels never overlap."""

    def __init__(self, plot: Plot) -> None:
        self._plot = plot
        self._boxes: list[tuple[float, float, float, float]] = []

    def reserve(self, left: float, top: float, right: float, bottom: float) -> None:
        """Mark a box as taken."""
        self._boxes.append((left, top, right, bottom))

    def is_free(self, left: float, top: float, right: float, bottom: float) -> bool:
        """Return whether a box is inside the plot and touches no other."""
        inside = left >= self._plot.left and right <= self._plot.right
        inside = inside and top >= self._plot.top and bottom <= self._plot.bottom
        return inside and not any(
            left < box[2] and right > box[0] and top < box[3] and bottom > box[1] for box in self._boxes
        )

    def place(self, x: float, y: float, label: str, gap: float) -> tuple[float, float] | None:
        """Find a spot for ``label`` around a mark at (x, y); return its left end and baseline."""
        width = svg.text_width(label) * _WIDER_FONTS
        candidates = (
            (x + gap, y + 4),
            (x - gap - width, y + 4),
            (x - width / 2, y - gap - 2),
            (x - width / 2, y + gap + 11),
            (x + gap * 0.7, y - gap),
            (x + gap * 0.7, y + gap + 9),
            (x - gap * 0.7 - width, y - gap),
            (x - gap * 0.7 - width, y + gap + 9),
            # Near the side of the plot a name moves along its mark instead of being left out.
            (min(max(x - width / 2, self._plot.left + 2), self._plot.right - width - 2), y - gap - 2),
            (min(max(x - width / 2, self._plot.left + 2), self._plot.right - width - 2), y + gap + 11),
        )
        return self._first_free(candidates, width)

    def along(
        self, y: float, label: str, *, left_first: bool = False, begin: float | None = None
    ) -> tuple[float, float] | None:
        """Find a spot for the name of a horizontal line, above it or below; return left end and baseline.

        ``begin``: where the line starts, when not at the left end of the plot.
        """
        width = svg.text_width(label)
        room = self._plot.right - (self._plot.left if begin is None else begin) - width - 10
        candidates = [
            (self._plot.right - 4 - width - share * room, y + shift)
            for share in ((1.0, 0.0, 0.5, 0.75, 0.25) if left_first else (0.0, 1.0, 0.5, 0.25, 0.75))
            for shift in (-5.0, 14.0)
        ]
        return self._first_free(candidates, width)

    def _first_free(
        self, candidates: Iterable[tuple[float, float]], width: float
    ) -> tuple[float, float] | None:
        for left, baseline in candidates:
            if self.is_free(left, baseline - 11, left + width, baseline + 3):
                self.reserve(left, baseline - 11, left + width, baseline + 3)
                return left, baseline
        return None


# Marks of points: one shape per kind, and a legend entry for every drawn kind.


Shape = Literal["circle", "hollow", "diamond", "square", "triangle", "large", "dashed"]
"""``large`` and ``dashed`` stand for a size and a line in legends only."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of mark: legend name, shape and colour (``None``: that of the text)."""

    name: str
    shape: Shape
    colour: int | None = None


def mark(kind: Kind, x: float, y: float, r: float, hover_text: str, **extra: str | float | None) -> str:
    """Draw one mark with a hover text."""
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
