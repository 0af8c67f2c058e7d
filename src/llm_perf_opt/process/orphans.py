"""Programs of earlier runs that nobody watches any more, and agents of nsys that somebody left behind.

Only what carries the marker of a run whose starter is gone is ours to end. An agent of nsys without it belongs to
somebody's own nsys: it is named, never touched.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.process.groups import JOB_VARIABLE, start_time
from llm_perf_opt.process.leftovers import Leftovers

_PROC = Path("/proc")
_MARKER = f"{JOB_VARIABLE}=".encode()
_AGENT = b"--start-agent"


@dataclass(frozen=True, slots=True)
class Orphan:
    """A process that outlived its run, or an agent that outlived its nsys."""

    pid: int
    name: str
    began: int
    """Start time in the kernel's ticks: the id may be another process's by now."""
    ours: bool

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid})"


def find_orphans() -> list[Orphan]:
    """Return processes of this user that a finished run left, and agents of nsys whose nsys is gone."""
    return sorted(_found(), key=lambda orphan: orphan.pid)


def end_orphans() -> tuple[list[Orphan], list[Path]]:
    """End those that are ours; return them, and the files of theirs that were removed."""
    ended: list[Orphan] = []
    leftovers = Leftovers()
    for orphan in find_orphans():
        if orphan.ours and start_time(orphan.pid) == orphan.began:
            leftovers.note([orphan.pid])
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(orphan.pid, signal.SIGKILL)
                ended.append(orphan)
    return ended, leftovers.remove()


def advice(orphans: list[Orphan]) -> str:
    """Say in one sentence who is there and how to end them."""
    ours = [str(orphan) for orphan in orphans if orphan.ours]
    others = [orphan for orphan in orphans if not orphan.ours]
    parts = [f"an earlier run left {', '.join(ours)}: llm-perf-opt doctor --clean ends it"] if ours else []
    if others:
        pids = " ".join(str(orphan.pid) for orphan in others)
        parts.append(
            f"an agent of another nsys still runs, {', '.join(map(str, others))}: "
            f"when nobody uses it, kill {pids}"
        )
    return "; ".join(parts)


def _found() -> Iterator[Orphan]:
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            # Ids of another namespace (a container, a capture of its own) mean other processes.
            if not (entry / "ns/pid").samefile(_PROC / "self/ns/pid") or entry.stat().st_uid != os.geteuid():
                continue
            environment = (entry / "environ").read_bytes().split(b"\0")
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        markers = [value.removeprefix(_MARKER).decode() for value in environment if value.startswith(_MARKER)]
        ours = bool(markers) and not _is_watched(markers[0])
        stray = _AGENT in words and parent == 1 and not markers
        if ours or stray:
            pid = int(entry.name)
            name = "nsys agent" if _AGENT in words else os.fsdecode(words[0]).rpartition("/")[2]
            yield Orphan(pid, name or "a process", start_time(pid), ours)


def _is_watched(marker: str) -> bool:
    """Tell whether one of those who started the job, or the job around it, still runs; unknown forms count as such."""
    for owner in filter(None, marker.split(":")):
        pid, _, rest = owner.partition("-")
        began = rest.partition("-")[0]
        if not (pid.isdigit() and began.isdigit()) or start_time(int(pid)) == int(began):
            return True
    return False
