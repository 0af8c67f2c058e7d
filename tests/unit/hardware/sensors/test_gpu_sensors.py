"""NVIDIA and AMD GPUs through stand-ins of their libraries: values, refusals, and which GPU is meant."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from llm_perf_opt.hardware.sensors.base import DeviceLimits, Reading
from llm_perf_opt.hardware.sensors.gpu import AmdSensor, NvmlSensor
from llm_perf_opt.hardware.sensors.sampler import FIX, MonitoredDevice, find_sensor, missing_library
from llm_perf_opt.process.tools import HIDE
from tests.text_facts import mentions
from tests.unit.hardware.sensors.stand_ins import (
    H100,
    HOT,
    IDLE_OR_SET,
    MI300X,
    MIG,
    POWER_CAPPED,
    AmdSmiException,
    NvmlError,
    amdsmi,
    nvml,
)


def test_nvml_values_are_si() -> None:
    sensor = NvmlSensor(nvml(H100), uuid=None, index=0)
    assert sensor.device == "NVIDIA H100 80GB HBM3"
    assert sensor.limits == DeviceLimits(1.98e9, 700.0)
    assert sensor.read() == Reading(1.98e9, 412.7, 51.0, 9_216_000.0, 17_179_869_184.0, ())
    assert sensor.absent == {}


@pytest.mark.parametrize(
    ("row", "reasons"),
    [
        (H100, ()),
        (HOT, ("software thermal slowdown", "hardware thermal slowdown")),
        (POWER_CAPPED, ("software power cap",)),
        (IDLE_OR_SET, ()),
    ],
)
@pytest.mark.parametrize("old_names", [False, True])
def test_only_what_holds_a_busy_device_back_is_throttling(
    row: dict[str, Any], reasons: tuple[str, ...], old_names: bool
) -> None:
    assert NvmlSensor(nvml(row, old_names=old_names), uuid=None, index=0).read().throttled == reasons


def test_a_mig_slice_reports_its_memory_and_why_no_more() -> None:
    sensor = NvmlSensor(nvml(MIG), uuid="1a2b", index=0)
    assert sensor.read() == Reading(memory_bytes=17_179_869_184.0)
    assert set(sensor.absent) == {"clock_hz", "power_w", "temperature_c", "energy_j", "throttled"}
    assert set(sensor.absent.values()) == {"Not Supported"}
    assert sensor.limits == DeviceLimits(None, None)


def test_the_gpu_is_found_by_its_uuid_because_numbers_may_differ() -> None:
    library = nvml(H100)
    sensor = NvmlSensor(library, uuid="abc", index=3)
    sensor.close()
    assert library.calls == ["init", "GPU-abc", "shutdown"]


def test_amd_values_are_si() -> None:
    sensor = AmdSensor(amdsmi(MI300X), bus_id=None, index=0)
    assert sensor.device == "AMD Instinct MI300X"
    assert sensor.limits == DeviceLimits(2.1e9, 750.0)
    read = sensor.read()
    assert (read.clock_hz, read.power_w, read.temperature_c) == (2.1e9, 521.0, 63.0)
    assert read.energy_j == pytest.approx(6_553_600_000 * 15.3 / 1e6)
    assert read.memory_bytes == 20_480 * 2**20
    assert read.throttled == ()


@pytest.mark.parametrize(
    ("status", "reasons"),
    [
        (1 << 36, ("thermal limit",)),
        ((1 << 1) | (1 << 17), ("power limit", "current limit")),
        (2**64 - 1, None),
    ],
)
def test_amd_throttle_bits_are_grouped(status: int, reasons: tuple[str, ...] | None) -> None:
    gpu = {**MI300X, "metrics": {"indep_throttle_status": status}}
    assert AmdSensor(amdsmi(gpu), bus_id=None, index=0).read().throttled == reasons


def test_amd_reports_n_a_and_refuses() -> None:
    gpu = {
        **MI300X,
        "power": {"current_socket_power": "N/A", "average_socket_power": "N/A"},
        "celsius": AmdSmiException("AMDSMI_STATUS_NOT_SUPPORTED"),
        "energy": {"power": 0, "counter_resolution": 15.3},
    }
    sensor = AmdSensor(amdsmi(gpu), bus_id=None, index=0)
    read = sensor.read()
    assert (read.power_w, read.temperature_c, read.energy_j) == (None, None, None)
    assert sensor.absent["temperature_c"] == "AMDSMI_STATUS_NOT_SUPPORTED"
    assert sensor.absent["power_w"] and "AMDSMI" not in sensor.absent["power_w"], (
        "it answered, but not with a number"
    )


def test_of_several_amd_gpus_none_is_guessed() -> None:
    other = {**MI300X, "bdf": "0001:03:00.0", "celsius": 41}
    assert AmdSensor(amdsmi(MI300X, other), bus_id="0001:03:00", index=0).read().temperature_c == 41.0
    with pytest.raises(LookupError, match="which of 2 AMD GPUs"):
        AmdSensor(amdsmi(MI300X, other), bus_id=None, index=0)


@pytest.mark.parametrize(
    ("device", "package"),
    [(MonitoredDevice("cuda:0"), "nvidia-ml-py"), (MonitoredDevice("cuda:0", rocm=True), "amdsmi")],
)
def test_a_missing_library_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, device: MonitoredDevice, package: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert missing_library(device) is not None
    found = find_sensor(device)
    assert isinstance(found, str)
    assert mentions(found, package, FIX[device.library or ""])


def test_a_driver_that_is_not_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    library = nvml(H100)

    def no_driver() -> None:
        raise NvmlError("Driver Not Loaded")

    library.nvmlInit = no_driver  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setenv(HIDE, "")  # of the real one; this one stands in for it
    assert find_sensor(MonitoredDevice("cuda:0")) == "nvidia-ml-py: Driver Not Loaded"


def test_an_unknown_device_is_a_reason() -> None:
    found = find_sensor(MonitoredDevice("xpu:0"))
    assert isinstance(found, str) and mentions(found, "xpu:0")
