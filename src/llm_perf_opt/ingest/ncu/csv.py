"""Reads the CSV of ``ncu --csv``, page ``raw`` or ``details``, of ncu 2020 to 2026.

The tool mixes its messages and the program's output into the file, quotes thousands separators, scales every
value on its own, and a copy of the file may have been cut or saved again in another locale. Whatever cannot
be read is said in the notes; nothing is guessed.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.sizes import read_document
from llm_perf_opt.ingest.ncu.columns import WORTHWHILE_BYTES, read_long_columns, read_wide_columns
from llm_perf_opt.ingest.ncu.merge import merge_launches
from llm_perf_opt.ingest.ncu.pages import PageBlock, read_long, read_wide
from llm_perf_opt.model.counters import NcuCapture, NcuLaunch

EXPORT_HINT = "export it with: ncu --import x.ncu-rep --csv --page raw --print-units base"

_HEADER_START = re.compile(
    r'^\ufeff?"?ID"?[,;\t]"?(?:Process ID|Kernel Name|Process Name|API Call ID)', re.MULTILINE
)
_MESSAGE = re.compile(r"^==(?:PROF|WARNING|ERROR|LOG)==.*$", re.MULTILINE)
_OTHER_PAGES = (
    (re.compile(r"^Time \(%\)|Total Time \(ns\)"), "a kernel summary of nsys", "give it with --nsys"),
    (re.compile(r'"#".*"Source"|"Address Space"'), "ncu's source page", EXPORT_HINT),
    (re.compile(r"Session|Device Attributes|Launch Settings"), "ncu's session page", EXPORT_HINT),
)


def read_ncu_csv(path: Path) -> NcuCapture:
    """Read one CSV file; raise :class:`InputError` when it holds no launches."""
    text = _read_text(path)
    spoken = "\n==" in text or text.startswith("==")
    messages = [line.strip() for line in _MESSAGE.findall(text)] if spoken else []
    start = _HEADER_START.search(text)
    if start is None:
        raise _not_a_table(path, text, messages)
    notes: list[str] = []
    regular = _read_columns(text, start.start(), path, spoken=spoken)
    if regular is not None:
        return NcuCapture(merge_launches(regular), str(path), notes, messages)
    launches: list[NcuLaunch] = []
    try:
        for block in _split_blocks(text[start.start() :].lstrip("\ufeff"), path.name, notes):
            read = read_long if "Metric Value" in block.header else read_wide
            launches.extend(read(block, path, notes))
    except csv.Error as error:
        raise InputError(f"{path} is damaged: {error}", hint=EXPORT_HINT, path=str(path)) from error
    if not launches:
        raise InputError(
            f"{path} has a header but no complete row",
            hint=f"the file is empty or was cut; {EXPORT_HINT}",
            path=str(path),
        )
    return NcuCapture(merge_launches(launches), str(path), notes, messages)


def _read_columns(text: str, start: int, path: Path, *, spoken: bool) -> list[NcuLaunch] | None:
    """Try the fast way: a large page with nothing between its rows."""
    head = text[start : text.find("\n", start)]
    if len(text) < WORTHWHILE_BYTES or spoken or not text.endswith("\n"):
        return None
    second = any(text.find(mark, start + 1) >= 0 for mark in ('\n"ID"', "\nID"))
    if second or text.count('"') % 2:
        return None
    delimiter = max(",;\t", key=head.count)
    body = text[start:].lstrip("\ufeff")
    read = read_long_columns if "Metric Value" in head else read_wide_columns
    return read(body.encode("utf-8", errors="replace"), delimiter, path)


def _read_text(path: Path) -> str:
    try:
        data = read_document(path)
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}", hint="check the path and its permissions", path=str(path)
        ) from error
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", errors="replace")
    text = data.decode("utf-8-sig", errors="replace")
    return text.replace("\x00", "") if "\x00" in text else text


def _not_a_table(path: Path, text: str, messages: Sequence[str]) -> InputError:
    if not text.strip():
        return InputError(f"{path} is empty", hint="profile again, or give the right file", path=str(path))
    if any("No kernels were profiled" in line for line in messages):
        return InputError(
            f"{path}: ncu profiled no kernels",
            hint="check the kernel filter and the NVTX range",
            path=str(path),
        )
    errors = [line for line in messages if line.startswith("==ERROR==")]
    if errors:
        return InputError(
            f"{path} holds an error of ncu, no table: {errors[0]}",
            hint="solve it and profile again",
            path=str(path),
        )
    for pattern, what, fix in _OTHER_PAGES:
        if pattern.search(text[:4000]):
            return InputError(f"{path} is {what}, not a page with metrics", hint=fix, path=str(path))
    return InputError(
        f"{path} is not a CSV page of ncu (no header row with ID and Kernel Name)",
        hint=EXPORT_HINT,
        path=str(path),
    )


def _split_blocks(text: str, name: str, notes: list[str]) -> Iterator[PageBlock]:
    """Yield each header with its rows; other lines (messages, the program's output) are left out."""
    head = text[: text.find("\n")] if "\n" in text else text
    delimiter = max(",;\t", key=head.count)
    body = _close_quotes(_MESSAGE.sub("", text) if "\n==" in text else text, name, notes)
    block: PageBlock | None = None
    stray = 0
    for row in csv.reader(io.StringIO(body, newline=""), delimiter=delimiter):
        if not row:
            continue
        if row[0] == "ID":
            if block is not None:
                yield block
            block = PageBlock(row)
        elif block is not None and len(row) > 1 and (row[0].isdigit() or row[0] == ""):
            block.rows.append(row)
        else:
            stray += 1
    if block is not None and not text.endswith("\n") and _is_shorter(block.rows):
        notes.append(f"{name} is cut in the middle of a row: that row is left out")
        block.rows.pop()
    if stray:
        notes.append(f"{name}: {stray} lines that are not part of the table were left out")
    if block is not None:
        yield block


def _is_shorter(rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether the last row has fewer fields than every other one."""
    return len(rows) > 1 and len(rows[-1]) < min(len(row) for row in rows[:-1])


def _close_quotes(text: str, name: str, notes: list[str]) -> str:
    """Return the text without what left a quote open: a line of the program's output, or a cut last row."""
    if text.count('"') % 2 == 0:
        return text
    rows_only = "".join(line for line in text.splitlines(keepends=True) if line.startswith('"'))
    if rows_only.count('"') % 2 == 0:
        notes.append(f"{name}: lines with a lone quote that are not part of the table were left out")
        return rows_only
    notes.append(f"{name} is cut in the middle of a row: that row is left out")
    position = text.rfind("\n")
    while position > 0 and text.count('"', 0, position) % 2:
        position = text.rfind("\n", 0, position)
    return text[: max(position, 0) + 1]
