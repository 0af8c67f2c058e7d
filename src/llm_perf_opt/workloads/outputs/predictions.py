"""``predictions.jsonl``: one line per request, on disk as soon as it is known.

Every line is written whole and synchronised before the next request starts, so a crash loses at most the line
being written. Opening the file again drops such a torn line, and tells which requests need not be run again.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llm_perf_opt.core.files import atomic_write_bytes, explain_os_errors, refuse_link

LOGGER = logging.getLogger(__name__)

FILE_NAME = "predictions.jsonl"
Record = Mapping[str, Any]


class PredictionLog:
    """The file, open for appending; lines that another ``workload`` left are set aside."""

    def __init__(self, path: Path, workload: str) -> None:
        self.path = path
        self._earlier: dict[str, Record] = {}
        with explain_os_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            refuse_link(path)
            self._recover(workload)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
            self._descriptor: int | None = os.open(path, flags, 0o644)

    def record(self, sample_id: str, sha256: str | None) -> Record | None:
        """Return the line of an earlier run for this very request, if there is one."""
        found = self._earlier.get(sample_id)
        return found if found is not None and found.get("sha256") == sha256 else None

    def append(self, record: Record) -> None:
        """Write one line and wait until it is on disk."""
        if self._descriptor is None:
            raise ValueError(f"{self.path} is closed")
        line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
        # A lone surrogate cannot be UTF-8; written as \udcXX it is the same JSON string.
        data = line.encode("utf-8", errors="backslashreplace")
        with explain_os_errors(self.path):
            size = os.fstat(self._descriptor).st_size
            try:
                _write_all(self._descriptor, data)
                os.fsync(self._descriptor)
            except OSError:
                # A full disk may have taken a part of the line; without it the file stays readable.
                os.ftruncate(self._descriptor, size)
                raise

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _recover(self, workload: str) -> None:
        """Keep the whole lines of the same workload; set the file aside when it has others."""
        if not self.path.exists():
            return
        content = self.path.read_bytes()
        foreign = 0
        kept: list[bytes] = []
        for line, record in _whole_lines(content):
            if record.get("workload") == workload:
                kept.append(line + b"\n")
                self._earlier[record["id"]] = record
            else:
                foreign += 1
        if foreign:
            aside = _free_name(self.path)
            self.path.rename(aside)
            LOGGER.info("%s holds predictions of another workload: kept as %s", self.path, aside.name)
        clean = b"".join(kept)
        if clean != content:
            if not foreign:
                LOGGER.info("%s: an incomplete line is dropped", self.path)
            atomic_write_bytes(self.path, clean)
        if kept:
            LOGGER.info("%s: %d predictions of an earlier run are kept", self.path, len(kept))


def read_predictions(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a predictions file, incomplete lines left out."""
    for _, record in _whole_lines(path.read_bytes()):
        yield record


def _whole_lines(content: bytes) -> Iterator[tuple[bytes, dict[str, Any]]]:
    # Split at "\n" only: JSON text may hold other line separators. What follows the last one is torn.
    for line in content.split(b"\n")[:-1]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and isinstance(record.get("id"), str):
            yield line, record


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _free_name(path: Path) -> Path:
    number = 1
    while (candidate := path.with_name(f"{path.stem}.old-{number}{path.suffix}")).exists():
        number += 1
    return candidate
