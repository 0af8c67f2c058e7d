"""``summary.json`` on disk."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_perf_opt.core import layout
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.model.codec import decode_file, save_json
from llm_perf_opt.model.summary import SCHEMA_VERSION, Summary
from llm_perf_opt.model.versions import is_readable, older_note

_HINT = "give the directory of a finished run"


@dataclass(slots=True)
class _Head:
    """What must be known before the rest can be understood."""

    schema_version: Any = None


def save_summary(summary: Summary, folder: Path) -> Path:
    """Write ``summary.json`` into a folder."""
    return save_json(folder / layout.SUMMARY, summary)


def load_summary(path: Path) -> Summary:
    """Read ``summary.json`` of a run directory (or the file itself); one of an older schema says so in its notes."""
    path = path / layout.SUMMARY if path.is_dir() else path
    version = decode_file(path, _Head, hint=_HINT).schema_version
    if not is_readable(version):
        shown = version if isinstance(version, str) else reprlib.repr(version)
        raise InputError(
            f"{path} has schema version {shown}, this program reads {SCHEMA_VERSION}",
            hint="render it with the release that wrote it, or run `llm-perf-opt report RUN --reanalyse`",
            path=str(path),
        )
    summary = decode_file(path, Summary, hint=_HINT)
    note = older_note(summary.schema_version)
    # A summary that was rendered again has been saved with the note.
    if note is not None and note not in summary.notes:
        summary.notes.insert(0, note)
    return summary
