"""Whether others used the device is seen, and a quiet device is not accused."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from llm_perf_opt.hardware.contention import sharing
from llm_perf_opt.hardware.contention.processor_load import ProcessorTime
from llm_perf_opt.hardware.contention.sharing import CpuWatch, GpuWatch, allotted_gpus, gpu_name


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[ProcessorTime]:
    """What the processor's account says, one reading after the other; children used 3 s between them."""
    found: list[ProcessorTime] = []
    children = iter((10.0, 13.0))
    monkeypatch.setattr(sharing, "processor_time", lambda: found.pop(0))
    monkeypatch.setattr(sharing, "_children_s", lambda: next(children))
    return found


def test_others_on_the_processor_are_seen(readings: list[ProcessorTime]) -> None:
    readings += [ProcessorTime(100.0, 1.0, 0.0, 2), ProcessorTime(114.0, 2.0, 10.0, 2)]
    use = CpuWatch().use()
    assert use.others_ratio == pytest.approx(0.5)  # 14 s of work, 1 + 3 of them ours, of 20
    assert use.words == "other processes used 50.0 % of the processor"


def test_own_work_and_that_of_own_programs_is_no_sharing(readings: list[ProcessorTime]) -> None:
    readings += [ProcessorTime(100.0, 1.0, 0.0, 2), ProcessorTime(113.5, 11.0, 10.0, 2)]
    use = CpuWatch().use()
    assert use.others_ratio == pytest.approx(0.025)
    assert use.words is None


def test_too_short_a_time_tells_nothing(readings: list[ProcessorTime]) -> None:
    readings += [ProcessorTime(100.0, 1.0, 0.0, 2), ProcessorTime(101.0, 1.0, 0.3, 2)]
    assert CpuWatch().use() == sharing.Use()


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
    return tmp_path


def test_a_gpu_is_named_as_this_process_sees_it(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (gpu_name(0), gpu_name(1), gpu_name(2)) == ("GPU-aaa", "GPU-bbb", "gpu 2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpu_name(0) == "GPU-bbb"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-5/1,GPU-aaa")
    assert (gpu_name(0), gpu_name(1)) == ("MIG-5/1", "GPU-aaa")


def test_other_processes_on_the_gpu_are_seen(driver: Path) -> None:
    (driver / "apps").write_text("GPU-bbb, 41, /usr/bin/other\nGPU-aaa, 42, /opt/python\n")
    watch = GpuWatch("GPU-aaa")
    (driver / "apps").write_text("GPU-aaa, 42, /opt/python\nGPU-aaa, 99, /opt/mine\n")
    assert watch.use().words == "1 other process (python 42) used the GPU"


def test_a_gpu_of_ones_own_is_not_shared(driver: Path) -> None:
    watch = GpuWatch("GPU-aaa")
    (driver / "apps").write_text("GPU-aaa, 99, /opt/mine\n")
    assert watch.use() == sharing.Use()


def test_without_a_driver_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert GpuWatch("GPU-aaa").use() == sharing.Use()


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
    (driver / "apps").write_text("GPU-bbb, 41, /usr/bin/other\n")
    assert GpuWatch("GPU-aaa", "GPU-bbb").use().words == "1 other process (other 41) used the GPU GPU-bbb"
