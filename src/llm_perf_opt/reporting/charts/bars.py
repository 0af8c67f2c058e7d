"""Horizontal bars: one value per row, or the parts of a whole per row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from llm_perf_opt.core import units
from llm_perf_opt.reporting.charts import svg

Formatter = Callable[[float | None], str]
_PAD = 16.0
_BAR_HEIGHT = 22.0
_ROW_HEIGHT = 32.0
_MANY = 24
"""More rows than this are drawn thinner."""
_LABEL_SHARE = 0.42


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of a stacked bar."""

    name: str
    value: float
    """In the unit of the chart, not negative."""
    detail: str = ""
    """Further text for the hover."""


@dataclass(frozen=True, slots=True)
class StackedRow:
    """One stacked bar."""

    label: str
    segments: Sequence[Segment]
    note: str = ""
    """Printed right of the bar; empty: the formatted total."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One plain bar."""

    label: str
    value: float | None
    """``None`` prints a dash and draws nothing."""
    note: str = ""
    """Printed right of the bar; empty: the formatted value."""
    detail: str = ""
    group: str = ""
    """Bars of one group share a colour; groups get a legend."""
    data: Mapping[str, str] = field(default_factory=dict)
    """``data-…`` attributes of the mark."""


def stacked_bars(
    title: str,
    rows: Sequence[StackedRow],
    *,
    as_share: bool = True,
    formatter: Formatter = units.seconds,
    colours: Mapping[str, int] | None = None,
) -> str:
    """Draw one stacked bar per row.

    ``as_share``: every bar has full length and its parts are percentages; otherwise lengths compare between
    rows. ``colours`` fixes the palette index of a part's name, so that charts of one report agree.
    """
    totals = [sum(part.value for part in _drawable(row)) for row in rows]
    if not any(total > 0 for total in totals):
        return svg.no_data(title, "No data to draw.", kind="stacked")
    indices = svg.colour_indices((part.name for row in rows for part in _drawable(row)), colours)
    notes = [row.note or formatter(total) for row, total in zip(rows, totals, strict=True)]
    frame = _Frame.around([row.label for row in rows], notes)
    longest = max(totals)
    body = [svg.heading(title)]
    for place, (row, total, note) in enumerate(zip(rows, totals, notes, strict=True)):
        scale = (frame.bar_width / (total if as_share else longest)) if total > 0 else 0.0
        top = frame.top + place * frame.pitch
        body.append(frame.label(row.label, top))
        body.extend(_segments(row, total, top, frame, scale, indices, formatter))
        # Notes of shares align in a column; notes of lengths follow their bar.
        note_x = frame.left + (frame.bar_width if as_share else total * scale) + 8
        body.append(svg.text(note_x, top + frame.baseline, svg.fit(note, frame.note_width), role="muted"))
    markup, legend_height = svg.legend(
        list(indices.items()), _PAD, frame.bottom(len(rows)) + 6, svg.chart_width() - 2 * _PAD
    )
    body.append(markup)
    description = _describe_stacked(rows, totals, formatter)
    return svg.document(
        title,
        description,
        svg.chart_width(),
        frame.bottom(len(rows)) + legend_height + 18,
        body,
        kind="stacked",
    )


def bars(
    title: str,
    rows: Sequence[Bar],
    *,
    formatter: Formatter = units.seconds,
    description: str = "",
) -> str:
    """Draw one bar per row, lengths comparable, longest first as given."""
    known = [row.value for row in rows if row.value is not None and svg.positive(row.value)]
    if not known:
        return svg.no_data(title, "No data to draw.", kind="bars")
    groups = svg.colour_indices((row.group for row in rows if row.group), None)
    notes = [row.note or formatter(row.value if svg.usable(row.value) else None) for row in rows]
    frame = _Frame.around([row.label for row in rows], notes)
    scale = frame.bar_width / max(known)
    body = [svg.heading(title)]
    for place, (row, note) in enumerate(zip(rows, notes, strict=True)):
        top = frame.top + place * frame.pitch
        length = row.value * scale if row.value is not None and row.value in known else 0.0
        body.append(frame.label(row.label, top))
        if length > 0:
            body.append(_bar(row, frame, top, length, groups.get(row.group, 0), formatter))
        body.append(
            svg.text(
                frame.left + length + 8, top + frame.baseline, svg.fit(note, frame.note_width), role="muted"
            )
        )
    height = frame.bottom(len(rows))
    if groups:
        markup, legend_height = svg.legend(
            list(groups.items()), _PAD, height + 6, svg.chart_width() - 2 * _PAD
        )
        body.append(markup)
        height += legend_height
    description = description or "; ".join(
        f"{row.label}: {note}" for row, note in zip(rows, notes, strict=True)
    )
    return svg.document(title, description, svg.chart_width(), height + 14, body, kind="bars")


@dataclass(frozen=True, slots=True)
class _Frame:
    """Layout of labels and bars."""

    left: float
    bar_width: float
    label_width: float
    note_width: float
    pitch: float = _ROW_HEIGHT
    bar_height: float = _BAR_HEIGHT
    top: float = 42.0

    @property
    def baseline(self) -> float:
        """Baseline of text, below the top of its bar."""
        return self.bar_height / 2 + 4.5

    @staticmethod
    def around(labels: Sequence[str], notes: Sequence[str]) -> _Frame:
        width = svg.chart_width()
        label_width = min(max(svg.text_width(label) for label in labels), width * _LABEL_SHARE)
        note_width = min(max(svg.text_width(note) for note in notes), width * 0.4)
        left = _PAD + label_width + 10
        bar_width = max(width - left - note_width - 8 - _PAD, 40.0)
        if len(labels) > _MANY:
            return _Frame(left, bar_width, label_width, note_width, pitch=20.0, bar_height=14.0)
        return _Frame(left, bar_width, label_width, note_width)

    def label(self, content: str, top: float) -> str:
        shown = svg.fit(content, self.label_width)
        mark = svg.text(self.left - 10, top + self.baseline, shown, anchor="end")
        return mark if shown == content else svg.element("g", svg.hover(content) + mark)

    def bottom(self, rows: int) -> float:
        return self.top + rows * self.pitch


def _drawable(row: StackedRow) -> list[Segment]:
    return [part for part in row.segments if svg.positive(part.value)]


def _segments(
    row: StackedRow,
    total: float,
    top: float,
    frame: _Frame,
    scale: float,
    indices: Mapping[str, int],
    formatter: Formatter,
) -> list[str]:
    marks: list[str] = []
    left = frame.left
    for part in _drawable(row):
        length = part.value * scale
        share = units.percent(part.value / total)
        hover_text = f"{row.label}: {part.name} {formatter(part.value)} ({share})" + (
            f", {part.detail}" if part.detail else ""
        )
        index = indices[part.name]
        marks.append(
            svg.element(
                "rect",
                svg.hover(hover_text),
                x=left,
                y=top,
                width=max(length, 0.5),
                height=frame.bar_height,
                class_=f"{svg.colour_class(index)} lpo-edge",
                data_name=part.name,
                data_value=repr(float(part.value)),
            )
        )
        inside = next(
            (s for s in (f"{part.name} {share}", part.name, share) if svg.text_width(s) + 10 <= length), None
        )
        if inside is not None:
            role = svg.ink_role(index)
            marks.append(
                svg.text(
                    left + length / 2,
                    top + frame.baseline - 0.5,
                    inside,
                    anchor="middle",
                    role=role,
                    pointer_events="none",
                )
            )
        left += length
    return marks


def _bar(row: Bar, frame: _Frame, top: float, length: float, index: int, formatter: Formatter) -> str:
    hover_text = f"{row.label}: {row.note or formatter(row.value)}" + (
        f", {row.detail}" if row.detail else ""
    )
    return svg.element(
        "rect",
        svg.hover(hover_text),
        x=frame.left,
        y=top,
        width=max(length, 0.5),
        height=frame.bar_height,
        rx=2,
        class_=svg.colour_class(index),
        **svg.data_attributes(row.data),
    )


def _describe_stacked(rows: Sequence[StackedRow], totals: Sequence[float], formatter: Formatter) -> str:
    sentences = []
    for row, total in zip(rows, totals, strict=True):
        parts = ", ".join(f"{part.name} {units.percent(part.value / total)}" for part in _drawable(row))
        sentences.append(f"{row.label} ({row.note or formatter(total)}): {parts or 'nothing'}")
    return "; ".join(sentences)
