"""Sections that stages bring along, as tables."""

from __future__ import annotations

from llm_perf_opt.model.summary import SectionTable
from llm_perf_opt.reporting.content.tables import Cell, Table, columns, simple, text


def stage_table(found: SectionTable) -> Table:
    """Return a stage's table; a column whose cells are all numbers is aligned as one."""
    width = len(found.columns)
    rows = [[_cell(value) for value in [*row, *[""] * width][:width]] for row in found.rows]
    numbers = [bool(rows) and all(row[place].sort is not None for row in rows) for place in range(width)]
    labels = [f"{label}#" if number else label for label, number in zip(found.columns, numbers, strict=True)]
    return simple(columns(*labels), rows)


def _cell(value: str) -> Cell:
    try:
        return Cell(value, float(value.split(" ")[0]))
    except ValueError:
        return text(value)
