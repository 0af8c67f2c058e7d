"""nsys's list of its sessions in shared memory, which outlives an nsys that was killed.

Nsight Systems 2022 keeps one file per version, ``/dev/shm/NSys-<version>``. An nsys that dies while it makes the
file leaves it half made: from then on every nsys of that version waits for it, for every user, and fails after ten
seconds with "Agent launcher failed". Only removing the file helps.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
_PROC = Path("/proc")
_BEING_MADE = (1).to_bytes(4, "little")
"""First word of a list that somebody is making; 2 once it is made."""
_STUCK_AFTER_S = 8.0
"""Making the list takes milliseconds; nsys itself gives up after ten seconds."""


def remove_half_made(version: str, folder: Path = SHARED_MEMORY, proc: Path = _PROC) -> Path | None:
    """Remove this user's list of this version if it was left half made and no process uses it; return it then."""
    path = folder / f"NSys-{version}"
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return None
        with path.open("rb") as stream:
            half_made = stream.read(4) == _BEING_MADE
        if not half_made or time.time() - status.st_mtime < _STUCK_AFTER_S or _is_used(status, proc):
            return None
        path.unlink()
    except OSError:  # gone meanwhile, or not ours to touch
        return None
    return path


def _is_used(status: os.stat_result, proc: Path) -> bool:
    """Tell whether a process has the file open or mapped; an nsys we may not look into counts as a user of it."""
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if _is_mapped(entry, status.st_ino) or _is_open(entry, status):
                return True
        except PermissionError:
            if _process_name(entry).startswith("nsys"):
                return True
        except OSError:
            continue  # ended meanwhile
    return False


def _is_mapped(entry: Path, inode: int) -> bool:
    # Fields: addresses, rights, offset, device, inode, path. Other devices may have the same inode: then it is kept.
    lines = (line.split(maxsplit=5) for line in (entry / "maps").read_bytes().splitlines())
    return any(len(fields) > 4 and fields[4] == str(inode).encode() for fields in lines)


def _is_open(entry: Path, status: os.stat_result) -> bool:
    for descriptor in (entry / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found = descriptor.stat()
            if (found.st_dev, found.st_ino) == (status.st_dev, status.st_ino):
                return True
    return False


def _process_name(entry: Path) -> str:
    try:
        return (entry / "comm").read_text(errors="replace")
    except OSError:
        return ""
