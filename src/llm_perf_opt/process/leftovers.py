"""Files that Nsight Systems leaves behind when it, or its agent, is killed: only those of our own processes.

A capture's own processes say which files are theirs: the program under nsys is told its configuration files by
environment variables, and shared memory is named after process ids. So they are noted while the processes live and
removed once they are gone. Files of other captures, of this user or another, are never touched.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

_VARIABLES = (b"QUADD_INJECTION_CONFIG", b"QUADD_OS_RUNTIME_CONFIG")
_CONFIG = re.compile(r"(?:/[^/\0]+)*/injection_config_[0-9a-f]+")
_SHARED_MEMORY = Path("/dev/shm")
_NAMED_AFTER = ("quadd-agent-instance-{pid}", "sem.nsys_sem_{pid}")


class Leftovers:
    """What the processes of one job would leave behind."""

    def __init__(self, *, shared_memory: Path = _SHARED_MEMORY) -> None:
        self._shared_memory = shared_memory
        self._pids: set[int] = set()
        self._files: set[Path] = set()

    def note(self, pids: Iterable[int]) -> None:
        """Remember processes of the job, and the files they say are theirs."""
        for pid in pids:
            self._pids.add(pid)
            with contextlib.suppress(OSError):
                self._files.update(_named_files(Path(f"/proc/{pid}/environ").read_bytes()))

    def remove(self) -> list[Path]:
        """Remove what is still there, once the processes are gone; return what was removed."""
        shared = [
            self._shared_memory / pattern.format(pid=pid) for pid in self._pids for pattern in _NAMED_AFTER
        ]
        return [path for path in sorted({*self._files, *shared}) if _remove_own_file(path)]


def _named_files(environment: bytes) -> Iterable[Path]:
    for entry in environment.split(b"\0"):
        name, _, value = entry.partition(b"=")
        path = os.fsdecode(value)
        if name in _VARIABLES and _CONFIG.fullmatch(path):
            yield Path(path)


def _remove_own_file(path: Path) -> bool:
    """Remove an ordinary file of this user; a link, or somebody else's file of the same name, stays."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return False
        path.unlink()
    except OSError:  # gone already: nsys cleans up when it ends by itself
        return False
    return True
