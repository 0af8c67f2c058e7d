"""``summary.json`` on disk."""

from __future__ import annotations

import json
from pathlib import Path

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.files import atomic_write_json
from llm_perf_opt.model.codec import from_plain, to_plain
from llm_perf_opt.model.summary import SCHEMA_VERSION, Summary

SUMMARY_NAME = "summary.json"


def save_summary(summary: Summary, folder: Path) -> Path:
    """Write ``summary.json`` into a folder."""
    return atomic_write_json(folder / SUMMARY_NAME, to_plain(summary))


def load_summary(path: Path) -> Summary:
    """Read ``summary.json`` of a run directory (or the file itself)."""
    path = path / SUMMARY_NAME if path.is_dir() else path
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}",
            hint="give the directory of a finished run",
            path=str(path),
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid JSON: {error}", path=str(path)) from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version is None or str(version).split(".")[0] != SCHEMA_VERSION.split(".")[0]:
        raise InputError(
            f"{path} has schema version {version}, this program reads {SCHEMA_VERSION}",
            hint="render it with the release that wrote it, or run `llm-perf-opt report RUN --reanalyse`",
        )
    return from_plain(Summary, document, where=path.name)
