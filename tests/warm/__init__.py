"""Run the command line in a process of its own without waiting for its imports.

``python -m llm_perf_opt run`` spends three to four seconds on importing torch and transformers before it does anything.
A server (:mod:`tests.warm.server`) imports them once and forks a process for every command: with its own directory,
environment, streams, signals and end, and with the modules already there.

What reads its environment while it is being imported cannot be changed any more, so a command whose environment differs
in such a variable is started anew (:meth:`WarmServer.can_run`).

Programs that a command starts are forked, too, where a test puts :func:`warm_python` in the place of ``sys.executable``.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from llm_perf_opt.process.environment import DEFAULTS
from tests.warm.client import added_folders, read_by_then

SHARED = "LLM_PERF_OPT_TESTS_WARM"
"""Environment variable with the folder of the server that the processes of one run of tests share."""


class WarmProcess:
    """A command under way; what :class:`subprocess.Popen` offers of it that tests use."""

    def __init__(self, address: Path, request: Mapping[str, object]) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(str(address))
        self._streams = [_Stream(), _Stream()]
        with Path(os.devnull).open("rb") as nothing:
            given = [nothing.fileno(), *(stream.writing for stream in self._streams)]
            socket.send_fds(self._connection, [json.dumps(request).encode()], given)
        for stream in self._streams:
            stream.read()
        self.pid = int(self._answer(None)["pid"])
        self.returncode: int | None = None
        self.cpu_s = 0.0
        """Known when the process has ended."""

    def _answer(self, timeout_s: float | None) -> dict[str, float]:
        self._connection.settimeout(timeout_s)
        message = self._connection.recv(4096)
        assert message, "the process that starts commands has died; its words are above"
        found: dict[str, float] = json.loads(message)
        return found

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code, or a signal's number below zero."""
        if self.returncode is None:
            try:
                ended = self._answer(timeout)
            except (TimeoutError, BlockingIOError) as error:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0) from error
            self.returncode, self.cpu_s = os.waitstatus_to_exitcode(int(ended["status"])), ended["cpu_s"]
            self._connection.close()
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code of a process that has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end; return what was written to standard output and standard error."""
        self.wait(timeout)
        output, errors = (stream.text(timeout) for stream in self._streams)
        return output, errors

    def kill(self) -> None:
        """End it at once, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class _Stream:
    """A pipe that is read while the command writes to it."""

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe()
        self._content = b""
        self._thread = threading.Thread(target=self._read_all, daemon=True)

    def read(self) -> None:
        """Begin to read; the writing end is the command's alone from now on."""
        os.close(self.writing)
        self._thread.start()

    def _read_all(self) -> None:
        with os.fdopen(self._reading, "rb") as source:
            self._content = source.read()

    def text(self, timeout_s: float | None) -> str:
        """Return everything: when whoever holds the other end, a grandchild too, has closed it."""
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "the command has ended, and something it started holds its output"
        return self._content.decode()


class WarmServer:
    """The process that forks others, shared by the test processes of a run; it ends with the process that started it."""

    def __init__(self, folder: Path) -> None:
        self._address = folder / "address"
        self.stand_in = folder / "python"
        """A program that takes the arguments of the interpreter, see :mod:`tests.warm.client`."""
        facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
        self.environment: dict[str, str] = facts["environment"]
        self.cpu_s = 0.0
        """Of the commands that were run so far: they are children of the server, not of the tests."""

    def can_run(self, environment: Mapping[str, str]) -> bool:
        """Tell whether a process that is started anew with this environment would be no different."""
        return not self._read_by_then(environment)

    def _read_by_then(self, environment: Mapping[str, str]) -> list[str]:
        return read_by_then(environment, self.environment, DEFAULTS)

    def start(
        self,
        arguments: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str] | None = None,
        module: str = "llm_perf_opt",
        *,
        children: bool = False,
    ) -> WarmProcess:
        """Start ``python -m MODULE`` with these arguments; ``children``: programs of Python that it starts are forked, too."""
        environment = dict(os.environ if environment is None else environment)
        assert self.can_run(environment), f"needs a new process: {', '.join(self._read_by_then(environment))}"
        request = {
            "module": module,
            "arguments": list(arguments),
            "cwd": str(cwd),
            "environment": environment,
            "folders": added_folders(environment, self.environment) or [],
            "python": str(self.stand_in) if children else "",
        }
        return WarmProcess(self._address, request)

    def run(
        self,
        arguments: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str] | None = None,
        *,
        timeout_s: float,
        module: str = "llm_perf_opt",
        children: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``python -m MODULE`` with these arguments to its end."""
        process = self.start(arguments, cwd, environment, module, children=children)
        try:
            output, errors = process.communicate(timeout_s)
        finally:
            process.kill()
        self.cpu_s += process.cpu_s
        return subprocess.CompletedProcess(
            [sys.executable, "-m", module, *arguments], process.wait(), output, errors
        )


def start_server() -> None:
    """Start a server for this process and the test processes that it starts, which find it by the environment."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    control, theirs = socket.socketpair()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(folder / "address"))
    listener.listen(16)
    _write_stand_in(folder)
    with theirs, listener:
        fds = [theirs.fileno(), listener.fileno()]
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("server.py")), *map(str, fds)],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    os.environ[SHARED] = str(folder)

    def close() -> None:
        control.close()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(close)


def _write_stand_in(folder: Path) -> None:
    path, facts = folder / "python", folder / "facts.json"
    facts.write_text(
        json.dumps(
            {
                "python": sys.executable,
                "stand_in": str(path),
                "address": str(folder / "address"),
                "environment": dict(os.environ),
                "defaults": DEFAULTS,
            }
        ),
        encoding="utf-8",
    )
    facts.chmod(0o600)
    client = Path(__file__).with_name("client.py")
    words = shlex.join([sys.executable, "-I", "-S", str(client), str(facts)])
    path.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
    path.chmod(0o700)


@functools.cache
def warm_server() -> WarmServer:
    """Return the server of this run of tests, started when it is first asked for where the tests have one process."""
    if not Path(os.environ.get(SHARED, "")).joinpath("address").is_socket():
        start_server()
    return WarmServer(Path(os.environ[SHARED]))


@contextlib.contextmanager
def warm_python() -> Iterator[Path]:
    """Let programs that are started with ``sys.executable`` be forked from a process that has the imports."""
    before, sys.executable = sys.executable, str(warm_server().stand_in)
    try:
        yield warm_server().stand_in
    finally:
        sys.executable = before
