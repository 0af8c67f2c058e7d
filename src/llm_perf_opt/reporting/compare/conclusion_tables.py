"""Conclusions as tables: the causes of a change with their share of it, and devices beside one another."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.core import units
from llm_perf_opt.model.conclusion import Conclusion
from llm_perf_opt.reporting.compare.cause_tables import adds
from llm_perf_opt.reporting.content.tables import Cell, Column, Row, Table, num, simple, text

_WHOLES = {
    "wall_clock": "wall-clock of an answer",
    "captured_time": "captured time",
    "kernel_time": "kernel time",
}
EQUAL_WORK_TEXT = "Times of B are at A's work; the causes and what is not explained add up to the change."


def whole_name(conclusion: Conclusion) -> str:
    """Name the whole that a conclusion is about."""
    return _WHOLES[conclusion.whole]


def facts(conclusion: Conclusion) -> list[str]:
    """Return the sentences behind the first: how the work was counted, what moved, what to know besides."""
    moved = [
        f"{move.text[0].upper()}{move.text[1:]}."
        for move in conclusion.moved
        if move.text.casefold() not in conclusion.sentence.casefold()
    ]
    return [f"{conclusion.work.text}.", *moved, *conclusion.details]


def conclusion_table(conclusion: Conclusion, most: int | None = None) -> Table:
    """Return the causes, the largest first, what they leave, and the whole."""
    header = [
        Column("cause"),
        Column("A", True),
        Column("B", True, "at A's work"),
        Column("adds", True),
        Column("share", True, "of the change; below zero: works against it"),
    ]
    if conclusion.a_s is None or conclusion.b_s is None or not conclusion.causes:
        return simple(header, [])
    shown = conclusion.causes[:most]
    rows = [
        [
            text(cause.name),
            num(cause.a_s, units.seconds),
            num(cause.b_s, units.seconds),
            adds(cause.change_s),
            num(cause.share_ratio, units.percent),
        ]
        for cause in shown
    ]
    change = conclusion.b_s - conclusion.a_s
    left = change - sum(cause.change_s for cause in conclusion.causes)
    if abs(left) > 1e-6 * conclusion.a_s:
        rows.append([text("not explained"), text(None), text(None), adds(left), _share(left, change)])
    whole = [num(conclusion.a_s, units.seconds), num(conclusion.b_s, units.seconds), adds(change)]
    rows.append([text("together", strong=True), *whole, text("")])
    return Table(header, [Row(cells) for cells in rows], left_out=len(conclusion.causes) - len(shown))


def _share(part: float, change: float) -> Cell:
    return num(part / change if change else None, units.percent)


def device_table(conclusions: Sequence[Conclusion]) -> Table:
    """Return what each device and rank did with its time."""
    header = [Column("device"), Column("time"), Column("A", True), Column("B", True, "at A's work"), Column("adds", True)]  # fmt: skip
    return Table(
        header,
        [
            Row(
                [
                    text(row.where),
                    text(row.what),
                    num(row.a_s, units.seconds),
                    num(row.b_s, units.seconds),
                    adds(row.change_s),
                ],
                group=row.where,
            )
            for conclusion in conclusions
            for row in conclusion.devices
        ],
        grouped_by="Device",
    )
