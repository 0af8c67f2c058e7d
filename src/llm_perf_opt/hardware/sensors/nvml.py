"""NVIDIA GPUs through nvidia-ml-py (module ``pynvml``), which asks the driver itself and starts no program."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any, ClassVar

from llm_perf_opt.hardware.sensors.base import (
    CLOCK,
    ENERGY,
    MEMORY,
    POWER,
    TEMPERATURE,
    THROTTLED,
    DeviceLimits,
    Reading,
    Told,
    plausible_temperature,
)

LOGGER = logging.getLogger("llm_perf_opt.telemetry")
MODULE = "pynvml"
THROTTLE_BITS = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of NVML's clocks event reasons that hold a clock down. Idle, application clocks and display are no throttling."""


class NvmlSensor:
    """One NVIDIA GPU."""

    reader: ClassVar[str] = "nvidia-ml"

    def __init__(self, library: ModuleType, *, uuid: str | None, index: int) -> None:
        """Find the GPU by the name that is the same for torch and the driver; their numbers may differ."""
        self._nvml: Any = library
        library.nvmlInit()
        self._handle = _handle(library, uuid, index)
        # An old driver lacks functions of a newer library: NVMLError too, or no attribute at all.
        self._told = Told(refusals(library))
        self.absent = self._told.absent
        self.device = _text(library.nvmlDeviceGetName(self._handle))
        self.limits = self._read_limits()

    def read(self) -> Reading:
        """Ask the driver for every value it has not refused yet."""
        nvml, gpu, ask = self._nvml, self._handle, self._told.ask
        return Reading(
            clock_hz=ask(CLOCK, lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) * 1e6),
            power_w=ask(POWER, lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3),
            temperature_c=ask(
                TEMPERATURE,
                lambda: plausible_temperature(
                    float(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))
                ),
            ),
            energy_j=ask(ENERGY, lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3),
            memory_bytes=ask(MEMORY, lambda: float(nvml.nvmlDeviceGetMemoryInfo(gpu).used)),
            throttled=ask(THROTTLED, self._reasons),
        )

    def close(self) -> None:
        """Let go of the driver."""
        self._nvml.nvmlShutdown()

    def _reasons(self) -> tuple[str, ...]:
        # Renamed with driver 535: the library may have either name, and the driver another one than the library.
        asked = [f"nvmlDeviceGetCurrentClocks{name}Reasons" for name in ("Event", "Throttle")]
        known = [getattr(self._nvml, name) for name in asked if hasattr(self._nvml, name)]
        *newer, last = known
        for question in newer:
            try:
                bits = int(question(self._handle))
                break
            except self._nvml.NVMLError as error:
                LOGGER.debug("asked by its older name: %s", error)
        else:
            bits = int(last(self._handle))
        return tuple(name for bit, name in THROTTLE_BITS.items() if bits & bit)

    def _read_limits(self) -> DeviceLimits:
        nvml, gpu, told = self._nvml, self._handle, Told(refusals(self._nvml))
        return DeviceLimits(
            told.ask(CLOCK, lambda: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM) * 1e6),
            told.ask(POWER, lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3),
        )


def refusals(library: ModuleType) -> tuple[type[Exception], ...]:
    """Return how the library says no: a refusal of the driver, a function the driver or the library lacks."""
    # Not an NVMLError: an unversioned question that the driver only has in an older version.
    mismatch = getattr(library, "NVMLLibraryMismatchError", None)
    return (library.NVMLError, AttributeError, *((mismatch,) if mismatch is not None else ()))


def _handle(library: ModuleType, uuid: str | None, index: int) -> Any:
    """Return the driver's handle; torch names a slice of a GPU (MIG) as it names a GPU, without what kind it is."""
    if uuid is None:
        return library.nvmlDeviceGetHandleByIndex(index)
    try:
        return library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except library.NVMLError:
        return library.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
