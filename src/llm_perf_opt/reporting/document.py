"""Pages as data: a document is built once, and written as HTML, Markdown or plain text for a terminal.

Text is plain; text between backticks is code. Every writer escapes everything itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from llm_perf_opt.reporting.charts.svg import draw_narrow
from llm_perf_opt.reporting.tables import Table
from llm_perf_opt.reporting.wording import shorten_files

_Medium = Literal["html", "markdown", "console"]
_NoteKind = Literal["warning", "info", "trust"]


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str
    role: Literal["", "answer", "quiet"] = ""
    """``answer``: the conclusion of the page; ``quiet``: where something comes from."""


@dataclass(frozen=True, slots=True)
class Note:
    """A note on the numbers: a warning, a remark, or an assurance."""

    kind: ClassVar[str] = "note"
    text: str
    title: str = "Note"
    level: _NoteKind = "warning"


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing; its text is escaped by the module that draws it."""

    kind: ClassVar[str] = "chart"
    svg: str
    narrow: str
    """The same for a phone."""
    name: str = ""
    points: Mapping[str, Any] = field(default_factory=dict)
    """Details of its marks, by the name that a mark carries."""
    table: Table | None = None
    """The same as text, for Markdown and the terminal; without it they leave the chart out."""


@dataclass(frozen=True, slots=True)
class Points:
    """A list of (label, text); the label may be empty."""

    kind: ClassVar[str] = "points"
    items: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Facts:
    """Short (name, value) pairs in one line, after a status."""

    kind: ClassVar[str] = "facts"
    pairs: Sequence[tuple[str, str]]
    status: str = ""


@dataclass(frozen=True, slots=True)
class Links:
    """A list of (text, path next to the page)."""

    kind: ClassVar[str] = "links"
    items: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Figure:
    """One headline number."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Figures:
    """The headline numbers."""

    kind: ClassVar[str] = "figures"
    items: Sequence[Figure]


@dataclass(frozen=True, slots=True)
class Card:
    """A verdict or a finding: result, advice and reasons."""

    title: str
    result: str
    lines: Sequence[tuple[str, str]] = ()
    """(Label, text), always shown."""
    reasons: Sequence[tuple[str, str]] = ()
    """(Label, text), folded in HTML."""
    style: str = ""
    """Phase of a verdict, for its colour."""


@dataclass(frozen=True, slots=True)
class Cards:
    """Verdicts side by side, or findings in order of their gain."""

    kind: ClassVar[str] = "cards"
    items: Sequence[Card]
    first: int | None = None
    """Number of the first one; ``None``: they have no order."""


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading inside a section."""

    kind: ClassVar[str] = "heading"
    title: str
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Details:
    """Blocks that a reader may fold; with an ``anchor`` they have a heading."""

    kind: ClassVar[str] = "details"
    title: str
    blocks: Sequence[Block]
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Only:
    """Blocks for one medium only."""

    kind: ClassVar[str] = "only"
    medium: _Medium
    blocks: Sequence[Block]


Block = Text | Note | Table | Chart | Points | Facts | Links | Figures | Cards | Heading | Details | Only


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with its blocks; ``short`` is its name in the navigation."""

    anchor: str
    title: str
    blocks: Sequence[Block]
    short: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """A page: the opening, then the sections; empty sections are left out."""

    title: str
    heading: str
    opening: Sequence[Block]
    sections: Sequence[Section]
    files: Sequence[str]
    """Files next to the page that hold all numbers."""


def blocks_for(medium: _Medium, blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks that a medium shows, empty ones left out."""
    found: list[Block] = []
    for block in blocks:
        if isinstance(block, Only):
            found += blocks_for(medium, block.blocks) if block.medium == medium else []
        elif not _is_empty(block):
            found.append(block)
    return found


def _is_empty(block: Block) -> bool:
    match block:
        case Text(text=content) | Note(text=content):
            return not content
        case Table():
            return not block
        case Points(items=content) | Links(items=content) | Figures(items=content) | Cards(items=content):
            return not content
        case Details(blocks=content):
            return not content
        case _:
            return False


def chart(
    draw: Callable[[], str],
    name: str = "",
    points: Mapping[str, Any] | None = None,
    table: Table | None = None,
) -> Chart:
    """Draw a chart for wide and narrow screens."""
    return Chart(draw(), draw_narrow(draw), name, points or {}, table)


def charts_for(draw: Callable[[], Sequence[str]]) -> list[Chart]:
    """Draw several charts for wide and narrow screens."""
    return [Chart(wide, narrow) for wide, narrow in zip(draw(), draw_narrow(draw), strict=True)]


def source_line(path: str | None) -> list[Block]:
    """Return a line that names the file a section comes from; empty if unknown."""
    return [Text(f"From {shorten_files(path)}.", "quiet")] if path else []


def bar(share: float, width: int = 30) -> str:
    """Return a bar of text."""
    return "█" * max(1, round(width * share)) if share else ""
