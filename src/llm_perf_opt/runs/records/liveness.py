"""Tell a job that runs from one that was killed, by the heartbeat in its manifest.

On the reader's own machine the process itself is asked for. Elsewhere the age of the manifest decides: both its time and
"now" are taken from the file system that holds it, so that clocks of nodes may differ.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from llm_perf_opt.runs.records.heartbeat import machine_identity, process_start
from llm_perf_opt.runs.records.manifest import Heartbeat

_MISSED_BEATS = 6
"""So many in a row, and the process is taken for dead."""
_LEAST_SILENCE_S = 60.0
_SKEW_S = 30.0


@dataclass(slots=True)
class Liveness:
    """What is known of a process that has not said how it ended."""

    alive: bool
    why: str


@dataclass(slots=True)
class Watch:
    """Judges heartbeats below one directory."""

    directory: Path
    now: float = 0.0
    """Time of the file system, in seconds since 1970."""
    skewed: dict[str, float] = field(default_factory=dict)
    """Host → seconds by which its clock is ahead of the file system's, where that is much."""

    def __post_init__(self) -> None:
        self.now = self.now or _time_of_file_system(self.directory)

    def judge(self, heartbeat: Heartbeat | None, manifest: Path) -> Liveness:
        """Say whether the process that wrote a manifest still runs."""
        try:
            written = manifest.stat().st_mtime
        except OSError:
            return Liveness(False, "its manifest is gone")
        if heartbeat is None:
            return self._by_age(written, _LEAST_SILENCE_S, "it")
        who = f"process {heartbeat.pid} on {heartbeat.host}"
        self._note_skew(heartbeat, written)
        if heartbeat.machine == machine_identity():
            if heartbeat.process_started == process_start(heartbeat.pid) is not None:
                return Liveness(True, f"{who} runs")
            return Liveness(False, f"{who} ended without a word (killed, or the machine took its memory)")
        silence = max(_LEAST_SILENCE_S, _MISSED_BEATS * heartbeat.interval_s)
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
    """Return "now" as the file system has it; one that cannot be written is read by this machine's clock."""
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
