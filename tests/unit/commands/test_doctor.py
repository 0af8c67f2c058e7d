"""``doctor`` on machines we do not have: their tools' transcripts are played by programs on PATH."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_perf_opt.commands import doctor
from llm_perf_opt.commands import doctor as doctor_machine
from llm_perf_opt.commands.doctor import build_problem, describe_machine, machine_lines
from llm_perf_opt.hardware import detect
from tests.drivers.tools import play, queries, transcript

Machine = Callable[..., list[str]]


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return what doctor says of the machine whose tools answer so."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(detect, "_from_nvml", list)

    def show(**tools: dict[str, tuple[int, str]]) -> list[str]:
        for tool, answers in tools.items():
            play(tmp_path, tool.replace("_", "-"), answers)
        return machine_lines(describe_machine())

    return show


QUERY = "--query-gpu=name,memory.total"


def test_a_gpu_that_is_cut(lines: Machine) -> None:
    shown = lines(
        nvidia_smi={
            QUERY: (0, "NVIDIA H100 80GB HBM3, 81559\n"),
            "-L": (0, transcript("nvidia-smi-L.mig-h100")),
        }
    )
    assert "GPU       NVIDIA H100 80GB HBM3, 79.6 GiB (nvidia-smi)" in shown
    assert "slice     NVIDIA H100 80GB HBM3 MIG 1g.20gb" in shown
    assert "slice     NVIDIA H100 80GB HBM3 MIG 3g.40gb" in shown


def test_mixed_gpus(lines: Machine) -> None:
    shown = lines(
        nvidia_smi={
            QUERY: (0, transcript("nvidia-smi-query.mixed")),
            "-L": (0, transcript("nvidia-smi-L.mixed")),
        }
    )
    assert [line for line in shown if "RTX 3090" in line] and [
        line for line in shown if line.startswith("slice")
    ]


def test_many_gpus_of_one_kind_are_one_line(lines: Machine) -> None:
    shown = lines(nvidia_smi={QUERY: (0, "NVIDIA L40S, 46068\n" * 8), "-L": (0, "")})
    assert [line for line in shown if "L40S" in line][1:] == ["          and 7 more: NVIDIA L40S"]


def test_rocm(lines: Machine, tmp_path: Path) -> None:
    shown = lines(amd_smi={"static --asic --vram --json": (0, transcript("amd-smi-static.mi300x.json"))})
    assert shown.count("GPU       AMD Instinct MI300X, 192 GiB (amd-smi)") == 2
    assert queries(tmp_path, "amd-smi") == ["static --asic --vram --json"]


def test_old_rocm_has_rocm_smi_only(lines: Machine) -> None:
    shown = lines(rocm_smi={"--showproductname": (0, transcript("rocm-smi.mi250.json"))})
    assert "GPU       AMD Instinct MI250X, 64.0 GiB (rocm-smi)" in shown


def test_intel(lines: Machine) -> None:
    shown = lines(
        xpu_smi={
            "discovery -j": (0, transcript("xpu-smi-discovery.max1550.json")),
            "discovery -d 0 -j": (0, transcript("xpu-smi-discovery-0.max1550.json")),
        }
    )
    assert "GPU       Intel(R) Data Center GPU Max 1550, 64.0 GiB (xpu-smi)" in shown


def test_a_driver_and_a_library_of_different_versions(lines: Machine) -> None:
    text = transcript("nvidia-smi.driver-mismatch")
    shown = lines(nvidia_smi={QUERY: (18, text), "-L": (18, text)})
    assert "GPU       none found" in shown and not [line for line in shown if "Failed to initialize" in line]


@pytest.mark.parametrize(
    ("kind", "there", "expected"),
    [
        ("cpu", "cuda_device_count", r"\bCPU build\b.*\bCUDA build\b"),
        ("cuda", "rocm_device_count", r"\bCUDA build\b.*\bROCm build\b"),
        ("cuda", "cuda_device_count", None),
        ("xpu", "cuda_device_count", r"\bXPU build\b"),
        ("cpu", None, None),
    ],
)
def test_the_build_of_torch_against_the_machine(
    monkeypatch: pytest.MonkeyPatch, kind: str, there: str | None, expected: str | None
) -> None:
    for question in ("cuda_device_count", "rocm_device_count", "xpu_device_count", "mps_device_count"):
        monkeypatch.setattr(doctor_machine, question, lambda found=question == there: int(found))
    text = build_problem(kind)
    assert text is None if expected is None else re.search(expected, text or "")


def test_root_without_the_capability_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    report = doctor.diagnose()
    report["counter_permission"] = {
        "allowed": False,
        "reason": "root, but without CAP_SYS_ADMIN",
        "fix": "--cap-add",
    }
    text = doctor.render(report)
    assert re.search(r"counters +no\b.*CAP_SYS_ADMIN", text) and "fix: --cap-add" in text
