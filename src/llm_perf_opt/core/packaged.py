"""Data that ships with the package as YAML: ordered rules, and the catalogue of devices."""

from __future__ import annotations

from importlib import resources
from typing import Any


def packaged_yaml(package: str, file_name: str) -> Any:
    """Return the contents of a YAML file of a package."""
    import yaml  # slow to import, and most callers never get here

    text = resources.files(package).joinpath(file_name).read_text("utf-8")
    # Both loaders are the safe ones; the C one is ten times faster, where it was built.
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def packaged_rows(package: str, file_name: str) -> list[dict[str, Any]]:
    """Return the rows of one rule file, in order."""
    rows: list[dict[str, Any]] = packaged_yaml(package, file_name)
    return rows
