"""Both pages read in columns: the fast way for large, regular files.

Exactly what ``read_long`` and ``read_wide`` of :mod:`ncu_pages` give, or ``None`` where anything is unusual
(stray lines, a cut row, another locale, a metric twice): those readers then look at every cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from llm_perf_opt.ingest.ncu.pages import (
    LEADING_COLUMNS,
    launch_from_cells,
    metric_key,
    rule_from_cells,
)
from llm_perf_opt.ingest.ncu.vendor_units import most_of, parse_unit
from llm_perf_opt.model.counters import (
    NcuLaunch,
    Quantity,
    RowMetrics,
    WideColumns,
)
from llm_perf_opt.model.limits import MOST_NUMBER

if TYPE_CHECKING:
    import polars as pl

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
# Digits with blanks or marks between them: a number of another convention.
_NUMBER_LIKE = r"^\s*[+-]?\d[\d\s.,'’eE+-]*$"
# A comma that does not stand before exactly three digits, or stands after more than three.
_ODD_COMMA = r",(?:\d{0,2}(?:[^\d]|$)|\d{4})|\d{4},"


class LongMetrics(Mapping[str, Quantity]):
    """Metrics of one launch: a slice of shared columns; a value is built when it is asked for."""

    __slots__ = ("_columns", "_index", "_start")

    def __init__(self, columns: LongColumns, start: int, index: Mapping[str, int]) -> None:
        self._columns, self._start, self._index = columns, start, index

    def __getitem__(self, name: str) -> Quantity:
        return self._columns.quantity(self._start + self._index[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, name: object) -> bool:
        return name in self._index


class LongColumns:
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
    launches = [launch_from_cells(cells, path) for cells in firsts.iter_rows(named=True)]
    numbered = frame.with_columns(marks.cum_sum().alias("launch"))
    needed = [name for name in (*_CELLS, "Body Item Label") if name in frame.columns]
    if not _fill_metrics(numbered.select("launch", *needed).filter(pl.col("Metric Name") != ""), launches):
        return None
    for cells in numbered.filter(pl.col("Rule Name") != "").iter_rows(named=True):
        rule = rule_from_cells(cells, decimal_comma=False)
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
    """Tell whether every line is a row with a value or a rule, and every comma separates thousands."""
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
    """Give every launch its slice; ``False`` when a cell or an order needs the careful reader."""
    import polars as pl

    item = pl.col("Body Item Label") if "Body Item Label" in frame.columns else pl.lit("")
    place = pl.concat_str(["Section Name", item, "Metric Name"], separator="\x1f")
    frame = frame.with_columns(place.alias("place").cast(pl.Categorical))
    codes = frame["place"].to_physical()
    names = {
        int(code): metric_key(*str(text).split("\x1f"))
        for code, text in zip(
            codes.unique(maintain_order=True), frame["place"].unique(maintain_order=True), strict=True
        )
    }
    numbers = _numbers(frame)
    if numbers is None:
        return False
    columns = LongColumns(numbers, frame["Metric Value"], frame["Metric Unit"])
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
        launches[number - 1].metrics = LongMetrics(columns, start, index)
        start += length
    return True


def _numbers(frame: pl.DataFrame) -> pl.Series | None:
    """Return values in SI; ``None`` when a cell looks like a number and is not read as one."""
    import polars as pl

    factors = {str(unit): parse_unit(str(unit)).factor for unit in frame["Metric Unit"].unique()}
    text = pl.col("Metric Value").str.replace_all(",", "", literal=True)
    factor = pl.col("Metric Unit").replace_strict(factors, return_dtype=pl.Float64)
    values = frame.select((text.cast(pl.Float64, strict=False) * factor).alias("value"))["value"]
    if _has_unread(frame["Metric Value"], values):
        return None
    # Sound values are between these; of others the careful reader says what they are.
    times = [unit for unit in factors if parse_unit(unit).symbol == "s"]
    if not values.drop_nulls().is_between(0, MOST_NUMBER).all():
        return None
    if (values.filter(frame["Metric Unit"].is_in(times)) > most_of("s")).any():
        return None
    return values


def _has_unread(cells: pl.Series, values: pl.Series) -> bool:
    """Tell whether a cell looks like a number and was not read as one."""
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
    measured = [name for name in frame.columns if name and name not in LEADING_COLUMNS]
    whole = body["ID"].str.contains(r"^\d+$").all() and (body[frame.columns[-1]] != "").all()
    odd = body.select(pl.any_horizontal(pl.col(measured).str.contains(_ODD_COMMA).any()).alias("odd"))
    if not measured or not whole or odd["odd"][0]:
        return None
    wide = _wide(body, measured, units)
    if wide is None:
        return None
    leading = body.select([name for name in frame.columns if name in LEADING_COLUMNS])
    launches = [launch_from_cells(cells, path) for cells in leading.iter_rows(named=True)]
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
    # Sound values are between these; of others the careful reader says what they are.
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
