"""A running run says that it lives: host, process and time in its manifest, renewed by a thread of its own."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from llm_perf_opt.core.clock import now_text
from llm_perf_opt.core.errors import InputError, LlmPerfError
from llm_perf_opt.core.run_directory import layout
from llm_perf_opt.core.run_directory.artifacts import Artifacts
from llm_perf_opt.runs.records.manifest import (
    Heartbeat,
    Manifest,
    beat,
    keep_beating,
    read_manifest,
    stop_beating,
)

LOGGER = logging.getLogger("llm_perf_opt.run")

INTERVAL_S = 10.0
"""Rare enough to disturb no timing (a file of a few kB), often enough to know within a minute."""
_ENDED = (b"Z", b"X", b"x")
_START_TIME = 19
"""Place of the start time in ``/proc/PID/stat``, counted after the name of the program."""


def new_heartbeat() -> Heartbeat:
    """Return the heartbeat of this process."""
    return Heartbeat(
        host=socket.gethostname(),
        pid=os.getpid(),
        machine=machine_identity(),
        process_started=process_start(os.getpid()),
        interval_s=INTERVAL_S,
        at=now_text(),
    )


def machine_identity() -> str:
    """Return what is the same for two processes exactly where one can ask for the other by its number."""
    boot, namespace = "", ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    with contextlib.suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return f"{boot or socket.gethostname()} {namespace}".strip()


def process_start(pid: int) -> int | None:
    """Return when a process started, in ticks since the machine did; ``None``: it does not run (any more)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        # One that ended and that nobody has asked after yet is still listed.
        return None if fields[0] in _ENDED else int(fields[_START_TIME])
    except (OSError, ValueError, IndexError):
        return None


def own_manifest(run_dir: Path) -> Manifest | None:
    """Return the manifest that this very process wrote in a directory; ``None``: it wrote none, or cannot be read."""
    with contextlib.suppress(InputError):
        manifest = read_manifest(run_dir)
        beat, mine = manifest.heartbeat, new_heartbeat()
        if beat is not None and _process(beat) == _process(mine):
            return manifest
    return None


def _process(heartbeat: Heartbeat) -> tuple[str, int, int | None]:
    return heartbeat.machine, heartbeat.pid, heartbeat.process_started


@contextlib.contextmanager
def beating(artifacts: Artifacts) -> Iterator[None]:
    """Renew the heartbeat in the manifest of a run directory for as long as the block runs."""
    path = artifacts.path(layout.MANIFEST)
    keep_beating(path)
    try:
        with at_every_beat(lambda: beat(path)):
            yield
    finally:
        stop_beating(path)


@contextlib.contextmanager
def at_every_beat(act: Callable[[], None]) -> Iterator[None]:
    """Do something as often as hearts beat, in a thread of its own, for as long as the block runs."""
    ended = threading.Event()
    thread = threading.Thread(target=_act_until, args=(act, ended), name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()


def _act_until(act: Callable[[], None], ended: threading.Event) -> None:
    while not ended.wait(INTERVAL_S):
        try:
            act()
        except LlmPerfError as error:  # a full disk is reported by whatever needs the space
            LOGGER.debug("nothing was done at this heartbeat: %s", error)
