"""How well findings predicted on this machine: one small file per search, kept in the user's state directory."""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

from llm_perf_opt.core.errors import InputError, LlmPerfError
from llm_perf_opt.core.version import __version__
from llm_perf_opt.model.codec import decode_file, save_json
from llm_perf_opt.model.improve import FindingGrade, Improvement

LOGGER = logging.getLogger("llm_perf_opt.improve")
_MOST_FILES = 1000
"""Of more, the newest count."""


@dataclass(slots=True)
class Record:
    """What one search says of the findings it tried."""

    started: str
    device: str | None
    model: str | None
    metric: str
    version: str = __version__
    grades: list[FindingGrade] = field(default_factory=list)


def directory() -> Path:
    """Return where records are kept (``XDG_STATE_HOME`` is honoured)."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "llm-perf-opt" / "trials"


def keep_record(result: Improvement, out: Path) -> Path | None:
    """Write the grades of a search; one that is resumed replaces its own. ``None``: nothing was graded, or no place for it."""
    if not result.grades:
        return None
    name = hashlib.sha256(f"{out.absolute()} {result.started}".encode()).hexdigest()[:16]
    record = Record(
        started=result.started,
        device=result.baseline.device,
        model=result.baseline.model,
        metric=result.metric,
        grades=list(result.grades),
    )
    try:
        return save_json(directory() / f"{name}.json", record)
    except LlmPerfError as error:  # a home that cannot be written costs the record, not the search
        LOGGER.warning("the track record was not kept: %s", error.message)
        return None


def read_records(device: str | None) -> list[Record]:
    """Return the records of searches on this device; files that cannot be read are named and left out."""
    try:
        paths = sorted(directory().glob("*.json"), key=lambda path: path.stat().st_mtime)[-_MOST_FILES:]
    except OSError:
        return []
    found = []
    for path in paths:
        try:
            record = decode_file(path, Record)
        except InputError as error:
            LOGGER.warning("a track record was left out: %s", error.message)
            continue
        if record.device == device:
            found.append(record)
    return found
