"""Documents as plain text for a terminal, and the last lines of a run."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.core.escape import one_line
from llm_perf_opt.reporting.document import (
    Block,
    Cards,
    Chart,
    Details,
    Facts,
    Figures,
    Heading,
    Links,
    Note,
    Points,
    Text,
    blocks_for,
)
from llm_perf_opt.reporting.opening import console_headline, opening
from llm_perf_opt.reporting.tables import Table
from llm_perf_opt.summary import Summary

WIDTH = 79
_WIDEST = 120
_MOST_NOTES = 3


def terminal_width() -> int:
    """Return the columns to fill: those of the terminal, within limits; 79 without one."""
    return min(max(shutil.get_terminal_size((WIDTH + 1, 24)).columns - 1, WIDTH // 2), _WIDEST)


def console_summary(summary: Summary, report: Path, *, width: int = WIDTH) -> str:
    """Lay the first screen of the report out in plain text; a path is never broken."""
    lines = [
        *wrapped(console_headline(summary), width, most=2),
        *write_console(opening(summary), width, most_lines=3, most_notes=_MOST_NOTES),
        f"report: {report}",
    ]
    return "\n".join(lines)


def write_console(
    blocks: Sequence[Block],
    width: int = WIDTH,
    *,
    most_lines: int | None = None,
    most_notes: int | None = None,
) -> list[str]:
    """Return the lines of some blocks; limited by ``most_lines`` and ``most_notes``."""
    shown = blocks_for("console", blocks)
    notes = [block for block in shown if isinstance(block, Note)]
    left_out = notes[most_notes:] if most_notes is not None else []
    lines: list[str] = []
    for block in shown:
        if not any(block is each for each in left_out):
            lines += _block(block, width, most_lines, most_notes)
    if left_out:
        lines.append(f"  and {len(left_out)} more {'note' if len(left_out) == 1 else 'notes'} in the report")
    return lines


def wrapped(text: str, width: int, indent: str = "", *, most: int | None = None) -> list[str]:
    """Break text into lines that fit; at most ``most`` lines."""
    return textwrap.wrap(
        one_line(text),
        width=width,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        max_lines=most,
        placeholder=" …",
        break_on_hyphens=False,
    )


def _block(block: Block, width: int, most: int | None, most_notes: int | None) -> list[str]:  # noqa: C901, PLR0912  # one case per kind of block
    match block:
        case Text(role="quiet"):
            return []
        case Text():
            return wrapped(block.text, width, most=most)
        case Note():
            return _note(block, width, most)
        case Table():
            return [*([one_line(block.title)] if block.title else []), *aligned(block)]
        case Chart():
            return (
                []
                if block.table is None
                else [one_line(block.table.title), *aligned(block.table, header=False)]
            )
        case Points():
            lines = [f"{label}: {text}" if label else text for label, text in block.items]
            return [line for text in lines for line in wrapped(text, width, "  ", most=most)]
        case Figures():
            return wrapped(", ".join(f"{each.label} {each.value}" for each in block.items), width, most=most)
        case Cards(items=cards, first=None):
            return wrapped(
                "; ".join(f"{card.title}: {card.result}" for card in cards), width, "  ", most=most
            )
        case Cards(items=cards, first=int(first)):
            lines = [f"{place}. {card.title} ({card.result})" for place, card in enumerate(cards, first)]
            return [line for text in lines for line in wrapped(text, width, "  ", most=2)]
        case Heading():
            return [*([""] if most is None else []), one_line(block.title)]
        case Details(anchor=""):
            return [f"  {one_line(block.title)} in the report"]
        case Details():
            return [
                one_line(block.title),
                *write_console(block.blocks, width, most_lines=most, most_notes=most_notes),
            ]
        case Facts() | Links():
            return []
        case _:
            raise TypeError(f"no plain text for {block.kind}")


def _note(note: Note, width: int, most: int | None) -> list[str]:
    """Show a note in two lines, and its fix in full."""
    text = f"{note.title}: {note.text}"
    limit = None if most is None else 2
    reason, separator, fix = text.partition(" (fix: ")
    if not separator or len(wrapped(text, width, "  ")) <= 2:
        return wrapped(text, width, "  ", most=limit)
    return [
        *wrapped(reason, width, "  ", most=limit),
        *wrapped(f"fix: {fix.rstrip('.').removesuffix(')')}", width, "    "),
    ]


def aligned(content: Table, *, header: bool = True) -> list[str]:
    """Return a table with its columns padded."""
    grid = [[one_line(column.label) for column in content.columns]] if header else []
    grid += [[one_line(cell.text) for cell in row.cells] for row in content.rows]
    widths = [max(len(line[place]) for line in grid) for place in range(len(content.columns))]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if column.number else cell.ljust(width)
            for cell, width, column in zip(line, widths, content.columns, strict=True)
        ).rstrip()
        for line in grid
    ]
