"""Sections that stages bring along, and what they measured of memory, as tables."""

from __future__ import annotations

from llm_perf_opt.core import units
from llm_perf_opt.model.summary import SectionTable, Summary
from llm_perf_opt.reporting.content.tables import Cell, Table, columns, num, simple, text
from llm_perf_opt.reporting.wording import phase_name, phase_rank


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


def memory_table(summary: Summary) -> Table:
    """Return the memory in use by phase."""
    rows = [
        [
            text(phase_name(phase)),
            num(summary.memory[phase].peak_bytes, units.size),
            num(summary.memory[phase].begin_bytes, units.size),
            num(summary.memory[phase].end_bytes, units.size),
        ]
        for phase in sorted(summary.memory, key=phase_rank)
    ]
    return simple(columns("phase", "peak#", "at its begin#", "at its end#"), rows)
