"""Logging: a file per run, and the console at the level the user asked for.

A command is checked before its run directory exists. What was said until then is kept, and is in ``run.log`` too.
"""

from __future__ import annotations

import logging
import os
from enum import IntEnum
from io import TextIOWrapper
from pathlib import Path

from llm_perf_opt.core.console.terminal import PlainFormatter
from llm_perf_opt.core.escape import visible
from llm_perf_opt.core.files import explain_os_errors, refuse_link
from llm_perf_opt.core.run_directory import layout
from llm_perf_opt.core.secrets import mask_text


class _Masking(PlainFormatter):
    """Masks what looks like a secret, in messages and in tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        return mask_text(super().format(record))


class _MaskingAnother(logging.Formatter):
    """The same for a formatter that somebody else chose."""

    def __init__(self, other: logging.Formatter | None) -> None:
        super().__init__()
        self._other = other or logging.Formatter()

    def format(self, record: logging.LogRecord) -> str:
        return mask_text(visible(self._other.format(record)))


ROOT = "llm_perf_opt"
RUN_LOG = layout.RUN_LOG
ONCE = {"once": True}
"""``extra=`` of a message that a command repeats each time it composes its configuration, and a user reads once."""

_MOST_EARLY_RECORDS = 1000


class _Once(logging.Filter):
    """Let a message that is marked with :data:`ONCE` through the first time only."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        if not getattr(record, "once", False):
            return True
        message = record.getMessage()
        first = message not in self._said
        self._said.add(message)
        return first


class _EarlyRecords(logging.Handler):
    """Keep what is said before there is a ``run.log``."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []
        self.open = True
        self.addFilter(_Once())

    def emit(self, record: logging.LogRecord) -> None:
        if self.open and len(self.records) < _MOST_EARLY_RECORDS:
            self.records.append(record)


class _OwnFile(logging.FileHandler):
    """A log that is appended to, and never through a link."""

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.baseFilename, flags, 0o666)
        return TextIOWrapper(os.fdopen(descriptor, "ab"), encoding=self.encoding, errors=self.errors)


def mask_other_logs() -> None:
    """Mask what the libraries of this process log through the root logger, to whatever file or terminal.

    Hydra sets that up where a user asks for it (``hydra/job_logging=default``: a file in the run directory).
    """
    for handler in logging.getLogger().handlers:
        if not isinstance(handler.formatter, _MaskingAnother):
            handler.setFormatter(_MaskingAnother(handler.formatter))


class Verbosity(IntEnum):
    """How much the console shows."""

    quiet = logging.WARNING
    normal = logging.INFO
    verbose = logging.DEBUG


def console_logging(verbosity: Verbosity = Verbosity.normal) -> None:
    """Show our messages on standard error, so that standard output stays for results."""
    logger = logging.getLogger(ROOT)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    for old in [
        h for h in logger.handlers if getattr(h, "is_console", False) or isinstance(h, _EarlyRecords)
    ]:
        logger.removeHandler(old)
    handler = logging.StreamHandler()
    handler.addFilter(_Once())
    handler.is_console = True  # type: ignore[attr-defined]
    handler.setLevel(int(verbosity))
    handler.setFormatter(
        _Masking(
            "%(message)s"
            if verbosity is not Verbosity.verbose
            else "%(relativeCreated)7.0f ms %(name)s: %(message)s"
        )
    )
    logger.addHandler(handler)
    logger.addHandler(_EarlyRecords())


def run_log(run_dir: Path) -> logging.Handler:
    """Also write everything, with times, to ``<run>/run.log``; the caller removes the handler."""
    with explain_os_errors(run_dir / RUN_LOG):
        refuse_link(run_dir / RUN_LOG)
        handler = _OwnFile(run_dir / RUN_LOG, encoding="utf-8", errors="backslashreplace")
    handler.setLevel(logging.DEBUG)
    handler.setFormatter(_Masking("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger(ROOT)
    logger.setLevel(logging.DEBUG)
    for early in [h for h in logger.handlers if isinstance(h, _EarlyRecords)]:
        early.open = False
        for record in early.records:
            handler.handle(record)
    logger.addHandler(handler)
    return handler
