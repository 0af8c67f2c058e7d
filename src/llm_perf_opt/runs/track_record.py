"""How well findings predicted on this machine: one small file per search, kept in the user's state directory."""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from llm_perf_opt.core.errors import InputError, LlmPerfError
from llm_perf_opt.core.version import __version__
from llm_perf_opt.model.codec import decode_file, save_json
from llm_perf_opt.model.improve import FindingGrade, Grade, Improvement

LOGGER = logging.getLogger("llm_perf_opt.improve")
FINDINGS = "findings.parquet"
"""Of an index (:mod:`llm_perf_opt.runs.history.store`), which is read only where there is one."""
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
    except LlmPerfError as error:  # a home that cannot be written costs the record, not the search
        LOGGER.warning("the track record was not kept: %s", error.message)
        return None


def search_identity(out: Path, started: str) -> str:
    """Return the name of a search's record: the same for one that was resumed."""
    return hashlib.sha256(f"{out.absolute()} {started}".encode()).hexdigest()[:16]


def read_records(device: str | None, near: Path | None = None) -> list[Record]:
    """Return the records of searches on this device; files that cannot be read are named and left out.

    ``near``: a run; searches in the index of the directory it lies in count too, each once.
    """
    try:
        paths = sorted(directory().glob("*.json"), key=lambda path: path.stat().st_mtime)[-_MOST_FILES:]
    except OSError:
        paths = []
    found = indexed_records(near) if near is not None else {}
    for path in paths:
        try:
            found[path.stem] = decode_file(path, Record)
        except InputError as error:
            LOGGER.warning("a track record was left out: %s", error.message)
    return [record for record in found.values() if record.device == device]


def indexed_records(run: Path) -> dict[str, Record]:
    """Return the searches in the nearest index above a run, by their identity; none where there is no index."""
    home = next((folder for folder in run.absolute().parents if (folder / FINDINGS).is_file()), None)
    if home is None:
        return {}
    from llm_perf_opt.runs.history import store

    try:
        root, rows = Path(store.read_info(home).directory), store.read_findings(home)
    except LlmPerfError as error:  # the record is an extra: a damaged index costs it, not the report
        LOGGER.warning("the track record of the index was left out: %s", error.message)
        return {}
    found: dict[str, Record] = {}
    for row in rows:
        name = search_identity(root / row.search, row.started)
        record = found.setdefault(name, Record(row.started, row.device, row.model, row.metric, version=""))
        record.grades.append(
            FindingGrade(
                finding=row.finding,
                phase=row.phase,
                predicted_gain_s=row.predicted_gain_s,
                measured_gain_s=row.measured_gain_s,
                helped=row.helped,
                tried=row.tried,
                grade=cast("Grade", row.grade),
            )
        )
    return found
