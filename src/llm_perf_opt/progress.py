"""Progress for people: a live line on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Protocol

LOGGER = logging.getLogger("llm_perf_opt")


class Progress(Protocol):
    """What stages report to."""

    def task(self, title: str, total: int | None = None) -> contextlib.AbstractContextManager[Task]:
        """Open a piece of work with a known or unknown number of steps."""
        ...

    def say(self, message: str) -> None:
        """Print one line."""
        ...


class Task(Protocol):
    """One piece of work under way."""

    def advance(self, steps: int = 1, note: str | None = None) -> None:
        """Move on by ``steps``; ``note`` replaces the text beside the bar."""
        ...


class _LogTask:
    def __init__(self, title: str, total: int | None) -> None:
        self._title, self._total, self._done = title, total, 0

    def advance(self, steps: int = 1, note: str | None = None) -> None:
        self._done += steps
        place = f"{self._done}/{self._total}" if self._total else str(self._done)
        LOGGER.info("%s: %s%s", self._title, place, f" ({note})" if note else "")


class LogProgress:
    """Plain lines through logging: for files, pipes and CI."""

    @contextlib.contextmanager
    def task(self, title: str, total: int | None = None) -> Iterator[Task]:
        """Log the start and each step."""
        LOGGER.info("%s …", title)
        yield _LogTask(title, total)

    def say(self, message: str) -> None:
        """Log one line."""
        LOGGER.info("%s", message)
