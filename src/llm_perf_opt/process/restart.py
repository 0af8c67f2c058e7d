"""Start this program again with variables that libraries read only when a process starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from llm_perf_opt.core.errors import ToolError

_MARK = "LLM_PERF_OPT_RESTARTED"
"""Set for a process that was started again, so that it is not started a third time."""


def missing_variables(wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that this process was started without, or with another value."""
    return {name: value for name, value in wanted.items() if os.environ.get(name) != value}


def restart_with(variables: Mapping[str, str], arguments: Sequence[str]) -> None:
    """Replace this process by one with these variables and the same command line; returns only when none is missing."""
    missing = missing_variables(variables)
    if not missing:
        return
    if os.environ.get(_MARK):
        names = ", ".join(sorted(missing))
        raise ToolError(
            f"run.env: {names} did not take effect although the run was started again with it",
            hint="set it in the shell before starting",
        )
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    command = [sys.executable, "-m", "llm_perf_opt", *arguments]
    try:
        os.execve(sys.executable, command, {**os.environ, **missing, _MARK: "1"})
    except (OSError, ValueError) as error:
        raise ToolError(
            f"run.env: the run cannot be started again with {', '.join(sorted(missing))}: {error}",
            hint="check names and values",
        ) from error
