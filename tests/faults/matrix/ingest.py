"""Captures and documents that are not what they should be: exit 3, the file named, no summary."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults.matrix.case import Case

Maker = Callable[[Path], Path]
_NAMES = {
    "trace": "trace.json",
    "nsys": "capture.sqlite",
    "ncu": "raw.csv",
    "timings": "wall.json",
    "static": "static_compute.json",
}


def _bytes(content: bytes) -> Maker:
    def make(path: Path) -> Path:
        path.write_bytes(content)
        return path

    return make


def _directory(path: Path) -> Path:
    path.mkdir()
    return path


def _other_database(path: Path) -> Path:
    with sqlite3.connect(path) as database:
        database.execute("create table recipes (name text)")
    return path


def _half_gzip(path: Path) -> Path:
    packed = gzip.compress(b'{"traceEvents": [' + b'{"ph": "X"},' * 500)
    path.write_bytes(packed[: len(packed) // 2])
    return path


_DAMAGES: dict[str, Maker] = {
    "empty": _bytes(b""),
    "zeros": _bytes(b"\0" * 4096),
    "garbage": _bytes(bytes(range(256)) * 20),
    "an image": _bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 100),
    "a page": _bytes(b"<html><body>404 not found</body></html>"),
    "half a document": _bytes(b'{"samples": [{"id": "a", '),
    "a list": _bytes(b"[1, 2, 3]"),
    "deep nesting": _bytes(b"[" * 200_000),
    "a number": _bytes(b"42"),
    "half a database": _bytes(b"SQLite format 3\0" + b"\x10\0\1\1\0" * 30),
    "another database": _other_database,
    "half a gzip": _half_gzip,
    "an empty folder": _directory,
}
_VALUES = {
    "negative": '{"samples": 1, "new_tokens": 4, "prefill_s": -1.0, "decode_s": 1.0}',
    "not finite": '{"samples": 1, "new_tokens": 4, "prefill_s": NaN, "decode_s": 1.0}',
    "huge": '{"samples": 1, "new_tokens": 4, "prefill_s": 1e999, "decode_s": 1.0}',
    "a text": '{"samples": 1, "new_tokens": 4, "prefill_s": "0.1", "decode_s": 1.0}',
    "a mistyped key": '{"samples": 1, "new_tokens": 4, "prefil_s": 0.1, "decode_s": 1.0}',
    "a fraction of a sample": '{"samples": 1.5, "new_tokens": 4, "prefill_s": 0.1, "decode_s": 1.0}',
    "a truth value": '{"samples": true, "new_tokens": 4, "prefill_s": 0.1, "decode_s": 1.0}',
}


def _ingest(kind: str, make: Maker) -> Callable[[Path], list[str]]:
    def build(folder: Path) -> list[str]:
        source = make(folder / _NAMES[kind])
        return ["ingest", f"--{kind}={source}", f"--out={folder / 'run'}"]

    return build


def _cases() -> Iterator[Case]:
    for kind, name in _NAMES.items():
        for damage, make in _DAMAGES.items():
            yield Case("ingest", f"--{kind}: {damage}", _ingest(kind, make), 3, (name,), writes_nothing=True)
        yield Case(
            "ingest",
            f"--{kind}: absent",
            _ingest(kind, lambda path: path),
            3,
            ("does not exist",),
            writes_nothing=True,
        )
    for phrase, text in _VALUES.items():
        make = _bytes(text.encode())
        yield Case(
            "ingest",
            f"timings with {phrase}",
            _ingest("timings", make),
            3,
            ("wall.json",),
            writes_nothing=True,
        )
    yield Case(
        "ingest", "nothing named", lambda folder: ["ingest", f"--out={folder / 'run'}"], 2, ("--trace",)
    )


CASES = tuple(_cases())
