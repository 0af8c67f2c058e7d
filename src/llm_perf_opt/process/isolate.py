"""Run a program where it sees only its own processes: a process-id namespace of its own, with its own ``/proc``.

Nsight Systems stores the environment of every process it can read, including unrelated ones: shells, editors, this program.
In a separate namespace there are no other processes. Shared memory is private, too, so that no agent of an earlier
capture is found, and when the program ends the kernel ends all it left behind.

Started by path, without the package: ``python -I -S isolate.py PROGRAM ARGUMENT…``. Exit code and signal are the
program's; :data:`_NOT_POSSIBLE` when the kernel, a container or a policy does not allow it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_NOT_POSSIBLE = 125
"""Exit code when there is no namespace to be had; nothing was started."""
_NEW_NAMESPACES = 0x00020000 | 0x20000000  # CLONE_NEWNS, CLONE_NEWPID
_NEW_USER = 0x10000000
_PRIVATE = 0x4000 | 0x40000  # MS_REC, MS_PRIVATE
_NO_SUID_DEVICES_PROGRAMS = 0x2 | 0x4 | 0x8
_PARENT_DEATH_SIGNAL = 1
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def isolated(argv: Sequence[str]) -> list[str]:
    """Return the command that runs ``argv`` in a namespace of its own."""
    return [sys.executable, "-I", "-S", str(Path(__file__).resolve()), *argv]


def main(argv: Sequence[str]) -> int:
    """Become the parent of a new namespace, run the program in it, end as it ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not _enter(libc):
        return _NOT_POSSIBLE
    # The whole group gets the signals: the program handles them, not its waiting parents.
    for number in _FORWARDED:
        signal.signal(number, signal.SIG_IGN)
    reader, writer = os.pipe()
    first = os.fork()
    if first == 0:
        os.close(reader)
        os._exit(_first_process(libc, argv, writer))
    os.close(writer)
    _, status = os.waitpid(first, 0)
    reported = os.read(reader, 32)
    return _end_as(int(reported) if reported else status)


def _enter(libc: ctypes.CDLL) -> bool:
    """Leave the namespaces of the caller; as an ordinary user through a user namespace with the same ids."""
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(_NEW_NAMESPACES) != 0:
        if libc.unshare(_NEW_NAMESPACES | _NEW_USER) != 0:
            return False
        try:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        except OSError:
            return False
    return bool(libc.mount(b"none", b"/", None, _PRIVATE, None) == 0)


def _first_process(libc: ctypes.CDLL, argv: Sequence[str], writer: int) -> int:
    """Mount what is private, start the program, reap orphans; all processes end with this one."""
    libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if libc.mount(b"proc", b"/proc", b"proc", _NO_SUID_DEVICES_PROGRAMS, None) != 0:
        return _NOT_POSSIBLE
    libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0x2 | 0x4, b"mode=1777")
    program = os.fork()
    if program == 0:
        os.close(writer)
        for number in (*_FORWARDED, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        try:
            os.execvp(argv[0], list(argv))
        except OSError as error:
            print(f"cannot start {argv[0]}: {error.strerror}", file=sys.stderr)
            os._exit(127)
    while True:
        pid, status = os.wait()
        if pid == program:
            os.write(writer, str(status).encode())
            return 0


def _end_as(status: int) -> int:
    """Return the exit code, or end by the program's signal, without a second core file."""
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
