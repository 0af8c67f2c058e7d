"""Which rank a file belongs to, by its name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_RANK_IN_NAME = re.compile(r"(?:^|[^a-z0-9])(?:rank|worker)[-_.]?(\d{1,5})(?!\d)", re.IGNORECASE)
_PLACE_IN_NAME = re.compile(r"(?:^|[^a-z0-9])(?:tp|dp|ep|gpu)[-_.]?(\d{1,5})(?!\d)", re.IGNORECASE)


def rank_in_name(path: Path) -> int | None:
    """Return the rank that a file's name gives; ``None`` when it gives none."""
    found = _RANK_IN_NAME.findall(path.name) or _PLACE_IN_NAME.findall(path.name)
    return int(found[-1]) if found else None


def without_rank(path: Path) -> str:
    """Return a file's name without its rank: of captures of one range on several ranks it is the same."""
    return _RANK_IN_NAME.sub("", path.name)


def ranks_in_names(paths: Sequence[Path]) -> dict[Path, int | None]:
    """Return the rank of each file of one job by its name.

    Replicas count their own ranks from zero (``TP-0-DP-0``, ``TP-0-DP-1``): where the last place does not tell files
    apart and all places together do, the files are numbered in the order of their places.
    """
    alone = {path: rank_in_name(path) for path in paths}
    numbered = [path for path in alone if alone[path] is not None]
    places = {path: tuple(map(int, _PLACE_IN_NAME.findall(path.name))) for path in numbered}
    clash = len({alone[path] for path in numbered}) < len(numbered)
    if clash and all(places.values()) and len(set(places.values())) == len(numbered):
        in_order = sorted(numbered, key=lambda one: places[one])
        return alone | {path: rank for rank, path in enumerate(in_order)}
    return alone
