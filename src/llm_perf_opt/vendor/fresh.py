"""Which files a capture wrote, told by what changed and not by the clock.

The clock of a file server and that of this machine may differ by minutes, and either may be set while a capture runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

FileState: TypeAlias = tuple[int, int, int, int, int]
"""Device, inode, size, times of change: a file that was written again differs in one of them."""


def file_state(path: Path) -> FileState | None:
    """Return what tells this file from one written later; ``None``: there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def folder_state(folder: Path) -> dict[str, FileState]:
    """Return name → state of the files of a directory."""
    if not folder.is_dir():
        return {}
    states = ((path.name, file_state(path)) for path in folder.iterdir())
    return {name: state for name, state in states if state is not None}


def is_fresh(path: Path, before: Mapping[str, FileState]) -> bool:
    """Tell whether a file has content and is not one of those that were there before."""
    state = file_state(path)
    return state is not None and state[2] > 0 and state != before.get(path.name)
