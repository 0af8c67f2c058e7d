"""Wait for every job of a sweep, also for those after one that left no result.

Submitit and Ray raise for the first job that was cancelled or whose machine died, and Hydra's launchers then return at
once: nobody would wait for the jobs that still run. Both ask one function for each result, so that function is replaced
while a sweep is launched.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

from hydra.core.utils import JobReturn, JobStatus

LOGGER = logging.getLogger("llm_perf_opt.sweep")


_LAST_WORDS = re.compile(r"^\w[\w.]*(?:Error|Exception)\b.*", re.MULTILINE)
"""The line of a traceback that says what was wrong."""
_MOST_LETTERS = 300


def why_lost(result: object) -> str | None:
    """Say why a job left no result, in the engine's words; ``None``: it left one."""
    error = result._return_value if isinstance(result, JobReturn) else None
    if not isinstance(error, Exception):
        return None
    text = str(error)
    named = _LAST_WORDS.findall(text)
    words = (
        named[-1]
        if named
        else next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    )
    return " ".join(words.split())[:_MOST_LETTERS]


@contextlib.contextmanager
def every_result(launcher: str) -> Iterator[None]:
    """Let a missing result be one for as long as the block runs; its manifest tells what became of the job."""
    patience: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if launcher in ("slurm", "submitit_local"):
        # The class's own method and the exceptions that mean "no result"; not those of a refused submission.
        errors = importlib.import_module("submitit.core.utils")
        kinds = (errors.UncompletedJobError, errors.FailedJobError)
        owner, name = importlib.import_module("submitit.core.core").Job, "results"
        patience = replaced(owner, name, lambda original: _patient(original, kinds, lambda failed: [failed]))
    elif launcher == "ray":
        errors = importlib.import_module("ray.exceptions")
        owner, name = importlib.import_module("ray"), "get"
        patience = replaced(
            owner, name, lambda original: _patient(original, (errors.RayError,), lambda failed: failed)
        )
    try:
        with patience:
            yield
    finally:
        if launcher == "ray":
            # What jobs print arrives by a thread of Ray's, also after the last result: not behind our own last words.
            importlib.import_module("ray").shutdown()


@contextlib.contextmanager
def replaced(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Let an attribute be what ``wrap`` makes of it for as long as the block runs."""
    original, is_own = getattr(owner, name), name in vars(owner)
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, original)
        else:  # its class has it
            delattr(owner, name)


def _patient(
    original: Callable[..., Any], kinds: tuple[type[Exception], ...], shaped: Callable[[JobReturn], Any]
) -> Callable[..., Any]:
    def result(*arguments: Any, **options: Any) -> Any:
        try:
            return original(*arguments, **options)
        except kinds as error:
            lost = JobReturn(_return_value=error, status=JobStatus.FAILED)
            LOGGER.warning("a job left no result: %s", why_lost(lost))
            return shaped(lost)

    return result
