"""Find and end everything a program started, also what left its process group.

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
from pathlib import Path

from llm_perf_opt.process.leftovers import Leftovers

JOB_VARIABLE = "LLM_PERF_OPT_JOB"
"""Environment variable with the marker; nested jobs append to it, so an outer job finds inner ones."""

NO_GROUP = -1
"""Stands for a job whose process group is not known yet."""

_PROC = Path("/proc")


def new_job() -> str:
    """Return a marker for a new job: those of the jobs this process is part of, then its own.

    It says who started the job (process id and start time), so that orphans can be told from jobs under way.
    """
    own = f"{os.getpid()}-{start_time(os.getpid())}-{uuid.uuid4().hex}"
    return f"{os.environ.get(JOB_VARIABLE, '')}:{own}"


def start_time(pid: int) -> int:
    """Return when a process began, in the kernel's ticks; with its id it is unique. 0: there is no such process."""
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
    """Whether a process is ``root``, or was started by it or by what it started, also where its own parent is gone."""
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
    """Return the live processes that the marker of a process names: who started the jobs it is part of."""
    try:
        variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
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

    ``settle_s`` gives helpers of a tool that ended normally the time to leave by themselves; ``leftovers`` is told
    of each process before it is killed.
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
    """Tell by ``stat`` (state, group) and ``environ``; a process that ends meanwhile does not belong."""
    try:
        # The command name may hold spaces and parentheses: fields start after the last one.
        state, _parent, process_group = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:3]
        if state in (b"Z", b"X"):
            return False
        return int(process_group) == group or marker in (entry / "environ").read_bytes()
    except (OSError, ValueError):
        return False
