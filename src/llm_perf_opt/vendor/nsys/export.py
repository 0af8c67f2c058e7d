"""Export a capture to SQLite and let nsys summarise it; judged by the files it writes."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.process.environment import allowed_environment
from llm_perf_opt.process.launch import ProcessResult, run_process
from llm_perf_opt.vendor.nsys.command import build_export_cmd, build_stats_cmd
from llm_perf_opt.vendor.nsys.files import sqlite_of
from llm_perf_opt.vendor.nsys.probe import SUMMARIES, NsysCapabilities

LOGGER = logging.getLogger("llm_perf_opt.nsys")

_EXPORT_TIMEOUT_S = 1800.0
_STATS_TIMEOUT_S = 900.0
_GPU_WORK = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
"""Kernels one by one, or whole graphs (``--cuda-graph-trace=graph``)."""


def export_sqlite(
    executable: str, report: Path, *, log_dir: Path, on_tick: Callable[[float], None] | None = None
) -> tuple[Path | None, ProcessResult]:
    """Export a report beside itself; ``None`` when nsys did not write a readable database.

    Once more when it ended by itself without one: as with captures, it happens on busy machines.
    """
    target = sqlite_of(report)
    for last in (False, True):
        process = run_process(
            build_export_cmd(report, target, executable=executable),
            log_dir=log_dir,
            name=f"{report.name.removesuffix('.nsys-rep')}.export",
            timeout_s=_EXPORT_TIMEOUT_S,
            base_env=allowed_environment(),
            on_tick=on_tick,
        )
        if process.ok and _is_database(target):
            return target, process
        target.unlink(missing_ok=True)
        if last or process.ended in ("timeout", "size"):
            break
        LOGGER.warning(
            "nsys did not export %s (%s): once more", report.name, process.tail(1) or process.ended
        )
    return None, process


def write_summaries(
    capabilities: NsysCapabilities, database: Path, *, base: str, log_dir: Path
) -> tuple[dict[str, Path], ProcessResult]:
    """Write what ``nsys stats`` has to say as ``<base>_<report>.csv``; return summary → file of those with data.

    nsys exits with 0 whatever happens and leaves empty files for reports without data: those are removed.
    """
    folder = database.parent
    names = {kind: name for kind in SUMMARIES if (name := capabilities.report_name(kind))}
    if not names:
        raise ToolError(
            f"Nsight Systems {capabilities.version_text} lists no report we know",
            hint="the SQLite export is complete; open an issue with the output of nsys stats --help-reports",
        )
    process = run_process(
        build_stats_cmd(database, list(names.values()), base, executable=capabilities.executable),
        log_dir=log_dir,
        name=f"{database.stem}.stats",
        timeout_s=_STATS_TIMEOUT_S,
        cwd=folder,
        base_env=allowed_environment(),
    )
    written: dict[str, Path] = {}
    for kind, name in names.items():
        path = folder / f"{base}_{name}.csv"
        if path.is_file() and path.stat().st_size and f"[{path.name}]... PROCESSED" in process.stdout:
            written[kind] = path
        else:
            path.unlink(missing_ok=True)
    return written, process


def has_kernels(database: Path) -> bool:
    """Tell whether an export holds GPU kernels."""
    with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
        found = (
            connection.execute(f"SELECT 1 FROM {table} LIMIT 1") for table in _GPU_WORK if table in there
        )
        return any(row.fetchone() is not None for row in found)


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return stream.read(16) == b"SQLite format 3\0"
    except OSError:
        return False
