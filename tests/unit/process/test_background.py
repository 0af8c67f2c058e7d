"""A program beside this one: it is started, watched and ended with everything it started."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.process.launch import BackgroundProcess
from tests.support import HOLD_SIGNALS


def background(folder: Path, code: str, **keys: object) -> BackgroundProcess:
    return BackgroundProcess([sys.executable, "-c", code], log_dir=folder, name="it", **keys)  # type: ignore[arg-type]


def wait_for_line(message: list[str]) -> str:
    end = time.monotonic() + 30
    while not message and time.monotonic() < end:
        time.sleep(0.02)
    return message[0]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_it_runs_until_it_is_stopped_and_takes_its_children_along(tmp_path: Path) -> None:
    messages: list[str] = []
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print(child.pid, flush=True)\ntime.sleep(600)"
    )
    with background(tmp_path, code, on_line=messages.append) as process:
        child = int(wait_for_line(messages))
        assert process.is_running
        assert process.pid is not None
        assert is_running(child)
    result = process.stop()
    assert (result.ended, process.is_running) == ("stopped", False)
    assert not is_running(child)
    assert not is_running(process.pid)
    assert (tmp_path / "it.stdout.log").read_text().strip() == str(child)


def test_one_that_ignores_the_request_is_killed_after_the_grace(tmp_path: Path) -> None:
    messages: list[str] = []
    code = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(600)"
    with background(tmp_path, code, on_line=messages.append, grace_s=0.5) as process:
        wait_for_line(messages)
        began = time.monotonic()
        assert process.stop().killed >= 1
        assert time.monotonic() - began > 0.4
    assert process.pid is not None
    assert not is_running(process.pid)


def test_one_that_ended_by_itself_is_reported_with_its_exit(tmp_path: Path) -> None:
    with background(tmp_path, "import sys; print('bye', file=sys.stderr); sys.exit(3)") as process:
        end = time.monotonic() + 30
        while process.is_running and time.monotonic() < end:
            time.sleep(0.02)
    result = process.stop()
    assert (result.ended, result.returncode, result.tail()) == ("exit", 3, "bye")


def test_a_program_that_is_not_there_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="not found"):
        BackgroundProcess(["/nowhere/program"], log_dir=tmp_path, name="it").__enter__()


def test_an_error_in_the_block_still_ends_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), background(tmp_path, "import time; time.sleep(600)") as process:
        raise ZeroDivisionError
    assert process.pid not in (None, os.getpid())
    assert not is_running(process.pid or 0)


def wait_for_pause(process: BackgroundProcess, *, paused: bool) -> None:
    end = time.monotonic() + 30
    state = Path(f"/proc/{process.pid}/stat")
    while (state.read_text().rpartition(")")[2].split()[0] == "T") is not paused:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_paused_program_waits_and_still_ends_at_once(tmp_path: Path) -> None:
    messages: list[str] = []
    code = (
        f"{HOLD_SIGNALS}print('up', flush=True)\nsys.exit(7 if signal.sigwait(HELD) == signal.SIGTERM else 1)"
    )
    with background(tmp_path, code, on_line=messages.append, grace_s=60.0) as process:
        wait_for_line(messages)
        process.pause()
        wait_for_pause(process, paused=True)
        process.resume()
        wait_for_pause(process, paused=False)
        process.pause()
    # It handled the signal itself: it was not killed after the grace period.
    assert process.stop().killed == 0
    process.pause()  # nothing to do any more
