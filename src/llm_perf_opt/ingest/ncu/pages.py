"""The two pages of Nsight Compute's CSV: ``details`` (a row per metric) and ``raw`` (a row per launch)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.ingest.ncu.vendor_units import (
    in_si,
    parse_number,
    parse_unit,
    shows_decimal_comma,
    shows_decimal_point,
)
from llm_perf_opt.model.counters import (
    NcuLaunch,
    NcuRule,
    Quantity,
    RowMetrics,
    WideColumns,
    parse_dimensions,
)

LEADING_COLUMNS = frozenset(
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
class PageBlock:
    """A header and the rows below it."""

    header: Row
    rows: list[Row] = field(default_factory=list)


def require_columns(header: Row, names: Iterable[str], path: Path) -> None:
    """Refuse a table whose header is damaged."""
    missing = [name for name in names if name not in header]
    if missing:
        raise InputError(
            f"{path} has no column {', '.join(missing)}",
            hint="the header is damaged; export the file again",
            path=str(path),
        )


def launch_from_cells(cells: Mapping[str, str], path: Path) -> NcuLaunch:
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
    """Tell whether a file writes ``23,42`` for 23.42; refuse a file that uses both conventions.

    ``1,234`` alone does not tell, so the whole file decides: ``cells`` are the suspicious ones, and
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


def metric_key(section: str, item: str, name: str) -> str:
    """Return the metric's id where the file has it, else ``section/item/label``."""
    both = _ID_IN_LABEL.match(name)
    if both:
        return both.group(2)
    if "__" in name or section == "Command line profiler metrics":
        return name
    return "/".join(part for part in (section, item, name) if part)


def rule_from_cells(cells: Mapping[str, str], *, decimal_comma: bool) -> NcuRule:
    """Return what a rule row says."""
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


def read_long(block: PageBlock, path: Path, notes: list[str]) -> list[NcuLaunch]:
    """Read a ``details`` page or a section file; metric rows are shorter than the header."""
    require_columns(block.header, ("Kernel Name", "Section Name", "Metric Name", "Metric Unit"), path)
    place = {
        name: index for index, name in enumerate(block.header)
    }  # of a name that is there twice, the last
    value_at = place["Metric Value"]
    least = max(place[name] for name in _NEEDED_CELLS if name in place)
    rows = [row for row in block.rows if len(row) > least]
    if len(rows) < len(block.rows):
        notes.append(
            f"{path.name}: {len(block.rows) - len(rows)} lines are no complete rows and were left out"
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
            launch = self.launches[key] = launch_from_cells(
                dict(zip(self._header, row, strict=False)), self._path
            )
        self._last_key, self._rules = key, launch.rules
        self._metrics = launch.metrics  # type: ignore[assignment]  # made as a dict by launch_from_cells

    def _metric_key(self, place: tuple[str, str, str]) -> str:
        found = metric_key(*place)
        self._names[place] = found
        return found

    def _repeat(self, metric: str, quantity: Quantity) -> None:
        """Keep a metric that occurs again: another unit is another quantity, a value beats ``n/a``."""
        known = self._metrics[metric]
        if known.unit != quantity.unit and None not in (known.value, quantity.value):
            self._metrics[f"{metric} [{quantity.unit or 'count'}]"] = quantity
        elif known.value is None:
            self._metrics[metric] = quantity

    def _add_rule(self, row: Row) -> None:
        cells = dict(zip(self._header, row, strict=False))
        rule = rule_from_cells(cells, decimal_comma=self._decimal_comma)
        if rule not in self._rules:
            self._rules.append(rule)


def _quantity(raw: str, raw_unit: str, decimal_comma: bool) -> Quantity:
    unit = parse_unit(raw_unit)
    number = parse_number(raw, decimal_comma=decimal_comma)
    return Quantity(in_si(number, unit), unit.symbol, raw, raw_unit)


# --- raw: one row per launch, units in the second row ----------------------------------------------------


def read_wide(block: PageBlock, path: Path, notes: list[str]) -> list[NcuLaunch]:
    """Read a ``raw`` page. Without its row of units the numbers mean nothing, so such a file is refused."""
    header, rows = block.header, block.rows
    if not rows:
        return []
    require_columns(header, ("Kernel Name",), path)
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
    leading = [(name, columns[index]) for index, name in enumerate(header) if name in LEADING_COLUMNS]
    launches = []
    for number in range(len(whole)):
        launch = launch_from_cells({name: column[number] for name, column in leading}, path)
        launch.metrics = RowMetrics(wide, number)
        launches.append(launch)
    return launches


def _wide_columns(
    header: Row, unit_row: Row, columns: Sequence[Sequence[str]], path: Path, notes: list[str]
) -> WideColumns:
    wide = WideColumns({}, [], [], [])
    measured = [index for index, name in enumerate(header) if name and name not in LEADING_COLUMNS]
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
    """Read a column of ordinary numbers; ``None`` when a cell needs a closer look (text, ``23,42``)."""
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
