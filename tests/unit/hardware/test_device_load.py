"""What others do on a GPU: from the driver's library, its program, or not told; and what a measurement makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_perf_opt.hardware import contention, probe, probe_worker, resolve
from llm_perf_opt.hardware import probe as probe_cache
from llm_perf_opt.hardware.accelerator import DeviceProperties, HostProcessor
from llm_perf_opt.hardware.contention import DeviceLoad, DeviceLoads, parse_loads
from llm_perf_opt.hardware.detect import DetectedCpu, DetectedGpu
from llm_perf_opt.hardware.probe import SOURCE
from tests.drivers import nvml
from tests.text_facts import mentions
from tests.unit.hardware.test_hardware_probe import fake_python

UUID = "2d1c0c6b-8f0a-4b58-9c5e-3a3f6c1f0e11"
READ = "from llm_perf_opt.hardware.contention import read_device_loads as r; print(r().by_uuid)"


def test_lists_of_nvidia_smi() -> None:
    gpus = "GPU-aa, 97, 300.00\nGPU-bb, [N/A], [Not Supported]\n"
    loads = parse_loads(gpus, "GPU-aa, 4711\nGPU-aa, 4712\n")
    assert loads == {"aa": DeviceLoad(0.97, 2, 300.0), "bb": DeviceLoad(None, 0, None)}
    assert parse_loads("Failed to initialize NVML: Driver/library version mismatch\n", "") == {}


def test_the_driver_library_reports_others(tmp_path: Path) -> None:
    quiet = nvml.query(nvml.build(tmp_path / "quiet"), READ)
    assert quiet == str({UUID: DeviceLoad(0.0, 0, 500.0)})
    busy = nvml.query(nvml.build(tmp_path / "busy", "BUSY"), READ)
    assert busy == str({UUID: DeviceLoad(0.83, 1, 500.0)})
    # A GPU that is cut does not tell: not known, which is not the same as idle.
    assert nvml.query(nvml.build(tmp_path / "mig", "MIG"), READ) == str({UUID: DeviceLoad(None, 0, 500.0)})
    # An old driver lacks the question about programs.
    assert nvml.query(nvml.build(tmp_path / "old", "OLD_DRIVER"), READ) == str(
        {UUID: DeviceLoad(0.0, None, 500.0)}
    )


def test_devices_are_found_by_names_that_torch_and_the_driver_share() -> None:
    loads = DeviceLoads({UUID: DeviceLoad(0.5, 1)}, {"0000:c1:00": DeviceLoad(0.25)})
    assert loads.of(DeviceProperties("H100", None, uuid=UUID, bus_id="0000:17:00")) == DeviceLoad(0.5, 1)
    assert loads.of(DeviceProperties("MI300X", None, uuid="other", bus_id="0000:c1:00")) == DeviceLoad(0.25)
    assert loads.of(DeviceProperties("Apple M3", None)) is None


def test_cache_key_holds_driver_and_power_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = DetectedCpu("Some CPU", 4, None)

    def key(driver: str, watts: float) -> str:
        monkeypatch.setattr(probe_cache, "driver_versions", lambda: {"nvidia": driver})
        monkeypatch.setattr(
            probe_cache, "read_device_loads", lambda: DeviceLoads({UUID: DeviceLoad(power_limit_w=watts)})
        )
        return probe_cache.cache_key(
            "cuda:0", "H100", cpu, None, ("float32",), probe_cache.device_conditions()
        )

    assert key("550.54.14", 700.0) == key("550.54.14", 700.0)
    assert len({key("550.54.14", 700.0), key("570.86.10", 700.0), key("550.54.14", 500.0)}) == 3


def test_a_busy_gpu_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "device_conditions", lambda: ["nvidia 550.54", f"{UUID} 700 W"])

    def measured(load: float, rate: float) -> probe.ProbeResult:
        rows = [
            {"kind": "start", "threads": 1, "torch": "x"},
            {"kind": "load", "other_load_ratio": load},
            {"kind": "others", "programs": 2},
            {"kind": "gemm", "dtype": "bfloat16", "flops_per_s": rate, "side": 8192},
        ]
        body = "".join(f"print({json.dumps(json.dumps(row))})\n" for row in rows)
        monkeypatch.setattr(probe.sys, "executable", fake_python(tmp_path / "python", body))
        return probe.probe("cuda:0", name="H100", dtypes=("bfloat16",), cache_dir=tmp_path / "cache")

    first = measured(0.83, 4e14)
    assert first.under_load is True and not first.settled
    assert mentions(first.conditions["others"], "2")
    quiet = measured(0.0, 7e14)
    assert (quiet.under_load, quiet.settled, quiet.flops_per_s["bfloat16"]) == (False, True, 7e14)
    sources = [one.peaks()["bfloat16"].source for one in (first, quiet)]
    assert all(mentions(source, "8192 × 8192") for source in sources) and sources[0] != sources[1]
    assert measured(0.9, 9e14).cached


def test_a_gpu_that_is_not_in_the_catalogue_has_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = DetectedGpu("NVIDIA Mystery 9000", 24 * 2.0**30, "nvidia-smi")
    monkeypatch.setattr(resolve, "detect_device", lambda device: gpu)
    rows = [
        {"kind": "start", "threads": 1, "torch": "x"},
        {"kind": "bandwidth", "bytes_per_s": 8e11, "how": "copy"},
        {"kind": "gemm", "dtype": "bfloat16", "flops_per_s": 9e13, "side": 8192},
    ]
    body = "".join(f"print({json.dumps(json.dumps(row))})\n" for row in rows)
    monkeypatch.setattr(probe.sys, "executable", fake_python(tmp_path / "python", body))
    hardware = resolve.resolve_hardware("cuda:0", cache_dir=tmp_path / "cache")
    assert (hardware.source, hardware.kind) == ("probe", "gpu")
    assert hardware.peak_flops_per_s["bfloat16"].dense == 9e13 and hardware.bandwidth_bytes_per_s == 8e11
    source = hardware.peak_flops_per_s["bfloat16"].source
    assert mentions(source, SOURCE, "8192 × 8192") and "thread" not in source
    assert mentions(hardware.reason, "NVIDIA Mystery 9000", "hardware.catalogue")
    # A measurement that fails leaves the device without limits, and says both reasons.
    monkeypatch.setattr(
        probe.sys, "executable", fake_python(tmp_path / "python", "sys.exit('CUDA error: busy')")
    )
    hardware = resolve.resolve_hardware("cuda:0", cache_dir=tmp_path / "other")
    assert hardware.source == "none" and "CUDA error: busy" in (hardware.reason or "")


class RecordingAccelerator(HostProcessor):
    """Notes what happens, in order; its clock is made up."""

    def __init__(self) -> None:
        self.happened: list[str] = []

    def record(self, *, timed: bool = False) -> float:
        assert timed
        self.happened.append("event")
        return float(len(self.happened))

    def wait(self, event: float) -> None:
        self.happened.append("wait")


def test_devices_are_timed_by_their_own_events() -> None:
    device = RecordingAccelerator()
    timer = probe_worker.device_timer(device)
    assert timer(lambda: device.happened.append("work")) == 2.0
    assert device.happened == ["event", "work", "event", "wait"]


def test_without_a_driver_nothing_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(contention, "has_package", lambda name: False)
    assert contention.read_device_loads() == DeviceLoads({}, {})
