"""nsys's list of its sessions in shared memory, which outlives an nsys that was killed.

Nsight Systems 2022 keeps one file per version, ``/dev/shm/NSys-<version>``. An nsys that dies while it makes the
file leaves it half made: from then on every nsys of that version waits for it, for every user, and fails after ten
seconds with "Agent launcher failed". Only removing the file helps, and it is safe once no process uses it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
_PATTERN = "NSys-*"
_PROC = Path("/proc")


def remove_dead_registries(folder: Path = SHARED_MEMORY) -> list[Path]:
    """Remove this user's session lists that no process uses; return them."""
    removed: list[Path] = []
    for path in sorted(folder.glob(_PATTERN)):
        with contextlib.suppress(OSError):  # gone meanwhile, or not ours to remove
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or _is_used(path):
                continue
            path.unlink()
            removed.append(path)
    return removed


def _is_used(path: Path) -> bool:
    """Tell whether any process has the file mapped; an nsys we may not look into counts as a user of it."""
    wanted = os.fsencode(path)
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if wanted in (entry / "maps").read_bytes():
                return True
        except PermissionError:
            if _name(entry).startswith("nsys"):
                return True
        except OSError:
            continue  # ended meanwhile
    return False


def _name(entry: Path) -> str:
    try:
        return (entry / "comm").read_text(errors="replace")
    except OSError:
        return ""
