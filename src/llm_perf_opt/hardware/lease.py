"""A device is measured by one run at a time: a lock for each GPU (by its UUID) and each processor core.

The locks are the kernel's, on files in a directory of this machine, and end with the process that holds them. They apply
only to runs of this tool; other users of the device are detected separately (:mod:`llm_perf_opt.hardware.contention`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import filelock

from llm_perf_opt.core.files import atomic_write_text
from llm_perf_opt.core.units import timestamp

LOGGER = logging.getLogger("llm_perf_opt.lease")
LEASE_VARIABLE = "LLM_PERF_OPT_LEASES"
"""Environment variable: directory of the locks. Default: one of this user's in a place that all jobs of a machine see."""
_PLACES = (Path("/tmp"), Path("/dev/shm"))
"""Not ``TMPDIR``: engines set another one for each job, and jobs that do not see each other's locks do not wait."""
_POLL_S = 0.5
_MESSAGE_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class LeasedDevice:
    """What a run measures on."""

    name: str
    """For people: ``GPU-…``, ``cpu 0-3``."""
    locks: tuple[str, ...]
    """Names of the files, in the one order in which everybody takes them: nobody waits for each other in a ring."""


@dataclass(slots=True)
class HeldDevice:
    """Result of a lease."""

    waited_s: float = 0.0
    reason: str | None = None
    """Why it is not held; ``None``: it is."""
    directory: Path | None = None
    """Where its locks lie."""


def cpu_device(cores: Sequence[int] | None = None) -> LeasedDevice:
    """Return the cores available to this process."""
    usable = sorted(os.sched_getaffinity(0) if cores is None else cores)
    return LeasedDevice(f"cpu {_ranges(usable)}", tuple(f"cpu-{core:04d}" for core in usable))


def gpu_device(*names: str) -> LeasedDevice:
    """Return GPUs by unique names."""
    locks = ("".join(c if c.isalnum() or c in "-." else "-" for c in name) for name in sorted(names))
    return LeasedDevice(", ".join(names), tuple(f"gpu-{lock}" for lock in locks))


def lease_directory() -> Path:
    """Return the directory of the locks."""
    given = os.environ.get(LEASE_VARIABLE)
    if given:
        return Path(given).expanduser().absolute()
    usable = (place for place in _PLACES if place.is_dir() and os.access(place, os.W_OK | os.X_OK))
    place = next(usable, None) or Path(tempfile.gettempdir())
    return place / f"llm-perf-opt-leases-{os.getuid()}"


@contextlib.contextmanager
def hold_device(device: LeasedDevice, who: str, *, check: Callable[[], None]) -> Iterator[HeldDevice]:
    """Hold a device while the block runs; wait and log if another run holds it.

    ``who`` is shown to waiting processes. ``check`` is called while waiting, and may raise to end it. Where locks cannot be
    had at all (a directory that cannot be written), the block runs without, and :attr:`Held.reason` says why.
    """
    held = HeldDevice()
    with contextlib.ExitStack() as stack:
        try:
            directory = _own_directory(lease_directory())
            began = time.monotonic()
            for name in device.locks:
                stack.enter_context(_locked(directory / f"{name}.lock", device, who, check))
            held.waited_s, held.directory = time.monotonic() - began, directory
        except (OSError, NotImplementedError) as error:
            held.reason = f"the device could not be locked: {error}"
            LOGGER.warning("%s", held.reason)
        yield held


@contextlib.contextmanager
def _locked(path: Path, device: LeasedDevice, who: str, check: Callable[[], None]) -> Iterator[None]:
    lock = filelock.FileLock(path, timeout=0)
    began, reported = time.monotonic(), -_MESSAGE_EVERY_S
    while True:
        try:
            lock.acquire(timeout=0)
            break
        except filelock.Timeout:
            waited = time.monotonic() - began
            if waited - reported >= _MESSAGE_EVERY_S:
                LOGGER.warning(
                    "waiting for %s: %s measures on it (run.exclusive=false does not wait)",
                    device.name,
                    _holder(path),
                )
                reported = waited
            check()
            time.sleep(_POLL_S)
    try:
        note = {"host": socket.gethostname(), "pid": os.getpid(), "run": who, "since": timestamp()}
        atomic_write_text(path.with_suffix(".holder"), json.dumps(note))
        yield
    finally:
        with contextlib.suppress(OSError):
            path.with_suffix(".holder").unlink()
        lock.release()


def _holder(path: Path) -> str:
    try:
        found = json.loads(path.with_suffix(".holder").read_text(encoding="utf-8"))
        return f"process {found['pid']} ({found['run']}, since {found['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another run"


def _own_directory(directory: Path) -> Path:
    """Make the directory; a directory of another user in a world-writable place is not used."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or (LEASE_VARIABLE not in os.environ and found.st_uid != os.getuid()):
        raise PermissionError(f"{directory} is not a directory of this user ({LEASE_VARIABLE} names another)")
    return directory


def _ranges(numbers: Sequence[int]) -> str:
    """``[0, 1, 2, 5]`` → ``0-2,5``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
