"""Summary tables that ``nsys stats --format csv`` writes, with old and new report names.

``gpukernsum`` (2022) has a row per (name, grid, block), ``cuda_gpu_kern_sum`` (2023 and later) one per name: rows
of one name are added up. Reports are distinguished by their columns, never by the file's name.
"""

from __future__ import annotations

import csv
import io
import re
import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.captures.timeline import KernelTotals, NamedTotal, RangeTotals
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.files import read_input
from llm_perf_opt.core.limits import MOST_COUNT, MOST_SUMMED_SECONDS

_UNITS_NS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9, "sec": 1e9}
_TIME_COLUMN = re.compile(r"^Total Time(?: \((?P<unit>[^)]+)\))?$", re.IGNORECASE)
_MISSING = {"", "none", "n/a", "nan", "-"}
_BANNER_LINES = 20
_RANGE, _RANGE_COUNT = "NVTX Range", "NVTX Inst"
_MOST_CELL = 1e24
_DAMAGED = "the file is damaged; write it again with nsys stats"
_OTHER_LOCALE = (
    "the file is damaged, or was saved by a program of another language; write it again with nsys stats"
)


@dataclass(frozen=True, slots=True)
class _Report:
    """Name and columns of one kind of table."""

    field: str
    label: str
    count: str
    name: str


# Ordered: a table that matches several kinds is the first of them.
_REPORTS = (
    _Report("ranges_kernels", "nvtx_kern_sum", "Kern Inst", "Kernel Name"),
    _Report("ranges", "nvtx_sum", "Instances", "Range"),
    _Report("kernels", "cuda_gpu_kern_sum", "Instances", "Name"),
    _Report("calls", "cuda_api_sum", "Num Calls", "Name"),
    _Report("copies", "cuda_gpu_mem_time_sum", "Count", "Operation"),
)


def looks_like_nsys_csv(head: str) -> bool:
    """Whether the first lines of a file hold the header of a table this module reads."""
    return any(_report_of(row) is not None for row in csv.reader(head.splitlines()[:_BANNER_LINES]))


def read_nsys_csv(path: Path) -> KernelTotals:
    """Read one summary table."""
    path = Path(path)
    rows = _rows(path)
    header, first = _header(path, rows)
    report = _report_of(header)
    if report is None:
        raise InputError(
            f"{path.name} is a CSV file, but none of the nsys summaries (columns: {', '.join(header[:8])})",
            hint="nsys stats --report cuda_gpu_kern_sum --format csv --output OUT REPORT.nsys-rep "
            "(nsys 2022: --report gpukernsum)",
            path=str(path),
        )
    totals, warnings = _totals(path, header, report, rows[first:])
    by_range = _by_range(path, header, report, rows[first:]) if report.field == "ranges_kernels" else ()
    label = "gpukernsum" if "GridXYZ" in header else report.label
    found = {"kernels" if report.field == "ranges_kernels" else report.field: totals}
    return KernelTotals(
        source=f"{path.name} (nsys summary {label})",
        facts={"tool": "nsys", "report": label},
        warnings=tuple(warnings),
        by_range=by_range,
        **found,
    )


def _by_range(
    path: Path, header: list[str], report: _Report, rows: list[list[str]]
) -> tuple[RangeTotals, ...]:
    """Split a table of kernels in ranges by the name of the range; a leading domain is kept."""
    place, often = header.index(_RANGE), header.index(_RANGE_COUNT) if _RANGE_COUNT in header else None
    found: dict[str, list[list[str]]] = {}
    for row in rows:
        if len(row) == len(header) and row[place].strip():
            found.setdefault(row[place].strip().removeprefix(":"), []).append(row)
    result = []
    for name, own in found.items():
        counts = [_number(path, 0, _RANGE_COUNT, row[often]) for row in own] if often is not None else []
        # For each kernel the table counts the ranges around it.
        instances = max((round(count) for count in counts if count is not None), default=None)
        result.append(RangeTotals(name, instances, _totals(path, header, report, own)[0]))
    return tuple(result)


def merge_totals(parts: Sequence[KernelTotals]) -> KernelTotals:
    """Join different reports of one capture; the first of each kind is used."""
    if len(parts) == 1:
        return parts[0]
    merged = {}
    for kind in ("kernels", "copies", "calls", "ranges"):
        merged[kind] = next((getattr(part, kind) for part in parts if getattr(part, kind)), ())
    return KernelTotals(
        source=", ".join(part.source for part in parts),
        facts={"tool": "nsys", "report": ", ".join(str(part.facts.get("report")) for part in parts)},
        warnings=tuple(warning for part in parts for warning in part.warnings),
        by_range=next((part.by_range for part in parts if part.by_range), ()),
        **merged,
    )


def _rows(path: Path) -> list[list[str]]:
    if not path.is_file():
        raise InputError(
            f"no such file: {path}", hint="give the .csv file that nsys stats wrote", path=str(path)
        )
    raw = read_input(path)
    if not raw.strip():
        raise InputError(
            f"{path} is empty",
            hint="nsys stats writes an empty file when the report contains no such data; was CUDA traced?",
            path=str(path),
        )
    encoding = "utf-16" if raw.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    text = raw.decode(encoding, errors="replace")
    if "\0" in text[:4096]:
        raise InputError(
            f"{path} is not a text file", hint="give a .csv that nsys stats wrote", path=str(path)
        )
    try:
        return list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise InputError(f"{path} is not a readable CSV file: {error}", path=str(path)) from error


def _header(path: Path, rows: list[list[str]]) -> tuple[list[str], int]:
    """Find the header; output of ``nsys stats`` before it (``-o -``) is skipped."""
    for number, row in enumerate(rows[:_BANNER_LINES]):
        if _report_of(row) is not None:
            return [cell.strip() for cell in row], number + 1
    first = next((row for row in rows if any(cell.strip() for cell in row)), [])
    return [cell.strip() for cell in first], 1


def _report_of(row: Sequence[str]) -> _Report | None:
    columns = {cell.strip() for cell in row}
    if not any(_TIME_COLUMN.match(cell) for cell in columns):
        return None
    return next((report for report in _REPORTS if {report.count, report.name} <= columns), None)


def _totals(
    path: Path, header: list[str], report: _Report, rows: list[list[str]]
) -> tuple[tuple[NamedTotal, ...], list[str]]:
    columns = {name: position for position, name in enumerate(header)}
    total = next(name for name in header if _TIME_COLUMN.match(name))
    match = _TIME_COLUMN.match(total)
    unit = (match["unit"] if match else None) or "ns"
    if unit not in _UNITS_NS:
        raise InputError(f"{path.name}: unknown unit of time in {total!r}", path=str(path))
    last = max(number for number, row in enumerate(rows) if row) if any(rows) else -1
    found: dict[str, list[NamedTotal]] = {}
    warnings: list[str] = []
    for number, row in enumerate(rows):
        if not any(cell.strip() for cell in row):
            continue
        if len(row) != len(header):
            if number == last and len(row) < len(header):
                warnings.append(f"{path.name}: the last row was cut off and left out")
                continue
            raise InputError(
                f"{path.name}: row {number + 2} has {len(row)} fields, the header has {len(header)}",
                hint=_DAMAGED,
                path=str(path),
            )
        entry = _entry(path, number, row, columns, report, total, _UNITS_NS[unit])
        found.setdefault(entry.name, []).append(entry)
    return tuple(sorted((_added(entries) for entries in found.values()), key=_rank)), warnings


def _rank(entry: NamedTotal) -> tuple[int, str]:
    return (-entry.total_ns, entry.name)


def _entry(
    path: Path,
    number: int,
    row: list[str],
    columns: dict[str, int],
    report: _Report,
    total: str,
    factor: float,
) -> NamedTotal:
    def value(prefix: str) -> float | None:
        column = next((name for name in columns if name == prefix or name.startswith(f"{prefix} (")), None)
        return _number(path, number, column, row[columns[column]]) if column is not None else None

    def time(prefix: str) -> float | None:
        found = value(prefix)
        return found * factor if found is not None else None

    count, time_total = value(report.count), _number(path, number, total, row[columns[total]])
    if count is None or time_total is None:
        raise InputError(
            f"{path.name}: row {number + 2} has no {report.count if count is None else total}",
            hint=_DAMAGED,
            path=str(path),
        )
    for column, found, most in (
        (report.count, count, MOST_COUNT),
        (total, time_total, MOST_SUMMED_SECONDS * 1e9 / factor),
    ):
        whole = found.is_integer() or (column == total and factor != 1.0)
        if not (0 <= found <= most and whole):
            raise InputError(
                f"{path.name}: row {number + 2}, column {column!r}: {found:g} is not a whole number from 0 to "
                f"{most:g}",
                hint=_OTHER_LOCALE,
                path=str(path),
            )
    name = row[columns[report.name]].strip()
    if report.field == "ranges":
        name = name.removeprefix(":")
    low, high = time("Min"), time("Max")
    return NamedTotal(
        name=name,
        count=round(count),
        total_ns=round(time_total * factor),
        min_ns=round(low) if low is not None else None,
        max_ns=round(high) if high is not None else None,
        median_ns=time("Med"),
        std_ns=time("StdDev"),
    )


def _number(path: Path, number: int, column: str, text: str) -> float | None:
    plain = text.strip().removesuffix("%").strip()
    if plain.lower() in _MISSING:
        return None
    found = _parse_plain_number(plain)
    if found is None or not 0 <= found <= _MOST_CELL:
        shown = reprlib.repr(text)
        raise InputError(
            f"{path.name}: row {number + 2}, column {column!r}: {shown} is not a valid number",
            hint=_OTHER_LOCALE if "," in text else _DAMAGED,
            path=str(path),
        )
    return found


_PLAIN_NUMBER = re.compile(r"[+-]?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d*)?(?:[eE][+-]?\d{1,3})?", re.ASCII)


def _parse_plain_number(text: str) -> float | None:
    """Read digits with a decimal point, commas between thousands or none; ``None`` for anything else (``10,0``)."""
    return float(text.replace(",", "")) if len(text) < 64 and _PLAIN_NUMBER.fullmatch(text) else None


def _added(entries: list[NamedTotal]) -> NamedTotal:
    if len(entries) == 1:
        return entries[0]
    return NamedTotal(
        name=entries[0].name,
        count=sum(entry.count for entry in entries),
        total_ns=sum(entry.total_ns for entry in entries),
        min_ns=_extreme(min, (entry.min_ns for entry in entries)),
        max_ns=_extreme(max, (entry.max_ns for entry in entries)),
    )


def _extreme(choose: Callable[[list[int]], int], values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return choose(known) if known else None
