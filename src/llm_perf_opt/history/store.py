"""The files of an index: ``runs.parquet``, ``metrics.parquet``, ``findings.parquet`` and ``index.json``.

The source files ``summary.json`` and ``improve.json`` remain authoritative.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import re
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock
import polars as pl

from llm_perf_opt.core.errors import ConfigError, InputError, ToolError
from llm_perf_opt.core.escape import one_line
from llm_perf_opt.core.files import atomic_path, explain_os_errors
from llm_perf_opt.history.data import FindingRow, IndexInfo, MetricRow, RunRow
from llm_perf_opt.process.tools import import_optional
from llm_perf_opt.summary.codec import decode_file, save_json

LOGGER = logging.getLogger("llm_perf_opt.history")
RUNS, METRICS, FINDINGS = "runs.parquet", "metrics.parquet", "findings.parquet"
INFO, LOCK = "index.json", ".index.lock"
_LOCK_TIMEOUT_S = 600.0
_HINT = "llm-perf-opt index DIR"
_TYPES = {str: pl.String(), int: pl.Int64(), float: pl.Float64(), bool: pl.Boolean()}


def _schema(cls: type) -> dict[str, pl.DataType]:
    hints = typing.get_type_hints(cls)
    kinds = {name: next(a for a in typing.get_args(hint) if a is not types.NoneType) if typing.get_args(hint) else hint
             for name, hint in hints.items()}  # fmt: skip
    return {field.name: _TYPES[kinds[field.name]] for field in dataclasses.fields(cls)}


RUN_COLUMNS, METRIC_COLUMNS, FINDING_COLUMNS = _schema(RunRow), _schema(MetricRow), _schema(FindingRow)
TABLES = {RUNS: RUN_COLUMNS, METRICS: METRIC_COLUMNS, FINDINGS: FINDING_COLUMNS}
FILE_COLUMNS = {"run": pl.String(), "size": pl.Int64(), "mtime_ns": pl.Int64()}
"""Identity of a summary file: path, size and modification time."""
_READ_BATCH = 5_000
"""Rows of ``runs.parquet`` that are read at once."""
_REPEATED = ("machine", "hardware", "model", "config_hash", "settings", "commit", "versions")
"""Long texts that many runs share: each is kept once."""


def frame(rows: Sequence[Any], columns: dict[str, pl.DataType]) -> pl.DataFrame:
    """Return rows as a table; bytes that are not valid UTF-8 (in file names) are escaped."""
    return pl.DataFrame(
        {name: [_plain(getattr(row, name)) for row in rows] for name in columns},
        schema=columns,
        strict=False,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Convert Polars errors about a file to ours; a full disk has no error number, only a message."""
    with explain_os_errors(path):
        try:
            yield
        except (pl.exceptions.PolarsError, OSError) as error:
            if getattr(error, "errno", None) is not None:
                raise
            found = re.search(r"os error (\d+)", str(error))
            if found is not None:
                raise OSError(int(found[1]), os.strerror(int(found[1]))) from error
            raise ToolError(
                f"cannot write {path}: {' '.join(str(error).split())[:300]}",
                hint="check the disk, or write elsewhere: --out DIR",
                path=str(path),
            ) from error


@dataclasses.dataclass(slots=True)
class Parts:
    """New rows as files in a scratch folder, a batch each."""

    scratch: Path
    runs: list[Path] = dataclasses.field(default_factory=list)
    metrics: list[Path] = dataclasses.field(default_factory=list)

    def add(self, runs: Sequence[RunRow], metrics: Sequence[MetricRow]) -> None:
        """Write one batch."""
        for kind, paths, rows, columns in (
            ("runs", self.runs, runs, RUN_COLUMNS),
            ("metrics", self.metrics, metrics, METRIC_COLUMNS),
        ):
            if rows:
                path = self.scratch / f"{kind}-{len(paths):08d}.parquet"
                with _writing(path):
                    frame(rows, columns).write_parquet(path)
                paths.append(path)


def check_runs(folder: Path) -> None:
    """Raise an error with advice if a folder has no readable index."""
    _check(folder / RUNS, RUN_COLUMNS)


def iter_runs(folder: Path, where: pl.Expr | None = None) -> Iterator[RunRow]:
    """Yield the runs of an index for which ``where`` holds; rows are read in batches to bound memory."""
    path = folder / RUNS
    check_runs(folder)
    texts: dict[str, str] = {}
    try:
        whole = pl.scan_parquet(path).select(list(RUN_COLUMNS))
        for start in range(0, count_runs(folder), _READ_BATCH):
            some = whole.slice(start, _READ_BATCH)
            for row in (some if where is None else some.filter(where)).collect().iter_rows(named=True):
                row |= {name: texts.setdefault(row[name], row[name]) for name in _REPEATED if row[name]}
                yield RunRow(**row)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(path, error) from error


def count_runs(folder: Path) -> int:
    """Return how many runs an index has."""
    return int(pl.scan_parquet(folder / RUNS).select(pl.len()).collect().item())


def read_known(folder: Path) -> pl.DataFrame:
    """Return which summaries an index was made from, as a table of ``FILE_COLUMNS``."""
    names = {"summary_size": "size", "summary_mtime_ns": "mtime_ns"}
    return _read(folder / RUNS, RUN_COLUMNS, ["run", *names]).rename(names).select(list(FILE_COLUMNS))


def read_findings(folder: Path) -> list[FindingRow]:
    """Return every graded finding of an index; empty for an index of an older release."""
    path = folder / FINDINGS
    if not path.is_file():
        return []
    table = _read(path, FINDING_COLUMNS)
    return [FindingRow(**row) for row in table.select(list(FINDING_COLUMNS)).iter_rows(named=True)]


def scan_metrics(folder: Path) -> pl.LazyFrame:
    """Return the metrics of an index, lazily."""
    path = folder / METRICS
    _check(path, METRIC_COLUMNS)
    return pl.scan_parquet(path).select(list(METRIC_COLUMNS))


def read_info(folder: Path) -> IndexInfo:
    """Return the metadata of an index."""
    return decode_file(folder / INFO, IndexInfo, hint=_HINT)


def _read(path: Path, columns: dict[str, pl.DataType], wanted: list[str] | None = None) -> pl.DataFrame:
    _check(path, columns)
    try:
        return pl.read_parquet(path, columns=wanted)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(path, error) from error


def _check(path: Path, columns: dict[str, pl.DataType]) -> None:
    if not path.is_file():
        raise InputError(f"{path.parent} has no index: {path.name} is missing", hint=_HINT, path=str(path))
    try:
        found = dict(pl.read_parquet_schema(path))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(path, error) from error
    missing = [name for name, kind in columns.items() if found.get(name) != kind]
    if missing:
        raise ConfigError(
            f"{path} does not belong to this index: it has no column '{missing[0]}' of the right type",
            hint=f"an index of another release is made again by `{_HINT}`; a file of your own: write elsewhere, --out DIR",
            path=str(path),
        )


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(
        f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}",
        hint=f"make it again: {_HINT}",
        path=str(path),
    )


def set_aside_unusable(folder: Path) -> list[str]:
    """Rename files of an index that cannot be read, or are of another release, so that it is rebuilt; return which.

    Nothing is overwritten. Where no ``index.json`` of ours lies next to it, a file with other columns belongs to another tool.
    """
    notes = []
    for name, columns in TABLES.items():
        path = folder / name
        if not path.exists():
            continue
        try:
            _check(path, columns)
        except InputError as error:
            kept = _set_aside(path, "unreadable")
            notes.append(f"{error.message}; it is kept as {kept.name}, and the index is rebuilt")
        except ConfigError:
            if not _has_info(folder):
                raise
            kept = _set_aside(path, "earlier")
            notes.append(f"{path} is of another release; it is kept as {kept.name}, and the index is rebuilt")
    return notes


def _has_info(folder: Path) -> bool:
    try:
        read_info(folder)
    except InputError:
        return False
    return True


def _set_aside(path: Path, why: str) -> Path:
    number = 1
    while (kept := path.with_name(f"{path.stem}.{why}-{number}.parquet")).exists():
        number += 1
    with explain_os_errors(kept):
        path.rename(kept)
    return kept


@contextlib.contextmanager
def locked(folder: Path, timeout_s: float = _LOCK_TIMEOUT_S) -> Iterator[None]:
    """Hold an index while it is written; others wait and log it."""
    path = folder / LOCK
    with explain_os_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(path)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            LOGGER.info("another process writes the index in %s; waiting for it", folder)
            try:
                lock.acquire(timeout=timeout_s)
            except filelock.Timeout as error:
                raise ToolError(
                    f"another process has written the index in {folder} for {timeout_s:g} s",
                    hint="wait for it, or write elsewhere: --out DIR",
                    path=str(path),
                ) from error
    try:
        yield
    finally:
        lock.release()


def write_findings(folder: Path, rows: Sequence[FindingRow]) -> None:
    """Write the findings that searches graded."""
    with atomic_path(folder / FINDINGS) as temporary, _writing(folder / FINDINGS):
        frame(rows, FINDING_COLUMNS).write_parquet(temporary)


def write_info(folder: Path, info: IndexInfo) -> None:
    """Write the metadata of an index."""
    save_json(folder / INFO, info)


def write_index(folder: Path, parts: Parts, kept: pl.DataFrame, info: IndexInfo) -> None:
    """Write all files, each whole or not at all: metrics first, so that every run in ``runs.parquet`` has its own.

    ``parts`` are new rows; existing rows of ``kept`` runs are preserved. Rows pass through in batches.
    """
    _write_table(folder / METRICS, parts.metrics, kept, METRIC_COLUMNS, row_group_size=20_000)
    _write_table(folder / RUNS, parts.runs, kept, RUN_COLUMNS, row_group_size=_READ_BATCH)
    info.runs = count_runs(folder)
    info.metrics = pl.scan_parquet(folder / METRICS).select(pl.len()).collect().item()
    write_info(folder, info)


def _write_table(
    path: Path,
    parts: list[Path],
    kept: pl.DataFrame,
    columns: dict[str, pl.DataType],
    *,
    row_group_size: int,
) -> None:
    pieces = [pl.scan_parquet(parts)] if parts else []
    if kept.height and path.is_file():
        _check(path, columns)
        there = pl.scan_parquet(path).select(list(columns))
        # A filter streams rows; a join collects them (twice the memory for 20,000 runs).
        pieces.insert(0, there.filter(pl.col("run").is_in(kept["run"].implode())))
    whole = pl.concat(pieces) if pieces else pl.DataFrame(schema=columns).lazy()
    with atomic_path(path) as temporary, _writing(path):
        whole.sink_parquet(temporary, row_group_size=row_group_size)


# SQL over an index, by DuckDB where it is installed.


_MEMORY_LIMIT = "1GB"


def print_query(folder: Path, query: str, *, as_json: bool) -> int:
    """Print the answer as a table, or as a list of JSON objects."""
    names, rows = _run_query(folder, query)
    if as_json:
        print(json.dumps([dict(zip(names, row, strict=True)) for row in rows], default=str))
        return 0
    grid = [names, *([one_line("" if value is None else str(value)) for value in row] for row in rows)]
    widths = [max(len(line[index]) for line in grid) for index in range(len(names))]
    for line in grid:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return 0


def _run_query(folder: Path, query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Answer a query over the views ``runs``, ``metrics`` and ``findings``."""
    try:
        duckdb = import_optional("duckdb")
    except ImportError as error:
        raise ToolError(
            "--sql needs DuckDB, which is not installed", hint='pip install "llm-perf-opt[duckdb]"'
        ) from error
    read_info(folder)
    with duckdb.connect(":memory:", config={"memory_limit": _MEMORY_LIMIT}) as connection:
        for file in TABLES:
            if not (folder / file).is_file():  # an index of an older release without findings
                continue
            name = file.removesuffix(".parquet")
            path = str(folder / file).replace("'", "''")
            connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{path}')")
        try:
            answer = connection.execute(query)
            names = [column[0] for column in answer.description or ()]
            return names, answer.fetchall()
        except duckdb.Error as error:
            raise ConfigError(
                f"--sql: {str(error).strip()}",
                hint="the tables are runs, metrics and findings; their columns: docs/history.md",
            ) from error
