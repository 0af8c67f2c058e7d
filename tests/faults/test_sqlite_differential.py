"""The page reader of nsys exports against SQLite itself, on generated databases: the same rows, or refused; never others."""

from __future__ import annotations

import os
import random
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_perf_opt.captures.nsys.export import open_export
from llm_perf_opt.captures.nsys.text_pool import TextPool
from llm_perf_opt.core.errors import InputError
from tests.needs import VARIABLE

_COUNT = 1000 if os.environ.get(VARIABLE) == "1" else 200
_PER_TEST = 25
_PAGE_SIZES = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
_EDGES = (
    0,
    1,
    -1,
    127,
    128,
    255,
    256,
    2**15,
    -(2**15),
    2**23,
    2**31,
    -(2**31),
    2**47,
    -(2**47),
    2**62,
    2**63 - 1,
    -(2**63) + 1,
)


def _value(choose: random.Random, kind: str) -> Any:
    if choose.random() < 0.08:
        return None
    if kind == "text":
        letters = choose.choice(("abc", "aä€😀", "\x00a", " ", "'\"%"))
        length = choose.choice((0, 1, 3, 40, 200, 3000, 9000))
        piece = "".join(
            choose.choices(letters, k=min(length, 40))
        )  # long texts repeat it: making them took most of the time
        return (piece * (length // 40 + 1))[:length]
    if choose.random() < 0.002:
        return choose.choice((1.5, "x", b"y", float(2**60)))
    return choose.choice(_EDGES) if choose.random() < 0.5 else choose.getrandbits(choose.randint(1, 62))


def build(path: Path, seed: int) -> list[str]:  # noqa: C901, PLR0912, PLR0915 - one choice after the other
    """Make a database of a random kind; return what is special about it."""
    choose = random.Random(seed)
    traits = []
    page_size = choose.choice(_PAGE_SIZES)
    database = sqlite3.connect(path, isolation_level=None)
    database.execute(f"PRAGMA page_size = {page_size}")
    encoding = choose.choices(("UTF-8", "UTF-16le", "UTF-16be"), (8, 1, 1))[0]
    database.execute(f"PRAGMA encoding = '{encoding}'")
    vacuum = choose.choice((0, 0, 1, 2))
    database.execute(f"PRAGMA auto_vacuum = {vacuum}")
    if choose.random() < 0.2:
        database.execute("PRAGMA journal_mode = WAL")
        traits.append("wal")
    traits += [str(page_size), encoding, f"vacuum {vacuum}"]
    names = [f"c{number}" for number in range(choose.randint(1, 12))]
    kinds = dict.fromkeys(names, "int")
    text = choose.choice([None, "t"])
    if text:
        names.insert(choose.randint(0, len(names)), text)
        kinds[text] = "text"
    columns = [
        f"{name} {choose.choice(('INTEGER', 'INT', '', 'BIGINT')) if kinds[name] == 'int' else 'TEXT'}"
        for name in names
    ]
    stored = list(names)
    shape = choose.choices(
        ("plain", "key", "text key", "without rowid", "generated", "stored generated"), (8, 1, 1, 1, 1, 1)
    )[0]
    tail = ""
    if shape == "key":
        columns.insert(choose.randint(0, len(columns)), "k INTEGER PRIMARY KEY")
    elif shape == "text key":
        columns.append("k TEXT PRIMARY KEY")
    elif shape == "without rowid":
        columns.insert(0, "k INTEGER PRIMARY KEY")
        tail = " WITHOUT ROWID"
    elif "generated" in shape:
        columns.insert(
            choose.randint(0, len(columns)),
            f"g INT AS ({stored[0]}) {'STORED' if 'stored' in shape else 'VIRTUAL'}",
        )
    traits.append(shape)
    database.execute(f"CREATE TABLE NVTX_EVENTS ({', '.join(columns)}){tail}")
    rows = choose.choice((0, 1, 5, 200, 1500))
    with_key = stored + (["k"] if "rowid" in shape or shape == "text key" else [])
    marks = ",".join("?" * len(with_key))
    made = []
    for number in range(rows):
        values = [_value(choose, kinds[name]) for name in stored]
        if len(with_key) > len(stored):
            values.append(f"k{number}" if shape == "text key" else number)
        made.append(values)
    database.execute("BEGIN")
    database.executemany(f"INSERT INTO NVTX_EVENTS ({','.join(with_key)}) VALUES ({marks})", made)
    database.execute("COMMIT")
    if choose.random() < 0.2 and tail == "":
        database.execute("DELETE FROM NVTX_EVENTS WHERE rowid % 3 = 1")
        traits.append("deleted")
    if choose.random() < 0.2:
        default = choose.choice(("", " DEFAULT 7", " DEFAULT NULL"))
        database.execute(f"ALTER TABLE NVTX_EVENTS ADD COLUMN added INT{default}")
        traits.append(f"added{default}")
        if choose.random() < 0.5 and rows:
            database.execute("UPDATE NVTX_EVENTS SET added = 9 WHERE c0 > 100")
    if choose.random() < 0.1 and shape == "plain" and len(names) > 2 and "c1" in names:
        database.execute("ALTER TABLE NVTX_EVENTS DROP COLUMN c1")
        traits.append("dropped")
    if choose.random() < 0.1 and shape == "plain":
        database.execute("UPDATE NVTX_EVENTS SET rowid = -rowid")
        traits.append("negative rowids")
    if choose.random() < 0.1:
        database.execute("VACUUM")
        traits.append("vacuumed")
    if "wal" in traits and choose.random() < 0.7:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    return traits


def damage(path: Path, seed: int) -> str:
    """Change some bytes of a database; mostly of page headers and pointers."""
    choose = random.Random(seed)
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[16:18], "big")
    size = 65536 if size == 1 else size
    kind = choose.choice(("bytes", "header", "pages", "cut", "reserved", "swap"))
    if kind == "bytes":
        for _ in range(choose.choice((1, 3, 20))):
            content[choose.randrange(100, len(content))] = choose.randrange(256)
    elif kind == "header":
        page = choose.randrange(max(1, len(content) // size)) * size
        for _ in range(choose.choice((1, 3))):
            content[min(len(content) - 1, page + choose.randrange(0, 20) + (100 if page == 0 else 0))] = (
                choose.randrange(256)
            )
    elif kind == "pages":
        page = choose.randrange(max(1, len(content) // size)) * size
        content[page + (100 if page == 0 else 0) : page + size] = bytes(size - (100 if page == 0 else 0))
    elif kind == "cut":
        del content[choose.randrange(100, len(content)) :]
    elif kind == "reserved":
        content[20] = choose.choice((8, 16, 32, 255))
    elif len(content) >= 3 * size:
        count = len(content) // size
        one, other = choose.randrange(1, count) * size, choose.randrange(1, count) * size
        content[one : one + size], content[other : other + size] = (
            content[other : other + size],
            content[one : one + size],
        )
    path.write_bytes(content)
    return kind


def read(path: Path, *, use_pages: bool) -> dict[str, list[Any]] | str:
    """Return the columns as Python values, or why they are refused."""
    try:
        with open_export(path, use_pages=use_pages) as export:
            if "NVTX_EVENTS" not in export.tables:
                return "no table"
            pool = TextPool()
            names = list(export.tables["NVTX_EVENTS"].columns)
            wanted = [name for name in names if name not in ("k",)]
            found = export.read("NVTX_EVENTS", wanted, text="t" if "t" in wanted else None, pool=pool)
            shown: dict[str, list[Any]] = {
                name: values.tolist() for name, values in found.items() if name != "t"
            }
            if "t" in found:
                shown["t"] = [
                    None if index < 0 else pool.strings[index] for index in np.asarray(found["t"]).tolist()
                ]
            return shown
    except InputError as error:
        return f"refused: {error.message}"


def _differences(path: Path) -> str | None:
    pages, cursor = read(path, use_pages=True), read(path, use_pages=False)
    if isinstance(pages, str) or isinstance(cursor, str) or pages == cursor:
        return None
    rows = [len(next(iter(found.values()), [])) for found in (pages, cursor)]
    names = [name for name in cursor if pages.get(name) != cursor[name]]
    return f"{rows[0]} rows by pages, {rows[1]} by SQLite; columns that differ: {names}"


@pytest.mark.parametrize("first", range(0, _COUNT, _PER_TEST))
def test_databases_are_read_as_sqlite_reads_them_and_damaged_ones_alike_or_refused(
    first: int, tmp_path: Path
) -> None:
    for seed in range(first, first + _PER_TEST):
        path = tmp_path / f"{seed}.sqlite"
        traits = build(path, seed)
        assert _differences(path) is None, (seed, traits, _differences(path))
        traits.append(damage(path, seed))
        assert _differences(path) is None, (seed, traits, _differences(path))
        for left in tmp_path.glob(f"{seed}.*"):
            left.unlink()
