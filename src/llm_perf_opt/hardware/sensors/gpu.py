"""NVIDIA GPUs through nvidia-ml-py (module ``pynvml``), which queries the driver directly and starts no program."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any, ClassVar

from llm_perf_opt.hardware.sensors.base import LibrarySensor, plausible_temperature

LOGGER = logging.getLogger("llm_perf_opt.telemetry")
MODULE = "pynvml"
_THROTTLE_BITS = {
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
        """Release the driver."""
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
        queries = [f"nvmlDeviceGetCurrentClocks{name}Reasons" for name in ("Event", "Throttle")]
        known = [getattr(self._library, name) for name in queries if hasattr(self._library, name)]
        *newer, last = known
        for question in newer:
            try:
                bits = int(question(self._handle))
                break
            except self._library.NVMLError as error:
                LOGGER.debug("queried by its older name: %s", error)
        else:
            bits = int(last(self._handle))
        return tuple(name for bit, name in _THROTTLE_BITS.items() if bits & bit)


def refusals(library: ModuleType) -> tuple[type[Exception], ...]:
    """Return the library's exceptions: driver errors, and functions missing in driver or library."""
    # An old driver lacks functions of a newer library: NVMLError too, or no attribute at all.
    # Not an NVMLError: an unversioned query that the driver supports only in an older version.
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


# AMD GPUs through ``amdsmi``, the library that comes with ROCm.


AMD_MODULE = "amdsmi"
_THROTTLE_GROUPS = (
    (0, 16, "power limit"),
    (16, 32, "current limit"),
    (32, 48, "thermal limit"),
    (48, 64, "other limit"),
)
"""Bits of ``indep_throttle_status``, which are the same for all ASICs: (first, one after the last, reason)."""
_NO_COUNTER = 0xFFFFFFFFFFFFFFFF
"""How a field of the metrics table says that the ASIC lacks it."""


class AmdSensor(LibrarySensor):
    """One AMD GPU."""

    reader: ClassVar[str] = "amdsmi"

    def __init__(self, library: ModuleType, *, bus_id: str | None, index: int) -> None:
        """Find the GPU by its place on the bus, which is the same in torch and the driver; their indices may differ."""
        library.amdsmi_init()
        handle = _chosen(library, library.amdsmi_get_processor_handles(), bus_id, index)
        super().__init__(library, handle, (library.AmdSmiException, AttributeError, KeyError))

    def close(self) -> None:
        """Release the library."""
        self._library.amdsmi_shut_down()

    def _name(self) -> str:
        return str(self._library.amdsmi_get_gpu_asic_info(self._handle).get("market_name") or "AMD GPU")

    def _clock_hz(self) -> float | None:
        return _scaled(self._clock(), "clk", 1e6)

    def _clock_max_hz(self) -> float | None:
        return _scaled(self._clock(), "max_clk", 1e6)

    def _clock(self) -> dict[str, Any]:
        kind = self._library.AmdSmiClkType.GFX
        found: dict[str, Any] = self._library.amdsmi_get_clock_info(self._handle, kind)
        return found

    def _power_w(self) -> float | None:
        found = self._library.amdsmi_get_power_info(self._handle)
        now = _number(found.get("current_socket_power"))
        return now if now else _number(found.get("average_socket_power"))  # 0: this ASIC has the other one

    def _power_limit_w(self) -> float | None:
        return _scaled(self._library.amdsmi_get_power_info(self._handle), "power_limit", 1.0)

    def _temperature_c(self) -> float | None:
        smi = self._library
        kind, metric = smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
        value = _number(smi.amdsmi_get_temp_metric(self._handle, kind, metric))
        return plausible_temperature(value) if value is not None else None

    def _memory_bytes(self) -> float | None:
        return _scaled(self._library.amdsmi_get_gpu_vram_usage(self._handle), "vram_used", 2.0**20)

    def _energy_j(self) -> float | None:
        found = self._library.amdsmi_get_energy_count(self._handle)
        ticks = _number(found.get("energy_accumulator", found.get("power")))  # its name before ROCm 6.2
        resolution_uj = _number(found.get("counter_resolution"))
        return None if not ticks or not resolution_uj else ticks * resolution_uj / 1e6

    def _reasons(self) -> tuple[str, ...] | None:
        status = self._library.amdsmi_get_gpu_metrics_info(self._handle)["indep_throttle_status"]
        if not isinstance(status, int) or status == _NO_COUNTER:
            return None
        return tuple(
            name for first, end, name in _THROTTLE_GROUPS if (status >> first) & ((1 << (end - first)) - 1)
        )


def _chosen(library: ModuleType, handles: list[Any], bus_id: str | None, index: int) -> Any:
    """Return the handle of the GPU that torch uses."""
    if bus_id is not None:
        for handle in handles:
            if str(library.amdsmi_get_gpu_device_bdf(handle)).lower().startswith(bus_id):
                return handle
    if len(handles) == 1:
        return handles[0]
    # Numbers of torch leave out what HIP_VISIBLE_DEVICES hides: with several GPUs an index alone may mean another one.
    raise LookupError(f"which of {len(handles)} AMD GPUs torch calls number {index} is not known")


def _scaled(found: dict[str, Any], key: str, factor: float) -> float | None:
    value = _number(found[key])
    return None if value is None else value * factor


def _number(value: object) -> float | None:
    """Return a number; the library returns "N/A" for unsupported values."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
