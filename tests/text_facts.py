"""Facts that a text holds however it is worded: numbers with their units, names, settings."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?!\w)")


def mentions(text: str | None, *facts: str) -> bool:
    """Return whether a text has all of these facts, each by itself: ``9`` is neither in ``9.5`` nor in ``19``."""
    return all(_whole(fact).search(text or "") for fact in facts)


def mentions_in_order(text: str, *facts: str) -> bool:
    """Return whether a text has these facts one after another: a part before its whole, a sum before its result."""
    place = 0
    for fact in facts:
        found = _whole(fact).search(text, place)
        if found is None:
            return False
        place = found.end()
    return True


def any_mentions(texts: Iterable[str], *facts: str) -> bool:
    """Return whether one of the texts has all of these facts."""
    return any(mentions(text, *facts) for text in texts)


def numbers(text: str) -> list[str]:
    """Return the numbers of a text, in their order; not those inside names."""
    return _NUMBER.findall(text)


def _whole(fact: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.,]){re.escape(fact)}(?!\w|[.,]\d)", re.IGNORECASE)
