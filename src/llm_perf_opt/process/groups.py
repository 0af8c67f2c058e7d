"""Find and end everything a program started, including processes that left its group.

Nsight Systems puts its agent, its launcher and the target into sessions of their own. They inherit the
environment, so a marker variable finds them in ``/proc``; only processes that carry the marker, or belong to
the group we created, are ever touched.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.process.leftovers import Leftovers

JOB_VARIABLE = "LLM_PERF_OPT_JOB"
"""Environment variable with the marker; nested jobs append to it, so an outer job finds inner ones."""
NO_GROUP = -1
"""Stands for a job whose process group is not known yet."""
_PROC = Path("/proc")
_KERNEL_THREAD, _EXITING = 0x00200000, 0x00000004
"""``PF_KTHREAD`` and ``PF_EXITING`` in the flags of ``/proc/<pid>/stat``: neither has an environment, or will have one."""
_LOOKS, _LOOK_S = 200, 0.005


def new_job() -> str:
    """Return a marker for a new job: those of the jobs this process is part of, then its own.

    It contains the starter of the job (process id and start time), so that orphans can be distinguished from running jobs.
    """
    own = f"{os.getpid()}-{start_time(os.getpid())}-{uuid.uuid4().hex}"
    return f"{os.environ.get(JOB_VARIABLE, '')}:{own}"


def start_time(pid: int) -> int:
    """Return when a process began, in the kernel's ticks; with its id it is unique. 0: no such process."""
    try:
        return int((_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def survivors(group: int, job: str) -> list[int]:
    """Return the live processes of the group, or that carry the job's marker; never this process itself."""
    if not _PROC.is_dir():
        return []
    marker = f"{JOB_VARIABLE}={job}".encode()
    pids = (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())
    return sorted(pid for pid in pids if pid != os.getpid() and _is_in_job(_PROC / str(pid), group, marker))


def is_started_by(pid: int, root: int) -> bool:
    """Whether a process is ``root``, or was started by it or by what it started, even if its direct parent is gone."""
    return any(_descends_from(one, root) for one in (pid, *_starters(pid)))


def _descends_from(pid: int, root: int) -> bool:
    while pid != root:
        try:
            pid = int((_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
        if pid <= 0:
            return False
    return True


def _starters(pid: int) -> list[int]:
    """Return the live processes that the marker of a process names: the starters of its jobs."""
    try:
        variables = _environment(_PROC / str(pid)).split(b"\0")
    except (OSError, ValueError, IndexError):
        return []
    found = []
    for variable in variables:
        name, _, marker = variable.decode("utf-8", "replace").partition("=")
        if name != JOB_VARIABLE:
            continue
        for job in filter(None, marker.split(":")):
            starter, began = (*job.split("-"), "", "")[:2]
            if starter.isdigit() and began.isdigit() and start_time(int(starter)) == int(began) != 0:
                found.append(int(starter))
    return found


def kill_all(group: int, job: str, *, settle_s: float = 0.0, leftovers: Leftovers | None = None) -> int:
    """Kill what is left, in rounds because a dying parent may still fork; return how many were killed.

    ``settle_s`` gives helpers of a tool that ended normally time to exit; ``leftovers`` is
    notified of each process before it is killed.
    """
    if not _PROC.is_dir():  # not Linux: the group is all that can be found
        if group == NO_GROUP:
            return 0
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
        return 0
    deadline = time.monotonic() + settle_s
    left = survivors(group, job)
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = survivors(group, job)
    killed: set[int] = set()
    for _round in range(100):
        if not left:
            break
        if leftovers is not None:
            leftovers.note(left)
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        time.sleep(0.01)
        left = survivors(group, job)
    return len(killed)


def _is_in_job(entry: Path, group: int, marker: bytes) -> bool:
    """Decide by ``stat`` (state, group) and ``environ``; a process that ends meanwhile is not included."""
    try:
        # The command name may hold spaces and parentheses: fields start after the last one.
        fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
        if fields[0] in (b"Z", b"X"):
            return False
        return int(fields[2]) == group or marker in _environment(entry)
    except (OSError, ValueError, IndexError):
        return False


def _environment(entry: Path) -> bytes:
    """Return the environment of a process.

    While a process is replaced by another program (``execve``) it has neither arguments nor environment for a moment, which on
    a busy machine can be long: waited for, or the process would be missed and live on.
    """
    for _ in range(_LOOKS):
        found = (entry / "environ").read_bytes()
        if found:
            return found
        if not _is_in_execve(entry):
            break
        time.sleep(_LOOK_S)
    return (entry / "environ").read_bytes()


def _is_in_execve(entry: Path) -> bool:
    """Whether a process without an environment has no arguments either, and neither is ending nor belongs to the kernel."""
    fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
    ending = fields[0] in (b"Z", b"X") or int(fields[6]) & (_KERNEL_THREAD | _EXITING)
    return not ending and not (entry / "cmdline").read_bytes()


# Programs of earlier runs that are no longer monitored, and leftover agents of nsys.
#
# Only processes with the marker of a run whose starter is gone are ended. An agent of nsys without it belongs to
# another nsys: it is reported, never touched.


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
    """End our orphans; return them, and their removed files."""
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
    """Describe the processes in one sentence, and how to end them."""
    ours = [str(orphan) for orphan in orphans if orphan.ours]
    others = [orphan for orphan in orphans if not orphan.ours]
    parts = [f"an earlier run left {', '.join(ours)}: llm-perf-opt doctor --clean ends it"] if ours else []
    if others:
        pids = " ".join(str(orphan.pid) for orphan in others)
        parts.append(
            f"an agent of another nsys still runs, {', '.join(map(str, others))}: "
            f"if it is not in use, kill {pids}"
        )
    return "; ".join(parts)


def _found() -> Iterator[Orphan]:
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            # Process ids of another namespace (a container, an isolated capture) refer to other processes.
            if not (entry / "ns/pid").samefile(_PROC / "self/ns/pid") or entry.stat().st_uid != os.geteuid():
                continue
            environment = (entry / "environ").read_bytes().split(b"\0")
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        markers = [value.removeprefix(_MARKER).decode() for value in environment if value.startswith(_MARKER)]
        ours = bool(markers) and not _is_watched(markers[0])
        stray = _AGENT in arguments and parent == 1 and not markers
        if ours or stray:
            pid = int(entry.name)
            name = "nsys agent" if _AGENT in arguments else os.fsdecode(arguments[0]).rpartition("/")[2]
            yield Orphan(pid, name or "a process", start_time(pid), ours)


def _is_watched(marker: str) -> bool:
    """Return whether a starter of the job, or of the job around it, is still running; unknown formats count as running."""
    for owner in filter(None, marker.split(":")):
        pid, _, rest = owner.partition("-")
        began = rest.partition("-")[0]
        if not (pid.isdigit() and began.isdigit()) or start_time(int(pid)) == int(began):
            return True
    return False
