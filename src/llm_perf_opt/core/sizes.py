"""How much of a file is read: documents and tables up to a size, packed text up to a factor. Both can be set.

A few megabytes of gzip unpack to gigabytes, and a link to ``/dev/zero`` never ends.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from llm_perf_opt.core.errors import ConfigError, InputError

DOCUMENT_VARIABLE = "LLM_PERF_OPT_MAX_DOCUMENT_BYTES"
"""Environment variable: the largest JSON, YAML or CSV file that is read."""
UNPACK_VARIABLE = "LLM_PERF_OPT_MAX_UNPACK_FACTOR"
"""Environment variable: how many times its size a packed trace may unpack to."""

_DOCUMENT_BYTES = 512 << 20
_UNPACK_FACTOR = 100


def most_document_bytes() -> int:
    """Return the largest document that is read."""
    return _from_environment(DOCUMENT_VARIABLE, _DOCUMENT_BYTES)


def most_unpacked() -> int:
    """Return how many times its size packed text may be."""
    return _from_environment(UNPACK_VARIABLE, _UNPACK_FACTOR)


def require_regular(path: Path) -> None:
    """Refuse what is there and is no file: a pipe, a device. What is not there is the caller's to say."""
    if path.exists() and not path.is_dir() and not stat.S_ISREG(path.stat().st_mode):
        raise InputError(f"{path} is not a regular file", hint="give a file", path=str(path))


def read_document(path: Path) -> bytes:
    """Return a file's content; too large a one, or no file, is an :class:`InputError`; other faults stay OSError."""
    require_regular(path)
    most = most_document_bytes()
    with path.open("rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise InputError(
            f"{path} is larger than {most} bytes",
            hint=f"if that is right, set {DOCUMENT_VARIABLE} to more",
            path=str(path),
        )
    return content


def _from_environment(variable: str, default: int) -> int:
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text) > 0):
        raise ConfigError(
            f"{variable}={text} is not a positive whole number", hint=f"the default is {default}"
        )
    return int(text)
