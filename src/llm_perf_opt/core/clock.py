"""The time of day, for people. Durations are taken from a clock that nobody sets (``time.monotonic``)."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime


def now_text() -> str:
    """Return the time now, ISO 8601 with the offset of this machine's zone, to the second."""
    now = datetime.now(UTC)
    with contextlib.suppress(ValueError, OverflowError, OSError):  # TZ is none: the time in UTC is as true
        now = now.astimezone()
    return now.isoformat(timespec="seconds")
