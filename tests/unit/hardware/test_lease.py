"""One run at a time on a device; those who wait are told whom for."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from llm_perf_opt.hardware import lease
from llm_perf_opt.hardware.lease import LEASE_VARIABLE, cpu_device, gpu_device, hold_device, lease_directory
from tests.text_facts import mentions

HOLD = (
    "import sys; from llm_perf_opt.hardware.lease import cpu_device, hold_device\n"
    "with hold_device(cpu_device([int(n) for n in sys.argv[1].split(',')]), 'other run', check=lambda: None):\n"
    "    print('held', flush=True); sys.stdin.read()\n"
)


class Enough(Exception):
    pass


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(LEASE_VARIABLE, str(tmp_path / "leases"))
    monkeypatch.setattr(lease, "_POLL_S", 0.01)
    return tmp_path / "leases"


def another(cores: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, cores], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.communicate("")


def test_a_device_that_is_held_is_waited_for_with_a_message(caplog: pytest.LogCaptureFixture) -> None:
    other, turns = another("0,1"), []

    def check() -> None:
        turns.append(1)
        if len(turns) == 3:
            end(other)

    with (
        caplog.at_level(logging.WARNING, "llm_perf_opt.lease"),
        hold_device(cpu_device([1, 2]), "mine", check=check) as held,  # one core in common is enough
    ):
        assert held.reason is None
        assert held.waited_s > 0
    assert len(turns) >= 3
    (message,) = [record.getMessage() for record in caplog.records]
    assert mentions(message, "cpu 1-2", str(other.pid), "other run")
    assert "run.exclusive=false" in message


def test_other_cores_and_other_gpus_are_not_waited_for() -> None:
    def check() -> None:
        raise Enough

    other = another("0,1")
    try:
        with (
            hold_device(cpu_device([2, 3]), "a", check=check),
            hold_device(gpu_device("GPU-1"), "b", check=check),
            hold_device(gpu_device("GPU-2"), "c", check=check),
        ):
            pass
    finally:
        end(other)


def test_a_wait_can_be_ended_and_leaves_the_device_to_others() -> None:
    def check() -> None:
        raise Enough

    other = another("1")
    with pytest.raises(Enough), hold_device(cpu_device([0, 1]), "a", check=check):
        raise AssertionError("it is held by another")
    with hold_device(cpu_device([0]), "b", check=check):  # what was taken before the wait is free again
        pass
    end(other)


def test_a_killed_holder_holds_nothing() -> None:
    other = another("0")
    other.kill()
    other.communicate()
    with hold_device(cpu_device([0]), "a", check=lambda: None) as held:
        assert held.reason is None


def test_the_holder_is_named_while_it_holds(own_directory: Path) -> None:
    with hold_device(gpu_device("GPU-12:34"), "my run", check=lambda: None):
        assert json.loads((own_directory / "gpu-GPU-12-34.holder").read_text())["run"] == "my run"
    assert not (own_directory / "gpu-GPU-12-34.holder").exists()


def test_without_a_lock_the_run_continues_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(LEASE_VARIABLE, str(tmp_path / "file" / "leases"))
    with hold_device(cpu_device([0]), "a", check=lambda: None) as held:
        assert held.reason is not None and str(tmp_path / "file" / "leases") in held.reason
        assert held.directory is None


def test_cores_are_named_in_ranges() -> None:
    assert cpu_device([0, 1, 2, 5]).name == "cpu 0-2,5"


def test_jobs_with_temporary_directories_of_their_own_see_each_others_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(LEASE_VARIABLE)
    found = set()
    for job in ("a", "b"):
        (tmp_path / job).mkdir()
        monkeypatch.setenv("TMPDIR", str(tmp_path / job))
        monkeypatch.setattr(tempfile, "tempdir", None)
        found.add(lease_directory())
    (shared,) = found
    monkeypatch.setattr(lease, "_PLACES", (tmp_path / "none", tmp_path))
    assert lease_directory() == tmp_path / shared.name
    monkeypatch.setattr(lease, "_PLACES", ())
    assert lease_directory() == tmp_path / "b" / shared.name
