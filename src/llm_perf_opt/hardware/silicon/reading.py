"""What may go wrong with a table's file, and how it is said."""

from __future__ import annotations

import polars as pl

READ_ERRORS = (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""Damaged files: the reader gives up on some of them by a panic, which is no :class:`Exception`."""


def short(error: BaseException) -> str:
    """Return the first line of an error."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def left_out(place: str, error: BaseException) -> str:
    """Say which table is not used, and why."""
    return f"{place} is left out: {short(error)}"
