"""``static_compute.json``: written by static analysis, read by the summary and by ``ingest --static``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.files import atomic_write_json
from llm_perf_opt.model.codec import from_plain, to_plain
from llm_perf_opt.model.static import StaticDocument
from llm_perf_opt.model.summary import Static

FILE_NAME = "static_compute.json"
RUN_SHAPES_NAME = "static_run.json"
"""The same count at the shapes of the measured samples, where those were not the configured ones."""
_HINT = "give a static_compute.json written by the static_analysis stage"


def save_document(path: Path, document: StaticDocument) -> Path:
    """Write the document: the keys of ``summary.static`` at the top level, the document's own beside them."""
    plain = to_plain(document)
    static = plain.pop("static")
    static["source"] = path.name
    head = {"document_version": plain.pop("document_version"), "model": plain.pop("model")}
    return atomic_write_json(path, {**head, **static, **plain})


def find_static(run_dir: Path) -> Path | None:
    """Return a run's static document; without reports it is kept in the stage's scratch."""
    candidates = (
        run_dir / "tmp" / "static_analysis" / RUN_SHAPES_NAME,
        run_dir / "static_analysis" / FILE_NAME,
        run_dir / "tmp" / "static_analysis" / FILE_NAME,
    )
    return next((path for path in candidates if path.is_file()), None)


def load_static(path: Path) -> Static:
    """Read the static model of the summary from a document."""
    static = from_plain(Static, _read(path), where=path.name)
    static.source = static.source or path.name
    return static


def load_model_facts(path: Path) -> dict[str, str]:
    """Return what the document says about the model: ``name``, ``architecture``, ``dtype``, where known."""
    facts = _read(path).get("model")
    return (
        {key: value for key, value in facts.items() if isinstance(value, str)}
        if isinstance(facts, dict)
        else {}
    )


def _read(path: Path) -> dict[str, Any]:
    path = Path(path)
    if path.is_dir():
        path = path / FILE_NAME
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", hint=_HINT, path=str(path)) from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}", hint=_HINT, path=str(path)) from error
    if not isinstance(data, dict):
        raise InputError(f"{path} is not a static document: expected an object", hint=_HINT, path=str(path))
    return data
