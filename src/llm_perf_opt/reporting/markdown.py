"""Documents as Markdown. Text that comes from outside is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llm_perf_opt.core.escape import md_cell, md_code, md_target, md_text
from llm_perf_opt.reporting.document import (
    Block,
    Cards,
    Chart,
    Details,
    Document,
    Facts,
    Figures,
    Heading,
    Links,
    Note,
    Points,
    Text,
    blocks_for,
)
from llm_perf_opt.reporting.tables import Cell, Table

_INDENT = "&nbsp;&nbsp;"


def write_markdown(document: Document) -> str:
    """Return the whole document; empty sections are left out."""
    parts = [f"# {md_text(document.title)}", *_write_blocks(document.opening)]
    for section in document.sections:
        body = _write_blocks(section.blocks)
        parts += [f"## {md_text(section.title)}", *body] if body else []
    return "\n\n".join(parts) + "\n"


def _write_blocks(blocks: Sequence[Block]) -> list[str]:
    """Return the paragraphs of some blocks; consecutive notes form one list."""
    parts: list[str] = []
    after_note = False
    for block in blocks_for("markdown", blocks):
        written = _block(block)
        is_note = isinstance(block, Note)
        if is_note and after_note:
            parts[-1] += f"\n{written[0]}"
        else:
            parts += written
        after_note = is_note
    return parts


def _block(block: Block) -> list[str]:  # noqa: C901  # one case per kind of block
    match block:
        case Text():
            return [f"**{prose(block.text)}**" if block.role == "answer" else prose(block.text)]
        case Note():
            return [f"- **{md_text(block.title)}.** {prose(block.text)}"]
        case Table():
            return [
                *([f"**{md_text(block.title)}**"] if block.title else []),
                render_table(block).rstrip("\n"),
            ]
        case Chart():
            return [] if block.table is None else _block(block.table)
        case Points():
            return [
                bullets(
                    f"**{md_text(label)}**: {prose(text)}" if label else prose(text)
                    for label, text in block.items
                )
            ]
        case Facts():
            status = f"Status **{md_text(block.status)}**" if block.status else ""
            shown = [status, *(f"{md_text(name)} {prose(value)}" for name, value in block.pairs)]
            return [", ".join(part for part in shown if part) + "."]
        case Links():
            return [bullets(f"[{md_text(text)}]({md_target(path)})" for text, path in block.items)]
        case Figures():
            return [
                bullets(
                    f"{md_text(each.label)}: **{md_text(each.value)}**"
                    + (f" ({md_text(each.note)})" if each.note else "")
                    for each in block.items
                )
            ]
        case Cards():
            return ["\n".join(_cards(block))]
        case Heading():
            return [f"## {md_text(block.title)}"]
        case Details():
            title = f"## {md_text(block.title)}" if block.anchor else f"**{md_text(block.title)}**"
            body = _write_blocks(block.blocks)
            return [title, *body] if body else []
        case _:
            raise TypeError(f"no Markdown for {block.kind}")


def _cards(block: Cards) -> Iterable[str]:
    for place, card in enumerate(block.items):
        if block.first is None:
            head, indent = f"- **{md_text(card.title)}: {md_text(card.result)}**", "  "
        else:
            number = f"{block.first + place}. "
            head, indent = f"{number}**{md_text(card.title)}** ({md_text(card.result)})", " " * len(number)
        yield head
        for label, text in (*card.lines, *card.reasons):
            yield f"{indent}- {label}: {prose(text)}" if label else f"{indent}- {prose(text)}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    """Return a table; columns listed in ``numbers`` are right-aligned. Cells must be escaped already."""
    rows = [list(row) for row in rows]
    if not rows:
        return ""
    rule = ["---:" if index in numbers else "---" for index in range(len(header))]
    return "\n".join("| " + " | ".join(line) + " |" for line in ([*header], rule, *rows)) + "\n"


def render_table(content: Table) -> str:
    """Return a table with every cell escaped; rows beyond its ``most`` are counted below it."""
    shown = content.rows[: content.most]
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
    """Return escaped running text with text between backticks as code."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        return md_text(text)
    parts = []
    for place, piece in enumerate(pieces):
        if place % 2:
            parts.append(md_code(piece))
            continue
        # Escaping strips; restore the blanks between words and code.
        before = " " if place and piece[:1].isspace() else ""
        after = " " if place < len(pieces) - 1 and piece[-1:].isspace() else ""
        parts.append(f"{before}{md_text(piece)}{after}" if piece.strip() else before or after)
    return "".join(parts)


def bullets(lines: Iterable[str]) -> str:
    """Return a list; lines must be escaped already."""
    return "\n".join(f"- {line}" for line in lines)
