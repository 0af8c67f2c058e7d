"""Progress for people: a live line on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from llm_perf_opt.core.console.logs import Verbosity
from llm_perf_opt.core.secrets import mask_text

if TYPE_CHECKING:
    from rich.progress import Progress as RichBars
    from rich.progress import TaskID

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
        """Move on by ``steps``; ``note`` replaces the text next to the bar."""
        ...


class _LogTask:
    def __init__(self, title: str, total: int | None) -> None:
        self._title, self._total, self._done = title, total, 0

    def advance(self, steps: int = 1, note: str | None = None) -> None:
        self._done += steps
        if self._total is None and note is None:
            return  # nothing to count and nothing to say; the next line tells that it is over
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


class SilentProgress:
    """Nothing at all, for ``--quiet``."""

    @contextlib.contextmanager
    def task(self, title: str, total: int | None = None) -> Iterator[Task]:
        """Give a task that says nothing."""
        yield _SilentTask()

    def say(self, message: str) -> None:
        """Keep it for the log file."""
        LOGGER.debug("%s", message)


class _SilentTask:
    def advance(self, steps: int = 1, note: str | None = None) -> None:
        """Do nothing."""


class RichProgress:
    """Live bars on a terminal."""

    def __init__(self, bars: RichBars) -> None:
        self._bars = bars

    @contextlib.contextmanager
    def task(self, title: str, total: int | None = None) -> Iterator[Task]:
        """Show a bar for as long as the block runs."""
        LOGGER.debug("%s …", title)
        identifier = self._bars.add_task(title, total=total, note="")
        try:
            yield _RichTask(self._bars, identifier)
        finally:
            self._bars.remove_task(identifier)

    def say(self, message: str) -> None:
        """Print above the bars."""
        LOGGER.debug("%s", message)
        self._bars.console.print(mask_text(message), markup=False, highlight=False)


class _RichTask:
    def __init__(self, bars: RichBars, identifier: TaskID) -> None:
        self._bars, self._identifier = bars, identifier

    def advance(self, steps: int = 1, note: str | None = None) -> None:
        if note is not None:
            self._bars.update(self._identifier, note=note)
        self._bars.advance(self._identifier, steps)


@contextlib.contextmanager
def make_progress(verbosity: Verbosity) -> Iterator[Progress]:
    """Choose by where the output goes: bars on a terminal, lines in a pipe, nothing when quiet."""
    if verbosity is Verbosity.quiet:
        yield SilentProgress()
        return
    if not sys.stderr.isatty() or verbosity is Verbosity.verbose:
        yield LogProgress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        yield RichProgress(bars)
