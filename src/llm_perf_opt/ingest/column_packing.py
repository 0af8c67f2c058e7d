"""Columns of whole numbers in as few bytes as they need.

Most of what a capture repeats a million times is one value (the process), a few (streams, names) or close to its
neighbour (durations). Fewer bytes are read and checked sooner.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]

_NARROW = (np.uint8, np.uint16, np.uint32)


def pack(column: Column) -> tuple[Column, dict[str, Any]]:
    """Return the bytes to keep and what :func:`unpack` has to know."""
    how: dict[str, Any] = {"dtype": column.dtype.str, "rows": len(column), "base": 0}
    if not len(column):
        return column, how
    low, high = int(column.min()), int(column.max())
    if low == high:
        return np.empty(0, np.uint8), {**how, "base": low}
    for narrow in _NARROW:
        if high - low <= int(np.iinfo(narrow).max) and np.dtype(narrow).itemsize < column.dtype.itemsize:
            return (column - low).astype(narrow), {**how, "base": low}
    return column, how


def unpack(kept: Column, how: dict[str, Any]) -> Column:
    """Return the column as it was, to be read only; raise :class:`ValueError` when the two do not belong together."""
    kind, rows, base = np.dtype(how["dtype"]), int(how["rows"]), int(how["base"])
    if rows and not len(kept):
        return np.broadcast_to(kind.type(base), rows)  # one value for all rows, and no memory for them
    if len(kept) != rows:
        raise ValueError(f"{len(kept)} rows where {rows} are announced")
    if kept.dtype == kind and not base:
        return kept
    column: Column = np.add(kept, kind.type(base), dtype=kind, casting="unsafe")
    return column
