"""Build or update the index of the runs below a directory; unchanged files are not read again."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import polars as pl

from llm_perf_opt.core import layout
from llm_perf_opt.core.errors import InputError, ToolError
from llm_perf_opt.core.files import explain_os_errors
from llm_perf_opt.core.version import __version__
from llm_perf_opt.history import store
from llm_perf_opt.history.data import FindingRow, IndexInfo, LeftOut, MetricRow, RunRow
from llm_perf_opt.history.rows import finding_rows, metric_rows, run_row, settings_of_run
from llm_perf_opt.remedies.data import FILE_NAME as IMPROVE
from llm_perf_opt.remedies.data import SPEC, load_improvement
from llm_perf_opt.summary.file import load_summary

# Find the ``summary.json`` and ``improve.json`` files below a directory; only name, size and time of a file are kept.


_NAMED = (layout.SUMMARY, layout.MANIFEST, layout.CONFIG, layout.RANKS, IMPROVE, SPEC)


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A ``summary.json`` or ``improve.json`` as listed by the file system."""

    run: str
    """Its folder, relative to the directory."""
    size: int
    mtime_ns: int

    def path(self, name: str) -> str:
        """Return the path of a file of this folder, relative to the directory."""
        return name if self.run == "." else f"{self.run}/{name}"


@dataclass(slots=True)
class Found:
    """Files below a directory other than summaries, which are too many to be kept."""

    searches: list[FoundFile] = field(default_factory=list)
    """Of ``improve``."""
    left_out: list[LeftOut] = field(default_factory=list)


def walk(directory: Path, start: str, found: Found, *, refused: bool = False) -> Iterator[FoundFile]:
    """Yield the summaries in and below a folder of ``directory``, and put the rest into ``found``.

    Folders below a run are skipped: its parts are not runs. ``refused``: the summary of ``start`` is not ours, so what lies
    below it may be.
    """
    waiting = [start]
    while waiting:
        name = waiting.pop()
        past_summary = refused and name == start
        try:
            entries, folders = _look(directory / name)
            if not past_summary and (summary := _file(entries, layout.SUMMARY, name)) is not None:
                yield summary
                continue
            if layout.MANIFEST in entries and (layout.CONFIG in entries or layout.RANKS in entries):
                if not past_summary:
                    found.left_out.append(
                        LeftOut(name, f"a run without {layout.SUMMARY}: it still runs, or was killed")
                    )
                continue
            if (search := _file(entries, IMPROVE, name)) is not None:
                found.searches.append(search)
            if SPEC in entries and name != start:
                continue  # an experiment of improve: its sides are not separate runs
        except OSError as error:
            found.left_out.append(LeftOut(name, f"cannot be read: {error.strerror}"))
            continue
        prefix = "" if name == "." else f"{name}/"
        for folder in sorted(folders, reverse=True):
            if _is_text(folder):
                waiting.append(prefix + folder)
            else:
                shown = os.fsencode(prefix + folder).decode("utf-8", "backslashreplace")
                found.left_out.append(LeftOut(shown, "its name is not UTF-8"))


def _look(folder: Path) -> tuple[dict[str, os.DirEntry[str]], list[str]]:
    """Return the files that identify a folder, and the folders in it."""
    entries: dict[str, os.DirEntry[str]] = {}
    folders: list[str] = []
    with os.scandir(folder) as there:
        for entry in there:
            if entry.name in _NAMED:
                entries[entry.name] = entry
            if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
    return entries, folders


def _file(entries: dict[str, os.DirEntry[str]], name: str, run: str) -> FoundFile | None:
    entry = entries.get(name)
    if entry is None or not stat.S_ISREG((status := entry.stat()).st_mode):
        return None
    return FoundFile(run, status.st_size, status.st_mtime_ns)


def _is_text(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


LOGGER = logging.getLogger("llm_perf_opt.history")
_BATCH = 500
"""Summaries whose rows are held in memory at once."""
_WALK_BATCH = 5_000
"""Files found that are held as Python objects at once."""


@dataclass(slots=True)
class Renewal:
    """The result of an index update."""

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
            hint="give the directory that contains the runs",
            path=str(directory),
        )
    folder = (out or directory).expanduser().absolute()
    with store.locked(folder), _scratch(folder) as scratch:
        notes = store.set_aside_unusable(folder)
        known, info = _known(folder, directory)
        renewal = Renewal(IndexInfo(str(directory), version=__version__), notes=notes)
        reading = _Reading(directory, store.Parts(scratch), _refused(info))
        files = reading.read_below(known)
        renewal.read, renewal.unchanged = reading.tried, reading.kept.height
        renewal.removed = known.join(files, on="run", how="anti").height
        graded = _renew_findings(folder, directory, reading.below, reading.refused)
        renewal.info.left_out = sorted(reading.below.left_out, key=lambda entry: entry.path)
        renewal.info.findings = len(graded)
        complete = all((folder / name).is_file() for name in (store.RUNS, store.METRICS, store.INFO))
        if reading.parts.runs or known.height != reading.kept.height or not complete:
            store.write_index(folder, reading.parts, reading.kept, renewal.info)
        else:
            renewal.info.runs, renewal.info.metrics = info.runs, info.metrics
            if renewal.info != info:
                store.write_info(folder, renewal.info)
    return renewal


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    with explain_os_errors(folder):
        path = Path(tempfile.mkdtemp(prefix=".index-", dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _known(folder: Path, directory: Path) -> tuple[pl.DataFrame, IndexInfo]:
    """Return which files are indexed already; an incomplete index or one of another release is ignored."""
    nothing = pl.DataFrame(schema=store.FILE_COLUMNS), IndexInfo(str(directory))
    if not all((folder / name).is_file() for name in (store.RUNS, store.METRICS)):
        return nothing
    known = store.read_known(folder)
    store.scan_metrics(folder)  # raises for another tool's file
    try:
        info = store.read_info(folder)
    except InputError:  # not written yet, or damaged: rebuild it
        return nothing
    # Inside the tree, rows are relative to the index, independent of the path spelling.
    if folder != directory and not _is_same(Path(info.directory), directory):
        raise InputError(
            f"{folder} holds the index of {info.directory}, not of {directory}",
            hint="write this one elsewhere: --out DIR (a tree that was moved: remove index.json, the rest is found again)",
            path=str(folder),
        )
    return (known, info) if info.version == __version__ else nothing


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one == other or one.samefile(other)
    except OSError:
        return False


def _refused(info: IndexInfo) -> dict[str, LeftOut]:
    return {entry.path: entry for entry in info.left_out if entry.mtime_ns is not None}


@dataclass(slots=True)
class _Reading:
    """Reads summaries batch by batch; rows go to files, because those of many runs are more than memory."""

    directory: Path
    parts: store.Parts
    refused: dict[str, LeftOut]
    """Files that were no summaries of ours the last time."""
    below: Found = field(default_factory=Found)
    kept: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema={"run": pl.String()}))
    """Runs whose rows stay as they are."""
    tried: int = 0

    def read_below(self, known: pl.DataFrame) -> pl.DataFrame:
        """Read what is new or changed below the directory; return all files found."""
        files = self._read(walk(self.directory, ".", self.below), known)
        looked: set[str] = set()
        while (
            folders := self._not_ours() - looked
        ):  # another tool's summary does not affect the folders below it
            more = (
                file
                for name in sorted(folders)
                for file in walk(self.directory, name, self.below, refused=True)
            )
            files.vstack(self._read(more, known), in_place=True)
            looked |= folders
        return files

    def _not_ours(self) -> set[str]:
        return {entry.path for entry in self.below.left_out if entry.mtime_ns is not None}

    def _read(self, found: Iterator[FoundFile], known: pl.DataFrame) -> pl.DataFrame:
        files = _table(found)
        unchanged = files.join(known, on=list(store.FILE_COLUMNS), how="semi")
        self.kept = pl.concat([self.kept, unchanged.select("run")])
        changed = files.join(unchanged, on="run", how="anti")
        to_read = (item for row in changed.iter_rows() if not self._is_refused(item := FoundFile(*row)))
        while batch := list(islice(to_read, _BATCH)):
            self.tried += len(batch)
            self._read_batch(batch)
        return files

    def _is_refused(self, item: FoundFile) -> bool:
        before = self.refused.get(item.run)
        if before is None or (before.size, before.mtime_ns) != (item.size, item.mtime_ns):
            return False
        self.below.left_out.append(before)
        return True

    def _read_batch(self, items: Iterable[FoundFile]) -> None:
        rows: list[RunRow] = []
        metrics: list[MetricRow] = []
        for item in items:
            path = item.path(layout.SUMMARY)
            problems: list[str] = []
            try:
                row, more = read_run(self.directory / path, item, path, problems)
            except InputError as error:
                reason = error.message.replace(f"{self.directory}{os.sep}", "")
                self.below.left_out.append(_left_out(item.run, reason, item, error))
                continue
            for reason in problems:
                LOGGER.warning(
                    "%s: %s; the settings are those of its summary", item.path(layout.CONFIG), reason
                )
            rows.append(row)
            metrics.extend(more)
        self.parts.add(rows, metrics)


def _table(found: Iterator[FoundFile]) -> pl.DataFrame:
    """Return files as a table, in the order of their folders: a fraction of the memory they take as objects."""
    whole = pl.DataFrame(schema=store.FILE_COLUMNS)
    while batch := list(islice(found, _WALK_BATCH)):
        whole.vstack(store.frame(batch, store.FILE_COLUMNS), in_place=True)
    return whole.sort("run")


def _left_out(path: str, reason: str, item: FoundFile, error: InputError) -> LeftOut:
    """Remember a file by size and time, not to read it again; one that could not be read may be readable the next time."""
    if isinstance(error.__cause__, OSError):
        return LeftOut(path, reason)
    return LeftOut(path, reason, item.size, item.mtime_ns)


def _renew_findings(
    folder: Path, directory: Path, below: Found, refused: dict[str, LeftOut]
) -> list[FindingRow]:
    """Bring ``findings.parquet`` up to date; return its rows. Searches are few and small, so they are read one by one."""
    known: dict[str, list[FindingRow]] = {}
    before = store.read_findings(folder)
    for row in before:
        known.setdefault(row.search, []).append(row)
    rows: list[FindingRow] = []
    for item in below.searches:
        path = item.path(IMPROVE)
        there, no = known.get(item.run, []), refused.get(path)
        if there and (there[0].file_size, there[0].file_mtime_ns) == (item.size, item.mtime_ns):
            rows.extend(there)
        elif no is not None and (no.size, no.mtime_ns) == (item.size, item.mtime_ns):
            below.left_out.append(no)
        else:
            try:
                result = load_improvement(directory / path)
            except InputError as error:
                reason = error.message.replace(str(directory / path), path)
                below.left_out.append(_left_out(path, reason, item, error))
                continue
            rows.extend(finding_rows(result, item.run, size=item.size, mtime_ns=item.mtime_ns))
    if rows != before or not (folder / store.FINDINGS).is_file():
        store.write_findings(folder, rows)
    return rows


def read_run(
    path: Path, item: FoundFile, shown: str, problems: list[str] | None = None
) -> tuple[RunRow, list[MetricRow]]:
    """Return the rows of one run; raises :class:`InputError` for anything that is not a summary of ours.

    ``problems`` gets what is wrong with its ``config.yaml``.
    """
    summary = load_summary(path)
    settings = settings_of_run(path.parent, summary, problems)
    row = run_row(summary, settings, run=item.run, path=shown, size=item.size, mtime_ns=item.mtime_ns)
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
    item = FoundFile(path.parent.name, status.st_size, status.st_mtime_ns)
    return read_run(path, item, path.name)[0]


@contextlib.contextmanager
def reading_index(
    directory: Path, out: Path | None = None, *, renew: bool = True
) -> Iterator[tuple[Path, IndexInfo, list[str]]]:
    """Like :func:`open_index` for a command that must not write.

    An index that exists is renewed in place; without one, the index is built in a temporary directory and removed
    at the end of the block, so that nothing is written below ``directory``.
    """
    home = (out or directory).expanduser().absolute()
    if out is not None or not renew or (home / store.RUNS).is_file() or not home.is_dir():
        yield open_index(directory, out, renew=renew)
        return
    with tempfile.TemporaryDirectory(prefix="llm-perf-opt-index-") as scratch:
        yield open_index(directory, Path(scratch))


def open_index(
    directory: Path, out: Path | None = None, *, renew: bool = True
) -> tuple[Path, IndexInfo, list[str]]:
    """Return the folder of an index, its contents and notes; updated if it is writable."""
    folder = (out or directory).expanduser().absolute()
    if renew:
        try:
            done = renew_index(directory, out)
        except ToolError as error:
            if not (folder / store.RUNS).is_file():
                raise
            return folder, _info_of(folder, out), [f"the index was not renewed: {error.message}"]
        return folder, done.info, done.notes
    store.check_runs(folder)
    return folder, _info_of(folder, out), []


def _info_of(folder: Path, out: Path | None) -> IndexInfo:
    """Return the metadata of an index; an index inside its tree belongs to its own location, independent of the original path."""
    info = store.read_info(folder)
    return info if out is not None else replace(info, directory=str(folder))
