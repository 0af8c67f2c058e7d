"""``dataset.subset_filelist``: a text file that names the images to use, one per line.

A line is an absolute path, a path relative to the data set root, or a bare name found in ``<root>/images``.
Blank lines and lines that start with ``#`` are skipped. Names are bytes to the file system: a list written in
another encoding than UTF-8 still finds its files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.core.errors import InputError

_UTF8_BOM = b"\xef\xbb\xbf"
_SHOWN = 10
IMAGES = "images"
"""Folder of the page images below an OmniDocBench root."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """One entry of a file list that exists."""

    line: int
    path: Path


def printable(value: str | os.PathLike[str]) -> str:
    """Return a path as text that any encoder accepts: undecodable bytes become ``\\xNN``."""
    return os.fsencode(value).decode("utf-8", errors="backslashreplace")


def find_filelist(name: str, root: Path | None) -> Path:
    """Return the list itself: relative to the working directory, else to the data set root."""
    given = Path(name).expanduser()
    candidates = [given] if given.is_absolute() or root is None else [Path.cwd() / given, root / given]
    for candidate in candidates:
        if candidate.is_file():
            return candidate.absolute()
    raise InputError(
        f"dataset.subset_filelist not found: {printable(given)}",
        hint="give an absolute path, or one relative to the working directory or to dataset.root",
        key="dataset.subset_filelist",
    )


def read_filelist(filelist: Path, root: Path | None) -> tuple[list[ListedFile], list[str]]:
    """Return the files of a list in its order, and remarks about repeated entries.

    Any entry that cannot be used is an error that names its line: a run over only some of the
    requested files would measure something else.
    """
    listed: list[ListedFile] = []
    remarks: list[str] = []
    wrong: list[tuple[int, str]] = []
    seen: dict[str, int] = {}
    for line, entry in _entries(filelist):
        path, reason = _locate(entry, root)
        if path is None:
            wrong.append((line, f"line {line}: {printable(entry)} ({reason})"))
        elif (key := os.path.normpath(path)) in seen:
            remarks.append(
                f"{filelist.name} line {line}: {printable(entry)} repeats line {seen[key]}, used once"
            )
        else:
            seen[key] = line
            listed.append(ListedFile(line, path))
    if wrong:
        _raise_unusable(filelist, wrong, len(listed))
    if not listed:
        raise InputError(
            f"the file list {printable(filelist)} names no files",
            hint="write one image name per line; blank lines and lines starting with # do not count",
            key="dataset.subset_filelist",
        )
    return listed, remarks


def _entries(filelist: Path) -> Iterator[tuple[int, str]]:
    try:
        content = filelist.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read the file list {printable(filelist)}: {error.strerror}",
            hint="check the file's permissions",
            key="dataset.subset_filelist",
        ) from error
    for number, raw in enumerate(content.removeprefix(_UTF8_BOM).splitlines(), start=1):
        entry = raw.strip()
        if entry and not entry.startswith(b"#"):
            yield number, os.fsdecode(entry)


def _locate(entry: str, root: Path | None) -> tuple[Path | None, str]:
    """Return the file of an entry, or why there is none."""
    if "\0" in entry:
        return None, "not a file name"
    given = Path(entry)
    if given.is_absolute():
        return _readable([given])
    if root is None:
        return None, "not absolute, and dataset.root is not set"
    # By text, not by resolved links: data sets are often folders of links into a shared store.
    if Path(os.path.normpath(entry)).parts[:1] == (os.pardir,):
        return None, "leaves dataset.root; only absolute paths may"
    candidates = [root / given]
    if len(given.parts) == 1:
        candidates.append(root / IMAGES / given)
    return _readable(candidates)


def _readable(candidates: list[Path]) -> tuple[Path | None, str]:
    for candidate in candidates:
        try:
            if candidate.is_file():
                return (
                    (candidate, "") if os.access(candidate, os.R_OK) else (None, "no permission to read it")
                )
        except OSError as error:
            return None, error.strerror or "cannot be opened"
    return None, "not found"


def _raise_unusable(filelist: Path, wrong: list[tuple[int, str]], good: int) -> None:
    shown = [text for _, text in wrong[:_SHOWN]]
    if len(wrong) > _SHOWN:
        shown.append(f"and {len(wrong) - _SHOWN} more")
    raise InputError(
        f"{len(wrong)} of {len(wrong) + good} entries in {printable(filelist)} cannot be used:\n  "
        + "\n  ".join(shown),
        hint="correct these lines, or put # before those you do not want",
        key="dataset.subset_filelist",
        lines=[line for line, _ in wrong],
    )
