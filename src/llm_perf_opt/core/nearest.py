"""The known name a user most likely meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
