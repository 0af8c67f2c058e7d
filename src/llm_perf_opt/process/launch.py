"""The only place that starts a process.

Vendor tools hang, ignore SIGTERM and leave agents behind in sessions of their own. So every program is
started as a list of arguments (no shell), in its own session, with nothing to read, with its output bounded,
under a time limit and a size limit; and when it ends, for whatever reason, all it started ends with it. When this
process is killed, a guard does that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal

from llm_perf_opt.core.console.signals import raise_if_interrupted, settle_interruption
from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.core.files import explain_os_errors, refuse_link
from llm_perf_opt.process.groups import JOB_VARIABLE, kill_all, new_job, survivors
from llm_perf_opt.process.guard import GUARD
from llm_perf_opt.process.leftovers import Leftovers
from llm_perf_opt.process.output import HEAD_BYTES, BoundedLog, OutputReader
from llm_perf_opt.process.sizes import SizeLimit

Ended = Literal["exit", "timeout", "signal", "size", "interrupted"]

_TAIL_BYTES = 1 << 20
_PROBE_BYTES = 32 << 20
_SIZE_CHECK_S = 0.5
_NOTE_S = 2.0


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
    on_start: Callable[[int], None] | None = None,
    size_limit: SizeLimit | None = None,
    stop_signal: signal.Signals = signal.SIGTERM,
    grace_s: float = 5.0,
    before_kill: Callable[[], None] | None = None,
    keep_bytes: int = _TAIL_BYTES,
    base_env: Mapping[str, str] | None = None,
) -> ProcessResult:
    """Run a program to its end, or to a limit, and return what happened; nothing it started survives.

    ``env`` is added to ``base_env``, by default this process's environment. Output goes to
    ``<log_dir>/<name>.stdout.log`` and ``.stderr.log`` (``log_dir=None``: memory), of which a flood keeps beginning and
    end. ``on_start`` gets the process id; ``on_line`` each line of either stream as it comes, ``on_tick`` the elapsed
    seconds once a second, both in another thread; what they raise is raised here. At a limit the whole group gets
    ``stop_signal``, then after ``grace_s`` ``before_kill`` is called (a tool's own clean-up) and the rest is killed.
    Ctrl-C and SIGTERM of this process do the same before they take effect. Raises :class:`ToolError` when the program
    cannot be started.
    """
    out_path, err_path = _log_paths(log_dir, name)
    head_bytes = HEAD_BYTES if log_dir is not None else _PROBE_BYTES
    with explain_os_errors(out_path or Path(os.devnull)):
        logs = [BoundedLog(path, head_bytes=head_bytes) for path in (out_path, err_path)]
    job = new_job()
    complete_env = {**(os.environ if base_env is None else base_env), **(env or {}), JOB_VARIABLE: job}
    leftovers = Leftovers()
    ended: Ended | None = None
    killed = 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(_terminate_as_exception())
        for log in logs:
            stack.callback(log.close)
        GUARD.begin(job)
        stack.callback(GUARD.end, job)
        started = time.monotonic()
        process = stack.enter_context(_start(argv, cwd, complete_env))
        reader: OutputReader | None = None
        try:
            GUARD.begin(job, process.pid)
            if on_start is not None:
                on_start(process.pid)
            reader = OutputReader(_pipes(process, logs), on_line=on_line, on_tick=on_tick)
            limit = size_limit and size_limit.also(out_path, err_path)

            def note() -> None:
                leftovers.note(survivors(process.pid, job))

            ended = _watch(process, started, timeout_s, limit, reader, note)
            seconds = time.monotonic() - started  # of the program, without clearing up after it
        except KeyboardInterrupt:
            # It has arrived, and clearing up is not to be cut short by it. Only then: settled on any other way out, one that
            # was swallowed while the program ran would be lost for good.
            settle_interruption()
            raise
        finally:
            # Also reached by KeyboardInterrupt, SystemExit and an error in a callback: nothing may survive.
            if process.poll() is None:
                killed = _stop(process, job, stop_signal, grace_s, before_kill, leftovers)
            killed += kill_all(
                process.pid, job, settle_s=1.0 if ended == "exit" else 0.0, leftovers=leftovers
            )
            leftovers.remove()
            if reader is not None:
                reader.finish()
        if reader.error is not None:
            raise reader.error
    raise_if_interrupted()
    by_itself = ended == "exit"
    return ProcessResult(
        argv=tuple(argv),
        returncode=process.returncode if by_itself else None,
        seconds=seconds if by_itself else time.monotonic() - started,
        ended="signal" if by_itself and process.returncode < 0 else ended,
        stdout=logs[0].last(keep_bytes),
        stderr=logs[1].last(keep_bytes),
        stdout_path=out_path,
        stderr_path=err_path,
        killed=killed,
    )


def run_probe(
    argv: Sequence[str],
    *,
    timeout_s: float = 20.0,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    base_env: Mapping[str, str] | None = None,
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
        base_env=base_env,
    )


def _log_paths(log_dir: Path | None, name: str) -> tuple[Path | None, Path | None]:
    if log_dir is None:
        return None, None
    refuse_link(Path(log_dir))
    with explain_os_errors(log_dir):
        Path(log_dir).mkdir(parents=True, exist_ok=True)
    return Path(log_dir) / f"{name}.stdout.log", Path(log_dir) / f"{name}.stderr.log"


def _pipes(process: subprocess.Popen[bytes], logs: Sequence[BoundedLog]) -> list[tuple[int, BoundedLog]]:
    streams = (process.stdout, process.stderr)
    return [(stream.fileno(), log) for stream, log in zip(streams, logs, strict=True) if stream is not None]


def _start(argv: Sequence[str], cwd: Path | None, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    if not argv:
        raise ToolError("no program to start", hint="give the program and its arguments")
    if cwd is not None and not Path(cwd).is_dir():
        raise ToolError(
            f"cannot start {argv[0]}: its working directory {cwd} does not exist", hint="create the directory"
        )
    try:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
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
    reader: OutputReader,
    note: Callable[[], None],
) -> Literal["exit", "timeout", "size"]:
    """Wait for the end or a limit; nothing here depends on how much the program says, or on a callback."""
    next_size, next_note = 0.0, _NOTE_S
    pause = 0.005
    while reader.error is None:
        raise_if_interrupted()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=pause)
            return "exit"
        pause = min(pause * 1.5, 0.1)
        elapsed = time.monotonic() - started
        if timeout_s is not None and elapsed > timeout_s:
            return "timeout"
        if limit and elapsed >= next_size:
            next_size = elapsed + _SIZE_CHECK_S
            if limit.is_exceeded():
                return "size"
        if elapsed >= next_note:
            next_note = elapsed + _NOTE_S
            note()
    raise reader.error


def _stop(
    process: subprocess.Popen[bytes],
    job: str,
    stop_signal: signal.Signals,
    grace_s: float,
    before_kill: Callable[[], None] | None,
    leftovers: Leftovers,
) -> int:
    """Ask, wait, let the tool clean up, kill. A second Ctrl-C while waiting goes straight to killing."""
    try:
        leftovers.note(survivors(process.pid, job))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, stop_signal)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=grace_s)
        if before_kill and survivors(process.pid, job):
            before_kill()
    finally:
        killed = kill_all(process.pid, job, leftovers=leftovers)
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
