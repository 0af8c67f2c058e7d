"""Processes that a test watches, signals and counts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from llm_perf_opt.process.groups import JOB_VARIABLE
from tests.nsys_support import alive


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until something has happened."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


def started_by(starter: int) -> list[int]:
    """Return live processes that carry the marker of jobs that this process started."""
    return with_variable(f"{JOB_VARIABLE}=:{starter}-".encode())


def with_variable(arguments: bytes) -> list[int]:
    """Return live processes whose environment holds these bytes."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and alive(int(entry.name)):
            try:
                if arguments in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def guards_of(parent: int) -> list[int]:
    """Return the live guards of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if (
            b"process.guard" in b" ".join(arguments)
            and str(parent).encode() in arguments
            and alive(int(entry.name))
        ):
            found.append(int(entry.name))
    return found


def nsys_files_of(pids: list[int]) -> set[Path]:
    """Return the files of nsys that these processes have: others capture on the same machine."""
    found = set()
    for pid in pids:
        found |= {Path(f"/dev/shm/quadd-agent-instance-{pid}"), Path(f"/dev/shm/sem.nsys_sem_{pid}")}
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            _, _, value = entry.partition(b"=")
            if b"/injection_config_" in value:
                found.add(Path(os.fsdecode(value)))
    return {path for path in found if path.exists()}


def nsys_part(name: str, orchestrator: int, started: list[int]) -> int:
    """Return the process id of a part of a real capture: ``orchestrator``, ``nsys`` or ``agent``."""
    if name == "orchestrator":
        return orchestrator
    for pid in started:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        program = arguments[0].rsplit(b"/", 1)[-1]
        if program == b"nsys" and (b"--start-agent" in arguments) == (name == "agent"):
            return pid
    raise AssertionError(f"no {name} among {started}")
