"""One writer per run directory: ``run.lock`` names it for as long as a run (or ``report``) writes there.

The lock is the kernel's: it ends with the process, however that ends. A file that is left behind by a killed run is
therefore recognised as such and taken over. On file systems without locks the creator of the file holds the directory; one that was
left behind is recognised by its process, on another machine by the heartbeat in the run's manifest, and one alone takes it over.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from llm_perf_opt.core import layout
from llm_perf_opt.core.console.signals import defer_signals
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.core.files import explain_os_errors
from llm_perf_opt.core.units import timestamp
from llm_perf_opt.runs.heartbeat import Watch
from llm_perf_opt.runs.manifest import read_manifest

LOGGER = logging.getLogger("llm_perf_opt.run")
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
"""What file systems without locks answer: there the file's text decides."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a run directory."""

    host: str
    pid: int
    started: str
    """ISO 8601 with time zone."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.started}"

    def may_live(self, run_dir: Path) -> bool:
        """Whether the process may still be alive; on another machine decided by its heartbeat, if any."""
        if self.host != socket.gethostname():
            return self._beats(run_dir)
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    def _beats(self, run_dir: Path) -> bool:
        try:
            beat = read_manifest(run_dir).heartbeat
        except InputError:
            return True
        if beat is None or (beat.host, beat.pid) != (self.host, self.pid):
            return True  # no heartbeat yet, or never (``report``)
        return Watch(run_dir).judge(beat, run_dir / layout.MANIFEST).alive


@contextlib.contextmanager
def hold(run_dir: Path, *, elsewhere: str = "artifacts.runs_dir=DIR") -> Iterator[None]:
    """Hold a run directory while the block runs; :class:`ConfigError` when another process does.

    ``elsewhere``: how to choose another output directory.
    """
    path = run_dir / layout.LOCK
    descriptor: int | None = None
    try:
        with (
            defer_signals(),
            explain_os_errors(path),
        ):  # a signal right after the file was made must not leave it behind
            descriptor = _acquire(path, elsewhere)
        yield
    finally:
        if descriptor is not None:
            # Unlinked while still locked: a process that opened the file meanwhile detects that it was removed.
            with contextlib.suppress(OSError):
                path.unlink()
            os.close(descriptor)


def _acquire(path: Path, elsewhere: str) -> int:
    while True:
        descriptor, made = _open(path, elsewhere)
        try:
            _lock(descriptor, path, elsewhere, made=made)
            # The previous holder may have removed the file between our opening and locking it.
            if _is_same_file(descriptor, path):
                _take_over(descriptor)
                return descriptor
        except BaseException:  # also at a signal the descriptor must be closed
            os.close(descriptor)
            raise
        os.close(descriptor)


def _open(path: Path, elsewhere: str) -> tuple[int, bool]:
    """Return the file, and whether it was made here: of several processes exactly one makes it."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    while True:
        with contextlib.suppress(FileExistsError):
            return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644), True
        try:
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            continue  # its holder has just removed it
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise _not_a_lock(path, elsewhere) from error
            raise
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor, False
        os.close(descriptor)
        raise _not_a_lock(path, elsewhere)


def _not_a_lock(path: Path, elsewhere: str) -> ConfigError:
    link = " (it is a link)" if path.is_symlink() else ""
    return ConfigError(
        f"{path} is not a regular file{link}, so it cannot be the lock",
        hint=f"remove it, or choose another directory: {elsewhere}",
    )


def _lock(descriptor: int, path: Path, elsewhere: str, *, made: bool) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _held(path, _holder(descriptor), elsewhere) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        if not made and not _inherit(descriptor, path):
            raise _held(path, _holder(descriptor), elsewhere, locks=False) from error


def _inherit(descriptor: int, path: Path) -> bool:
    """Take over a stale file without kernel locks; ``False``: it is held, or another takes it over."""
    left = _holder(descriptor)
    # An empty file was created a moment ago.
    if left is None or left.may_live(path.parent):
        return False
    claim = path.with_name(f"{path.name}.{left.pid}")
    try:
        os.close(os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
    except FileExistsError:
        return False
    try:
        if _holder(descriptor) != left:
            return False  # another process was faster and has finished taking over
        _write_holder(descriptor)
        _warn_left_behind(left)
    finally:
        claim.unlink(missing_ok=True)
    return True


def _held(path: Path, holder: Holder | None, elsewhere: str, *, locks: bool = True) -> ConfigError:
    may_be_left = not locks if holder is None else holder.host != socket.gethostname()
    remove = f"; if that run is over, remove {path}" if may_be_left else ""
    return ConfigError(
        f"another process writes in {path.parent} ({holder or 'who it is cannot be read'})",
        hint=f"wait for it, or choose another directory: {elsewhere}{remove}",
        key=elsewhere.replace("=", " ").split()[0],
        path=str(path.parent),
    )


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    ours = os.fstat(descriptor)
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def _take_over(descriptor: int) -> None:
    left = _holder(descriptor)
    if left is not None and (left.host, left.pid) != (socket.gethostname(), os.getpid()):
        _warn_left_behind(left)
    _write_holder(descriptor)


def _warn_left_behind(holder: Holder) -> None:
    LOGGER.warning("%s was left behind by %s, which ended without cleaning up", layout.LOCK, holder)


def _write_holder(descriptor: int) -> None:
    holder = Holder(socket.gethostname(), os.getpid(), timestamp())
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, (json.dumps(asdict(holder)) + "\n").encode(), 0)


def _holder(descriptor: int) -> Holder | None:
    """Read the holder from the file; ``None`` if it is not recorded."""
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
        return Holder(str(found["host"]), int(found["pid"]), str(found["started"]))
    except (ValueError, KeyError, TypeError):
        return None
