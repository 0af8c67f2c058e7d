"""Errors a user can cause or meet, each with an exit code and a way to fix it.

Nothing here is a bug report: the CLI prints the message and the hint, never a traceback.

Exit codes of the command line:

==== =====================================================================
0    everything asked for was done (skipped stages included)
1    the run finished, but a stage failed or its tokens differ from ``generate()``; or ``compare --gate`` found a regression
2    the configuration or the command line is wrong; nothing was written
3    an input (capture, dataset, checkpoint, run directory) cannot be used
4    an external tool or the machine did not do what was needed (out of memory included, where no other stage went on)
70   a defect of this program (``core/console/command_line.py``); the message names a file with the details
130  interrupted (Ctrl-C); 143 by SIGTERM, 129 by SIGHUP
==== =====================================================================
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class LlmPerfError(Exception):
    """Base of all expected errors: a message, a hint how to fix it, and data for scripts."""

    code = "error"
    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.data = data

    def to_dict(self) -> dict[str, Any]:
        """Return what ``--json`` prints for this error."""
        return {"error": self.code, "message": self.message, "hint": self.hint, **self.data}

    def __str__(self) -> str:
        return f"{self.message}\n  fix: {self.hint}" if self.hint else self.message


class ConfigError(LlmPerfError):
    """A key, a value or a combination in the configuration that cannot be meant."""

    code = "config"
    exit_code = 2


class InputError(LlmPerfError):
    """A file or directory given by the user that cannot be read or does not make sense."""

    code = "input"
    exit_code = 3


class CheckpointError(InputError):
    """Something of the model itself (its tokenizer, its configuration) that cannot be used: not an error of a sample."""


class ToolError(LlmPerfError):
    """An external tool, or the machine (disk, permission), failed."""

    code = "tool"
    exit_code = 4


# The known name a user most likely meant.


def nearest_key(key: str, known: Iterable[str]) -> str | None:
    """Return the known key a user most likely meant, or ``None`` when nothing is near."""
    known = sorted(known)
    whole = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if whole:
        return whole[0]
    # The last part may be right and the path wrong (``repeats`` for ``run.repeats``).
    by_last: dict[str, str] = {}
    for candidate in known:
        by_last.setdefault(candidate.rsplit(".", 1)[-1], candidate)
    last = difflib.get_close_matches(key.rsplit(".", 1)[-1], by_last, n=1, cutoff=0.7)
    return by_last[last[0]] if last else None
