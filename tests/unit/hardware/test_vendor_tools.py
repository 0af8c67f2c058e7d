"""GPUs as the vendors' tools list them, in the forms of several releases."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from llm_perf_opt.hardware import detect as tools
from llm_perf_opt.hardware.detect import DetectedGpu
from llm_perf_opt.process.tools import HIDE

MI300X = {
    "gpu": 0,
    "asic": {"market_name": "AMD Instinct MI300X", "vendor_id": "0x1002", "num_compute_units": 304},
    "vram": {"type": "HBM", "vendor": "N/A", "size": {"value": 196592, "unit": "MB"}},
}


@pytest.mark.parametrize(
    "document", [[MI300X, {**MI300X, "gpu": 1}], {"gpu_data": [MI300X, {**MI300X, "gpu": 1}]}]
)
def test_amd_smi(document: object) -> None:
    one = DetectedGpu("AMD Instinct MI300X", 196592 * 2.0**20, "amd-smi", "amd")
    assert tools.parse_amd_smi(
        "WARNING: User is missing the following required groups: render\n" + json.dumps(document)
    ) == [one, one]


def test_amd_smi_leaves_out_what_it_does_not_know() -> None:
    unnamed = {**MI300X, "asic": {"market_name": "N/A"}}
    unsized = {**MI300X, "vram": {"size": "N/A"}}
    found = tools.parse_amd_smi(json.dumps([unnamed, unsized]))
    assert found == [DetectedGpu("AMD Instinct MI300X", None, "amd-smi", "amd")]


@pytest.mark.parametrize("series", ["Card series", "Card Series"])
def test_rocm_smi(series: str) -> None:
    cards = {
        "card0": {series: "AMD INSTINCT MI250 (MCM) OAM AC MBA", "VRAM Total Memory (B)": "68702699520"},
        "card1": {"Device Name": "AMD Radeon Pro W7900"},
        "system": {"Driver version": "6.10.5"},
    }
    assert tools.parse_rocm_smi(json.dumps(cards)) == [
        DetectedGpu("AMD INSTINCT MI250 (MCM) OAM AC MBA", 68702699520.0, "rocm-smi", "amd"),
        DetectedGpu("AMD Radeon Pro W7900", None, "rocm-smi", "amd"),
    ]


def test_xpu_smi() -> None:
    device = {"device_id": 0, "device_name": "Intel(R) Data Center GPU Max 1550", "device_type": "GPU"}
    assert tools.parse_xpu_smi(json.dumps({"device_list": [device]})) == [
        DetectedGpu("Intel(R) Data Center GPU Max 1550", None, "xpu-smi", "intel")
    ]
    one = {**device, "memory_physical_size_byte": "68719476736"}
    assert tools.parse_xpu_smi(json.dumps(one))[0].memory_bytes == 68719476736.0


def test_sysctl_of_a_mac() -> None:
    assert tools.parse_sysctl("Apple M3 Max\n68719476736\n") == [
        DetectedGpu("Apple M3 Max", 68719476736.0, "sysctl", "apple")
    ]
    assert tools.parse_sysctl("Intel(R) Core(TM) i9-9880H CPU\n17179869184\n") == []


@pytest.mark.parametrize("parse", [tools.parse_amd_smi, tools.parse_rocm_smi, tools.parse_xpu_smi])
@pytest.mark.parametrize(
    "text", ["", "No devices found", "[", "null", "[1, null]", '{"device_list": 3}', '{"card0": 1}']
)
def test_other_lines_give_nothing(parse: object, text: str) -> None:
    assert parse(text) == []  # type: ignore[operator]


def stub(folder: Path, name: str, text: str, code: int = 0) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {code}\n")
    path.chmod(0o755)


def test_an_older_tool_answers_where_the_newer_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    stub(tmp_path, "amd-smi", "AMDSMI_STATUS_DRIVER_NOT_LOADED", code=1)
    stub(tmp_path, "rocm-smi", json.dumps({"card0": {"Card series": "AMD Instinct MI210"}}))
    assert [gpu.source for gpu in tools.amd_gpus()] == ["rocm-smi"]
    stub(tmp_path, "amd-smi", json.dumps([MI300X]))
    assert [gpu.source for gpu in tools.amd_gpus()] == ["amd-smi"]


def test_intels_memory_is_queried_device_by_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "xpu-smi").write_text(
        "#!/bin/sh\n"
        'if [ "$2" = -d ]; then echo "{\\"device_name\\": \\"Flex 170\\", \\"memory_physical_size_byte\\": \\"$3000\\"}"\n'
        'else echo "{\\"device_list\\": [{\\"device_name\\": \\"Flex 170\\"}, {\\"device_name\\": \\"Flex 170\\"}]}"; fi\n'
    )
    (tmp_path / "xpu-smi").chmod(0o755)
    assert [gpu.name for gpu in tools.intel_gpus()] == ["Flex 170", "Flex 170"]
    assert all(gpu.memory_bytes is not None for gpu in tools.intel_gpus())


def test_the_drivers_library_comes_before_its_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pynvml.py").write_text(
        "class NVMLError(Exception): pass\n"
        "class _Memory: total = 85520809984\n"
        "def nvmlInit(): pass\n"
        "def nvmlShutdown(): pass\n"
        "def nvmlDeviceGetCount(): return 1\n"
        "def nvmlDeviceGetHandleByIndex(at): return at\n"
        "def nvmlDeviceGetName(handle): return 'NVIDIA H100 80GB HBM3'\n"
        "def nvmlDeviceGetMemoryInfo(handle): return _Memory\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv(HIDE, "")  # of the real one; this one stands in for it
    stub(tmp_path, "nvidia-smi", "NVIDIA L4, 23034")
    monkeypatch.delitem(__import__("sys").modules, "pynvml", raising=False)
    assert tools.nvidia_gpus() == [
        DetectedGpu("NVIDIA H100 80GB HBM3", 85520809984.0, "nvidia-ml-py", "nvidia")
    ]
    library = __import__("pynvml")

    def no_driver() -> None:
        raise library.NVMLError("Driver Not Loaded")

    monkeypatch.setattr(library, "nvmlInit", no_driver)
    assert [gpu.source for gpu in tools.nvidia_gpus()] == ["nvidia-smi"]
    monkeypatch.delitem(__import__("sys").modules, "pynvml", raising=False)


@pytest.mark.skipif(platform.system() == "Darwin", reason="a Mac has one")
def test_only_a_mac_has_an_apple_gpu() -> None:
    assert tools.apple_gpus() == []
