"""The only place that starts a process.

Vendor tools hang, ignore SIGTERM and leave agents behind in sessions of their own. So every program is
started as a list of arguments (no shell), in its own session, with nothing to read, with its output bounded,
under a time limit and a size limit; and when it ends, for whatever reason, all it started ends with it. When this
process is killed, a guard does that.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Literal

from llm_perf_opt.core.console.signals import acknowledge_interruption, raise_if_interrupted
from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.core.escape import one_line
from llm_perf_opt.core.files import explain_os_errors, open_new, refuse_link
from llm_perf_opt.process.groups import JOB_VARIABLE, kill_all, new_job, survivors
from llm_perf_opt.process.guard import GUARD
from llm_perf_opt.process.leftovers import Leftovers, SizeLimit

# Program output, unbounded at the source and bounded here.
#
# A program may write gigabytes a second, or one line that never ends. Its output comes through pipes that one thread
# reads piece by piece: the log keeps the beginning and the end, lines are handed over in pieces of bounded length, and a
# program that is faster than the reader waits. Nothing else blocks: limits and Ctrl-C are handled by the caller's thread.


HEAD_BYTES = 8 << 20
"""Beginning of a stream that a log keeps, and ..."""
TAIL_BYTES = 8 << 20
"""... its end."""
LINE_BYTES = 64 << 10
"""A longer line is handed over in pieces."""
_PIECE_BYTES = 64 << 10
_TICK_S = 1.0
_PAUSE_S = 0.1
_DRAIN_BYTES = 4 << 20
"""Read at most this of what is still in a pipe that somebody else keeps open."""


class BoundedLog:
    """A stream's beginning and end, in a file or in memory; the middle is counted and dropped."""

    def __init__(
        self, path: Path | None, *, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES
    ) -> None:
        self._path, self._room, self._tail_bytes = path, head_bytes, tail_bytes
        self._file: IO[bytes] | None = open_new(path) if path is not None else None
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._closed = False
        self.left_out = 0
        """Bytes that were read and are not kept."""

    def write(self, data: bytes) -> None:
        """Take the next piece."""
        head, rest = data[: self._room], data[self._room :]
        if head:
            self._room -= len(head)
            self._keep(head)
        if rest:
            self._tail.append(rest)
            self._tail_size += len(rest)
            while self._tail_size - len(self._tail[0]) >= self._tail_bytes:
                dropped = len(self._tail.popleft())
                self._tail_size -= dropped
                self.left_out += dropped

    def close(self) -> None:
        """Append the end to the beginning, with a line in between that gives the dropped size."""
        if self._closed:
            return
        self._closed = True
        end = b"".join(self._tail)
        self._tail.clear()
        if self.left_out:
            end = f"\n[… {self.left_out} bytes left out …]\n".encode() + end
        self._keep(end)
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def _keep(self, data: bytes) -> None:
        """Write to the file. A full disk loses the log, not the run; it is reported elsewhere."""
        if self._file is None:
            self._head += data
            return
        try:
            self._file.write(data)
        except OSError:
            self.left_out += len(data)

    def last(self, keep_bytes: int) -> str:
        """Return the end of what was kept; of a closed log only."""
        if self._path is None:
            return bytes(self._head[-keep_bytes:]).decode("utf-8", errors="replace")
        with os.fdopen(os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - keep_bytes))
            return stream.read().decode("utf-8", errors="replace")


class LineSplitter:
    """Passes on complete lines; a carriage return (progress bar) ends a line too."""

    def __init__(self, handle: Callable[[str], None], *, longest: int = LINE_BYTES) -> None:
        self._handle, self._longest = handle, longest
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take the next piece; an unterminated line is passed on before it grows too long."""
        *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            self._hand_over(line)
        while len(self._rest) > self._longest:
            piece, self._rest = self._rest[: self._longest], self._rest[self._longest :]
            self._hand_over(piece)

    def end(self) -> None:
        """Pass on an unterminated last line."""
        self._hand_over(self._rest)
        self._rest = b""

    def _hand_over(self, line: bytes) -> None:
        if line.strip():
            self._handle(line.decode("utf-8", errors="replace"))


@dataclass(slots=True)
class _Stream:
    descriptor: int
    log: BoundedLog
    lines: LineSplitter | None

    def read(self) -> bytes | None:
        """Return the next piece; empty at the end, ``None`` when there is nothing now."""
        try:
            return os.read(self.descriptor, _PIECE_BYTES)
        except BlockingIOError:
            return None

    def take(self, data: bytes) -> None:
        """Store a piece and pass on its lines."""
        self.log.write(data)
        if self.lines is not None:
            self.lines.feed(data)


class OutputReader:
    """One thread that reads both streams of a program until it and its children are gone."""

    def __init__(
        self,
        streams: Sequence[tuple[int, BoundedLog]],
        *,
        on_line: Callable[[str], None] | None,
        on_tick: Callable[[float], None] | None,
    ) -> None:
        self._streams = [
            # A separate thread: a reader blocked by a callback outlives the program's pipes.
            _Stream(os.dup(descriptor), log, LineSplitter(on_line) if on_line else None)
            for descriptor, log in streams
        ]
        self._on_tick = on_tick
        self._over = threading.Event()
        self.error: Exception | None = None
        """What a callback raised; reading goes on, so that the program does not hang."""
        self._thread = threading.Thread(target=self._run, name="llm-perf-opt-output", daemon=True)
        self._thread.start()

    def finish(self, wait_s: float = 10.0) -> None:
        """Read the remaining output and stop; called when the program is gone."""
        self._over.set()
        self._thread.join(wait_s)

    def _run(self) -> None:
        began = time.monotonic()
        next_tick = 0.0
        with selectors.DefaultSelector() as selector:
            for stream in self._streams:
                os.set_blocking(stream.descriptor, False)
                selector.register(stream.descriptor, selectors.EVENT_READ, stream)
            while not self._over.is_set():
                self._read_once(selector)
                elapsed = time.monotonic() - began
                if self._on_tick and elapsed >= next_tick:
                    next_tick = elapsed + _TICK_S
                    with self._keep_error():
                        self._on_tick(elapsed)
        for stream in self._streams:
            self._drain(stream)
            os.close(stream.descriptor)
            stream.log.close()

    def _read_once(self, selector: selectors.BaseSelector) -> None:
        if not selector.get_map():  # both closed by a program that keeps running
            self._over.wait(_PAUSE_S)
            return
        for key, _ in selector.select(_PAUSE_S):
            stream: _Stream = key.data
            data = stream.read()
            if data == b"":
                selector.unregister(stream.descriptor)
            elif data is not None:
                with self._keep_error():
                    stream.take(data)

    def _drain(self, stream: _Stream) -> None:
        """Read what is available. A detached process may keep the pipe open and continue writing."""
        taken = 0
        while taken < _DRAIN_BYTES and (data := stream.read()):
            taken += len(data)
            with self._keep_error():
                stream.take(data)
        with self._keep_error():
            if stream.lines is not None:
                stream.lines.end()

    @contextlib.contextmanager
    def _keep_error(self) -> Iterator[None]:
        """Keep the first error of a callback to raise it in the thread that waits for the program."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever a callback raises belongs to the caller's thread
            self.error = self.error or error


Ended = Literal["exit", "timeout", "signal", "size", "interrupted", "stopped"]
_TAIL_BYTES = 1 << 20
_PROBE_BYTES = 32 << 20
_GRACE_CHECK_S = 0.01
_NOTE_S = 2.0


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """Exit state and output of a process."""

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
    written_bytes: int | None = None
    """What was on disk when it was over, where it was stopped at a size limit."""

    @property
    def text(self) -> str:
        """Both streams: tools differ in where they write messages."""
        return f"{self.stdout}\n{self.stderr}" if self.stderr else self.stdout

    @property
    def ok(self) -> bool:
        """Ended by itself with exit code 0. Vendor tools also do so when nothing was captured."""
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
    stop: threading.Event | None = None,
) -> ProcessResult:
    """Run a program to its end, or to a limit, and return the result; none of its child processes survive.

    ``env`` is added to ``base_env``, by default this process's environment. Output goes to
    ``<log_dir>/<name>.stdout.log`` and ``.stderr.log`` (``log_dir=None``: memory), of which a flood keeps beginning and
    end. ``on_start`` gets the process id; ``on_line`` each line of either stream as it comes, ``on_tick`` the elapsed
    seconds once a second, both in another thread; what they raise is raised here. At a limit, and when ``stop`` is set, the
    whole group gets ``stop_signal``, then after ``grace_s`` ``before_kill`` is called (a tool's own clean-up) and the rest is killed.
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
    limit = size_limit and size_limit.also(out_path, err_path)
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

            def note() -> None:
                leftovers.note(survivors(process.pid, job))

            ended = _watch(process, started, timeout_s, limit, reader, note, stop)
            seconds = time.monotonic() - started  # of the program, without clearing up after it
        except KeyboardInterrupt:
            # The signal has arrived; clean-up must not be interrupted by it. Only in this case: reset on any other exit path, a
            # signal swallowed while the program ran would be lost.
            acknowledge_interruption()
            raise
        finally:
            # Also reached by KeyboardInterrupt, SystemExit and an error in a callback: no process may survive.
            if process.poll() is None:
                over = limit if ended == "size" else None
                killed = _stop(process, job, stop_signal, grace_s, before_kill, leftovers, over)
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
        written_bytes=limit.written_bytes() if limit is not None and ended == "size" else None,
    )


class BackgroundProcess:
    """A program that runs alongside this one until it is stopped (a server); a context manager that cleans up."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        log_dir: Path,
        name: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        base_env: Mapping[str, str] | None = None,
        on_line: Callable[[str], None] | None = None,
        grace_s: float = 5.0,
    ) -> None:
        self._stop = threading.Event()
        self._started = threading.Event()
        self._result: ProcessResult | None = None
        self._error: BaseException | None = None
        self.pid: int | None = None

        def started(pid: int) -> None:
            self.pid = pid
            self._started.set()

        def run() -> None:
            try:
                self._result = run_process(
                    argv, log_dir=log_dir, name=name, timeout_s=None, cwd=cwd, env=env, base_env=base_env,
                    on_line=on_line, on_start=started, grace_s=grace_s, stop=self._stop,
                )  # fmt: skip
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                self._error = error
            finally:
                self._started.set()

        self._thread = threading.Thread(target=run, name=f"llm-perf-opt-{name}")

    def __enter__(self) -> BackgroundProcess:
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def is_running(self) -> bool:
        """Whether the program has not ended."""
        return self._thread.is_alive()

    def pause(self) -> None:
        """Stop the program and the children of its group from running, until :meth:`resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused program go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        # Started in a session of its own, so the group has its process id.
        with contextlib.suppress(ProcessLookupError):
            if self.pid is not None and self.is_running:
                os.killpg(self.pid, number)

    def request_stop(self) -> None:
        """Begin to end the program and its children, without waiting."""
        self._stop.set()
        self.resume()  # a paused program would not react

    def stop(self) -> ProcessResult:
        """End the program and its children, and return the result; a second call returns the same."""
        self.request_stop()
        self._thread.join()
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise ToolError("the program was not started", hint="enter the context first")
        return self._result


def stated_version(executable: str, product: str, program: str, parse: Callable[[str], str | None]) -> str:
    """Return the version that a tool states; another program under its name is a :class:`ToolError`."""
    answer = run_probe([executable, "--version"])
    text = parse(answer.text)
    if text is None:
        raise ToolError(
            f"{executable} does not answer as {product}: {one_line(answer.tail(3))[:400] or answer.ended}",
            hint=f"check that the file is {program} of {product} and that it runs by hand",
        )
    return text


def run_probe(
    argv: Sequence[str],
    *,
    timeout_s: float = 20.0,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    base_env: Mapping[str, str] | None = None,
) -> ProcessResult:
    """Run a short program (``nsys --version``) and return its full output; no files are kept."""
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
    stop: threading.Event | None = None,
) -> Literal["exit", "timeout", "size", "stopped"]:
    """Wait for the end or a limit; independent of the amount of output and of callbacks."""
    next_size, next_note = 0.0, _NOTE_S
    before, looked = 0, 0.0
    pause = 0.005
    while reader.error is None:
        raise_if_interrupted()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=pause)
            return "exit"
        elapsed = time.monotonic() - started
        pause = min(pause * 1.5, 0.1)
        if stop is not None and stop.is_set():
            return "stopped"
        if timeout_s is not None and elapsed > timeout_s:
            return "timeout"
        if limit:
            if elapsed >= next_size:
                written = limit.written_bytes()
                if written > limit.max_bytes:
                    return "size"
                rate = (written - before) / max(elapsed - looked, 1e-3)
                next_size = elapsed + limit.seconds_until_next_check(written, rate)
                before, looked = written, elapsed
            pause = min(pause, max(next_size - elapsed, 0.001))
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
    limit: SizeLimit | None = None,
) -> int:
    """Request a stop, wait, let the tool clean up, kill. A second Ctrl-C while waiting goes straight to killing.

    ``limit``: the size limit it was stopped at; a program that continues writing is killed at once.
    """
    try:
        leftovers.note(survivors(process.pid, job))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, stop_signal)
        _wait_until_over(process, grace_s, limit)
        if before_kill and survivors(process.pid, job):
            before_kill()
    finally:
        killed = kill_all(process.pid, job, leftovers=leftovers)
        process.wait()
    return killed


def _wait_until_over(process: subprocess.Popen[bytes], grace_s: float, limit: SizeLimit | None) -> None:
    until = time.monotonic() + grace_s
    while (left := until - time.monotonic()) > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=left if limit is None else min(left, _GRACE_CHECK_S))
            return
        if limit is not None and limit.is_out_of_control(limit.written_bytes()):
            return


@contextlib.contextmanager
def _terminate_as_exception() -> Iterator[None]:
    """While a child runs, make SIGTERM and SIGHUP of this process end the child first.

    Only if they have no other handler, and in the main thread (Python's rule for signal handlers).
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
