"""Files that Nsight Systems leaves behind when it, or its agent, is killed: only those of our own processes.

The files are identified from a capture's own processes: the program under nsys gets its configuration files by
environment variables, and shared memory is named after process ids. So they are noted while the processes live and
removed once they are gone. Files of other captures, of this user or another, are never touched.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_VARIABLES = (b"QUADD_INJECTION_CONFIG", b"QUADD_OS_RUNTIME_CONFIG")
_CONFIG = re.compile(r"(?:/[^/\0]+)*/injection_config_[0-9a-f]+")
_SHARED_MEMORY = Path("/dev/shm")
_NAMED_AFTER = ("quadd-agent-instance-{pid}", "sem.nsys_sem_{pid}")


class Leftovers:
    """Files that the processes of one job may leave behind."""

    def __init__(self, *, shared_memory: Path = _SHARED_MEMORY) -> None:
        self._shared_memory = shared_memory
        self._pids: set[int] = set()
        self._files: set[Path] = set()

    def note(self, pids: Iterable[int]) -> None:
        """Record processes of the job and their files."""
        for pid in pids:
            self._pids.add(pid)
            with contextlib.suppress(OSError):
                self._files.update(_named_files(Path(f"/proc/{pid}/environ").read_bytes()))

    def remove(self) -> list[Path]:
        """Remove remaining files, once the processes are gone; return what was removed."""
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
    """Remove an ordinary file of this user; links and files of other users are kept."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return False
        path.unlink()
    except OSError:  # already removed: nsys cleans up when it ends normally
        return False
    return True


# Limit of disk space used by a program.


_FAST_DISK_BYTES_PER_S = 4e9
_SHORTEST_CHECK_S, _LONGEST_CHECK_S = 0.005, 0.5
_SLACK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class SizeLimit:
    """Most bytes that the given files and directory trees may hold together."""

    paths: tuple[Path, ...]
    max_bytes: int

    def also(self, *paths: Path | None) -> SizeLimit:
        """Return the same limit for further files."""
        return SizeLimit((*self.paths, *(path for path in paths if path is not None)), self.max_bytes)

    def written_bytes(self) -> int:
        """Return the current size."""
        return total_bytes(self.paths)

    def seconds_until_next_check(self, written: int, rate_bytes_per_s: float) -> float:
        """Return the time to the next check: before a fast disk could exceed the limit."""
        left = max(0, self.max_bytes - written)
        return min(
            _LONGEST_CHECK_S, max(_SHORTEST_CHECK_S, left / max(_FAST_DISK_BYTES_PER_S, 2 * rate_bytes_per_s))
        )

    def is_out_of_control(self, written: int) -> bool:
        """Return whether a stopping program writes more than a final report: twice the limit."""
        return written > 2 * self.max_bytes + _SLACK_BYTES


def total_bytes(paths: Sequence[Path]) -> int:
    """Sum of sizes of files and trees; each file once. Files that vanish meanwhile are ignored."""
    sizes: dict[tuple[int, int], int] = {}
    for root in paths:
        for path in (root, *root.rglob("*")) if root.is_dir() else (root,):
            with contextlib.suppress(OSError):
                status = path.lstat()
                sizes[status.st_dev, status.st_ino] = status.st_size
    return sum(sizes.values())
