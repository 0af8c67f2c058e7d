"""Which rank a file belongs to, by its name."""

from __future__ import annotations

import re
from pathlib import Path

_RANK_IN_NAME = re.compile(r"(?:^|[^a-z0-9])(?:rank|worker)[-_.]?(\d{1,5})(?!\d)", re.IGNORECASE)
_PLACE_IN_NAME = re.compile(r"(?:^|[^a-z0-9])(?:tp|dp|ep|gpu)[-_.]?(\d{1,5})(?!\d)", re.IGNORECASE)


def rank_in_name(path: Path) -> int | None:
    """Return the rank that a file's name gives; ``None`` when it gives none."""
    found = _RANK_IN_NAME.findall(path.name) or _PLACE_IN_NAME.findall(path.name)
    return int(found[-1]) if found else None
