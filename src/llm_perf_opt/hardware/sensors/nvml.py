"""NVIDIA GPUs through nvidia-ml-py (module ``pynvml``), which asks the driver itself and starts no program."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any, ClassVar

from llm_perf_opt.hardware.sensors.base import plausible_temperature
from llm_perf_opt.hardware.sensors.library import LibrarySensor

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


class NvmlSensor(LibrarySensor):
    """One NVIDIA GPU."""

    reader: ClassVar[str] = "nvidia-ml"

    def __init__(self, library: ModuleType, *, uuid: str | None, index: int) -> None:
        """Find the GPU by the name that is the same for torch and the driver; their numbers may differ."""
        library.nvmlInit()
        super().__init__(library, _find_gpu(library, uuid, index), refusals(library))

    def close(self) -> None:
        """Let go of the driver."""
        self._library.nvmlShutdown()

    def _name(self) -> str:
        return _text(self._library.nvmlDeviceGetName(self._handle))

    def _clock_hz(self) -> float:
        return float(self._library.nvmlDeviceGetClockInfo(self._handle, self._library.NVML_CLOCK_SM) * 1e6)

    def _clock_max_hz(self) -> float:
        return float(self._library.nvmlDeviceGetMaxClockInfo(self._handle, self._library.NVML_CLOCK_SM) * 1e6)

    def _power_w(self) -> float:
        return float(self._library.nvmlDeviceGetPowerUsage(self._handle) / 1e3)

    def _power_limit_w(self) -> float:
        return float(self._library.nvmlDeviceGetEnforcedPowerLimit(self._handle) / 1e3)

    def _temperature_c(self) -> float | None:
        kind = self._library.NVML_TEMPERATURE_GPU
        return plausible_temperature(float(self._library.nvmlDeviceGetTemperature(self._handle, kind)))

    def _energy_j(self) -> float:
        return float(self._library.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1e3)

    def _memory_bytes(self) -> float:
        return float(self._library.nvmlDeviceGetMemoryInfo(self._handle).used)

    def _reasons(self) -> tuple[str, ...]:
        # Renamed with driver 535: the library may have either name, and the driver another one than the library.
        asked = [f"nvmlDeviceGetCurrentClocks{name}Reasons" for name in ("Event", "Throttle")]
        known = [getattr(self._library, name) for name in asked if hasattr(self._library, name)]
        *newer, last = known
        for question in newer:
            try:
                bits = int(question(self._handle))
                break
            except self._library.NVMLError as error:
                LOGGER.debug("asked by its older name: %s", error)
        else:
            bits = int(last(self._handle))
        return tuple(name for bit, name in THROTTLE_BITS.items() if bits & bit)


def refusals(library: ModuleType) -> tuple[type[Exception], ...]:
    """Return how the library says no: a refusal of the driver, a function the driver or the library lacks."""
    # An old driver lacks functions of a newer library: NVMLError too, or no attribute at all.
    # Not an NVMLError: an unversioned question that the driver only has in an older version.
    mismatch = getattr(library, "NVMLLibraryMismatchError", None)
    return (library.NVMLError, AttributeError, *((mismatch,) if mismatch is not None else ()))


def _find_gpu(library: ModuleType, uuid: str | None, index: int) -> Any:
    """Return the driver's handle; torch names a slice of a GPU (MIG) as it names a GPU, without what kind it is."""
    if uuid is None:
        return library.nvmlDeviceGetHandleByIndex(index)
    try:
        return library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except library.NVMLError:
        return library.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
