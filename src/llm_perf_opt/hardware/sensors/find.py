"""Which sensor tells of a device, or why none does. Optional libraries are imported here and nowhere else."""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import dataclass

from llm_perf_opt.hardware.detect import detect_cpu
from llm_perf_opt.hardware.sensors import amd, nvml
from llm_perf_opt.hardware.sensors.base import Sensor
from llm_perf_opt.hardware.sensors.linux import LinuxSensor

PACKAGES = {nvml.MODULE: "nvidia-ml-py", amd.MODULE: "amdsmi"}
FIX = {
    nvml.MODULE: 'pip install "llm-perf-opt[telemetry]"',
    amd.MODULE: "install the amdsmi package of your ROCm release (/opt/rocm/share/amd_smi)",
}


@dataclass(frozen=True, slots=True)
class MonitoredDevice:
    """The device of a run, as torch names it and as the driver does."""

    name: str
    """``cpu``, ``cuda:0``, …"""
    uuid: str | None = None
    """As torch says it, without ``GPU-`` or ``MIG-``; numbers of torch and of the driver may differ."""
    bus_id: str | None = None
    """``0000:c1:00``: domain, bus and device."""
    rocm: bool = False
    """Whether ``cuda`` means an AMD GPU."""

    @property
    def library(self) -> str | None:
        """Module that tells of it; ``None``: the kernel does, or nobody."""
        if not self.name.startswith("cuda"):
            return None
        return amd.MODULE if self.rocm else nvml.MODULE


def missing_library(device: MonitoredDevice) -> str | None:
    """Return the module that would tell of the device and is not installed. Imports nothing."""
    wanted = device.library
    return wanted if wanted is not None and importlib.util.find_spec(wanted) is None else None


def find_sensor(device: MonitoredDevice) -> Sensor | str:
    """Open the sensor of a device; a text says why there is none."""
    if device.name == "cpu":
        return LinuxSensor(detect_cpu().name, cores=sorted(_own_cores()))
    if device.library is None:
        return f"no library is known that tells of {device.name}"
    if missing_library(device) is not None:
        return f"{PACKAGES[device.library]} is not installed (fix: {FIX[device.library]})"
    return _open(device, device.library)


def _open(device: MonitoredDevice, module: str) -> Sensor | str:
    try:
        library = importlib.import_module(module)
    except (ImportError, OSError, KeyError) as error:  # amdsmi looks for its library while it is imported
        return f"{PACKAGES[module]} cannot be loaded: {error}"
    refusal = library.NVMLError if module == nvml.MODULE else library.AmdSmiException
    index = int(device.name.partition(":")[2] or 0)
    try:
        if module == amd.MODULE:
            return amd.AmdSensor(library, bus_id=device.bus_id, index=index)
        return nvml.NvmlSensor(library, uuid=device.uuid, index=index)
    except (refusal, LookupError) as error:
        return f"{PACKAGES[module]}: {error}"


def _own_cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
