"""What the sections of an HTML page are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from llm_perf_opt.reporting.content.tables import Table


@dataclass(slots=True)
class Block:
    """A piece of a section: text, a chart, a table, or a list of pairs."""

    kind: str
    id: str = ""
    text: str = ""
    quiet: bool = False
    svg: Markup = field(default_factory=Markup)
    points: Mapping[str, Any] = field(default_factory=dict)
    """Details of a chart's marks, by the name the mark carries."""
    table: Table | None = None
    title: str = ""
    label: str = ""
    filter: bool = False
    fold: str = ""
    """Words to unfold it by; empty: it is open."""
    pairs: list[tuple[str, str]] = field(default_factory=list)


@dataclass(slots=True)
class Section:
    """A heading with its blocks; ``short`` is its name in the navigation."""

    id: str
    title: str
    short: str
    blocks: list[Block] = field(default_factory=list)


def text_block(value: str, *, quiet: bool = False) -> Block:
    """Return a paragraph."""
    return Block("text", text=value, quiet=quiet)


def chart_block(svg: str) -> Block:
    """Return a chart; charts escape every text they draw, so their markup is ours."""
    return Block("chart", svg=Markup(svg))


def points_block(name: str, svg: str, points: Mapping[str, Any]) -> Block:
    """Return a chart whose marks tell their details when pointed at or focused."""
    return Block("points", id=name, svg=Markup(svg), points=points)


def table_block(table: Table, name: str, title: str = "", *, filter: bool = False) -> Block:
    """Return a table, with ``filter`` one that can be narrowed."""
    return Block("table", id=f"table-{name}", table=table, title=title, label=title or name, filter=filter)


def source_block(path: str | None) -> list[Block]:
    """Return a line that names the file the section comes from; nothing when it is not known."""
    return [text_block(f"From {path}.", quiet=True)] if path else []
