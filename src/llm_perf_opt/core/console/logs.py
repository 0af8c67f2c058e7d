"""Logging: a file per run, and the console at the requested level.

A command is checked before its run directory exists. Earlier messages are kept and also written to ``run.log``.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO, cast

from llm_perf_opt.core import layout
from llm_perf_opt.core.escape import visible
from llm_perf_opt.core.files import explain_os_errors, refuse_link
from llm_perf_opt.core.secrets import mask_text

# Terminal output: printable text, without control sequences from files or child output.
#
# A kernel name may hold an escape that renames the window or clears the screen, and a terminal may know ASCII only.
# Everything printed on standard output is made harmless in one place; standard error also carries our own progress
# bars, so its texts are cleaned where they are made (:class:`PlainFormatter`, ``print_error``).


PLAIN = "llm_perf_opt.plain"
"""Name of the error handler that writes our own signs in ASCII, and others as escapes."""
_ASCII = {
    "…": "...", "–": "-", "—": "-", "µ": "u", "μ": "u", "×": "x", "·": "-", "→": "->", "÷": "/", "≥": ">=",
    "≤": "<=", "≈": "~", "±": "+-", "“": '"', "”": '"', "‘": "'", "’": "'", "\N{REPLACEMENT CHARACTER}": "?",
    "−": "-", "↔": "<->", "°": " deg", "√": "sqrt", "█": "#", "▉": "#", "▊": "#", "▋": "#", "▌": "#", "▍": "#",
    "▎": "|", "▏": "|", "━": "-", "╸": "-", "╺": "-",
}  # fmt: skip


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    first = error.object[error.start]
    if first in _ASCII:
        return _ASCII[first], error.start + 1
    one = UnicodeEncodeError(error.encoding, error.object, error.start, error.start + 1, error.reason)
    return cast("tuple[str, int]", codecs.backslashreplace_errors(one))


codecs.register_error(PLAIN, _in_ascii)


class _CleanText:
    """A text stream that makes control characters visible."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text as it may be shown."""
        return self._stream.write(text if text.isprintable() else visible(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class PlainFormatter(logging.Formatter):
    """Formats log records for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without control sequences."""
        return visible(super().format(record))


def wants_ascii(environ: Mapping[str, str]) -> bool:
    """Whether the locale is C or POSIX, in which Python writes UTF-8 although the terminal may not know it."""
    if environ.get("PYTHONUTF8") or environ.get("PYTHONIOENCODING"):
        return False  # chosen by the user
    named = next((environ[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if environ.get(name)), "")
    return named in ("C", "POSIX")


@contextlib.contextmanager
def safe_streams() -> Iterator[None]:
    """Make both streams take any text, and standard output harmless, while the block runs."""
    _replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            is_ascii = stream.isatty() and wants_ascii(os.environ)
            stream.reconfigure(errors=PLAIN, encoding="ascii" if is_ascii else None)
    before = sys.stdout
    sys.stdout = cast(TextIO, _CleanText(before))
    try:
        yield
    finally:
        sys.stdout = before


def _replace_closed_streams() -> None:
    """Let streams that were closed before the start (``>&-``, cron) write to the null device.

    Without that the next file that is opened gets their number, and a child's output would be written into it.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            taken = os.open(os.devnull, os.O_RDWR)
            if taken != number:
                os.dup2(taken, number)
                os.close(taken)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def discard_output() -> None:
    """Discard buffered standard output: its reader has exited, or its disk is full."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Masking(PlainFormatter):
    """Masks what looks like a secret, in messages and in tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        return mask_text(super().format(record))


class _MaskingAnother(logging.Formatter):
    """The same for an existing formatter."""

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
        self._logged: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        if not getattr(record, "once", False):
            return True
        message = record.getMessage()
        first = message not in self._logged
        self._logged.add(message)
        return first


class _EarlyRecords(logging.Handler):
    """Keep messages before there is a ``run.log``."""

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


class _MaskedRecords:
    """Makes log records of other libraries without secrets, independent of the configured handlers.

    Hydra sets its logging up and prints the overrides of every job before any code of ours runs again.
    """

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self._make = make

    def __call__(self, *arguments: Any, **options: Any) -> logging.LogRecord:
        record = self._make(*arguments, **options)
        if record.name.partition(".")[0] != ROOT:
            try:
                message = record.getMessage()
            except (
                TypeError,
                ValueError,
                KeyError,
            ):  # an error of the library, which logging itself reports
                return record
            masked = mask_text(message)
            if masked != message:
                record.msg, record.args = masked, ()
        return record


def mask_records() -> None:
    """Mask what other libraries log, from now on."""
    if not isinstance(logging.getLogRecordFactory(), _MaskedRecords):
        logging.setLogRecordFactory(_MaskedRecords(logging.getLogRecordFactory()))


class Verbosity(IntEnum):
    """How much the console shows."""

    quiet = logging.WARNING
    normal = logging.INFO
    verbose = logging.DEBUG


def console_logging(verbosity: Verbosity = Verbosity.normal) -> None:
    """Show our messages on standard error, so that standard output stays for results."""
    mask_records()
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
