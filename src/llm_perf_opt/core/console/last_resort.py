"""The end of a program that met what nobody foresaw: one sentence, the details in a file, an exit code of its own."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from pathlib import Path

from llm_perf_opt.core.errors import LlmPerfError
from llm_perf_opt.core.secrets import mask_arguments, mask_text
from llm_perf_opt.core.version import __version__

DEBUG_VARIABLE = "LLM_PERF_OPT_DEBUG"
"""Environment variable: ``1`` shows tracebacks on the terminal too."""
DEFECT_EXIT = 70
"""EX_SOFTWARE of sysexits.h; 1 would say that a stage failed or a gate found a regression."""


class Defect(LlmPerfError):
    """A mistake in this program, not one of its user's."""

    code = "defect"
    exit_code = DEFECT_EXIT


def defect(error: BaseException) -> Defect:
    """Keep the traceback in a file, and return the error that a user sees in its place."""
    details = mask_text("".join(traceback.format_exception(error)))
    if os.environ.get(DEBUG_VARIABLE, "") not in ("", "0"):
        print(details, end="", file=sys.stderr)
    place = _written(details)
    kept = f"the details are in {place}" if place else f"set {DEBUG_VARIABLE}=1 to see the details"
    found: dict[str, str] = {} if place is None else {"details": str(place)}
    return Defect(
        f"this should not have happened ({type(error).__name__}); {kept}",
        hint="report it with that file and the command to the project's issue tracker; "
        f"{DEBUG_VARIABLE}=1 shows the traceback here",
        **found,
    )


def _written(details: str) -> Path | None:
    """Write the details to a new file that only its user can read; ``None`` where even that is impossible."""
    head = f"llm-perf-opt {__version__}, Python {sys.version.split()[0]}\ncommand: {mask_arguments(sys.argv)}\n\n"
    try:
        descriptor, name = tempfile.mkstemp(prefix="llm-perf-opt-", suffix=".log")
        with open(descriptor, "wb") as stream:  # noqa: PTH123 - a descriptor, not a path
            stream.write((head + details).encode("utf-8", errors="backslashreplace"))
    except OSError:
        return None
    return Path(name)
