"""Rules that are data: ordered rows in YAML files of this package."""

from __future__ import annotations

from importlib import resources
from typing import Any


def load_rows(file_name: str) -> list[dict[str, Any]]:
    """Return the rows of one rule file, in order."""
    import yaml  # slow to import, and most callers never classify

    text = resources.files("llm_perf_opt.analysis").joinpath(file_name).read_text("utf-8")
    # Both loaders are the safe ones; the C one is ten times faster, where it was built.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    rows: list[dict[str, Any]] = yaml.load(text, Loader=loader)
    return rows
