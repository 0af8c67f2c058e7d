"""Versions of drivers from made-up trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.hardware import detect
from llm_perf_opt.hardware.detect import driver_versions

OPEN_MODULE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build\nGCC version:  gcc 12.3.0\n"


@pytest.fixture(autouse=True)
def no_libcuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "cuda_device_count", lambda: 0)


def test_rocm_reports_its_release(tmp_path: Path) -> None:
    (tmp_path / "opt/rocm/.info").mkdir(parents=True)
    (tmp_path / "opt/rocm/.info/version").write_text("7.0.2-56\n")
    assert driver_versions(tmp_path) == {"rocm": "7.0.2-56"}


def test_no_driver_is_nothing(tmp_path: Path) -> None:
    assert driver_versions(tmp_path) == {}


def test_a_library_without_a_device_is_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "_cuda_version", lambda: "12.2")
    assert driver_versions(tmp_path) == {}
    monkeypatch.setattr(detect, "cuda_device_count", lambda: 1)
    assert driver_versions(tmp_path) == {"cuda": "12.2"}


def test_the_loaded_module_decides(tmp_path: Path) -> None:
    for name, version in (("nvidia", "570.86.15"), ("amdgpu", "6.8.5")):
        (tmp_path / "sys/module" / name).mkdir(parents=True)
        (tmp_path / "sys/module" / name / "version").write_text(f"{version}\n")
    assert driver_versions(tmp_path) == {"nvidia": "570.86.15", "amdgpu": "6.8.5"}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (OPEN_MODULE, "575.57.08"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\n", "535.183.01"),
    ],
)
def test_a_container_shows_proc_only(tmp_path: Path, text: str, version: str) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(text)
    assert driver_versions(tmp_path) == {"nvidia": version}
