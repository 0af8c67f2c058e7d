"""``static_compute.json``: written by static analysis, read by the summary and by ``ingest --static``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.files import atomic_write_json
from llm_perf_opt.core.run_directory import layout
from llm_perf_opt.model.codec import decode_file, from_plain, to_plain
from llm_perf_opt.model.static.document import StaticDocument
from llm_perf_opt.model.summary import Static

_HINT = "give a static_compute.json written by the static_analysis stage"


def save_document(path: Path, document: StaticDocument) -> Path:
    """Write the document: the keys of ``summary.static`` at the top level, the document's own beside them."""
    plain = to_plain(document)
    static = plain.pop("static")
    static["source"] = path.name
    head = {"document_version": plain.pop("document_version"), "model": plain.pop("model")}
    return atomic_write_json(path, {**head, **static, **plain})


def load_static(path: Path) -> Static:
    """Read the static model of the summary from a document."""
    static = decode_file(_file(path), Static, hint=_HINT)
    _check_cache(static, path)
    static.source = static.source or path.name
    return static


def _check_cache(static: Static, path: Path) -> None:
    """Refuse a cache of less than a byte: positions are counted by it, and would be without end."""
    per_token = static.kv_bytes_per_token
    if per_token is not None and 0 < per_token < 1:
        raise InputError(
            f"{path}: kv_bytes_per_token: expected 0 or at least 1, got {per_token}",
            hint=_HINT,
            path=str(path),
        )


def load_model_facts(path: Path) -> dict[str, str]:
    """Return what the document says about the model: ``name``, ``architecture``, ``dtype``, where known."""
    facts = decode_file(_file(path), dict[str, Any], hint=_HINT).get("model")
    return (
        {key: value for key, value in facts.items() if isinstance(value, str)}
        if isinstance(facts, dict)
        else {}
    )


def load_document(path: Path) -> StaticDocument:
    """Read the whole document, to render its report again."""
    path = _file(path)
    data = decode_file(path, dict[str, Any], hint=_HINT)
    return from_plain(StaticDocument, {**data, "static": data}, str(path), hint=_HINT, path=path)


def _file(path: Path) -> Path:
    return path / layout.STATIC if path.is_dir() else path
