"""What reaches a terminal: text it can show, without commands to it that came out of a file or a child's output.

A kernel name may hold an escape that renames the window or clears the screen, and a terminal may know ASCII only.
Everything printed on standard output is made harmless in one place; standard error also carries our own progress
bars, so its texts are cleaned where they are made (:class:`PlainFormatter`, ``print_error``).
"""

from __future__ import annotations

import codecs
import contextlib
import io
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

from llm_perf_opt.core.escape import visible

PLAIN = "llm_perf_opt.plain"
"""Name of the error handler that writes our own signs in ASCII, and others as escapes."""

_ASCII = {
    "…": "...", "–": "-", "—": "-", "µ": "u", "μ": "u", "×": "x", "·": "-", "→": "->", "÷": "/", "≥": ">=",
    "≤": "<=", "≈": "~", "±": "+-", "“": '"', "”": '"', "‘": "'", "’": "'", "\N{REPLACEMENT CHARACTER}": "?",
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


class CleanText:
    """A text stream on which control characters are shown, not obeyed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text as it may be shown."""
        return self._stream.write(text if text.isprintable() else visible(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class PlainFormatter(logging.Formatter):
    """Log records for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without anything a terminal would obey."""
        return visible(super().format(record))


@contextlib.contextmanager
def safe_streams() -> Iterator[None]:
    """Make both streams take any text, and standard output harmless, while the block runs."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAIN)
    before = sys.stdout
    if before is not None:  # started without one (cron, pythonw)
        sys.stdout = cast(TextIO, CleanText(before))
    try:
        yield
    finally:
        sys.stdout = before


def give_up_output() -> None:
    """Let what is still buffered for standard output go nowhere: its reader left, or its disk is full."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
