"""Sample a sensor in the background, without disturbing the work.

A thread reads and sleeps. What it costs is its own processor time: that is measured, and where it is more than a share
of :data:`MOST_COST_RATIO`, the looks become rarer until it is not. Memory is bounded: a full table loses every other row
and the interval doubles.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from llm_perf_opt.hardware.detect import detect_cpu
from llm_perf_opt.hardware.sensors import gpu
from llm_perf_opt.hardware.sensors.base import Reading, Sensor
from llm_perf_opt.hardware.sensors.linux import LinuxSensor
from llm_perf_opt.process.tools import has_package, import_optional

MOST_COST_RATIO = 0.005
"""Processor time of the sampling ÷ time: half of what is promised, so that a hiccup does not break the promise."""
MOST_ROWS = 10_000


@dataclass(slots=True)
class Samples:
    """The readings, in order."""

    time_s: list[float] = field(default_factory=list)
    """On the clock of ``time.perf_counter``."""
    readings: list[Reading] = field(default_factory=list)
    interval_s: float = 0.0
    """Between two looks, in the end."""
    cost_s: float = 0.0
    """Processor time of all looks of the thread."""
    elapsed_s: float = 0.0
    """How long the thread went on."""

    @property
    def cost_ratio(self) -> float | None:
        """Processor time ÷ time."""
        return self.cost_s / self.elapsed_s if self.elapsed_s > 0 else None


class Sampler:
    """A thread that samples a sensor between ``start`` and ``stop``."""

    def __init__(self, sensor: Sensor, interval_s: float, *, most_rows: int = MOST_ROWS) -> None:
        self._sensor = sensor
        self._most_rows = most_rows
        self._stopping = threading.Event()
        self._reading = threading.Lock()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="telemetry")
        self._running: Future[None] | None = None
        self.samples = Samples(interval_s=interval_s)

    def start(self) -> None:
        """Start sampling."""
        self._running = self._threads.submit(self._run)

    def stop(self) -> Samples:
        """Stop; return the samples. An error of the sensor is raised here, in the caller's thread."""
        self._stopping.set()
        self._threads.shutdown()
        if self._running is not None:
            self._running.result()
        return self.samples

    def look(self) -> float:
        """Take a sample now, from any thread; return its time."""
        with self._reading:
            now, reading = time.perf_counter(), self._sensor.read()
            self.samples.time_s.append(now)
            self.samples.readings.append(reading)
            if len(self.samples.time_s) >= self._most_rows:
                self._thin_out()
        return now

    def _run(self) -> None:
        started, cost_began = time.perf_counter(), time.thread_time()
        for looks in itertools.count(1):
            self.look()
            self._keep_cheap((time.thread_time() - cost_began) / looks)
            if self._stopping.wait(self.samples.interval_s):
                break
        self.samples.cost_s = time.thread_time() - cost_began
        self.samples.elapsed_s = time.perf_counter() - started

    def _keep_cheap(self, cost_of_a_look_s: float) -> None:
        self.samples.interval_s = max(self.samples.interval_s, cost_of_a_look_s / MOST_COST_RATIO)

    def _thin_out(self) -> None:
        kept = self.samples
        kept.time_s[:], kept.readings[:] = kept.time_s[::2], kept.readings[::2]
        kept.interval_s *= 2


# The sensor of a device, or why there is none. Optional libraries are imported here and nowhere else.


PACKAGES = {gpu.MODULE: "nvidia-ml-py", gpu.AMD_MODULE: "amdsmi"}
FIX = {
    gpu.MODULE: 'pip install "llm-perf-opt[telemetry]"',
    gpu.AMD_MODULE: "install the amdsmi package of your ROCm release (/opt/rocm/share/amd_smi)",
}


@dataclass(frozen=True, slots=True)
class MonitoredDevice:
    """The device of a run, by the names of torch and of the driver."""

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
        """Module of its sensor; ``None``: the kernel or none."""
        if not self.name.startswith("cuda"):
            return None
        return gpu.AMD_MODULE if self.rocm else gpu.MODULE


def missing_library(device: MonitoredDevice) -> str | None:
    """Return the module for the device that is not installed. Imports nothing."""
    wanted = device.library
    return wanted if wanted is not None and not has_package(wanted) else None


def find_sensor(device: MonitoredDevice) -> Sensor | str:
    """Open the sensor of a device; a string is the reason if there is none."""
    if device.name == "cpu":
        return LinuxSensor(detect_cpu().name, cores=sorted(_own_cores()))
    if device.library is None:
        return f"there is no telemetry library for {device.name}"
    if missing_library(device) is not None:
        return f"{PACKAGES[device.library]} is not installed (fix: {FIX[device.library]})"
    return _open(device, device.library)


def _open(device: MonitoredDevice, module: str) -> Sensor | str:
    try:
        library = import_optional(module)
    except (ImportError, OSError, KeyError) as error:  # amdsmi looks for its library while it is imported
        return f"{PACKAGES[module]} cannot be loaded: {error}"
    refusal = library.NVMLError if module == gpu.MODULE else library.AmdSmiException
    index = int(device.name.partition(":")[2] or 0)
    try:
        if module == gpu.AMD_MODULE:
            return gpu.AmdSensor(library, bus_id=device.bus_id, index=index)
        return gpu.NvmlSensor(library, uuid=device.uuid, index=index)
    except (refusal, LookupError) as error:
        return f"{PACKAGES[module]}: {error}"


def _own_cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
