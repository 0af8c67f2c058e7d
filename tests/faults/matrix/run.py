"""Run a case in a process of its own, and look at what it leaves."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from tests.faults.matrix.case import Case, Running
from tests.faults.matrix.judge import problems
from tests.faults.processes import with_variable

_MARK = "FAULT_CASE"
_LIMIT_S = 180.0
_GUARD_S = 10.0
"""The guard of a run, which ends what a killed run leaves, goes a moment after the run itself."""
_HOOKED = """\
import os, signal, sys, time
{hook}
from llm_perf_opt.cli import main
sys.exit(main(sys.argv[1:]))
"""


def run_case(case: Case, scratch: Path) -> list[str]:
    """Run one case; return what is wrong, processes left behind included."""
    mark = uuid.uuid4().hex
    command = ["-c", _HOOKED.format(hook=case.hook)] if case.hook is not None else ["-m", "llm_perf_opt"]
    env = {**os.environ, **case.env, _MARK: mark}
    arguments = case.arguments(scratch)
    printed = scratch / ".printed"
    with (
        case.around(scratch) if case.around is not None else contextlib.nullcontext(),
        printed.open("wb") as out,
    ):
        process = subprocess.Popen(
            [sys.executable, *command, *arguments], cwd=scratch, env=env, stdin=subprocess.DEVNULL, stdout=out,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        with _ended(process):
            try:
                if case.during is not None:
                    case.during(Running(process, scratch))
                code = process.wait(timeout=_LIMIT_S)
            except subprocess.TimeoutExpired:
                return [f"still running after {_LIMIT_S:.0f} s"]
            except AssertionError as error:
                return [f"could not be made: {error}; …{printed.read_text(errors='replace')[-300:]}"]
    text = printed.read_bytes().decode("utf-8", errors="replace")
    return [*problems(case, scratch, code, text), *_left_running(mark)]


def run_in_scratch(case: Case) -> list[str]:
    """Run one case in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="fault-") as scratch:
        return run_case(case, Path(scratch))


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _left_running(mark: str) -> list[str]:
    deadline = time.monotonic() + _GUARD_S
    while (left := with_variable(f"{_MARK}={mark}\0".encode())) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [f"process {pid} is left ({_name(pid)})" for pid in left]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
    except OSError:
        return "gone since"
