"""Change a sound input the way damage, other tools and bad will do: by its structure, then by its bytes."""

from __future__ import annotations

import copy
import csv
import io
import json
import random
import sqlite3
from pathlib import Path
from typing import Any

import yaml

NASTY: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, -2.0, 0.5, 1.4, 1e-320, 1e-12, 1e9, 1.419247e6, -9.2e18, 2**31, 2**53, 2**63, 2**64,
    10**30, 1e30, 1e300, -1e300, 1.7e308, "", " ", "x", "NaN", "nan", "inf", "-inf", "1.234", "10,0", "1e999999999",
    "9" * 5000, "\x1b[2J", "=cmd|' /C calc'!A0", "\udc80", "ünï\u202e", "/dev/zero", "../..", "a" * 3000, "float3",
    [], {}, [None], {"": None}, [[[[]]]], {"a": {"b": {"c": {}}}}, [1, "a", None, {}],
)  # fmt: skip
"""What a value may have become."""

CELLS = (
    *(str(value) for value in NASTY if not isinstance(value, list | dict)),
    "1,234", "1.234,5", "12,34", "1 234", "1'234", "n/a", "(nil)", '"', "-", "%", "5 %", "1_000", "٣", "0x10", "1e5",
)  # fmt: skip


DEEP = "@nested@"
"""Stands for a value nested deeper than any program reads, until the document is written."""


def _deepened(chance: random.Random, text: bytes) -> bytes:
    depth = chance.choice((3, 50, 900, 100_000))
    return text.replace(b'"' + DEEP.encode() + b'"', b"[" * depth + b"]" * depth)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += _places(item, (*path, key))
    return found


def _parent(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        value = value[key]
    return value


def change_tree(chance: random.Random, value: Any) -> Any:
    """Change one to four places of a JSON or YAML document."""
    value = copy.deepcopy(value)
    for _ in range(chance.randint(1, 4)):
        path = chance.choice(_places(value))
        if not path:
            if chance.random() < 0.05:
                value = chance.choice(NASTY)
            continue
        parent, key = _parent(value, path), path[-1]
        kind = chance.random()
        if kind < 0.6:
            parent[key] = _near(chance, parent[key])
        elif kind < 0.75:
            del parent[key]
        elif kind < 0.85 and isinstance(parent, dict):
            parent[str(chance.choice(NASTY))[:40]] = parent.pop(key)
        elif kind < 0.95 and isinstance(parent, list):
            parent.extend(copy.deepcopy(parent[:20]))
        else:
            parent[key] = DEEP
    return value


def _near(chance: random.Random, old: Any) -> Any:
    """Return a nasty value, or one that is only a little wrong."""
    if isinstance(old, int | float) and not isinstance(old, bool) and chance.random() < 0.5:
        return chance.choice(
            (-old, old * 1e6, old * 1e12, old * 1e-9, old + 0.5, str(old), -(old + 1), old * 1000)
        )
    return copy.deepcopy(chance.choice(NASTY))


def change_bytes(chance: random.Random, data: bytes) -> bytes:
    """Cut, flip, repeat or insert; what a disk, a network or an editor does."""
    data = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        if not data:
            break
        place = chance.randrange(len(data))
        kind = chance.random()
        if kind < 0.3:
            data[place] ^= 1 << chance.randrange(8)
        elif kind < 0.45:
            del data[place:]
        elif kind < 0.6:
            data[place:place] = chance.choice(
                (b"NaN", b"Infinity", b"1e999", b"\xff\xfe", b"\0", b'"', b"[" * 500)
            )
        elif kind < 0.8:
            del data[place : place + chance.randint(1, 40)]
        else:
            data[place:place] = data[place : place + chance.randint(1, 200)]
    return bytes(data)


def json_input(chance: random.Random, seed: Any) -> bytes:
    """Return a changed JSON document."""
    text = _deepened(chance, json.dumps(change_tree(chance, seed)).encode())
    return change_bytes(chance, text) if chance.random() < 0.2 else text


def yaml_input(chance: random.Random, seed: Any) -> bytes:
    """Return a changed YAML document."""
    text = yaml.safe_dump(change_tree(chance, seed)).encode()
    text = text.replace(b"'" + DEEP.encode() + b"'", b"[" * 400)
    return change_bytes(chance, text) if chance.random() < 0.3 else text


def csv_input(chance: random.Random, seed: bytes) -> bytes:
    """Return a changed table."""
    rows = list(csv.reader(io.StringIO(seed.decode("utf-8"), newline="")))
    rows = rows[: chance.randint(2, 40)]
    for _ in range(chance.randint(1, 4)):
        row = chance.choice([one for one in rows if one] or [[""]])
        place = chance.randrange(len(row)) if row else 0
        kind = chance.random()
        if kind < 0.7 and row:
            row[place] = chance.choice(CELLS)
        elif kind < 0.8 and row:
            del row[place]
        elif kind < 0.9:
            rows.append(list(row))
        else:
            for each in rows:
                del each[place : place + 1]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n", delimiter=chance.choice(",,,,;\t")).writerows(rows)
    text = out.getvalue().encode("utf-8", errors="surrogatepass")
    return change_bytes(chance, text) if chance.random() < 0.2 else text


_SQL_VALUES = (
    None, 0, -1, 1, 2**31, 2**53, 2**62, 2**63 - 1, -(2**63), 1.5, 1e300, "", "text", "\x1b]0;x\x07", b"\x00\xff", 10**15,
)  # fmt: skip


def sqlite_input(chance: random.Random, seed: Path, target: Path) -> None:
    """Write a changed copy of an export."""
    target.write_bytes(seed.read_bytes())
    database = sqlite3.connect(target)
    try:
        tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for _ in range(chance.randint(1, 4)):
            table = chance.choice(tables)
            columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
            if not columns:
                continue
            column, kind = chance.choice(columns), chance.random()
            if kind < 0.7:
                some = chance.choice(("1", f"rowid % {chance.randint(2, 9)} = 0", "rowid = 1"))
                value = chance.choice(_SQL_VALUES)
                database.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE {some}', (value,))
            elif kind < 0.8:
                database.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{column}_"')
            elif kind < 0.9:
                database.execute(f'DELETE FROM "{table}" WHERE rowid % 2 = 0')
            else:
                database.execute(f'DROP TABLE "{table}"')
                tables.remove(table)
            if not tables:
                break
        database.commit()
    except sqlite3.Error:
        database.rollback()
    finally:
        database.close()
    if chance.random() < 0.3:
        target.write_bytes(change_bytes(chance, target.read_bytes()))
