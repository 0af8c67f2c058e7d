"""The NVIDIA sensor through nvidia-ml-py itself, against a compiled driver library of a GPU we do not have."""

from __future__ import annotations

import json
from pathlib import Path

from tests.drivers import nvml

READ = """
import json
from dataclasses import asdict
from llm_perf_opt.hardware.sensors.sampler import MonitoredDevice, find_sensor
sensor = find_sensor(MonitoredDevice("cuda:0", uuid={uuid!r}))
if isinstance(sensor, str):
    print(json.dumps({{"refused": sensor}}))
else:
    reading = asdict(sensor.read())
    print(json.dumps({{"device": sensor.device, **reading, "absent": sensor.absent, "limit": sensor.limits.power_limit_w}}))
    sensor.close()
"""
WHOLE, SLICE = "2d1c0c6b-8f0a-4b58-9c5e-3a3f6c1f0e11", "5a0e7d52-4a35-5c31-9a8e-0f1f6c1d2b01"


def test_a_whole_gpu_reports_everything(tmp_path: Path) -> None:
    shown = json.loads(nvml.query(nvml.build(tmp_path), READ.format(uuid=WHOLE)))
    assert shown["device"] == "NVIDIA H100 80GB HBM3" and shown["absent"] == {}
    assert (shown["clock_hz"], shown["power_w"], shown["temperature_c"]) == (1.755e9, 412.7, 51.0)
    assert (shown["energy_j"], shown["memory_bytes"], shown["limit"]) == (9.216e6, 16 * 2.0**30, 500.0)
    assert shown["throttled"] == ["software power cap"]


def test_a_slice_reports_its_memory_and_why_nothing_else(tmp_path: Path) -> None:
    shown = json.loads(nvml.query(nvml.build(tmp_path, "MIG"), READ.format(uuid=SLICE)))
    assert shown["device"] == "NVIDIA H100 80GB HBM3 MIG 1g.20gb" and shown["memory_bytes"] == 16 * 2.0**30
    assert (
        shown["power_w"] is None and shown["absent"]["power_w"] == "Not Supported" and shown["limit"] is None
    )


def test_an_old_driver_lacks_functions(tmp_path: Path) -> None:
    shown = json.loads(nvml.query(nvml.build(tmp_path, "OLD_DRIVER"), READ.format(uuid=WHOLE)))
    assert shown["energy_j"] is None and shown["absent"]["energy_j"] == "Function Not Found"
    assert shown["power_w"] == 412.7 and shown["throttled"] == ["software power cap"]


def test_without_a_driver_the_library_gives_the_reason(tmp_path: Path) -> None:
    nvml.build(tmp_path / "unused")
    shown = json.loads(nvml.query(tmp_path, READ.format(uuid=WHOLE)))
    assert "NVML" in shown["refused"] and shown["refused"].startswith("nvidia-ml-py")
