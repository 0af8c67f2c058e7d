"""Static documents as facts."""

from __future__ import annotations

from pathlib import Path

from llm_perf_opt.analysis.facts import Facts


def static_facts(path: Path) -> Facts:
    """Return the static model of a document, and what the document says of the model."""
    from llm_perf_opt.ingest.static import load_model_facts, load_static

    return Facts(sources={"static": (path,)}, static=load_static(path), model=load_model_facts(path))


def static_page_facts(path: Path) -> Facts:
    """Return the whole document, to make its page from."""
    from llm_perf_opt.ingest.static import load_document

    return Facts(static_document=load_document(path))
