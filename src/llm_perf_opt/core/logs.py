"""Logging: a file per run, and the console at the level the user asked for."""

from __future__ import annotations

import logging
from enum import IntEnum
from pathlib import Path

from llm_perf_opt.core.files import explain_os_errors, refuse_link
from llm_perf_opt.core.terminal import PlainFormatter

ROOT = "llm_perf_opt"
RUN_LOG = "run.log"


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
    for handler in [h for h in logger.handlers if getattr(h, "is_console", False)]:
        logger.removeHandler(handler)
    handler = logging.StreamHandler()
    handler.is_console = True  # type: ignore[attr-defined]
    handler.setLevel(int(verbosity))
    handler.setFormatter(
        PlainFormatter(
            "%(message)s"
            if verbosity is not Verbosity.verbose
            else "%(relativeCreated)7.0f ms %(name)s: %(message)s"
        )
    )
    logger.addHandler(handler)


def run_log(run_dir: Path) -> logging.Handler:
    """Also write everything, with times, to ``<run>/run.log``; the caller removes the handler."""
    with explain_os_errors(run_dir / RUN_LOG):
        refuse_link(run_dir / RUN_LOG)
        handler = logging.FileHandler(run_dir / RUN_LOG, encoding="utf-8", errors="backslashreplace")
    handler.setLevel(logging.DEBUG)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger(ROOT)
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    return handler
