"""Known keys, and the nearest one to a mistyped key."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


def leaf_keys(tree: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted path of every key of a nested mapping, inner nodes included."""
    found: list[str] = []
    for key, value in tree.items():
        path = f"{prefix}{key}"
        found.append(path)
        if isinstance(value, Mapping):
            found.extend(leaf_keys(value, f"{path}."))
    return found


def nearest_key(key: str, known: Iterable[str]) -> str | None:
    """Return the known key a user most likely meant, or ``None`` when nothing is near."""
    known = sorted(known)
    whole = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if whole:
        return whole[0]
    # The last word may be right and the path wrong (``repeats`` for ``run.repeats``).
    by_last: dict[str, str] = {}
    for candidate in known:
        by_last.setdefault(candidate.rsplit(".", 1)[-1], candidate)
    last = difflib.get_close_matches(key.rsplit(".", 1)[-1], by_last, n=1, cutoff=0.7)
    return by_last[last[0]] if last else None


def did_you_mean(key: str, known: Iterable[str]) -> str:
    """Phrase the nearest key as a hint."""
    near = nearest_key(key, known)
    return f"did you mean '{near}'?" if near else "see all keys with: llm-perf-opt run --cfg job"
