"""Reads the CSV of ``ncu --csv``, page ``raw`` or ``details``, of ncu 2020 to 2026.

The tool mixes its messages and the program's output into the file, quotes thousands separators, scales every
value on its own, and a copy of the file may have been cut or saved again in another locale. Unreadable
parts are reported in the notes; nothing is guessed.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from llm_perf_opt.captures.ncu.launches import (
    NcuCapture,
    NcuLaunch,
    NcuRule,
    Quantity,
    RowMetrics,
    WideColumns,
    parse_dimensions,
)
from llm_perf_opt.captures.ncu.merge import merge_launches
from llm_perf_opt.captures.ncu.units import (
    in_si,
    most_of,
    parse_number,
    parse_unit,
    shows_decimal_comma,
    shows_decimal_point,
)
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.files import read_input
from llm_perf_opt.core.limits import MOST_NUMBER

if TYPE_CHECKING:
    import polars as pl


# The two pages of Nsight Compute's CSV: ``details`` (a row per metric) and ``raw`` (a row per launch).


_LEADING_COLUMNS = frozenset(
    {
        "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream",
        "Block Size", "Grid Size", "Device", "CC", "API Call ID", "Thread ID", "NVTX", "Device Name",
    }
)  # fmt: skip
# Not the stream: ncu 2022 gives another one on rule rows.
_KEY_COLUMNS = ("ID", "Process ID", "Kernel Name", "Device")
_NEEDED_CELLS = (
    *_KEY_COLUMNS,
    "Section Name",
    "Body Item Label",
    "Metric Name",
    "Metric Unit",
    "Metric Value",
)
_ID_IN_LABEL = re.compile(r"^(.*\S)\s+\(([a-zA-Z][\w.:]*__[\w.:]+)\)$")
_NO_COLUMN = 1 << 30
Row = list[str]


@dataclass(slots=True)
class _PageBlock:
    """A header and the rows below it."""

    header: Row
    rows: list[Row] = field(default_factory=list)


def _require_columns(header: Row, names: Iterable[str], path: Path) -> None:
    """Reject a table whose header is damaged."""
    missing = [name for name in names if name not in header]
    if missing:
        raise InputError(
            f"{path} has no column {', '.join(missing)}",
            hint="the header is damaged; export the file again",
            path=str(path),
        )


def _launch_from_cells(cells: Mapping[str, str], path: Path) -> NcuLaunch:
    """Return a launch without metrics, from the leading columns of a row."""
    kernel = cells.get("Kernel Name", "")
    return NcuLaunch(
        kernel=kernel,
        launch_id=cells.get("ID", ""),
        process_id=cells.get("Process ID", ""),
        grid=parse_dimensions(cells.get("Grid Size")),
        block=parse_dimensions(cells.get("Block Size")),
        device=cells.get("Device"),
        compute_capability=cells.get("CC"),
        context=cells.get("Context"),
        stream=cells.get("Stream"),
        metrics={},
        sources=(str(path),),
    )


def uses_decimal_comma(
    cells: Iterable[str], path: Path, everything: Callable[[], Iterable[str]] | None = None
) -> bool:
    """Return whether a file uses a decimal comma (``23,42``); reject a file with both conventions.

    ``1,234`` alone is ambiguous, so the whole file decides: ``cells`` are the ambiguous ones, and
    ``everything`` gives the rest to look for the contrary.
    """
    cells = list(cells)
    comma = next((cell for cell in cells if "," in cell and shows_decimal_comma(cell)), None)
    if comma is None:
        return False
    point = next(
        (cell for cell in (everything() if everything else cells) if shows_decimal_point(cell)), None
    )
    if point is None:
        return True
    raise InputError(
        f"{path} mixes decimal comma ({comma}) and decimal point ({point})",
        hint="export it again, without opening it in a spreadsheet in between",
        path=str(path),
    )


def _metric_key(section: str, item: str, name: str) -> str:
    """Return the metric's id where the file has it, else ``section/item/label``."""
    both = _ID_IN_LABEL.match(name)
    if both:
        return both.group(2)
    if "__" in name or section == "Command line profiler metrics":
        return name
    return "/".join(part for part in (section, item, name) if part)


def _rule_from_cells(cells: Mapping[str, str], *, decimal_comma: bool) -> NcuRule:
    percent = parse_number(cells.get("Estimated Speedup") or "", decimal_comma=decimal_comma)
    return NcuRule(
        section=cells.get("Section Name") or "",
        name=cells["Rule Name"],
        kind=cells.get("Rule Type") or "",
        text=" ".join((cells.get("Rule Description") or "").split()),
        speedup_ratio=None if percent is None or not 0 <= percent <= 100 else percent / 100,
        speedup_scope=cells.get("Estimated Speedup Type") or None,
    )


# --- details: one row per metric -------------------------------------------------------------------------


def _read_long(block: _PageBlock, path: Path, notes: list[str]) -> list[NcuLaunch]:
    """Read a ``details`` page or a section file; metric rows are shorter than the header."""
    _require_columns(block.header, ("Kernel Name", "Section Name", "Metric Name", "Metric Unit"), path)
    place = {name: index for index, name in enumerate(block.header)}  # of duplicate names, the last
    value_at = place["Metric Value"]
    least = max(place[name] for name in _NEEDED_CELLS if name in place)
    rows = [row for row in block.rows if len(row) > least]
    if len(rows) < len(block.rows):
        notes.append(
            f"{path.name}: {len(block.rows) - len(rows)} lines are incomplete rows and were left out"
        )
    reader = _LongReader(block.header, path, uses_decimal_comma((row[value_at] for row in rows), path))
    for row in rows:
        reader.add(row)
    return list(reader.launches.values())


class _LongReader:
    """Collects the rows of each launch. Written for speed: ``add`` runs once per metric row."""

    def __init__(self, header: Row, path: Path, decimal_comma: bool) -> None:
        place = {name: index for index, name in enumerate(header)}
        self.launches: dict[tuple[str, ...], NcuLaunch] = {}
        self._header, self._place, self._path, self._decimal_comma = header, place, path, decimal_comma
        self._key_at = [place[name] for name in _KEY_COLUMNS if name in place]
        self._section, self._item = place["Section Name"], place.get("Body Item Label", -1)
        self._name, self._unit, self._value = (
            place["Metric Name"],
            place["Metric Unit"],
            place["Metric Value"],
        )
        self._rule = place.get("Rule Name", _NO_COLUMN)
        self._names: dict[tuple[str, str, str], str] = {}
        self._last_key: tuple[str, ...] | None = None
        self._metrics: dict[str, Quantity] = {}
        self._rules: list[NcuRule] = []

    def add(self, row: Row) -> None:
        key = tuple([row[index] for index in self._key_at])
        if key != self._last_key:
            self._switch(key, row)
        name = row[self._name]
        if name:
            place = (row[self._section], row[self._item] if self._item >= 0 else "", name)
            metric = self._names.get(place) or self._metric_key(place)
            quantity = _quantity(row[self._value], row[self._unit], self._decimal_comma)
            if metric in self._metrics:
                self._repeat(metric, quantity)
            else:
                self._metrics[metric] = quantity
        if len(row) > self._rule and row[self._rule]:
            self._add_rule(row)

    def _switch(self, key: tuple[str, ...], row: Row) -> None:
        launch = self.launches.get(key)
        if launch is None:
            launch = self.launches[key] = _launch_from_cells(
                dict(zip(self._header, row, strict=False)), self._path
            )
        self._last_key, self._rules = key, launch.rules
        self._metrics = launch.metrics  # type: ignore[assignment]  # made as a dict by _launch_from_cells

    def _metric_key(self, place: tuple[str, str, str]) -> str:
        found = _metric_key(*place)
        self._names[place] = found
        return found

    def _repeat(self, metric: str, quantity: Quantity) -> None:
        """Handle a repeated metric: another unit is another quantity, a value replaces ``n/a``."""
        known = self._metrics[metric]
        if known.unit != quantity.unit and None not in (known.value, quantity.value):
            self._metrics[f"{metric} [{quantity.unit or 'count'}]"] = quantity
        elif known.value is None:
            self._metrics[metric] = quantity

    def _add_rule(self, row: Row) -> None:
        cells = dict(zip(self._header, row, strict=False))
        rule = _rule_from_cells(cells, decimal_comma=self._decimal_comma)
        if rule not in self._rules:
            self._rules.append(rule)


def _quantity(raw: str, raw_unit: str, decimal_comma: bool) -> Quantity:
    unit = parse_unit(raw_unit)
    number = parse_number(raw, decimal_comma=decimal_comma)
    return Quantity(in_si(number, unit), unit.symbol, raw, raw_unit)


# --- raw: one row per launch, units in the second row ----------------------------------------------------


def _read_wide(block: _PageBlock, path: Path, notes: list[str]) -> list[NcuLaunch]:
    """Read a ``raw`` page. A file without its row of units is rejected."""
    header, rows = block.header, block.rows
    if not rows:
        return []
    _require_columns(header, ("Kernel Name",), path)
    unit_row = rows[0]
    if unit_row[0] != "":
        raise InputError(
            f"{path}: the raw page has no row of units, so its numbers cannot be used",
            hint="export it again and leave it unchanged: "
            "ncu --import x.ncu-rep --csv --page raw --print-units base",
            path=str(path),
        )
    whole = [row for row in rows[1:] if len(row) >= len(header)]
    if len(whole) < len(rows) - 1:
        notes.append(f"{path.name}: {len(rows) - 1 - len(whole)} rows are cut short and were left out")
    columns = list(zip(*whole, strict=False))
    if not columns:
        return []
    wide = _wide_columns(header, unit_row, columns, path, notes)
    leading = [(name, columns[index]) for index, name in enumerate(header) if name in _LEADING_COLUMNS]
    launches = []
    for number in range(len(whole)):
        launch = _launch_from_cells({name: column[number] for name, column in leading}, path)
        launch.metrics = RowMetrics(wide, number)
        launches.append(launch)
    return launches


def _wide_columns(
    header: Row, unit_row: Row, columns: Sequence[Sequence[str]], path: Path, notes: list[str]
) -> WideColumns:
    wide = WideColumns({}, [], [], [])
    measured = [index for index, name in enumerate(header) if name and name not in _LEADING_COLUMNS]
    parsed = [_plain_numbers(columns[index]) for index in measured]
    odd = [
        cell for at, values in zip(measured, parsed, strict=True) if values is None for cell in columns[at]
    ]
    comma = uses_decimal_comma(odd, path, lambda: (cell for index in measured for cell in columns[index]))
    for index, values in zip(measured, parsed, strict=True):
        name, cells = header[index], columns[index]
        if name in wide.index:
            if cells != wide.cells[wide.index[name]]:
                notes.append(f"{path.name}: {name} occurs twice with different values; the first is used")
            continue
        raw_unit = unit_row[index] if index < len(unit_row) else ""
        unit = parse_unit(raw_unit)
        if values is None or comma:
            values = [parse_number(cell, decimal_comma=comma) for cell in cells]
        values = [in_si(value, unit) for value in values]
        wide.index[name] = len(wide.values)
        wide.units.append((unit.symbol, raw_unit))
        wide.values.append(values)
        wide.cells.append(cells)
    return wide


_NOT_PLAIN = re.compile("[nN_]")
_ODD = re.compile(r"[^-+0-9.,eE\n]|,(?!\d{3}(?!\d))|\d{4},|\.\d*,")


def _plain_numbers(cells: Sequence[str]) -> list[float | None] | None:
    """Read a column of ordinary numbers; ``None`` if a cell needs the careful reader (text, ``23,42``)."""
    try:
        values: list[float | None] = list(map(float, cells))
    except ValueError:
        return _grouped_numbers(cells)
    # float() also takes "nan", "inf" and "1_000", which are not measurements.
    return None if _NOT_PLAIN.search("".join(cells)) else values


def _grouped_numbers(cells: Sequence[str]) -> list[float | None] | None:
    """Read a column with well-formed thousands separators and ``n/a``."""
    joined = "\n".join(cells)
    holes = "n/a" in joined
    if _ODD.search(joined.replace("n/a", "") if holes else joined):
        return None
    try:
        if not holes:
            return list(map(float, joined.replace(",", "").split("\n")))
        texts = joined.replace(",", "").split("\n")
        return [None if text == "n/a" else float(text) for text in texts]
    except ValueError:
        return None


# Column-wise reading of both pages: the fast path for large, regular files.
#
# Exactly what ``_read_long`` and ``_read_wide`` of :mod:`ncu_pages` give, or ``None`` if anything is unusual
# (stray lines, a cut row, another locale, a metric twice): those readers then process every cell.


WORTHWHILE_BYTES = 1_000_000
"""Below this the plain reader is done before the column library is loaded."""
_KEY = ("ID", "Process ID", "Kernel Name", "Device")
_NEEDED = (
    "ID",
    "Process ID",
    "Kernel Name",
    "Section Name",
    "Metric Name",
    "Metric Unit",
    "Metric Value",
    "Rule Name",
)
_CELLS = ("Section Name", "Metric Name", "Metric Unit", "Metric Value")
# Digits separated by blanks or marks: a number in another convention.
_NUMBER_LIKE = r"^\s*[+-]?\d[\d\s.,'’eE+-]*$"
# A comma that is not followed by exactly three digits, or preceded by more than three.
_ODD_COMMA = r",(?:\d{0,2}(?:[^\d]|$)|\d{4})|\d{4},"


class _LongMetrics(Mapping[str, Quantity]):
    """Metrics of one launch: a slice of shared columns; values are built on demand."""

    __slots__ = ("_columns", "_index", "_start")

    def __init__(self, columns: _LongColumns, start: int, index: Mapping[str, int]) -> None:
        self._columns, self._start, self._index = columns, start, index

    def __getitem__(self, name: str) -> Quantity:
        return self._columns.quantity(self._start + self._index[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, name: object) -> bool:
        return name in self._index


class _LongColumns:
    """Values in SI, with the cells they came from."""

    __slots__ = ("_raw", "_units", "_values")

    def __init__(self, values: pl.Series, raw: pl.Series, units: pl.Series) -> None:
        self._values, self._raw, self._units = values, raw, units

    def quantity(self, row: int) -> Quantity:
        """Return one value."""
        raw_unit = str(self._units[row])
        return Quantity(self._values[row], parse_unit(raw_unit).symbol, str(self._raw[row]), raw_unit)


def read_long_columns(data: bytes, delimiter: str, path: Path) -> list[NcuLaunch] | None:
    """Read a whole table that starts with its header; ``None`` when it is not perfectly regular."""
    import polars as pl

    frame = _read_frame(data, delimiter)
    if frame is None:
        return None
    if not set(_NEEDED) <= set(frame.columns) or frame.is_empty() or not _is_regular(frame):
        return None
    key = [name for name in _KEY if name in frame.columns]
    changed = pl.any_horizontal(pl.col(name) != pl.col(name).shift() for name in key).fill_null(True)
    marks = frame.select(changed.alias("changed"))["changed"]
    firsts = frame.filter(marks)
    if firsts.select(key).is_duplicated().any():
        return None  # rows of one launch are not together
    launches = [_launch_from_cells(cells, path) for cells in firsts.iter_rows(named=True)]
    numbered = frame.with_columns(marks.cum_sum().alias("launch"))
    needed = [name for name in (*_CELLS, "Body Item Label") if name in frame.columns]
    if not _fill_metrics(numbered.select("launch", *needed).filter(pl.col("Metric Name") != ""), launches):
        return None
    for cells in numbered.filter(pl.col("Rule Name") != "").iter_rows(named=True):
        rule = _rule_from_cells(cells, decimal_comma=False)
        rules = launches[cells["launch"] - 1].rules
        if rule not in rules:
            rules.append(rule)
    return launches


def _read_frame(data: bytes, delimiter: str) -> pl.DataFrame | None:
    import polars as pl

    try:
        frame = pl.read_csv(data, separator=delimiter, infer_schema=False, truncate_ragged_lines=True)
    except pl.exceptions.PolarsError:
        return None
    return frame.fill_null("")


def _is_regular(frame: pl.DataFrame) -> bool:
    """Return whether every line is a row with a value or a rule, and every comma separates thousands."""
    import polars as pl

    if not all(text.isdigit() for text in frame["ID"].unique()):
        return False
    metric, rule = pl.col("Metric Name") != "", pl.col("Rule Name") != ""
    checks = frame.select(
        (metric | rule).all().alias("rows"), (~metric | (pl.col("Metric Value") != "")).all().alias("filled")
    )
    values = frame["Metric Value"]
    grouped = values.filter(values.str.contains(",", literal=True))
    return bool(checks["rows"][0] and checks["filled"][0]) and not grouped.str.contains(_ODD_COMMA).any()


def _fill_metrics(frame: pl.DataFrame, launches: list[NcuLaunch]) -> bool:
    """Assign slices to launches; ``False`` if a cell or the order needs the careful reader."""
    import polars as pl

    item = pl.col("Body Item Label") if "Body Item Label" in frame.columns else pl.lit("")
    place = pl.concat_str(["Section Name", item, "Metric Name"], separator="\x1f")
    frame = frame.with_columns(place.alias("place").cast(pl.Categorical))
    codes = frame["place"].to_physical()
    names = {
        int(code): _metric_key(*str(text).split("\x1f"))
        for code, text in zip(
            codes.unique(maintain_order=True), frame["place"].unique(maintain_order=True), strict=True
        )
    }
    numbers = _numbers(frame)
    if numbers is None:
        return False
    columns = _LongColumns(numbers, frame["Metric Value"], frame["Metric Unit"])
    layouts: dict[bytes, dict[str, int]] = {}
    order = codes.to_numpy()
    counts = frame.group_by("launch", maintain_order=True).len()
    start = 0
    for number, length in counts.iter_rows():
        layout = order[start : start + length]
        index = layouts.setdefault(layout.tobytes(), {})
        if not index:
            index.update({names[int(code)]: offset for offset, code in enumerate(layout)})
        if len(index) != length:
            return False  # a metric twice
        launches[number - 1].metrics = _LongMetrics(columns, start, index)
        start += length
    return True


def _numbers(frame: pl.DataFrame) -> pl.Series | None:
    """Return values in SI; ``None`` if a cell looks like a number but cannot be parsed."""
    import polars as pl

    factors = {str(unit): parse_unit(str(unit)).factor for unit in frame["Metric Unit"].unique()}
    text = pl.col("Metric Value").str.replace_all(",", "", literal=True)
    factor = pl.col("Metric Unit").replace_strict(factors, return_dtype=pl.Float64)
    values = frame.select((text.cast(pl.Float64, strict=False) * factor).alias("value"))["value"]
    if _has_unread(frame["Metric Value"], values):
        return None
    # Valid values are in this range; others are handled by the careful reader.
    times = [unit for unit in factors if parse_unit(unit).symbol == "s"]
    if not values.drop_nulls().is_between(0, MOST_NUMBER).all():
        return None
    if (values.filter(frame["Metric Unit"].is_in(times)) > most_of("s")).any():
        return None
    return values


def _has_unread(cells: pl.Series, values: pl.Series) -> bool:
    """Return whether a cell looks like a number but could not be parsed."""
    if not values.null_count():
        return False
    return bool(cells.filter(values.is_null()).str.contains(_NUMBER_LIKE).any())


# --- raw -------------------------------------------------------------------------------------------------


def read_wide_columns(data: bytes, delimiter: str, path: Path) -> list[NcuLaunch] | None:
    """Read a whole raw page that starts with its header; ``None`` when it is not perfectly regular."""
    import polars as pl

    frame = _read_frame(data, delimiter)
    if (
        frame is None
        or len(frame) < 2
        or not {"ID", "Kernel Name"} <= set(frame.columns)
        or frame["ID"][0] != ""
    ):
        return None
    if any("_duplicated_" in name for name in frame.columns):
        return None
    units, body = frame.row(0, named=True), frame.slice(1)
    measured = [name for name in frame.columns if name and name not in _LEADING_COLUMNS]
    whole = body["ID"].str.contains(r"^\d+$").all() and (body[frame.columns[-1]] != "").all()
    odd = body.select(pl.any_horizontal(pl.col(measured).str.contains(_ODD_COMMA).any()).alias("odd"))
    if not measured or not whole or odd["odd"][0]:
        return None
    wide = _wide(body, measured, units)
    if wide is None:
        return None
    leading = body.select([name for name in frame.columns if name in _LEADING_COLUMNS])
    launches = [_launch_from_cells(cells, path) for cells in leading.iter_rows(named=True)]
    for number, launch in enumerate(launches):
        launch.metrics = RowMetrics(wide, number)
    return launches


def _wide(body: pl.DataFrame, measured: list[str], units: Mapping[str, str]) -> WideColumns | None:
    import polars as pl

    parsed = {name: parse_unit(units[name]) for name in measured}
    groups: dict[float, list[str]] = {}
    for name in measured:
        groups.setdefault(parsed[name].factor, []).append(name)
    numbers = body.select(
        pl.col(names).str.replace_all(",", "", literal=True).cast(pl.Float64, strict=False) * factor
        for factor, names in groups.items()
    )
    for name, holes in zip(numbers.columns, numbers.null_count().row(0), strict=True):
        if holes and _has_unread(body[name], numbers[name]):
            return None
    # Valid values are in this range; others are handled by the careful reader.
    if not numbers.select(pl.all_horizontal(pl.all().is_between(0, MOST_NUMBER).all()).alias("sound"))[
        "sound"
    ][0]:
        return None
    times = [name for name in measured if parsed[name].symbol == "s"]
    if any((numbers[name] > most_of("s")).any() for name in times):
        return None
    return WideColumns(
        index={name: place for place, name in enumerate(measured)},
        units=[(parsed[name].symbol, units[name]) for name in measured],
        values=[cast("Sequence[float | None]", numbers[name]) for name in measured],
        cells=[cast("Sequence[str]", body[name]) for name in measured],
    )


_EXPORT_HINT = "export it with: ncu --import x.ncu-rep --csv --page raw --print-units base"
_HEADER_START = re.compile(
    r'^\ufeff?"?ID"?[,;\t]"?(?:Process ID|Kernel Name|Process Name|API Call ID)', re.MULTILINE
)
_MESSAGE = re.compile(r"^==(?:PROF|WARNING|ERROR|LOG)==.*$", re.MULTILINE)
_OTHER_PAGES = (
    (re.compile(r"^Time \(%\)|Total Time \(ns\)"), "a kernel summary of nsys", "give it with --nsys"),
    (re.compile(r'"#".*"Source"|"Address Space"'), "ncu's source page", _EXPORT_HINT),
    (re.compile(r"Session|Device Attributes|Launch Settings"), "ncu's session page", _EXPORT_HINT),
)


def read_ncu_csv(path: Path) -> NcuCapture:
    """Read one CSV file; raise :class:`InputError` when it holds no launches."""
    text = _read_text(path)
    has_messages = "\n==" in text or text.startswith("==")
    messages = [line.strip() for line in _MESSAGE.findall(text)] if has_messages else []
    start = _HEADER_START.search(text)
    if start is None:
        raise _not_a_table(path, text, messages)
    notes: list[str] = []
    regular = _read_columns(text, start.start(), path, has_messages=has_messages)
    if regular is not None:
        return NcuCapture(merge_launches(regular), str(path), notes, messages)
    launches: list[NcuLaunch] = []
    try:
        for block in _split_blocks(text[start.start() :].lstrip("\ufeff"), path.name, notes):
            read = _read_long if "Metric Value" in block.header else _read_wide
            launches.extend(read(block, path, notes))
    except csv.Error as error:
        raise InputError(f"{path} is damaged: {error}", hint=_EXPORT_HINT, path=str(path)) from error
    if not launches:
        raise InputError(
            f"{path} has a header but no complete row",
            hint=f"the file is empty or was cut; {_EXPORT_HINT}",
            path=str(path),
        )
    return NcuCapture(merge_launches(launches), str(path), notes, messages)


def _read_columns(text: str, start: int, path: Path, *, has_messages: bool) -> list[NcuLaunch] | None:
    """Try the fast path: a large page without other lines."""
    head = text[start : text.find("\n", start)]
    if len(text) < WORTHWHILE_BYTES or has_messages or not text.endswith("\n"):
        return None
    second = any(text.find(mark, start + 1) >= 0 for mark in ('\n"ID"', "\nID"))
    if second or text.count('"') % 2:
        return None
    delimiter = max(",;\t", key=head.count)
    body = text[start:].lstrip("\ufeff")
    read = read_long_columns if "Metric Value" in head else read_wide_columns
    return read(body.encode("utf-8", errors="replace"), delimiter, path)


def _read_text(path: Path) -> str:
    data = read_input(path)
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
            f"{path} contains an error of ncu instead of a table: {errors[0]}",
            hint="solve it and profile again",
            path=str(path),
        )
    for pattern, what, fix in _OTHER_PAGES:
        if pattern.search(text[:4000]):
            return InputError(f"{path} is {what}, not a page with metrics", hint=fix, path=str(path))
    return InputError(
        f"{path} is not a CSV page of ncu (no header row with ID and Kernel Name)",
        hint=_EXPORT_HINT,
        path=str(path),
    )


def _split_blocks(text: str, name: str, notes: list[str]) -> Iterator[_PageBlock]:
    """Yield each header with its rows; other lines (messages, the program's output) are left out."""
    head = text[: text.find("\n")] if "\n" in text else text
    delimiter = max(",;\t", key=head.count)
    body = _close_quotes(_MESSAGE.sub("", text) if "\n==" in text else text, name, notes)
    block: _PageBlock | None = None
    stray = 0
    for row in csv.reader(io.StringIO(body, newline=""), delimiter=delimiter):
        if not row:
            continue
        if row[0] == "ID":
            if block is not None:
                yield block
            block = _PageBlock(row)
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
    """Return whether the last row has fewer fields than every other one."""
    return len(rows) > 1 and len(rows[-1]) < min(len(row) for row in rows[:-1])


def _close_quotes(text: str, name: str, notes: list[str]) -> str:
    """Remove lines with an open quote: program output, or a truncated last row."""
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
