"""Make or renew the index of the runs below a directory: what did not change is not read again."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llm_perf_opt.analysis.history.flatten import metric_rows, run_row
from llm_perf_opt.analysis.history.record import finding_rows
from llm_perf_opt.core.errors import InputError, ToolError
from llm_perf_opt.core.files import explain_os_errors
from llm_perf_opt.core.run_directory import layout
from llm_perf_opt.model.history import FindingRow, IndexInfo, LeftOut, MetricRow, RunRow
from llm_perf_opt.model.improve import FILE_NAME as IMPROVE
from llm_perf_opt.model.improve import load_improvement
from llm_perf_opt.model.summary_file import load_summary
from llm_perf_opt.runs.history import store
from llm_perf_opt.runs.history.settings import settings_of_run

_BATCH = 500
"""Summaries whose metrics are held in memory at once."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A ``summary.json`` or ``improve.json`` as the file system tells of it."""

    run: str
    path: Path
    size: int
    mtime_ns: int


@dataclass(slots=True)
class Found:
    """What lies below a directory."""

    summaries: list[FoundFile] = field(default_factory=list)
    searches: list[FoundFile] = field(default_factory=list)
    """Of ``improve``."""
    left_out: list[LeftOut] = field(default_factory=list)


@dataclass(slots=True)
class Renewal:
    """What renewing an index did."""

    info: IndexInfo
    read: int = 0
    unchanged: int = 0
    removed: int = 0
    notes: list[str] = field(default_factory=list)


def renew_index(directory: Path, out: Path | None = None) -> Renewal:
    """Bring the index of ``directory`` up to date; its files lie there, or in ``out``."""
    directory = directory.expanduser().absolute()
    if not directory.is_dir():
        raise InputError(
            f"{directory} is not a directory",
            hint="give the directory that holds the runs",
            path=str(directory),
        )
    folder = (out or directory).expanduser().absolute()
    with store.locked(folder):
        notes = store.set_aside_unreadable(folder)
        known, info = _known(folder, directory)
        refused = {entry.path: entry for entry in info.left_out if entry.mtime_ns is not None}
        below = _walk(directory)
        found, left_out = below.summaries, below.left_out
        unchanged = [item for item in found if _is_unchanged(item, known.get(item.run))]
        same = {item.run for item in unchanged}
        to_read = []
        for item in found:
            before = refused.get(item.run)
            if before is not None and (before.size, before.mtime_ns) == (item.size, item.mtime_ns):
                left_out.append(before)
            elif item.run not in same:
                to_read.append(item)
        removed = len(known.keys() - {item.run for item in found})
        renewal = Renewal(IndexInfo(str(directory)), len(to_read), len(unchanged), removed, notes)
        stale = len(known) != len(unchanged)
        rows = [known[item.run] for item in unchanged]
        with _scratch(folder) as scratch:
            parts = _read_all(to_read, directory, scratch, rows, left_out)
            graded = _renew_findings(folder, below, refused)
            renewal.info.left_out = sorted(left_out, key=lambda entry: entry.path)
            renewal.info.findings = len(graded)
            complete = all((folder / name).is_file() for name in (store.RUNS, store.METRICS, store.INFO))
            told = (renewal.info.left_out, renewal.info.findings) == (info.left_out, info.findings)
            if parts or stale or not complete or not told:
                runs = store.frame(sorted(rows, key=lambda row: row.run), store.RUN_COLUMNS)
                store.write_index(folder, runs, parts, sorted(same), renewal.info)
            else:
                renewal.info.runs, renewal.info.metrics = info.runs, info.metrics
    return renewal


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    with explain_os_errors(folder):
        path = Path(tempfile.mkdtemp(prefix=".index-", dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _known(folder: Path, directory: Path) -> tuple[dict[str, RunRow], IndexInfo]:
    """Return what is indexed already; of another directory, or in part, it counts as nothing."""
    if not all((folder / name).is_file() for name in (store.RUNS, store.METRICS)):
        return {}, IndexInfo(str(directory))
    rows = {row.run: row for row in store.read_runs(folder)}
    store.scan_metrics(folder)  # refuses another tool's file
    try:
        info = store.read_info(folder)
    except InputError:  # not written yet, or damaged: what it says is found again
        return rows, IndexInfo(str(directory))
    if info.directory != str(directory):
        raise InputError(
            f"{folder} holds the index of {info.directory}, not of {directory}",
            hint="write this one elsewhere: --out DIR (a tree that was moved: remove index.json, the rest is found again)",
            path=str(folder),
        )
    return rows, info


def _is_unchanged(item: FoundFile, known: RunRow | None) -> bool:
    return known is not None and (known.summary_size, known.summary_mtime_ns) == (item.size, item.mtime_ns)


def _walk(directory: Path) -> Found:
    """Find summaries and searches, in the order of their names; below a run nothing is looked for, its parts are no runs."""
    found = Found()
    waiting = [directory]
    while waiting:
        folder = waiting.pop()
        name = folder.relative_to(directory).as_posix()
        try:
            entries = {entry.name: entry for entry in os.scandir(folder)}
            if (summary := _file(entries, layout.SUMMARY, name)) is not None:
                found.summaries.append(summary)
                continue
            if layout.MANIFEST in entries and (layout.CONFIG in entries or layout.RANKS in entries):
                found.left_out.append(
                    LeftOut(name, f"a run without {layout.SUMMARY}: it still runs, or was killed")
                )
                continue
            if (search := _file(entries, IMPROVE, name)) is not None:
                found.searches.append(search)
            folders = sorted(
                n for n, e in entries.items() if e.is_dir(follow_symlinks=False) and not n.startswith(".")
            )
        except OSError as error:
            found.left_out.append(LeftOut(name, f"cannot be read: {error.strerror}"))
            continue
        waiting.extend(folder / n for n in reversed(folders))
    return found


def _file(entries: dict[str, os.DirEntry[str]], name: str, run: str) -> FoundFile | None:
    entry = entries.get(name)
    if entry is None or not stat.S_ISREG((status := entry.stat()).st_mode):
        return None
    return FoundFile(run, Path(entry.path), status.st_size, status.st_mtime_ns)


def _renew_findings(folder: Path, below: Found, refused: dict[str, LeftOut]) -> list[FindingRow]:
    """Bring ``findings.parquet`` up to date; return its rows. Searches are few and small: they are read one by one."""
    known: dict[str, list[FindingRow]] = {}
    before = store.read_findings(folder)
    for row in before:
        known.setdefault(row.search, []).append(row)
    rows: list[FindingRow] = []
    for item in below.searches:
        path = f"{item.run}/{IMPROVE}" if item.run != "." else IMPROVE
        there, no = known.get(item.run, []), refused.get(path)
        if there and (there[0].file_size, there[0].file_mtime_ns) == (item.size, item.mtime_ns):
            rows.extend(there)
        elif no is not None and (no.size, no.mtime_ns) == (item.size, item.mtime_ns):
            below.left_out.append(no)
        else:
            try:
                result = load_improvement(item.path)
            except InputError as error:
                reason = error.message.replace(str(item.path), path)
                below.left_out.append(LeftOut(path, reason, item.size, item.mtime_ns))
                continue
            rows.extend(finding_rows(result, item.run, size=item.size, mtime_ns=item.mtime_ns))
    if rows != before or not (folder / store.FINDINGS).is_file():
        store.write_findings(folder, rows)
    return rows


def _read_all(
    items: Sequence[FoundFile], directory: Path, scratch: Path, rows: list[RunRow], left_out: list[LeftOut]
) -> list[Path]:
    """Read summaries batch by batch; their metrics go to files, because those of many runs are more than memory."""
    parts = []
    for start in range(0, len(items), _BATCH):
        metrics: list[MetricRow] = []
        for item in items[start : start + _BATCH]:
            try:
                row, more = read_run(item, directory)
            except InputError as error:
                reason = error.message.replace(f"{directory}{os.sep}", "")
                left_out.append(LeftOut(item.run, reason, item.size, item.mtime_ns))
                continue
            rows.append(row)
            metrics.extend(more)
        if metrics:
            part = scratch / f"{start:08d}.parquet"
            with explain_os_errors(part):
                store.frame(metrics, store.METRIC_COLUMNS).write_parquet(part)
            parts.append(part)
    return parts


def read_run(item: FoundFile, directory: Path) -> tuple[RunRow, list[MetricRow]]:
    """Return the rows of one run; raises :class:`InputError` for what is no summary of ours."""
    summary = load_summary(item.path)
    settings = settings_of_run(item.path.parent, summary)
    row = run_row(
        summary,
        settings,
        run=item.run,
        path=item.path.relative_to(directory).as_posix(),
        size=item.size,
        mtime_ns=item.mtime_ns,
    )
    return row, list(metric_rows(summary, item.run))


def row_of(run_dir: Path) -> RunRow:
    """Return the row of a run that need not be in any index."""
    run_dir = run_dir.expanduser().absolute()
    path = run_dir / layout.SUMMARY if run_dir.is_dir() else run_dir
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}",
            hint="give the directory of a finished run",
            path=str(path),
        ) from error
    item = FoundFile(path.parent.name, path, status.st_size, status.st_mtime_ns)
    return read_run(item, path.parent)[0]


def open_index(
    directory: Path, out: Path | None = None, *, renew: bool = True
) -> tuple[Path, IndexInfo, list[str]]:
    """Return the folder of an index, what it holds and what to note; renewed where it can be written."""
    folder = (out or directory).expanduser().absolute()
    if renew:
        try:
            done = renew_index(directory, out)
        except ToolError as error:
            if not (folder / store.RUNS).is_file():
                raise
            return folder, store.read_info(folder), [f"the index was not renewed: {error.message}"]
        return folder, done.info, done.notes
    store.read_runs(folder)
    return folder, store.read_info(folder), []
