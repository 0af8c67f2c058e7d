"""Waterfall chart: steps from one total to another."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.core import units
from llm_perf_opt.reporting.charts import axes, svg
from llm_perf_opt.reporting.charts.axes import Formatter, Scale, line_path, linear_scale, tidy

_PAD = 16.0
_ROW = 30.0
_BAR = 18.0
_TOP = 56.0
_ENDS = axes.Kind("whole", "square", 6)
_MORE = axes.Kind("adds", "square", 5)
_LESS = axes.Kind("saves", "square", 4)


@dataclass(frozen=True, slots=True)
class Step:
    """One cause and its added time; negative if it saves."""

    label: str
    change: float


def waterfall(
    title: str,
    start: tuple[str, float],
    steps: Sequence[Step],
    end: tuple[str, float],
    *,
    formatter: Formatter = units.seconds,
) -> str:
    """Draw the first total, every step where the one before ended, and the last total."""
    if (
        not svg.usable(start[1])
        or not svg.usable(end[1])
        or not any(svg.positive(v) for _, v in (start, end))
    ):
        return svg.no_data(title, "No data to draw.", kind="waterfall")
    levels = _levels(start[1], steps)
    labels = [start[0], *(step.label for step in steps), end[0]]
    notes = [formatter(start[1]), *(_signed(step.change, formatter) for step in steps), formatter(end[1])]
    spans = [(0.0, start[1]), *itertools.pairwise(levels), (0.0, end[1])]
    kinds = [_ENDS, *_kinds(steps), _ENDS]
    return _drawn(title, labels, notes, spans, kinds, formatter)


def change_waterfall(
    title: str, steps: Sequence[Step], end: str, *, formatter: Formatter = units.seconds
) -> str:
    """Draw the steps alone, from zero to their sum: for changes that are small compared with the whole."""
    if not any(svg.usable(step.change) and step.change for step in steps):
        return svg.no_data(title, "No data to draw.", kind="waterfall")
    levels = _levels(0.0, steps)
    labels = [*(step.label for step in steps), end]
    notes = [*(_signed(step.change, formatter) for step in steps), _signed(levels[-1], formatter)]
    spans = [*itertools.pairwise(levels), (0.0, levels[-1])]
    return _drawn(title, labels, notes, spans, [*_kinds(steps), _ENDS], formatter)


def _levels(start: float, steps: Sequence[Step]) -> list[float]:
    levels = [start]
    for step in steps:
        levels.append(levels[-1] + (step.change if svg.usable(step.change) else 0.0))
    return levels


def _kinds(steps: Sequence[Step]) -> list[axes.Kind]:
    return [_LESS if step.change < 0 else _MORE for step in steps]


def _drawn(
    title: str,
    labels: Sequence[str],
    notes: Sequence[str],
    spans: Sequence[tuple[float, float]],
    kinds: Sequence[axes.Kind],
    formatter: Formatter,
) -> str:
    width = svg.chart_width()
    label_width = min(max(svg.text_width(label) for label in labels), width * 0.36)
    note_width = max(svg.text_width(note) for note in notes)
    left, right = _PAD + label_width + 12, width - _PAD - note_width - 10
    x = linear_scale([end for span in spans for end in span], left, right)
    bottom = _TOP + _ROW * len(labels)
    body = [
        svg.heading(title),
        *_grid(x, bottom, formatter),
    ]
    last = len(labels) - 1
    for place, (label, note, (low, high), kind) in enumerate(zip(labels, notes, spans, kinds, strict=True)):
        body += _bar(label, note, low, high, kind, _TOP + _ROW * place, x, label_width)
        if place < last:
            path = line_path([(x(high), _TOP + _ROW * place), (x(high), _TOP + _ROW * (place + 1) + _BAR)])
            body.append(svg.element("path", d=path, class_="lpo-axis lpo-dash"))
    used_kinds = [kind for kind in (_ENDS, _MORE, _LESS) if kind in kinds]
    legend, used = axes.legend(used_kinds, _PAD, bottom + 4, width - 2 * _PAD)
    description = "; ".join(f"{label} {note}" for label, note in zip(labels, notes, strict=True))
    return svg.document(
        title, description, width, bottom + used + 16, [*body, legend], kind="waterfall", focusable=True
    )


def _grid(x: Scale, bottom: float, formatter: Formatter) -> list[str]:
    """Draw lines at round values, zero stronger than the others; labels that would overlap are left out."""
    parts, end = [], -1e9
    for value in x.ticks(6):
        at, label = x(value), tidy(formatter(value))
        style = "lpo-axis" if value == 0 else "lpo-grid"
        parts.append(svg.element("path", d=line_path([(at, _TOP - 6), (at, bottom)]), class_=style))
        half = svg.text_width(label) / 2
        if at - half > end + 6:
            parts.append(svg.text(at, _TOP - 11, label, anchor="middle", role="muted"))
            end = at + half
    return parts


def _bar(
    label: str,
    note: str,
    low: float,
    high: float,
    kind: axes.Kind,
    top: float,
    x: Scale,
    label_width: float,
) -> list[str]:
    near, far = sorted((x(low), x(high)))
    shown = svg.fit(label, label_width)
    name = svg.text(x.start - 12, top + _BAR / 2 + 4, shown, anchor="end")
    text = f"{label}: {note}"
    return [
        name if shown == label else svg.element("g", svg.hover(label) + name),
        svg.element(
            "rect",
            svg.hover(text),
            x=near,
            y=top,
            width=max(far - near, 1.0),
            height=_BAR,
            class_=svg.colour_class(kind.colour or 0),
            data_name=label,
            data_value=repr(float(high - low)),
            tabindex="0",
            role="img",
            aria_label=text,
        ),
        svg.text(far + 8, top + _BAR / 2 + 4, note, role="muted lpo-halo"),
    ]


def _signed(value: float, formatter: Formatter) -> str:
    return f"{'+' if value >= 0 else '−'}{formatter(abs(value))}"
