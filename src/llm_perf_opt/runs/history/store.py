"""The files of an index: ``runs.parquet``, ``metrics.parquet``, ``findings.parquet`` and ``index.json``.

What they were made from, ``summary.json`` and ``improve.json``, stays the truth.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock
import polars as pl

from llm_perf_opt.core.errors import ConfigError, InputError, ToolError
from llm_perf_opt.core.files import atomic_path, explain_os_errors
from llm_perf_opt.model.codec import decode_file, save_json
from llm_perf_opt.model.history import FindingRow, IndexInfo, MetricRow, RunRow

LOGGER = logging.getLogger("llm_perf_opt.history")

RUNS, METRICS, FINDINGS = "runs.parquet", "metrics.parquet", "findings.parquet"
INFO, LOCK = "index.json", ".index.lock"
LOCK_TIMEOUT_S = 600.0
_HINT = "llm-perf-opt index DIR"
_TYPES = {str: pl.String(), int: pl.Int64(), float: pl.Float64(), bool: pl.Boolean()}


def _schema(cls: type) -> dict[str, pl.DataType]:
    hints = typing.get_type_hints(cls)
    kinds = {name: next(a for a in typing.get_args(hint) if a is not types.NoneType) if typing.get_args(hint) else hint
             for name, hint in hints.items()}  # fmt: skip
    return {field.name: _TYPES[kinds[field.name]] for field in dataclasses.fields(cls)}


RUN_COLUMNS, METRIC_COLUMNS, FINDING_COLUMNS = _schema(RunRow), _schema(MetricRow), _schema(FindingRow)
TABLES = {RUNS: RUN_COLUMNS, METRICS: METRIC_COLUMNS, FINDINGS: FINDING_COLUMNS}


def frame(rows: Sequence[Any], columns: dict[str, pl.DataType]) -> pl.DataFrame:
    """Return rows as a table."""
    return pl.DataFrame(
        {name: [getattr(row, name) for row in rows] for name in columns}, schema=columns, strict=False
    )


def read_runs(folder: Path) -> list[RunRow]:
    """Return every run of an index."""
    table = _read(folder / RUNS, RUN_COLUMNS)
    return [RunRow(**row) for row in table.select(list(RUN_COLUMNS)).iter_rows(named=True)]


def read_findings(folder: Path) -> list[FindingRow]:
    """Return every graded finding of an index; none for an index of before there were any."""
    path = folder / FINDINGS
    if not path.is_file():
        return []
    table = _read(path, FINDING_COLUMNS)
    return [FindingRow(**row) for row in table.select(list(FINDING_COLUMNS)).iter_rows(named=True)]


def scan_metrics(folder: Path) -> pl.LazyFrame:
    """Return the metrics of an index, unread."""
    path = folder / METRICS
    _check(path, METRIC_COLUMNS)
    return pl.scan_parquet(path).select(list(METRIC_COLUMNS))


def read_info(folder: Path) -> IndexInfo:
    """Return what an index says of itself."""
    return decode_file(folder / INFO, IndexInfo, hint=_HINT)


def _read(path: Path, columns: dict[str, pl.DataType]) -> pl.DataFrame:
    _check(path, columns)
    try:
        return pl.read_parquet(path)
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
            f"{path} is no file of this index: it has no column '{missing[0]}' of the right type",
            hint="leave it where it is and write elsewhere: --out DIR; an index of another release: move it away",
            path=str(path),
        )


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(
        f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}",
        hint=f"make it again: {_HINT}",
        path=str(path),
    )


def set_aside_unreadable(folder: Path) -> list[str]:
    """Rename files of an index that cannot be read, so that it is made anew and nothing is overwritten; say which."""
    notes = []
    for name, columns in TABLES.items():
        path = folder / name
        if not path.exists():
            continue
        try:
            _check(path, columns)
        except InputError as error:
            number = 1
            while (kept := path.with_name(f"{path.stem}.unreadable-{number}.parquet")).exists():
                number += 1
            with explain_os_errors(kept):
                path.rename(kept)
            notes.append(f"{error.message}; it is kept as {kept.name}, and the index is made anew")
    return notes


@contextlib.contextmanager
def locked(folder: Path, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Hold an index while it is written; others wait, and say that they do."""
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
    with atomic_path(folder / FINDINGS) as temporary:
        frame(rows, FINDING_COLUMNS).write_parquet(temporary)


def write_index(
    folder: Path, runs: pl.DataFrame, parts: Sequence[Path], kept: Sequence[str], info: IndexInfo
) -> None:
    """Write all files, each whole or not at all: metrics first, so that every run in ``runs.parquet`` has its own.

    ``parts`` are new metrics; of those there already, the rows of ``kept`` runs stay. Rows pass through in batches.
    """
    pieces = [pl.scan_parquet(part) for part in parts]
    if kept and (folder / METRICS).is_file():
        pieces.insert(0, scan_metrics(folder).filter(pl.col("run").is_in(list(kept))))
    whole = pl.concat(pieces) if pieces else pl.DataFrame(schema=METRIC_COLUMNS).lazy()
    with atomic_path(folder / METRICS) as temporary:
        whole.sink_parquet(temporary, row_group_size=200_000)
    with atomic_path(folder / RUNS) as temporary:
        runs.write_parquet(temporary)
    info.runs = runs.height
    info.metrics = pl.scan_parquet(folder / METRICS).select(pl.len()).collect().item()
    save_json(folder / INFO, info)
