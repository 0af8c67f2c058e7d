"""Validated access to an nsys SQLite export: its schema, its tables, and columns as arrays."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from urllib.parse import quote

import numpy as np

from llm_perf_opt.captures.nsys.sqlite_pages import (
    NULL,
    Decoded,
    Int64,
    PageReader,
    PagesDamaged,
    PagesUnsupported,
)
from llm_perf_opt.captures.nsys.text_pool import HashCollision, TextPool, operator_name
from llm_perf_opt.captures.nsys.validation import RowProblems
from llm_perf_opt.core.errors import InputError

_MAGIC = b"SQLite format 3\0"
_META_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")  # since 2023; until 2022.4
_MARKS_OF_NSYS = {"StringIds", "NVTX_EVENTS", "TARGET_INFO_SYSTEM_ENV", "ANALYSIS_DETAILS", *_META_TABLES}
_CHUNK = 500
_LONGEST_VALUE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Table:
    """Location and contents of a table."""

    name: str
    root_page: int
    columns: dict[str, int]
    """Column → position in the record."""
    has_key: bool = False
    """A declared primary key or a generated column may not be stored in the record, so pages alone do not tell it."""


@dataclass(frozen=True, slots=True)
class Export:
    """An open export; read-only, and no file is left next to it."""

    path: Path
    database: sqlite3.Connection
    tables: dict[str, Table]
    product_version: str | None
    schema_version: str | None
    use_pages: bool = True
    problems: RowProblems = field(default_factory=lambda: RowProblems("the export"))
    ahead: dict[tuple[str, ...], Future[Decoded]] = field(default_factory=dict)
    """Tables that a thread decodes meanwhile: (table, columns …) → its pages."""

    @property
    def schema(self) -> str:
        """Name the schema found, for messages."""
        product = f"nsys {self.product_version}" if self.product_version else "nsys of unknown version"
        return f"{product}, schema {self.schema_version or 'not stated'}"

    def has(self, table: str, *columns: str) -> bool:
        """Whether the table, and these columns of it, exist. Exports only contain tables that have rows."""
        return table in self.tables and all(name in self.tables[table].columns for name in columns)

    def require(self, table: str, *columns: str) -> None:
        """Reject a table without a required column."""
        missing = [name for name in columns if name not in self.tables[table].columns]
        if missing:
            raise InputError(
                f"{self.path.name}: table {table} has no column {', '.join(missing)} ({self.schema})",
                hint="export the report again: nsys export --type sqlite REPORT.nsys-rep",
                path=str(self.path),
            )

    def read(
        self, table: str, wanted: Sequence[str], *, text: str | None = None, pool: TextPool | None = None
    ) -> dict[str, Int64]:
        """Read integer columns (and one text column into ``pool``), rows in file order.

        SQL NULL and columns this schema does not have become :data:`NULL`; for text, -1.
        """
        found, present = self.tables[table], self._present(table, wanted)
        pool = pool if pool is not None else TextPool()
        columns = self._read_present(found, present, text, pool)
        rows = len(next(iter(columns.values())))
        for name in wanted:
            if name not in columns:
                columns[name] = np.full(rows, -1 if name == text else NULL, np.int64)
        return columns

    def read_ahead(self, worker: Executor, table: str, wanted: Sequence[str]) -> None:
        """Let a thread decode integer columns that :meth:`read` is asked for later: NumPy works outside Python's lock."""
        if self.has(table) and self.use_pages and not self.tables[table].has_key:
            names = self._present(table, wanted)
            self.ahead[table, *names] = worker.submit(
                self._decode, self.tables[table], names, None, TextPool()
            )

    def _present(self, table: str, wanted: Sequence[str]) -> list[str]:
        columns = self.tables[table].columns
        return sorted((name for name in wanted if name in columns), key=columns.__getitem__)

    def _decode(self, table: Table, names: list[str], text: str | None, pool: TextPool) -> Decoded:
        with PageReader(self.path) as reader:
            return reader.read(table.root_page, [(name, table.columns[name]) for name in names], text, pool)

    def _read_present(
        self, table: Table, names: list[str], text: str | None, pool: TextPool
    ) -> dict[str, Int64]:
        if self.use_pages and not table.has_key:
            known = len(pool.strings)
            try:
                begun = self.ahead.pop((table.name, *names), None)
                decoded = begun.result() if begun is not None else self._decode(table, names, text, pool)
                columns = self._with_odd_rows(table, decoded, names, text, pool)
                if text in columns and len(decoded.odd_rows):
                    columns[text] = pool.in_order_of_appearance(columns[text], known)
                return columns
            except (PagesUnsupported, HashCollision, ValueError, IndexError, OverflowError):
                # Pages that are damaged or not understood are read or rejected by SQLite itself.
                pool.forget_after(known)
        return self._read_by_cursor(table, names, text, pool)

    def _with_odd_rows(
        self, table: Table, decoded: Decoded, names: list[str], text: str | None, pool: TextPool
    ) -> dict[str, Int64]:
        query = f"SELECT {_listed(names)} FROM {_quoted(table.name)} WHERE rowid = ?"
        for row, rowid in zip(decoded.odd_rows.tolist(), decoded.odd_rowids.tolist(), strict=True):
            values = self.database.execute(query, (rowid,)).fetchone()
            if values is None:
                raise PagesUnsupported(f"SQLite does not find row {rowid}")
            for name, value in zip(names, values, strict=True):
                decoded.columns[name][row] = self._column(name, [value], text, pool)[0]
        return decoded.columns

    def _read_by_cursor(
        self, table: Table, names: list[str], text: str | None, pool: TextPool
    ) -> dict[str, Int64]:
        parts: dict[str, list[Int64]] = {name: [np.empty(0, np.int64)] for name in names}
        cursor = self.database.execute(f"SELECT {_listed(names)} FROM {_quoted(table.name)} ORDER BY rowid")
        while rows := cursor.fetchmany(50_000):
            for name, values in zip(names, zip(*rows, strict=True), strict=True):
                parts[name].append(self._column(name, values, text, pool))
        return {name: np.concatenate(parts.pop(name)) for name in names}

    def _column(self, name: str, values: Sequence[object], text: str | None, pool: TextPool) -> Int64:
        if name == text:
            add = pool.add
            ids = [-1 if one in (None, "") else add(operator_name(_as_text(one))) for one in values]
            return np.array(ids, np.int64)
        kinds = set(map(type, values))
        if not kinds <= {int, NoneType}:
            strange = next(one for one in values if not isinstance(one, int | NoneType))
            raise InputError(
                f"{self.path.name}: column {name} holds {strange!r}, not a whole number ({self.schema})",
                path=str(self.path),
            )
        return np.array(
            [NULL if one is None else one for one in values] if NoneType in kinds else values, np.int64
        )

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """Look up string ids; unknown ids are left out."""
        if "StringIds" not in self.tables:
            return {}
        wanted = sorted({int(one) for one in ids if one >= 0})
        found: dict[int, str] = {}
        for first in range(0, len(wanted), _CHUNK):
            chunk = wanted[first : first + _CHUNK]
            marks = ",".join("?" * len(chunk))
            for key, value in self.database.execute(
                f"SELECT id, value FROM StringIds WHERE id IN ({marks})", chunk
            ):
                found[key] = _as_text(value)
        return found

    def rows(self, table: str, *columns: str) -> list[tuple[object, ...]]:
        """Return a small table's columns as Python values; empty if the table or a column is absent."""
        if not self.has(table, *columns):
            return []
        return self.database.execute(f"SELECT {_listed(columns)} FROM {_quoted(table)}").fetchall()

    def labels(self, table: str) -> dict[int, str]:
        """Return an ``ENUM_…`` table as id → label."""
        return {key: str(label) for key, label in self.rows(table, "id", "label") if isinstance(key, int)}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _listed(names: Iterable[str]) -> str:
    return ", ".join(_quoted(name) for name in names)


def _as_text(value: object) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)


_STEPS_AT_ONCE = 1_000_000
_STEPS_PER_BYTE = 50
"""A row takes at least four bytes of a file, and some tens of SQLite's steps to read, a few times at most."""


class _Steps:
    """Aborts a query with more steps than a valid file of this size needs: pages used twice repeat their rows."""

    def __init__(self, size: int) -> None:
        self._left = 20 + _STEPS_PER_BYTE * size // _STEPS_AT_ONCE

    def __call__(self) -> bool:
        self._left -= 1
        return self._left < 0


@contextmanager
def open_export(path: Path, *, use_pages: bool = True) -> Iterator[Export]:
    """Open an nsys SQLite export without modifying it; reject other files, naming their type."""
    path = Path(path)
    _check_file(path)
    # immutable: no lock, no journal and no -shm file, also in read-only directories.
    database = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE_BYTES)
    database.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
    database.set_progress_handler(_Steps(path.stat().st_size), _STEPS_AT_ONCE)
    try:
        database.execute("PRAGMA trusted_schema = OFF")
        tables = _tables(database)
        _check_is_nsys(path, tables)
        meta = _meta(database, tables)
        yield Export(
            path,
            database,
            tables,
            meta.get("EXPORT_PRODUCT_VERSION"),
            meta.get("EXPORT_SCHEMA_VERSION"),
            use_pages,
            RowProblems(path.name),
        )
    except (sqlite3.DatabaseError, sqlite3.DataError, UnicodeError, PagesDamaged) as error:
        raise InputError(
            f"{path} is damaged or was cut short: {error}",
            hint="copy it again, or export again: nsys export --type sqlite REPORT.nsys-rep",
            path=str(path),
        ) from error
    finally:
        database.close()


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise InputError(
            f"no such file: {path}", hint="give the .sqlite file that nsys export wrote", path=str(path)
        )
    try:
        with path.open("rb") as stream:
            head = stream.read(100)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", path=str(path)) from error
    if not head:
        raise InputError(
            f"{path} is empty", hint="nsys writes an empty file when it had nothing to export", path=str(path)
        )
    if not head.startswith(_MAGIC):
        raise InputError(
            f"{path} is not a SQLite file", hint="nsys export --type sqlite REPORT.nsys-rep", path=str(path)
        )
    for suffix in ("-wal", "-journal"):
        side = path.with_name(path.name + suffix)
        if side.is_file() and side.stat().st_size:
            raise InputError(
                f"{path.name} is being written, or its writer did not finish ({side.name} is next to it)",
                hint="wait for the export to end, or export again",
                path=str(path),
            )


def _tables(database: sqlite3.Connection) -> dict[str, Table]:
    tables: dict[str, Table] = {}
    listing = database.execute("SELECT name, rootpage FROM sqlite_master WHERE type = 'table'").fetchall()
    for name, root in listing:
        info = database.execute(f"PRAGMA table_xinfo({_quoted(name)})").fetchall()
        # Generated columns may or may not be stored in the record (row[6] is not 0 for them): only SQLite knows their values.
        by_cursor = any(row[5] or row[6] for row in info)
        tables[name] = Table(name, root or 0, {row[1]: row[0] for row in info}, by_cursor)
    return tables


def _check_is_nsys(path: Path, tables: dict[str, Table]) -> None:
    if not _MARKS_OF_NSYS & tables.keys() and not any(name.startswith("CUPTI_ACTIVITY_") for name in tables):
        some = ", ".join(sorted(tables)[:6]) or "none"
        raise InputError(
            f"{path} is a SQLite database, but no Nsight Systems export (tables: {some})",
            hint="give the .sqlite file that nsys export wrote",
            path=str(path),
        )


def _meta(database: sqlite3.Connection, tables: dict[str, Table]) -> dict[str, str]:
    for name in _META_TABLES:
        if name in tables and {"name", "value"} <= tables[name].columns.keys():
            return {
                str(key): str(value) for key, value in database.execute(f"SELECT name, value FROM {name}")
            }
    return {}
