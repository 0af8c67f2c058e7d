"""Lanes of events over a common time: host calls, kernels and copies of one decode step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.core import units
from llm_perf_opt.reporting.charts import svg
from llm_perf_opt.reporting.charts.axes import Scale, tidy

_LANE_HEIGHT = 26.0
_LANE_GAP = 8.0
_MERGE_BELOW_PX = 0.6
"""Neighbours of one group that are narrower than this and as close are drawn as one mark."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event from ``start_s`` to ``end_s``."""

    name: str
    start_s: float
    end_s: float
    group: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Lane:
    """One row: a thread, a stream, a kind of work."""

    name: str
    events: Sequence[Event]


@dataclass(frozen=True, slots=True)
class _Mark:
    start_s: float
    end_s: float
    group: str
    hover_text: str
    label: str
    """Empty for merged events."""


def timeline(
    title: str,
    lanes: Sequence[Lane],
    *,
    span_s: float | None = None,
    colours: Mapping[str, int] | None = None,
) -> str:
    """Draw lanes under one time axis that starts at zero; overlapping events of a lane stack in sub-rows."""
    width = svg.chart_width()
    end_s = max(
        (event.end_s for lane in lanes for event in lane.events if svg.usable(event.end_s)), default=0.0
    )
    end_s = max(end_s, span_s if span_s is not None and svg.usable(span_s) else 0.0)
    if not svg.positive(end_s):
        return svg.no_data(title, "No events to draw.", kind="timeline")
    label_width = min(max(svg.text_width(lane.name) for lane in lanes), width * 0.25)
    left = 16 + label_width + 10
    x = Scale(0.0, end_s, left, width - 24)
    groups = svg.colour_indices(
        (event.group for lane in lanes for event in lane.events if event.group), colours
    )
    top = 62.0
    marks: list[str] = []
    for lane in lanes:
        markup, used = _lane(lane, top, x, label_width, groups, width)
        marks.extend(markup)
        top += used + _LANE_GAP
    head = [svg.heading(title), *_time_axis(x, top)]
    legend_markup, used = svg.legend(list(groups.items()), 16, top + 2, width - 32) if groups else ("", 0.0)
    description = _describe(lanes, end_s)
    return svg.document(
        title, description, width, top + used + 12, [*head, *marks, legend_markup], kind="timeline"
    )


def _time_axis(x: Scale, bottom: float) -> list[str]:
    parts: list[str] = []
    for value in x.ticks(7):
        at = x(value)
        path = f"M{svg.number(at)} 56V{svg.number(bottom - _LANE_GAP / 2)}"
        parts.append(svg.element("path", d=path, class_="lpo-grid"))
        parts.append(svg.text(at, 50, tidy(units.seconds(value)), anchor="middle", role="muted"))
    return parts


def _lane(
    lane: Lane, top: float, x: Scale, label_width: float, groups: Mapping[str, int], width: float
) -> tuple[list[str], float]:
    rows = _stack(_merged(lane.events, (x.high - x.low) / (x.end - x.start) * _MERGE_BELOW_PX))
    height = _LANE_HEIGHT if len(rows) <= 1 else 16.0 * len(rows)
    each = height / max(len(rows), 1)
    shown = svg.fit(lane.name, label_width)
    name = svg.text(x.start - 10, top + height / 2 + 4, shown, anchor="end")
    parts = [name if shown == lane.name else svg.element("g", svg.hover(lane.name) + name)]
    base = f"M{svg.number(x.start)} {svg.number(top + height)}H{svg.number(width - 24)}"
    parts.append(svg.element("path", d=base, class_="lpo-grid"))
    for place, row in enumerate(rows):
        for mark in row:
            parts.extend(_draw(mark, top + place * each, each - 1, x, groups))
    return parts, height


def _draw(mark: _Mark, top: float, height: float, x: Scale, groups: Mapping[str, int]) -> list[str]:
    index = groups.get(mark.group, 0)
    left, right = x.clamp(mark.start_s), x.clamp(mark.end_s)
    length = max(right - left, 0.5)
    edge = " lpo-edge" if length > 3 else ""
    parts = [
        svg.element(
            "rect",
            svg.hover(mark.hover_text),
            x=left,
            y=top,
            width=length,
            height=height,
            class_=svg.colour_class(index) + edge,
        )
    ]
    if mark.label and length > 46:
        label = svg.fit(mark.label, length - 8, 11)
        if len(label) > 3:
            role = svg.ink_role(index)
            middle, baseline = left + length / 2, top + height / 2 + 4
            parts.append(
                svg.text(
                    middle, baseline, label, anchor="middle", role=role, font_size=11, pointer_events="none"
                )
            )
    return parts


def _merged(events: Sequence[Event], narrow_s: float) -> list[_Mark]:
    """Turn events into marks, in order of start; events too narrow to distinguish are merged."""
    marks: list[_Mark] = []
    pending: list[Event] = []

    def flush() -> None:
        if pending:
            marks.append(_as_mark(pending))
            pending.clear()

    ordered = sorted(
        (e for e in events if svg.usable(e.start_s) and svg.usable(e.end_s) and e.end_s >= e.start_s >= 0),
        key=lambda e: (e.start_s, e.end_s, e.name),
    )
    for event in ordered:
        narrow = event.end_s - event.start_s < narrow_s
        joins = pending and pending[-1].group == event.group and event.start_s - pending[-1].end_s < narrow_s
        if not (narrow and joins):
            flush()
        if narrow:
            pending.append(event)
        else:
            marks.append(_as_mark([event]))
    flush()
    return marks


def _as_mark(events: Sequence[Event]) -> _Mark:
    first = events[0]
    end_s = max(event.end_s for event in events)
    if len(events) == 1:
        hover_text = (
            f"{first.name}: {units.seconds(end_s - first.start_s)} from {units.seconds(first.start_s)}"
        )
        return _Mark(
            first.start_s,
            end_s,
            first.group,
            f"{hover_text}, {first.detail}" if first.detail else hover_text,
            first.name,
        )
    busy_s = sum(event.end_s - event.start_s for event in events)
    begin = units.seconds(first.start_s)
    hover_text = f"{len(events)} short events ({first.name}, …): {units.seconds(busy_s)} from {begin}"
    return _Mark(first.start_s, end_s, first.group, hover_text, "")


def _stack(marks: Sequence[_Mark]) -> list[list[_Mark]]:
    """Put every mark on the first row where it overlaps nothing."""
    rows: list[list[_Mark]] = []
    for mark in sorted(marks, key=lambda m: (m.start_s, -m.end_s, m.label)):
        row = next((row for row in rows if row[-1].end_s <= mark.start_s), None)
        if row is None:
            rows.append([mark])
        else:
            row.append(mark)
    return rows


def _describe(lanes: Sequence[Lane], end_s: float) -> str:
    sentences = [f"{lane.name}: {len(lane.events)} events" for lane in lanes]
    return f"{units.seconds(end_s)} in all. " + "; ".join(sentences)
