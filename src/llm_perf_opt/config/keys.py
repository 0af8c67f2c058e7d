"""Where the presets are; known keys, and the nearest one to a mistyped key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from llm_perf_opt.core.nearest import nearest_key

CONF_DIR = Path(__file__).resolve().parent.parent / "conf"


def leaf_keys(tree: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted path of every key of a nested mapping, inner nodes included."""
    found: list[str] = []
    for key, value in tree.items():
        path = f"{prefix}{key}"
        found.append(path)
        if isinstance(value, Mapping):
            found.extend(leaf_keys(value, f"{path}."))
    return found


def did_you_mean(key: str, known: Iterable[str]) -> str:
    """Phrase the nearest key as a hint."""
    near = nearest_key(key, known)
    return f"did you mean '{near}'?" if near else "see all keys with: llm-perf-opt run --cfg job"
