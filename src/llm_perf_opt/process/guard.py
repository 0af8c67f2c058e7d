"""A small process that outlives ours, to end our child processes when we are killed.

``kill -9``, the kernel out of memory and a closed container leave no time for clean-up, and nsys puts its agent and
the program into sessions of their own, which a parent-death signal does not reach. So the first program that is
started also starts a guard, which holds the other end of a pipe. It is notified of each job as it begins and ends; when
the pipe closes, or its parent is another one, it ends the jobs that are left, by marker and group, and goes.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
from pathlib import Path

from llm_perf_opt.process.groups import NO_GROUP, kill_all
from llm_perf_opt.process.leftovers import Leftovers

_SOURCE = Path(__file__).resolve().parents[2]
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1])\n"
    "from llm_perf_opt.process.guard import watch; watch(int(sys.argv[2]))"
)
_LOOK_S = 1.0


class Guard:
    """Our end of the pipe; one per process, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def begin(self, job: str, group: int | None = None) -> None:
        """Announce that a job begins (before its program is started), or which process group it has."""
        self._send({"job": job, "group": group})

    def end(self, job: str) -> None:
        """Announce that a job has ended completely."""
        self._send({"job": job, "over": True})

    def _send(self, message: dict[str, object]) -> None:
        """Send a line; without a guard (no memory, or it was killed) programs still run and end normally."""
        with self._lock:
            # A second try, with a new guard, when the old one is gone.
            for _ in range(2):
                pipe = self._pipe()
                if pipe is None:
                    return
                try:
                    os.write(pipe, json.dumps(message).encode() + b"\n")
                except OSError:
                    self._forget()
                else:
                    return

    def _pipe(self) -> int | None:
        if self._process is None or self._owner != os.getpid():
            argv = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(_SOURCE), str(os.getpid())]
            try:
                self._process = subprocess.Popen(
                    argv,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    start_new_session=True,
                )
            except OSError:
                return None
            self._owner = os.getpid()
        return self._process.stdin.fileno() if self._process.stdin else None

    def _forget(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.poll()
        self._process = None


GUARD = Guard()


def watch(parent: int) -> None:
    """Main loop of the guard: keep the list of jobs until the parent is gone, then end them."""
    jobs: dict[str, int | None] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin.buffer, selectors.EVENT_READ)
        rest = b""
        while True:
            # A fork of the parent may keep the pipe open, so the parent's id is checked, too: before the pipe, since a
            # parent that was killed before the guard got this far has left data in it.
            lives = os.getppid() == parent
            if not selector.select(_LOOK_S if lives else 0):
                if lives:
                    continue
                break
            data = os.read(sys.stdin.fileno(), 65536)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                _note(json.loads(line), jobs)
    for job, group in jobs.items():
        leftovers = Leftovers()
        kill_all(NO_GROUP if group is None else group, job, leftovers=leftovers)
        leftovers.remove()


def _note(message: dict[str, object], jobs: dict[str, int | None]) -> None:
    job = str(message["job"])
    if message.get("over"):
        jobs.pop(job, None)
    else:
        group = message.get("group")
        jobs[job] = group if isinstance(group, int) else jobs.get(job)
