"""Tables that benchmarks write into documentation, between two marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column is text, the others are numbers."""
    lines = ["| " + " | ".join(header) + " |", "| --- |" + " ---: |" * (len(header) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def write_block(page: Path, name: str, text: str) -> None:
    """Put text between ``<!-- name:begin -->`` and ``<!-- name:end -->`` of a page."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    whole = page.read_text(encoding="utf-8")
    before, found, rest = whole.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{page} has no marks {begin} … {end}")
    page.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}", encoding="utf-8")
    print(f"wrote {page}")
