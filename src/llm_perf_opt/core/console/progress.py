"""Progress display: one line that updates on a terminal, few plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from llm_perf_opt.core.console.logs import Verbosity
from llm_perf_opt.core.secrets import mask_text

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.progress import Progress as RichBars
    from rich.progress import TaskID

LOGGER = logging.getLogger("llm_perf_opt")
_NARROW_COLUMNS = 80
"""A narrower terminal shows no bar."""


class Progress(Protocol):
    """Progress interface of stages."""

    def task(self, title: str, total: int | None = None) -> contextlib.AbstractContextManager[Task]:
        """Open a piece of work with a known or unknown number of steps."""
        ...

    def say(self, message: str) -> None:
        """Print one line."""
        ...


class Task(Protocol):
    """One piece of work under way."""

    def advance(self, steps: int = 1, note: str | None = None) -> None:
        """Move on by ``steps``; ``note`` replaces the text next to the bar. Zero steps: it is still running."""
        ...


_LINE_EVERY_S = 10.0
"""Without a terminal, a task prints at most one line in this time."""


class _LogTask:
    def __init__(self, title: str, total: int | None, clock: Callable[[], float]) -> None:
        self._title, self._total, self._done, self._note = title, total, 0, ""
        self._clock, self._began = clock, clock()
        self._printed = self._began

    def advance(self, steps: int = 1, note: str | None = None) -> None:
        self._done += steps
        self._note = self._note if note is None else note
        now = self._clock()
        if now - self._printed < _LINE_EVERY_S:
            return
        self._printed = now
        place = f": {self._done} of {self._total}" if self._total else ""
        note = f" ({self._note})" if self._note else ""
        LOGGER.info("%s%s, %.0f s%s", self._title, place, now - self._began, note)


class LogProgress:
    """Plain lines through logging, for files, pipes and CI: a line per task, and one every ten seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock

    @contextlib.contextmanager
    def task(self, title: str, total: int | None = None) -> Iterator[Task]:
        """Log the start, and periodic progress."""
        LOGGER.info("%s …", title)
        yield _LogTask(title, total, self._clock)

    def say(self, message: str) -> None:
        """Log one line."""
        LOGGER.info("%s", message)


class SilentProgress:
    """Nothing at all, for ``--quiet``."""

    @contextlib.contextmanager
    def task(self, title: str, total: int | None = None) -> Iterator[Task]:
        """Return a silent task."""
        yield _SilentTask()

    def say(self, message: str) -> None:
        """Keep it for the log file."""
        LOGGER.debug("%s", message)


class _SilentTask:
    def advance(self, steps: int = 1, note: str | None = None) -> None:
        """Do nothing."""


class RichProgress:
    """One line on a terminal that updates; a task inside another takes its place."""

    def __init__(self, bars: RichBars) -> None:
        self._bars = bars
        self._open: list[TaskID] = []

    @contextlib.contextmanager
    def task(self, title: str, total: int | None = None) -> Iterator[Task]:
        """Show the task for as long as the block runs."""
        LOGGER.debug("%s …", title)
        if self._open:
            self._bars.update(self._open[-1], visible=False)
        identifier = self._bars.add_task(title, total=total, note="", place="")
        self._open.append(identifier)
        try:
            yield _RichTask(self._bars, identifier, total)
        finally:
            self._open.remove(identifier)
            self._bars.remove_task(identifier)
            if self._open:
                self._bars.update(self._open[-1], visible=True)

    def say(self, message: str) -> None:
        """Print above the line."""
        LOGGER.debug("%s", message)
        self._bars.console.print(mask_text(message), markup=False, highlight=False)


class _RichTask:
    def __init__(self, bars: RichBars, identifier: TaskID, total: int | None) -> None:
        self._bars, self._identifier, self._total, self._done = bars, identifier, total, 0

    def advance(self, steps: int = 1, note: str | None = None) -> None:
        self._done += steps
        fields: dict[str, Any] = {} if note is None else {"note": note}
        if self._total is not None:
            fields["place"] = f"{self._done} of {self._total}"
        self._bars.update(self._identifier, advance=steps, **fields)


@contextlib.contextmanager
def make_progress(verbosity: Verbosity) -> Iterator[Progress]:
    """Choose by the type of output: bars on a terminal, lines in a pipe, nothing when quiet."""
    if verbosity is Verbosity.quiet:
        yield SilentProgress()
        return
    if not sys.stderr.isatty() or verbosity is Verbosity.verbose:
        yield LogProgress()
        return
    from rich.console import Console

    with progress_line(Console(stderr=True)) as progress:
        yield progress


@contextlib.contextmanager
def progress_line(console: RichConsole) -> Iterator[RichProgress]:
    """Show tasks on one line of a terminal, cut at its width; in ASCII if it supports nothing else."""
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars
    from rich.table import Column

    narrow = console.width < _NARROW_COLUMNS
    is_ascii = not console.encoding.lower().startswith("utf")
    columns = [
        SpinnerColumn("line" if is_ascii else "dots"),
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="crop")),
        *([] if narrow else [BarColumn(bar_width=20)]),
        TextColumn("{task.fields[place]}", markup=False),
        TimeElapsedColumn(),
        TextColumn(
            "{task.fields[note]}", markup=False, table_column=Column(no_wrap=True, overflow="crop", ratio=1)
        ),
    ]
    with Bars(*columns, console=console, transient=True, expand=True) as bars:
        yield RichProgress(bars)
