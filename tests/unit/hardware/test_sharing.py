"""Whether others used the device is seen, and a quiet device is not accused."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from llm_perf_opt.hardware import contention
from llm_perf_opt.hardware.contention import CpuWatch, GpuWatch, ProcessorTime, allotted_gpus, gpu_name
from llm_perf_opt.process.groups import new_job
from tests.drivers import nvml
from tests.text_facts import mentions

SLICE = "MIG-5a0e7d52-4a35-5c31-9a8e-0f1f6c1d2b01"


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[ProcessorTime]:
    """What the processor's account says, one reading after the other; children used 3 s between them."""
    found: list[ProcessorTime] = []
    children = iter((10.0, 13.0))
    monkeypatch.setattr(contention, "processor_time", lambda: found.pop(0))
    monkeypatch.setattr(contention, "_children_s", lambda: next(children))
    return found


def test_others_on_the_processor_are_seen(readings: list[ProcessorTime]) -> None:
    readings += [ProcessorTime(100.0, 1.0, 0.0, 2), ProcessorTime(114.0, 2.0, 10.0, 2)]
    use = CpuWatch().use()
    assert use.others_ratio == pytest.approx(0.5)  # 14 s of work, 1 + 3 of them ours, of 20
    assert mentions(use.description, "50.0 %")


@pytest.mark.parametrize(("niceness", "is_named"), [(-5, False), (0, False), (15, True)])
def test_a_low_priority_of_the_run_is_named(
    niceness: int, is_named: bool, readings: list[ProcessorTime], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contention.os, "getpriority", lambda *_: niceness)
    readings += [ProcessorTime(100.0, 1.0, 0.0, 2), ProcessorTime(114.0, 2.0, 10.0, 2)]
    assert ("niceness" in (CpuWatch().use().description or "")) is is_named


def test_own_work_and_that_of_own_programs_is_no_sharing(readings: list[ProcessorTime]) -> None:
    readings += [ProcessorTime(100.0, 1.0, 0.0, 2), ProcessorTime(113.5, 11.0, 10.0, 2)]
    use = CpuWatch().use()
    assert use.others_ratio == pytest.approx(0.025)
    assert use.description is None


def test_too_short_a_time_gives_nothing(readings: list[ProcessorTime]) -> None:
    readings += [ProcessorTime(100.0, 1.0, 0.0, 2), ProcessorTime(101.0, 1.0, 0.3, 2)]
    assert CpuWatch().use() == contention.Use()


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for nvidia-smi, which no test machine has: it prints what lies beside it."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        f'#!/bin/sh\ncase "$1" in *compute*) cat {tmp_path}/apps;; *) cat {tmp_path}/gpus;; esac\n'
    )
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "gpus").write_text("0, GPU-aaa\n1, GPU-bbb\n")
    (tmp_path / "apps").write_text("")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(contention, "has_library", lambda: False)
    monkeypatch.setattr(contention, "numbers_are_the_drivers", lambda: True)
    return tmp_path


def test_a_gpu_is_named_as_this_process_sees_it(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (gpu_name(0), gpu_name(1), gpu_name(2)) == ("GPU-aaa", "GPU-bbb", "gpu 2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpu_name(0) == "GPU-bbb"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-5/1,GPU-aaa")
    assert (gpu_name(0), gpu_name(1)) == ("MIG-5/1", "GPU-aaa")


def listed(driver: Path, *rows: tuple[str, int, str]) -> None:
    (driver / "apps").write_text("".join(f"{gpu}, {pid}, /opt/{name}\n" for gpu, pid, name in rows))


def test_other_processes_on_the_gpu_are_seen(driver: Path) -> None:
    watch = GpuWatch("GPU-aaa")
    listed(driver, ("GPU-bbb", 1, "elsewhere"), ("GPU-aaa", 1, "python"), ("GPU-aaa", os.getpid(), "mine"))
    watch.look()  # it comes and goes between the first look and the last
    listed(driver, ("GPU-aaa", os.getpid(), "mine"))
    use = watch.use()
    assert mentions(use.description, "python 1", "1", "3")
    assert use.others_ratio == pytest.approx(1 / 3)


def test_this_process_and_what_it_started_share_with_nobody(driver: Path) -> None:
    """A second job of the same process has a context from the first; a program of its own may be over in the end."""
    child = subprocess.Popen(["sleep", "60"])
    orphan = subprocess.run(
        ["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"],
        env={**os.environ, "LLM_PERF_OPT_JOB": new_job()},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    try:
        mine = (os.getpid(), child.pid, int(orphan.stdout))
        listed(driver, *(("GPU-aaa", pid, "mine") for pid in mine))
        watch = GpuWatch("GPU-aaa")
        listed(driver)
        assert watch.use() == contention.Use(0.0)
        listed(driver, ("GPU-aaa", os.getpid(), "parent of the ranks"))
        assert GpuWatch("GPU-aaa", root=child.pid).use().others_ratio == 1.0
    finally:
        os.kill(int(orphan.stdout), signal.SIGKILL)
        child.kill()
        child.wait()


def test_in_a_container_those_who_were_there_before_are_the_others(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contention, "numbers_are_the_drivers", lambda: False)
    listed(driver, ("GPU-aaa", 7001, "other"))
    watch = GpuWatch("GPU-aaa")
    listed(driver, ("GPU-aaa", 7001, "other"), ("GPU-aaa", 7002, "mine"))
    use = watch.use()
    assert use.others_ratio == 1.0 and mentions(use.description, "1", "other 7001", "2")
    assert not mentions(use.description, "7002")
    monkeypatch.setattr(contention, "_uses_gpu", lambda: True)  # which of them is ours cannot be told
    assert GpuWatch("GPU-aaa").use() == contention.Use()
    monkeypatch.setattr(contention, "_uses_gpu", lambda: False)
    listed(driver)  # nobody, not even us: not told
    assert GpuWatch("GPU-aaa").use() == contention.Use()


def test_a_slice_is_looked_up_by_its_own_name(tmp_path: Path) -> None:
    look = (
        "from llm_perf_opt.hardware import contention\n"
        "contention.numbers_are_the_drivers = lambda: True; contention.os.getppid = lambda: 0\n"
        f"print(contention.GpuWatch({SLICE!r}).use())"
    )
    assert (
        nvml.query(nvml.build(tmp_path / "quiet", "MIG"), look) == "Use(others_ratio=0.0, description=None)"
    )
    busy = nvml.query(nvml.build(tmp_path / "busy", "MIG", "BUSY"), look)
    assert "others_ratio=1.0" in busy and "1 other process" in busy and "2 of 2 looks" in busy
    # Without a slice the name is nobody's: not known, which is not the same as alone.
    assert nvml.query(nvml.build(tmp_path / "whole"), look) == "Use(others_ratio=None, description=None)"


def test_the_tool_does_not_report_slices(driver: Path) -> None:
    listed(driver, ("GPU-aaa", 1, "other"))
    assert GpuWatch("MIG-5/1").use() == contention.Use()


def test_without_a_driver_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert GpuWatch("GPU-aaa").use() == contention.Use()


def test_gpus_given_by_an_engine_are_those_the_driver_lists(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert allotted_gpus() == []  # nobody gave any
    for given, found in (
        ("1", ["GPU-bbb"]),
        ("1,0", ["GPU-aaa", "GPU-bbb"]),
        ("MIG-5/1", ["MIG-5/1"]),
        ("", []),
        ("7", []),
        ("NoDevFiles", []),
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
        assert allotted_gpus() == found, given


def test_of_several_gpus_the_shared_one_is_named(driver: Path) -> None:
    listed(driver, ("GPU-bbb", 1, "other"))
    text = GpuWatch("GPU-aaa", "GPU-bbb").use().description
    assert mentions(text, "other 1", "GPU-bbb", "2") and not mentions(text, "GPU-aaa")
