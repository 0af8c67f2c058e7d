"""One writer per run directory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.runs import lock
from llm_perf_opt.runs.heartbeat import new_heartbeat
from llm_perf_opt.runs.lock import hold
from llm_perf_opt.runs.manifest import new_manifest, write_manifest

HOLDING = """
import sys, time
from pathlib import Path
from llm_perf_opt.runs.lock import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def holder(run: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLDING, str(run)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_file_names_its_holder_and_is_removed_at_the_end(tmp_path: Path) -> None:
    with hold(tmp_path):
        text = json.loads((tmp_path / "run.lock").read_text())
        assert (text["host"], text["pid"]) == (socket.gethostname(), os.getpid())
        assert "T" in text["started"]
    assert list(tmp_path.iterdir()) == []


def test_a_second_writer_is_refused_by_name_and_the_first_is_not_disturbed(tmp_path: Path) -> None:
    process = holder(tmp_path)
    try:
        with pytest.raises(ConfigError, match=f"process {process.pid} on ") as caught, hold(tmp_path):
            raise AssertionError("two hold the directory")
        assert "artifacts.runs_dir" in (caught.value.hint or "")
        assert (tmp_path / "run.lock").is_file()
    finally:
        process.kill()
        process.communicate()


def test_the_lock_of_a_killed_run_is_taken_over(tmp_path: Path) -> None:
    process = holder(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (tmp_path / "run.lock").is_file(), "a killed process cleans nothing up"
    with hold(tmp_path):
        assert json.loads((tmp_path / "run.lock").read_text())["pid"] == os.getpid()


def test_text_in_a_lock_that_nobody_holds_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "run.lock").write_bytes(b"\xff not json")
    with hold(tmp_path):
        pass
    assert not (tmp_path / "run.lock").exists()


def test_a_planted_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(ConfigError, match="is not a regular file"), hold(tmp_path / "run"):
        pass
    assert (tmp_path / "precious").read_text() == "mine"


def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(fcntl, "flock", no_locks)


@pytest.mark.parametrize(
    ("pid", "host", "free"), [(os.getppid(), "", False), (2**22, "", True), (1, "elsewhere", False)]
)
def test_without_locks_of_the_file_system_the_text_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pid: int, host: str, free: bool
) -> None:
    without_locks(monkeypatch)
    text = {"host": host or socket.gethostname(), "pid": pid, "started": "2026-01-01T00:00:00+00:00"}
    (tmp_path / "run.lock").write_text(json.dumps(text))
    if free:
        with hold(tmp_path):
            pass
        return
    with pytest.raises(ConfigError, match=f"process {pid}"), hold(tmp_path):
        pass


def test_without_locks_a_file_that_was_just_made_is_somebody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_locks(monkeypatch)
    with hold(tmp_path):
        pass
    (tmp_path / "run.lock").touch()  # its maker has not written yet who it is
    with pytest.raises(ConfigError) as caught, hold(tmp_path):
        pass
    assert caught.value.data["path"] == str(tmp_path)
    assert not re.search(r"process \d", caught.value.message), "nobody knows yet whose it is"
    assert str(tmp_path / "run.lock") in (caught.value.hint or "")


def test_without_locks_one_alone_takes_over_what_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen that the holder is gone; the second takes over while the first is about to."""
    without_locks(monkeypatch)
    left = {"host": socket.gethostname(), "pid": 2**22, "started": "2026-01-01T00:00:00+00:00"}
    (tmp_path / "run.lock").write_text(json.dumps(left))
    judged, inside = lock.Holder.may_live, []

    def while_another_takes_over(holder: lock.Holder, run_dir: Path) -> bool:
        monkeypatch.setattr(lock.Holder, "may_live", judged)
        other = stack.enter_context(hold(tmp_path))
        inside.append(other)
        return False

    monkeypatch.setattr(lock.Holder, "may_live", while_another_takes_over)
    with contextlib.ExitStack() as stack:
        with pytest.raises(ConfigError, match="another process writes"), hold(tmp_path):
            raise AssertionError("two hold the directory")
        assert len(inside) == 1
        assert [path.name for path in tmp_path.iterdir()] == ["run.lock"]


@pytest.mark.parametrize(("silent", "pid", "free"), [(True, 77, True), (False, 77, False), (True, 78, False)])
def test_without_locks_a_holder_on_another_machine_is_detected_by_its_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: bool, pid: int, free: bool
) -> None:
    without_locks(monkeypatch)
    left = {"host": "node7", "pid": 77, "started": "2026-01-01T00:00:00+00:00"}
    (tmp_path / "run.lock").write_text(json.dumps(left))
    artifacts = Artifacts.for_run(tmp_path)
    run = new_manifest(artifacts, ["run"])
    run.heartbeat = replace(new_heartbeat(), host="node7", pid=pid, machine="another")
    path = write_manifest(artifacts, run)
    if silent:
        os.utime(path, (0, 0))
    if free:
        with hold(tmp_path):
            pass
        return
    with pytest.raises(ConfigError, match="process 77 on node7"), hold(tmp_path):
        pass
