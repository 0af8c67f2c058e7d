"""Small pieces of Markdown: tables and sections. Text that comes from outside is escaped by the caller's choice of cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    """Return a table; columns listed in ``numbers`` are right-aligned. Cells must be escaped already."""
    rows = [list(row) for row in rows]
    if not rows:
        return ""
    rule = ["---:" if index in numbers else "---" for index in range(len(header))]
    return "\n".join("| " + " | ".join(line) + " |" for line in ([*header], rule, *rows)) + "\n"


def section(title: str, *bodies: str, level: int = 2) -> str:
    """Return a heading with its text; nothing at all when there is no text."""
    body = "\n".join(text.rstrip("\n") + "\n" for text in bodies if text)
    return f"{'#' * level} {title}\n\n{body}\n" if body else ""


def bullets(lines: Iterable[str]) -> str:
    """Return a list; lines must be escaped already."""
    return "\n".join(f"- {line}" for line in lines)
