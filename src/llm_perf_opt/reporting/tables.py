"""Tables as data: built once from a summary, then shown as Markdown or HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from llm_perf_opt.core import units
from llm_perf_opt.summary import SectionTable


def format_change(ratio: float | None) -> str:
    """``1.031`` → ``+3.1 %``; large changes as a factor."""
    if ratio is None:
        return units.MISSING
    if ratio >= 10 or (0 < ratio <= 0.1):
        return f"× {units.number(ratio)}"
    return f"{round((ratio - 1) * 100, 1) + 0.0:+.1f} %"  # + 0.0: avoids a negative zero


@dataclass(frozen=True, slots=True)
class Cell:
    """A formatted value and its sort key."""

    text: str
    sort: float | None = None
    """Sort key of a number; ``None``: sorts by its text, or last in a column of numbers."""
    code: bool = False
    """A name that is shown letter by letter (kernel, module, file)."""
    strong: bool = False
    indent: int = 0
    full: str = ""
    """The whole name where ``text`` is a part of it."""


@dataclass(frozen=True, slots=True)
class Column:
    """A heading; numbers are aligned right."""

    label: str
    number: bool = False
    help: str = ""
    """What the column means, for headings that are abbreviations."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line, its place in a tree, and its folded details."""

    cells: Sequence[Cell]
    key: str = ""
    parent: str = ""
    """``key`` of the row above it in a tree."""
    depth: int = 0
    group: str = ""
    """What a reader may narrow the table to: a phase, a family."""
    details: Sequence[tuple[str, str]] = ()
    """(Label, text) pairs; long text is fine."""


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows; ``left_out`` rows exist in another file only."""

    kind: ClassVar[str] = "table"
    columns: Sequence[Column]
    rows: Sequence[Row] = field(default_factory=list)
    left_out: int = 0
    grouped_by: str = "Phase"
    """What the groups of the rows are."""
    rest_in: str = "summary.json"
    """The file that has the rows that are left out."""
    name: str = ""
    """Its anchor on a page."""
    title: str = ""
    filter: bool = False
    """Whether a page offers to narrow it."""
    most: int | None = None
    """Rows in Markdown; HTML shows all."""

    def __bool__(self) -> bool:
        """An empty table is not shown."""
        return bool(self.rows)

    def named(self, name: str, title: str = "", *, filter: bool = False, most: int | None = None) -> Table:
        """Return the table with its anchor on a page."""
        return replace(self, name=name, title=title, filter=filter, most=most)

    def without_empty_columns(self) -> Table:
        """Leave out columns without any value, except the first."""
        kept = [
            place
            for place in range(len(self.columns))
            if place == 0 or any(row.cells[place].text not in ("", units.MISSING) for row in self.rows)
        ]
        return replace(
            self,
            columns=[self.columns[place] for place in kept],
            rows=[replace(row, cells=[row.cells[place] for place in kept]) for row in self.rows],
        )

    @property
    def groups(self) -> list[str]:
        """Groups of the rows, in order of appearance."""
        return list(dict.fromkeys(row.group for row in self.rows if row.group))

    @property
    def is_tree(self) -> bool:
        """Whether any row is nested."""
        return any(row.parent for row in self.rows)

    @property
    def deepest(self) -> int:
        """Largest depth of a row."""
        return max((row.depth for row in self.rows), default=0)


def text(value: object, *, strong: bool = False) -> Cell:
    """Return a cell of running text; missing is a dash."""
    return Cell(units.MISSING if value in (None, "") else str(value), strong=strong)


def code(value: str, *, indent: int = 0, full: str = "") -> Cell:
    """Return a cell that shows a name literally."""
    return Cell(value, code=True, indent=indent, full=full)


def num(value: float | None, formatter: Callable[[float | None], str]) -> Cell:
    """Return a number that is shown formatted and sorted exactly."""
    return Cell(formatter(value), None if value is None else float(value))


def columns(*labels: str | Column) -> list[Column]:
    """Return headings; a label that ends in ``#`` is a column of numbers."""
    return [
        label if isinstance(label, Column) else Column(label.rstrip("#"), label.endswith("#"))
        for label in labels
    ]


def simple(header: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> Table:
    """Return a table of plain rows."""
    return Table(header, [Row(cells) for cells in rows])


# Sections that stages provide, as tables.


def stage_table(found: SectionTable) -> Table:
    """Return a stage's table; a column whose cells are all numbers is right-aligned."""
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
