"""How well findings predicted on this machine: one small file per search, kept in the user's state directory."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from llm_perf_opt.core.errors import InputError, LlmPerfError
from llm_perf_opt.core.version import __version__
from llm_perf_opt.remedies.data import FindingGrade, Improvement
from llm_perf_opt.summary.codec import decode_file, save_json

HELPED = frozenset({"confirmed", "partly"})
NOT_SHOWN = "not shown"


def describe_record(helped: int, trials: int, *, where: str) -> str | None:
    """Describe how often advice helped; ``None``: no search was conclusive."""
    if not trials:
        return None
    return f"helped in {helped} of {trials} {'trial' if trials == 1 else 'trials'} {where}"


LOGGER = logging.getLogger("llm_perf_opt.improve")
_MOST_FILES = 1000
"""Of more, the newest count."""


@dataclass(slots=True)
class Record:
    """Results of one search for its findings."""

    started: str
    device: str | None
    model: str | None
    metric: str
    version: str = __version__
    grades: list[FindingGrade] = field(default_factory=list)


def directory() -> Path:
    """Return the directory of records (``XDG_STATE_HOME`` is honoured)."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "llm-perf-opt" / "trials"


def keep_record(result: Improvement, out: Path) -> Path | None:
    """Write the grades of a search; a resumed search replaces its own. ``None``: nothing was graded, or it cannot be stored."""
    if not result.grades:
        return None
    name = search_identity(out, result.started)
    record = Record(
        started=result.started,
        device=result.baseline.device,
        model=result.baseline.model,
        metric=result.metric,
        grades=list(result.grades),
    )
    try:
        return save_json(directory() / f"{name}.json", record)
    except LlmPerfError as error:  # an unwritable home loses the record, not the search
        LOGGER.warning("the track record was not kept: %s", error.message)
        return None


def search_identity(out: Path, started: str) -> str:
    """Return the name of a search's record: the same for one that was resumed."""
    return hashlib.sha256(f"{out.absolute()} {started}".encode()).hexdigest()[:16]


def read_records(device: str | None, indexed: Mapping[str, Record] | None = None) -> list[Record]:
    """Return the records of searches on this device; files that cannot be read are named and left out.

    ``indexed``: searches found in an index, by their identity; duplicates count once.
    """
    try:
        paths = sorted(directory().glob("*.json"), key=lambda path: path.stat().st_mtime)[-_MOST_FILES:]
    except OSError:
        paths = []
    found = dict(indexed or {})
    for path in paths:
        try:
            found[path.stem] = decode_file(path, Record)
        except InputError as error:
            LOGGER.warning("a track record was left out: %s", error.message)
    return [record for record in found.values() if record.device == device]
