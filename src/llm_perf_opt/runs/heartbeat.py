"""Heartbeat of a run: host, process and time in its manifest, renewed by a separate thread."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from llm_perf_opt.core import layout
from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.core.errors import InputError, LlmPerfError
from llm_perf_opt.core.units import timestamp
from llm_perf_opt.runs.manifest import Heartbeat, Manifest, beat, keep_beating, read_manifest, stop_beating

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
        machine=_machine_identity(),
        process_started=process_start(os.getpid()),
        interval_s=INTERVAL_S,
        at=timestamp(),
    )


def _machine_identity() -> str:
    """Return an identity that is equal for two processes exactly if they share process ids."""
    boot, namespace = "", ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    with contextlib.suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return f"{boot or socket.gethostname()} {namespace}".strip()


def process_start(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; ``None``: it is not running."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        # A zombie process is still listed.
        return None if fields[0] in _ENDED else int(fields[_START_TIME])
    except (OSError, ValueError, IndexError):
        return None


def own_manifest(run_dir: Path) -> Manifest | None:
    """Return the manifest that this process wrote in a directory; ``None``: it wrote none, or cannot be read."""
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
    """Call a function at every heartbeat, in a separate thread, for as long as the block runs."""
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
        except LlmPerfError as error:  # a full disk is reported by the code that needs the space
            LOGGER.debug("nothing was done at this heartbeat: %s", error)


# Distinguish a running job from a killed one by the heartbeat in its manifest.
#
# On the same machine the process itself is checked. Elsewhere the age of the manifest decides: both its time and
# "now" are taken from the file system that holds it, so that clocks of nodes may differ.


_MISSED_BEATS = 6
"""So many in a row, and the process is taken for dead."""
_LONGEST_INTERVAL_S = 600.0
"""A file that claims to be renewed more rarely is not believed."""
_LEAST_SILENCE_S = 60.0
_SKEW_S = 30.0


@dataclass(slots=True)
class Liveness:
    """State of a process without a recorded end."""

    alive: bool
    why: str


@dataclass(slots=True)
class Watch:
    """Evaluates heartbeats below one directory."""

    directory: Path
    now: float = 0.0
    """Time of the file system, in seconds since 1970."""
    skewed: dict[str, float] = field(default_factory=dict)
    """Host → seconds by which its clock is ahead of the file system's, where that is much."""

    def __post_init__(self) -> None:
        self.now = self.now or _time_of_file_system(self.directory)

    def judge(self, heartbeat: Heartbeat | None, manifest: Path) -> Liveness:
        """Return whether the process that wrote a manifest is still running."""
        try:
            written = manifest.stat().st_mtime
        except OSError:
            return Liveness(False, "its manifest is gone")
        if heartbeat is None:
            return self._by_age(written, _LEAST_SILENCE_S, "it")
        who = f"process {heartbeat.pid} on {heartbeat.host}"
        self._note_skew(heartbeat, written)
        if heartbeat.machine == _machine_identity():
            if heartbeat.process_started == process_start(heartbeat.pid) is not None:
                return Liveness(True, f"{who} runs")
            return Liveness(False, f"{who} ended without a word (killed, or the machine took its memory)")
        silence = max(_LEAST_SILENCE_S, _MISSED_BEATS * min(heartbeat.interval_s, _LONGEST_INTERVAL_S))
        return self._by_age(written, silence, who)

    def _by_age(self, written: float, silence: float, who: str) -> Liveness:
        age = max(self.now - written, 0.0)
        if age <= silence:
            return Liveness(True, f"{who} gave a sign of life {age:.0f} s ago")
        return Liveness(False, f"{who} has given no sign of life for {_duration(age)}")

    def _note_skew(self, heartbeat: Heartbeat, written: float) -> None:
        with contextlib.suppress(ValueError):
            ahead = datetime.fromisoformat(heartbeat.at).timestamp() - written
            if abs(ahead) > _SKEW_S + heartbeat.interval_s:
                self.skewed[heartbeat.host] = ahead


def _time_of_file_system(directory: Path) -> float:
    """Return "now" by the clock of the file system; by this machine's clock if it is not writable."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=".now-", dir=directory)
    except OSError:
        return time.time()
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            Path(name).unlink()


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
