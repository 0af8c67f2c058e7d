"""A second look at a large capture costs next to nothing: its timeline, as columns on disk.

The cache lies in the user's cache directory (or in a directory of the caller's, such as the run's), never beside
somebody's capture. An entry belongs to one state of one file (path, size, time of change, inode) and one version
of the reader; it is a single file whose columns are mapped into memory, so that opening it reads almost nothing.
A cache that is damaged, foreign or cannot be written is as good as none.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_perf_opt.core.errors import InputError, ToolError
from llm_perf_opt.core.files import atomic_path, is_own_file
from llm_perf_opt.model.codec import from_plain
from llm_perf_opt.model.limits import Count
from llm_perf_opt.model.timeline import (
    DeviceOps,
    HostCalls,
    Ranges,
    Timeline,
)

CACHE_VARIABLE = "LLM_PERF_OPT_CACHE"
"""Environment variable: another directory for caches; ``off`` for none."""

_VERSION = 4
"""Raise whenever a reader would read the same file differently."""
_MAGIC = b"LPOTL\0\0\2"
_START = struct.Struct("<8sQQ")
"""Magic, length of the header, its checksum."""
_ALIGNMENT = 64
_SMALLEST_BYTES = 16 << 20
_LARGEST_TOTAL_BYTES = 8 << 30
_SUFFIX = ".timeline"
_TYPES = ("|i1", "<i4", "<i8")
_TABLES: dict[str, type[Any]] = {"ops": DeviceOps, "calls": HostCalls, "ranges": Ranges}


def cache_directory() -> Path | None:
    """Return where caches go; ``None`` when switched off."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen is not None and chosen.strip().lower() in ("off", "0", "none", ""):
        return None
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "llm-perf-opt"


def cached(
    path: Path,
    read: Callable[[Path], Timeline],
    *,
    directory: Path | None = None,
    smallest: int = _SMALLEST_BYTES,
) -> Timeline:
    """Return ``read(path)``, from the cache when this very file was read before.

    Files below ``smallest`` bytes are not worth it. ``directory`` overrides the user's cache directory.
    """
    directory = directory if directory is not None else cache_directory()
    size = path.stat().st_size if path.is_file() else 0
    if directory is None or size < smallest:
        return read(path)
    key = _key(path)
    entry = directory / f"{key['name']}{_SUFFIX}"
    found = load_timeline(entry, key)
    if found is not None:
        return found
    timeline = read(path)
    if _key(path) == key:  # the file did not change meanwhile
        _store_quietly(entry, key, timeline)
    return timeline


def _key(path: Path) -> dict[str, Any]:
    real = path.resolve()
    state = real.stat()
    identity = [str(real), state.st_size, state.st_mtime_ns, state.st_ino, state.st_dev, _VERSION]
    digest = hashlib.sha256(json.dumps(identity).encode("utf-8", errors="surrogatepass")).hexdigest()
    return {"identity": identity, "name": digest[:32]}


def _store_quietly(entry: Path, key: dict[str, Any], timeline: Timeline) -> None:
    """Write the entry if that is possible; a full disk or a read-only home is no reason to fail."""
    try:
        save_timeline(entry, key, timeline)
        _make_room(entry.parent)
    except (OSError, ToolError):
        return


def save_timeline(entry: Path, key: dict[str, Any], timeline: Timeline) -> None:
    """Write a timeline as one file of aligned columns behind a JSON header."""
    columns: list[dict[str, Any]] = []
    arrays = []
    offset = 0
    for table, kind in _TABLES.items():
        for field in fields(kind):
            array = np.ascontiguousarray(getattr(getattr(timeline, table), field.name))
            columns.append(
                {"table": table, "name": field.name, "type": array.dtype.str, "n": len(array), "at": offset}
            )
            arrays.append(array)
            offset += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    head = {
        "sum": int(sum(int(_sum_of_words(array)) for array in arrays) % (1 << 64)),
        "key": key,
        "columns": columns,
        "names": timeline.names,
        "source": timeline.source,
        "devices": {str(number): name for number, name in timeline.devices.items()},
        "facts": timeline.facts,
        "warnings": list(timeline.warnings),
        "bytes": offset,
    }
    text = json.dumps(head, ensure_ascii=True).encode()
    with atomic_path(entry) as temporary, temporary.open("wb") as stream:
        stream.write(_START.pack(_MAGIC, len(text), zlib.crc32(text)) + text)
        stream.write(b"\0" * (-stream.tell() % _ALIGNMENT))
        for array in arrays:
            stream.write(array.data)
            stream.write(b"\0" * (-array.nbytes % _ALIGNMENT))


def _sum_of_words(array: npt.NDArray[Any]) -> np.uint64:
    """Add up a column as 64-bit words, at the speed of memory: any damage to it changes the sum."""
    raw = array.view(np.uint8).reshape(-1)
    whole = len(raw) // 8 * 8
    rest = int.from_bytes(raw[whole:].tobytes(), "little")
    with np.errstate(over="ignore"):
        return np.uint64(raw[:whole].view(np.uint64).sum(dtype=np.uint64) + np.uint64(rest))


def load_timeline(entry: Path, key: dict[str, Any]) -> Timeline | None:
    """Map an entry into memory; ``None`` when it is absent, damaged, somebody else's or of another file."""
    if not is_own_file(entry):
        return None
    try:
        with entry.open("rb") as stream:
            start = stream.read(_START.size)
            magic, length, checksum = _START.unpack(start) if len(start) == _START.size else (b"", 0, 0)
            if magic != _MAGIC or length > entry.stat().st_size:
                return None
            text = stream.read(length)
            if zlib.crc32(text) != checksum:
                return None
            head = json.loads(text)
        base = -(-(_START.size + length) // _ALIGNMENT) * _ALIGNMENT
        if head["key"] != key or entry.stat().st_size != base + head["bytes"]:
            return None
        tables = _columns(np.memmap(entry, np.uint8, "r")[base:], from_plain(_Head, head))
        os.utime(entry)
        timeline = Timeline(
            source=head["source"],
            names=head["names"],
            ops=DeviceOps(**tables["ops"]),
            calls=HostCalls(**tables["calls"]),
            ranges=Ranges(**tables["ranges"]),
            devices={int(number): name for number, name in head["devices"].items()},
            facts=head["facts"],
            warnings=tuple(head["warnings"]),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, InputError):
        return None
    return timeline if _refers_to_itself(timeline) else None


@dataclass(frozen=True, slots=True)
class _Column:
    """Where a column lies."""

    table: str
    name: str
    type: str
    n: Count
    at: Count


@dataclass(frozen=True, slots=True)
class _Head:
    """The header of an entry, as far as its shape must be known."""

    sum: int
    columns: list[_Column]
    names: list[str]
    source: str
    devices: dict[str, str]
    facts: dict[str, Any]
    warnings: list[str]


def _columns(data: npt.NDArray[np.uint8], head: _Head) -> dict[str, dict[str, Any]]:
    """Return the columns of every table; ValueError where they are not the ones that were written."""
    tables: dict[str, dict[str, Any]] = {table: {} for table in _TABLES}
    total = 0
    for column in head.columns:
        if column.type not in _TYPES:
            raise ValueError("not a type of ours")
        size = np.dtype(column.type).itemsize * column.n
        part = np.asarray(data[column.at : column.at + size])
        if len(part) != size:
            raise ValueError("a column beyond the end")
        total += int(_sum_of_words(part))
        tables[column.table][column.name] = part.view(column.type)
    for table, kind in _TABLES.items():
        if set(tables[table]) != {field.name for field in fields(kind)}:
            raise ValueError("not the columns of ours")
        if len({len(column) for column in tables[table].values()}) != 1:
            raise ValueError("columns of different length")
    if total % (1 << 64) != head.sum:
        raise ValueError("the columns are damaged")
    return tables


def _refers_to_itself(timeline: Timeline) -> bool:
    """Tell whether every index points into the timeline: one that does not would be found much later."""
    names, calls, ranges = len(timeline.names), len(timeline.calls), len(timeline.ranges)
    bounds = (
        (timeline.ops.name, 0, names),
        (timeline.calls.name, 0, names),
        (timeline.ranges.name, 0, names),
        (timeline.ops.launch, -1, calls),
        (timeline.ops.range, -1, ranges),
        (timeline.ranges.parent, -1, ranges),
    )
    return all(
        not len(column) or (int(column.min()) >= low and int(column.max()) < high)
        for column, low, high in bounds
    )


def _make_room(directory: Path) -> None:
    """Remove the entries that were not used for longest, until the rest fits."""
    entries = [(one.stat().st_mtime_ns, one.stat().st_size, one) for one in directory.glob(f"*{_SUFFIX}")]
    total = sum(size for _, size, _ in entries)
    for _, size, entry in sorted(entries)[:-1]:
        if total <= _LARGEST_TOTAL_BYTES:
            return
        entry.unlink(missing_ok=True)
        total -= size
