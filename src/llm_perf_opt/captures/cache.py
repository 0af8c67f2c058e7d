"""Cache of the timelines of large captures, as columns on disk.

The cache lies in the user's cache directory (or in a directory of the caller's, such as the run's), never next to
the capture. An entry belongs to one state of one file (path, size, time of change, inode) and one version
of the reader; it is one NumPy archive (no pickle), whose checksums detect damage.
A cache that is damaged, foreign or cannot be written is ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_perf_opt.captures.timeline import DeviceOps, HostCalls, Ranges, Timeline
from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.core.files import atomic_path, is_own_file

# Integer columns in the smallest sufficient number of bytes.
#
# Most values that a capture repeats a million times are constant (the process), few (streams, names) or close to their
# neighbour (durations). Smaller columns are faster to read and check.


Column = npt.NDArray[Any]
_NARROW = (np.uint8, np.uint16, np.uint32)


def pack(column: Column) -> tuple[Column, dict[str, Any]]:
    """Return the packed bytes and the parameters for :func:`unpack`."""
    how: dict[str, Any] = {"dtype": column.dtype.str, "rows": len(column), "base": 0}
    if not len(column):
        return column, how
    low, high = int(column.min()), int(column.max())
    if low == high:
        return np.empty(0, np.uint8), {**how, "base": low}
    for narrow in _NARROW:
        if high - low <= int(np.iinfo(narrow).max) and np.dtype(narrow).itemsize < column.dtype.itemsize:
            kept = np.subtract(column, column.dtype.type(low), dtype=narrow, casting="unsafe")
            return kept, {**how, "base": low}
    return column, how


def unpack(kept: Column, how: dict[str, Any]) -> Column:
    """Return the original column, read-only; raise :class:`ValueError` on a mismatch."""
    kind, rows, base = np.dtype(how["dtype"]), int(how["rows"]), int(how["base"])
    if rows and not len(kept):
        return np.broadcast_to(kind.type(base), rows)  # one value for all rows, without memory for them
    if len(kept) != rows:
        raise ValueError(f"{len(kept)} rows where {rows} are announced")
    if kept.dtype == kind and not base:
        return kept
    column: Column = np.add(kept, kind.type(base), dtype=kind, casting="unsafe")
    return column


CACHE_VARIABLE = "LLM_PERF_OPT_CACHE"
"""Environment variable: another directory for caches; ``off`` for none."""
_VERSION = 6
"""Raise whenever a reader would read the same file differently."""
_HEAD = "head"
_SMALLEST_BYTES = 16 << 20
_LARGEST_TOTAL_BYTES = 8 << 30
_SUFFIX = ".timeline.npz"
_TABLES: dict[str, type[Any]] = {"ops": DeviceOps, "calls": HostCalls, "ranges": Ranges}


def cache_directory() -> Path | None:
    """Return the cache directory; ``None`` when switched off."""
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
    """Return ``read(path)``, from the cache if this file was read before.

    Files below ``smallest`` bytes are not cached. ``directory`` overrides the user's cache directory.
    """
    directory = directory if directory is not None else cache_directory()
    size = path.stat().st_size if path.is_file() else 0
    if directory is None or size < smallest:
        return read(path)
    key = _key(path)
    entry = directory / f"{key['name']}{_SUFFIX}"
    found = _load_timeline(entry, key)
    if found is not None:
        return found
    timeline = read(path)
    if _key(path) == key:  # only if the file did not change meanwhile
        _store_quietly(entry, key, timeline)
    return timeline


def _key(path: Path) -> dict[str, Any]:
    real = path.resolve()
    state = real.stat()
    identity = [str(real), state.st_size, state.st_mtime_ns, state.st_ino, state.st_dev, _VERSION]
    digest = hashlib.sha256(json.dumps(identity).encode("utf-8", errors="surrogatepass")).hexdigest()
    return {"identity": identity, "name": digest[:32]}


def _store_quietly(entry: Path, key: dict[str, Any], timeline: Timeline) -> None:
    """Write the entry if that is possible; a full disk or a read-only home must not cause a failure."""
    try:
        _save_timeline(entry, key, timeline)
        _make_room(entry.parent)
    except (OSError, ToolError):
        return


def _save_timeline(entry: Path, key: dict[str, Any], timeline: Timeline) -> None:
    """Write a timeline as one uncompressed NumPy archive: a member per column, and a head as JSON."""
    packed = {
        f"{table}.{field.name}": pack(_stored(getattr(timeline, table), field.name))
        for table, kind in _TABLES.items()
        for field in fields(kind)
    }
    head = {
        "key": key,
        "names": timeline.names,
        "source": timeline.source,
        "devices": {str(number): name for number, name in timeline.devices.items()},
        "facts": timeline.facts,
        "warnings": list(timeline.warnings),
        "packing": {name: how for name, (_, how) in packed.items()},
    }
    columns = {name: kept for name, (kept, _) in packed.items()}
    text = np.frombuffer(json.dumps(head, ensure_ascii=True).encode(), np.uint8)
    with atomic_path(entry) as temporary, temporary.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **{_HEAD: text}, **columns)


def _stored(table: Any, name: str) -> Any:
    """Return the stored columns; ends are kept as durations, which are small."""
    return table.end_ns - table.start_ns if name == "end_ns" else getattr(table, name)


def _read_table(archive: Any, packing: dict[str, Any], table: str) -> dict[str, Any]:
    columns = {
        field.name: unpack(archive[f"{table}.{field.name}"], packing[f"{table}.{field.name}"])
        for field in fields(_TABLES[table])
    }
    start, lasts = columns["start_ns"], columns["end_ns"]
    columns["end_ns"] = np.add(lasts, start, out=lasts if lasts.flags.writeable else None)
    return columns


def _load_timeline(entry: Path, key: dict[str, Any]) -> Timeline | None:
    """Read an entry; ``None`` when it is absent, damaged (every member has a checksum), foreign or of another file."""
    if not is_own_file(entry):
        return None
    try:
        with np.load(entry, allow_pickle=False) as archive:
            head = json.loads(archive[_HEAD].tobytes())
            if head["key"] != key:
                return None
            tables = {table: _read_table(archive, head["packing"], table) for table in _TABLES}
        os.utime(entry)
        return Timeline(
            source=head["source"],
            names=head["names"],
            ops=DeviceOps(**tables["ops"]),
            calls=HostCalls(**tables["calls"]),
            ranges=Ranges(**tables["ranges"]),
            devices={int(number): name for number, name in head["devices"].items()},
            facts=head["facts"],
            warnings=tuple(head["warnings"]),
        )
    except (
        OSError,
        EOFError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        MemoryError,  # a size claimed by a damaged column header
        RuntimeError,  # an unused compression method or encryption (also NotImplementedError)
        zipfile.BadZipFile,
        zlib.error,
    ):
        return None


def _make_room(directory: Path) -> None:
    """Remove the least recently used entries until the rest fits."""
    entries = [(one.stat().st_mtime_ns, one.stat().st_size, one) for one in directory.glob("*.timeline*")]
    total = sum(size for _, size, _ in entries)
    for _, size, entry in sorted(entries)[:-1]:
        if total <= _LARGEST_TOTAL_BYTES:
            return
        entry.unlink(missing_ok=True)
        total -= size
