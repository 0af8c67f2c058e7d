"""The only place that starts a process.

Vendor tools hang, ignore SIGTERM and leave agents behind in sessions of their own. So every program is
started as a list of arguments (no shell), in its own session, with nothing to read, with its output in files,
under a time limit and a size limit; and when it ends, for whatever reason, all it started ends with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal

from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.core.files import explain_os_errors
from llm_perf_opt.process.groups import JOB_VARIABLE, kill_all, survivors

Ended = Literal["exit", "timeout", "signal", "size", "interrupted"]

_TAIL_BYTES = 1 << 20
_PROBE_BYTES = 64 << 20
_TICK_S = 1.0
_SIZE_CHECK_S = 0.5


@dataclass(frozen=True, slots=True)
class SizeLimit:
    """Most bytes that the given files and directory trees may hold together."""

    paths: tuple[Path, ...]
    max_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """How a process ended and what it said."""

    argv: tuple[str, ...]
    returncode: int | None
    """Exit code; negative: the signal that ended it (as in ``Popen``); ``None``: we ended it at a limit."""
    seconds: float
    ended: Ended
    stdout: str
    """Standard output, the last mebibyte of it (everything for a probe)."""
    stderr: str
    stdout_path: Path | None = None
    stderr_path: Path | None = None
    killed: int = 0
    """Processes that had to be killed although the program itself was over, or would not stop."""

    @property
    def text(self) -> str:
        """Both streams: tools disagree about where messages go."""
        return f"{self.stdout}\n{self.stderr}" if self.stderr else self.stdout

    @property
    def ok(self) -> bool:
        """Ended by itself with exit code 0. Vendor tools also do that when nothing was captured."""
        return self.ended == "exit" and self.returncode == 0

    def tail(self, lines: int = 20) -> str:
        """Return the last lines of both streams, for an error message."""
        return "\n".join([line for line in self.text.splitlines() if line.strip()][-lines:])


class _LineReader:
    """Hands over complete lines of a growing file; a carriage return (progress bar) ends a line too."""

    def __init__(self, path: Path, handle: Callable[[str], None]) -> None:
        self._stream = path.open("rb")
        self._handle = handle
        self._rest = b""

    def poll(self, *, last: bool = False) -> None:
        data = self._rest + self._stream.read()
        *lines, self._rest = data.replace(b"\r", b"\n").split(b"\n")
        if last and self._rest:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            if line.strip():
                self._handle(line.decode("utf-8", errors="replace"))

    def close(self) -> None:
        self._stream.close()


def run_process(
    argv: Sequence[str],
    *,
    log_dir: Path | None,
    name: str,
    timeout_s: float | None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] | None = None,
    on_tick: Callable[[float], None] | None = None,
    size_limit: SizeLimit | None = None,
    stop_signal: signal.Signals = signal.SIGTERM,
    grace_s: float = 5.0,
    before_kill: Callable[[], None] | None = None,
    keep_bytes: int = _TAIL_BYTES,
) -> ProcessResult:
    """Run a program to its end, or to a limit, and return what happened; nothing it started survives.

    ``env`` is added to this process's environment. Output goes to ``<log_dir>/<name>.stdout.log`` and
    ``.stderr.log`` (``log_dir=None``: temporary files). ``on_line`` gets each line of either stream as it
    comes, ``on_tick`` the elapsed seconds once a second. At a limit the whole group gets ``stop_signal``,
    then after ``grace_s`` ``before_kill`` is called (a tool's own clean-up) and the rest is killed. Ctrl-C
    and SIGTERM of this process do the same before they take effect. Raises :class:`ToolError` when the
    program cannot be started.
    """
    with contextlib.ExitStack() as stack:
        if log_dir is None:
            logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="llm-perf-opt-")))
        else:
            logs = Path(log_dir)
            with explain_os_errors(logs):
                logs.mkdir(parents=True, exist_ok=True)
        out_path, err_path = logs / f"{name}.stdout.log", logs / f"{name}.stderr.log"
        job = f"{os.environ.get(JOB_VARIABLE, '')}:{uuid.uuid4().hex}"
        stack.enter_context(_terminate_as_exception())
        started = time.monotonic()
        process = _start(argv, out_path, err_path, cwd, {**os.environ, **(env or {}), JOB_VARIABLE: job})
        ended: Ended | None = None
        killed = 0
        try:
            readers = [_LineReader(path, on_line) for path in (out_path, err_path)] if on_line else []
            for reader in readers:
                stack.callback(reader.close)
            limit = size_limit and SizeLimit((*size_limit.paths, out_path, err_path), size_limit.max_bytes)
            ended = _watch(process, started, timeout_s, limit, readers, on_tick)
            seconds = time.monotonic() - started  # of the program, without clearing up after it
        finally:
            # Also reached by KeyboardInterrupt, SystemExit and an error in a callback: nothing may survive.
            if process.poll() is None:
                killed = _stop(process, job, stop_signal, grace_s, before_kill)
            killed += kill_all(process.pid, job, settle_s=1.0 if ended == "exit" else 0.0)
        for reader in readers:
            reader.poll(last=True)
        by_itself = ended == "exit"
        return ProcessResult(
            argv=tuple(argv),
            returncode=process.returncode if by_itself else None,
            seconds=seconds if by_itself else time.monotonic() - started,
            ended="signal" if by_itself and process.returncode < 0 else ended,
            stdout=_tail(out_path, keep_bytes),
            stderr=_tail(err_path, keep_bytes),
            stdout_path=out_path if log_dir is not None else None,
            stderr_path=err_path if log_dir is not None else None,
            killed=killed,
        )


def run_probe(
    argv: Sequence[str],
    *,
    timeout_s: float = 20.0,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> ProcessResult:
    """Run a short program (``nsys --version``) and return its output, all of it; keep no files."""
    return run_process(
        argv,
        log_dir=None,
        name="probe",
        timeout_s=timeout_s,
        cwd=cwd,
        env=env,
        grace_s=1.0,
        keep_bytes=_PROBE_BYTES,
    )


def _start(
    argv: Sequence[str], out_path: Path, err_path: Path, cwd: Path | None, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    if not argv:
        raise ToolError("no program to start", hint="give the program and its arguments")
    if cwd is not None and not Path(cwd).is_dir():
        raise ToolError(
            f"cannot start {argv[0]}: its working directory {cwd} does not exist", hint="create the directory"
        )
    with explain_os_errors(out_path), out_path.open("wb") as out, err_path.open("wb") as err:
        try:
            return subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=cwd,
                env=dict(env),
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise ToolError(
                f"cannot start {argv[0]}: not found", hint=f"install it, or put it on PATH: {argv[0]}"
            ) from error
        except PermissionError as error:
            raise ToolError(f"cannot start {argv[0]}: not executable", hint=f"chmod +x {argv[0]}") from error
        except (OSError, ValueError) as error:
            # ENOEXEC (not a program), E2BIG (arguments too long), a NUL byte in an argument.
            raise ToolError(
                f"cannot start {argv[0]}: {error}", hint="check the program and its arguments"
            ) from error


def _watch(
    process: subprocess.Popen[bytes],
    started: float,
    timeout_s: float | None,
    limit: SizeLimit | None,
    readers: Sequence[_LineReader],
    on_tick: Callable[[float], None] | None,
) -> Literal["exit", "timeout", "size"]:
    """Wait for the end or a limit. Files are followed by polling: orphans would hold a pipe open."""
    next_tick = next_size = 0.0
    pause = 0.005
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=pause)
            return "exit"
        pause = min(pause * 1.5, 0.1)
        elapsed = time.monotonic() - started
        for reader in readers:
            reader.poll()
        if on_tick and elapsed >= next_tick:
            next_tick = elapsed + _TICK_S
            on_tick(elapsed)
        if timeout_s is not None and elapsed > timeout_s:
            return "timeout"
        if limit and elapsed >= next_size:
            next_size = elapsed + _SIZE_CHECK_S
            if _total_bytes(limit.paths) > limit.max_bytes:
                return "size"


def _stop(
    process: subprocess.Popen[bytes],
    job: str,
    stop_signal: signal.Signals,
    grace_s: float,
    before_kill: Callable[[], None] | None,
) -> int:
    """Ask, wait, let the tool clean up, kill. A second Ctrl-C while waiting goes straight to killing."""
    try:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, stop_signal)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=grace_s)
        if before_kill and survivors(process.pid, job):
            before_kill()
    finally:
        killed = kill_all(process.pid, job)
        process.wait()
    return killed


@contextlib.contextmanager
def _terminate_as_exception() -> Iterator[None]:
    """While a child runs, make SIGTERM and SIGHUP of this process end the child first.

    Only when nobody else handles them, and in the main thread (Python's rule for signal handlers).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    changed = [
        number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in changed:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def _total_bytes(paths: Sequence[Path]) -> int:
    """Sum of sizes of files and trees; each file once. Files that vanish meanwhile count nothing."""
    sizes: dict[tuple[int, int], int] = {}
    for root in paths:
        for path in (root, *root.rglob("*")) if root.is_dir() else (root,):
            with contextlib.suppress(OSError):
                status = path.lstat()
                sizes[status.st_dev, status.st_ino] = status.st_size
    return sum(sizes.values())


def _tail(path: Path, keep_bytes: int) -> str:
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - keep_bytes))
        return stream.read().decode("utf-8", errors="replace")
