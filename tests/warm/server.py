"""Forks a process with everything imported for each command that it is sent: ``server.py CONTROL_FD LISTENER_FD``.

No package of the tests is imported here: a command must find the modules that ``python -m llm_perf_opt`` would find.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import NamedTuple

LIBRARIES = (
    "torch",
    "transformers.modeling_utils",
    "transformers.models.llama.modeling_llama",
    "transformers.models.unlimited_ocr.modeling_unlimited_ocr",
)
STARTS_THREADS = "polars"
"""A fork has one thread only: this one is imported by the commands that need it."""
NOT_OF_RUNS = ("llm_perf_opt.testing", "llm_perf_opt.runners", "llm_perf_opt.__main__")


class Request(NamedTuple):
    """A command that the process we are now was forked for."""

    arguments: list[str]
    cwd: str
    environment: dict[str, str]
    folders: list[str]
    module: str = ""
    script: str = ""
    python: str = ""
    """What programs are started with that are of Python, too; empty: the interpreter."""


def warm_up() -> None:
    """Import what runs import, with the environment that a run sets before it does."""
    from llm_perf_opt.process.environment import prepare_process

    before = dict(os.environ)
    prepare_process()
    for name in LIBRARIES:
        importlib.import_module(name)
    _import_our_own()
    _compose_once()
    gc.collect()
    gc.freeze()  # what is never looked at again stays in memory that all forks share
    os.environ.clear()
    os.environ.update(before)
    threads = [path.name for path in Path("/proc/self/task").iterdir()]
    if len(threads) != 1:
        sys.exit(f"{len(threads)} threads after the imports: a fork would have one of them only")


def _compose_once() -> None:
    """Keep what composing the usual presets gives, so that no command chooses and merges them again."""
    from hydra.core.hydra_config import HydraConfig

    from llm_perf_opt.config.hydra_bridge.compose import compose_raw

    runpy.run_path(str(Path(__file__).with_name("compose_once.py")))["install"]()
    for overrides in ([], ["model=llama_tiny"]):
        compose_raw(overrides)
    # What a new process has not, and finds out for itself: a command may have other plug-ins.
    HydraConfig.instance().cfg = None
    for name, module in list(sys.modules.items()):
        if name.startswith("llm_perf_opt"):
            for value in vars(module).values():
                getattr(value, "cache_clear", lambda: None)()


def _import_our_own() -> None:
    import llm_perf_opt

    sys.modules[STARTS_THREADS] = None  # type: ignore[assignment]
    for found in pkgutil.walk_packages(llm_perf_opt.__path__, "llm_perf_opt.", onerror=lambda name: None):
        if not found.name.startswith(NOT_OF_RUNS):
            with contextlib.suppress(ImportError):
                importlib.import_module(found.name)
    del sys.modules[STARTS_THREADS]


def next_command(control: socket.socket, listener: socket.socket) -> Request | None:
    """Wait for commands; return in a process that was forked for one, and without one when there are no more."""
    while True:
        ready = select.select([control, listener], [], [])[0]
        _collect_keepers()
        if control in ready:
            return None
        connection = listener.accept()[0]
        message, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        reply = connection.detach()
        if message and os.fork() == 0:
            control.close()
            listener.close()
            _keep(socket.socket(fileno=reply), streams)
            return Request(**json.loads(message))
        for fd in (reply, *streams):
            os.close(fd)


def _collect_keepers() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _keep(reply: socket.socket, streams: list[int]) -> None:
    """Fork once more: return in the child, which is the command; wait for it and tell how it ended."""
    pid = os.fork()
    if pid == 0:
        reply.close()
        os.setsid()
        for target, source in enumerate(streams):
            os.dup2(source, target)
            os.close(source)
        _open_streams()
        return
    for fd in streams:
        os.close(fd)
    with contextlib.suppress(BrokenPipeError):
        reply.send(json.dumps({"pid": pid}).encode())
    ended = os.pidfd_open(pid)
    if reply in select.select([ended, reply], [], [])[0]:
        os.kill(pid, signal.SIGKILL)  # whoever asked is gone; nothing is ever sent
    _, status, used = os.wait4(pid, 0)
    cpu_s = used.ru_utime + used.ru_stime
    with contextlib.suppress(BrokenPipeError):  # whoever asked is gone
        reply.send(json.dumps({"status": status, "cpu_s": cpu_s}).encode())
    os._exit(0)


def _open_streams() -> None:
    """Make the interpreter's streams anew, as it does at its start: they know whether a file is behind them."""
    sys.stdin = sys.__stdin__ = os.fdopen(0, "r", closefd=False, encoding=sys.stdin.encoding)
    sys.stdout = sys.__stdout__ = os.fdopen(
        1, "w", closefd=False, encoding=sys.stdout.encoding, errors=sys.stdout.errors
    )
    sys.stderr = sys.__stderr__ = os.fdopen(
        2, "w", buffering=1, closefd=False, encoding=sys.stderr.encoding, errors=sys.stderr.errors
    )


def become(request: Request) -> None:
    """Take directory, environment and arguments of a command."""
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.argv[:] = ["", *request.arguments]
    first = str(Path(request.script).resolve().parent) if request.script else request.cwd
    sys.path[:1] = [first, *request.folders]  # as the interpreter does
    sys.executable = request.python or sys.executable
    if any((Path(folder) / "sitecustomize.py").is_file() for folder in request.folders):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")


def end(leaving: SystemExit) -> None:
    """End as an interpreter does, but for taking apart the thousand modules that the command never asked for."""
    if leaving.code is not None and not isinstance(leaving.code, int):
        raise leaving
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(leaving.code or 0)


if __name__ == "__main__":
    # Under nohup, and in the background of a script, tests ignore signals that a command is to meet.
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warm_up()
    with (
        socket.socket(fileno=int(sys.argv[1])) as control,
        socket.socket(fileno=int(sys.argv[2])) as listener,
    ):
        asked = next_command(control, listener)
    if asked is not None:
        become(asked)
        leaving = SystemExit()
        try:
            if asked.script:
                sys.argv[0] = asked.script
                runpy.run_path(asked.script, run_name="__main__")
            else:
                runpy.run_module(asked.module, run_name="__main__", alter_sys=True)
        except SystemExit as asked_for:
            leaving = asked_for
        end(leaving)
