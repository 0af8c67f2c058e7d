"""The directory that ``ingest`` writes to: one writer at a time, and never the directory of a run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.files import explain_os_errors, is_there
from llm_perf_opt.core.run_directory import layout
from llm_perf_opt.runs.directory.lock import hold

_VERB = "ingest"


@contextlib.contextmanager
def hold_output(out: Path) -> Iterator[None]:
    """Hold ``out`` while the block writes there; what an earlier ``ingest`` left is overwritten, a run's is refused.

    A directory that is made here and stays empty, because an input cannot be read, is removed again.
    """
    made = not is_there(out)
    with explain_os_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    try:
        with hold(out, elsewhere="--out DIR"):
            _refuse_run(out)
            yield
    finally:
        if made:
            with contextlib.suppress(OSError):  # not empty: it holds the result
                out.rmdir()


def _refuse_run(out: Path) -> None:
    """The summary and the reports of a run would be replaced by those of other captures, beside the run's own files."""
    if not is_there(out / layout.MANIFEST) and not _is_summary_of_run(out / layout.SUMMARY):
        return
    raise ConfigError(
        f"--out {out} holds a run, whose summary and reports would be overwritten",
        hint="give another directory: --out DIR",
        path=str(out),
    )


def _is_summary_of_run(path: Path) -> bool:
    """Whether a summary says that something else than ``ingest`` made it; one that says nothing is nobody's."""
    try:
        document: Any = json.loads(path.read_bytes())
        command = document["run"]["command"]
        return isinstance(command, list) and len(command) > 1 and command[1] != _VERB
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        return False
