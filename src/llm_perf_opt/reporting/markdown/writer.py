"""Small pieces of Markdown: tables, sections, lists. Text that comes from outside is escaped here or by the caller."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llm_perf_opt.core.escape import md_cell, md_code, md_text
from llm_perf_opt.reporting.content.tables import Cell, Table

_INDENT = "&nbsp;&nbsp;"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    """Return a table; columns listed in ``numbers`` are right-aligned. Cells must be escaped already."""
    rows = [list(row) for row in rows]
    if not rows:
        return ""
    rule = ["---:" if index in numbers else "---" for index in range(len(header))]
    return "\n".join("| " + " | ".join(line) + " |" for line in ([*header], rule, *rows)) + "\n"


def render_table(content: Table, *, most: int | None = None) -> str:
    """Return a content table with every cell escaped; rows beyond ``most`` are counted below it."""
    shown = content.rows[:most]
    left_out = content.left_out + len(content.rows) - len(shown)
    body = table(
        [md_cell(column.label) for column in content.columns],
        [[_cell(cell) for cell in row.cells] for row in shown],
        numbers=[place for place, column in enumerate(content.columns) if column.number],
    )
    return body + (f"\n{left_out} more in {content.rest_in}.\n" if body and left_out else "")


def _cell(cell: Cell) -> str:
    if cell.code:
        return _INDENT * cell.indent + md_code(cell.text, cell=True)
    shown = md_cell(cell.text)
    return _INDENT * cell.indent + (f"**{shown}**" if cell.strong else shown)


def prose(text: str) -> str:
    """Return escaped running text in which what stands between backticks is code."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        return md_text(text)
    parts = []
    for place, piece in enumerate(pieces):
        if place % 2:
            parts.append(md_code(piece))
            continue
        # Escaping trims; the blanks that part words from code are put back.
        before = " " if place and piece[:1].isspace() else ""
        after = " " if place < len(pieces) - 1 and piece[-1:].isspace() else ""
        parts.append(f"{before}{md_text(piece)}{after}" if piece.strip() else before or after)
    return "".join(parts)


def section(title: str, *bodies: str, level: int = 2) -> str:
    """Return a heading with its text; nothing at all when there is no text."""
    body = "\n".join(text.rstrip("\n") + "\n" for text in bodies if text)
    return f"{'#' * level} {title}\n\n{body}\n" if body else ""


def bullets(lines: Iterable[str]) -> str:
    """Return a list; lines must be escaped already."""
    return "\n".join(f"- {line}" for line in lines)
