"""Find the ``summary.json`` and ``improve.json`` files below a directory; nothing of a file is kept but name, size and time."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from llm_perf_opt.core.run_directory import layout
from llm_perf_opt.model.history import LeftOut
from llm_perf_opt.model.improve import FILE_NAME as IMPROVE

_NAMED = (layout.SUMMARY, layout.MANIFEST, layout.CONFIG, layout.RANKS, IMPROVE)


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A ``summary.json`` or ``improve.json`` as the file system tells of it."""

    run: str
    """Its folder, relative to the directory."""
    size: int
    mtime_ns: int

    def path(self, name: str) -> str:
        """Return the path of a file of this folder, relative to the directory."""
        return name if self.run == "." else f"{self.run}/{name}"


@dataclass(slots=True)
class Found:
    """What lies below a directory besides summaries, which are too many to be kept."""

    searches: list[FoundFile] = field(default_factory=list)
    """Of ``improve``."""
    left_out: list[LeftOut] = field(default_factory=list)


def walk(directory: Path, start: str, found: Found, *, refused: bool = False) -> Iterator[FoundFile]:
    """Yield the summaries in and below a folder of ``directory``, and put the rest into ``found``.

    Below a run nothing is looked for: its parts are no runs. ``refused``: the summary of ``start`` is not ours, so what lies
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
    """Return the files that say what a folder is, and the folders in it."""
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
