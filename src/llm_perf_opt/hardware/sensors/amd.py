"""AMD GPUs through ``amdsmi``, the library that comes with ROCm."""

from __future__ import annotations

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

MODULE = "amdsmi"
_THROTTLE_GROUPS = (
    (0, 16, "power limit"),
    (16, 32, "current limit"),
    (32, 48, "thermal limit"),
    (48, 64, "other limit"),
)
"""Bits of ``indep_throttle_status``, which are the same for all ASICs: (first, one after the last, reason)."""
_NO_COUNTER = 0xFFFFFFFFFFFFFFFF
"""How a field of the metrics table says that the ASIC lacks it."""


class AmdSensor:
    """One AMD GPU."""

    reader: ClassVar[str] = "amdsmi"

    def __init__(self, library: ModuleType, *, bus_id: str | None, index: int) -> None:
        """Find the GPU by its place on the bus, which torch and the driver name alike; their numbers may differ."""
        self._smi: Any = library
        library.amdsmi_init()
        handles = library.amdsmi_get_processor_handles()
        self._handle = _chosen(library, handles, bus_id, index)
        self._told = Told((library.AmdSmiException, AttributeError, KeyError))
        self.absent = self._told.absent
        self.device = str(library.amdsmi_get_gpu_asic_info(self._handle).get("market_name") or "AMD GPU")
        self.limits = self._read_limits()

    def read(self) -> Reading:
        """Ask the library for every value it has not refused yet."""
        smi, gpu, ask = self._smi, self._handle, self._told.ask
        return Reading(
            clock_hz=ask(CLOCK, lambda: _scaled(self._clock(), "clk", 1e6)),
            power_w=ask(POWER, self._power),
            temperature_c=ask(TEMPERATURE, self._temperature),
            energy_j=ask(ENERGY, self._energy),
            memory_bytes=ask(
                MEMORY, lambda: _scaled(smi.amdsmi_get_gpu_vram_usage(gpu), "vram_used", 2.0**20)
            ),
            throttled=ask(THROTTLED, self._reasons),
        )

    def close(self) -> None:
        """Let go of the library."""
        self._smi.amdsmi_shut_down()

    def _clock(self) -> dict[str, Any]:
        found: dict[str, Any] = self._smi.amdsmi_get_clock_info(self._handle, self._smi.AmdSmiClkType.GFX)
        return found

    def _power(self) -> float | None:
        found = self._smi.amdsmi_get_power_info(self._handle)
        now = _number(found.get("current_socket_power"))
        return now if now else _number(found.get("average_socket_power"))  # 0: this ASIC has the other one

    def _temperature(self) -> float | None:
        value = _number(
            self._smi.amdsmi_get_temp_metric(
                self._handle,
                self._smi.AmdSmiTemperatureType.HOTSPOT,
                self._smi.AmdSmiTemperatureMetric.CURRENT,
            )
        )
        return plausible_temperature(value) if value is not None else None

    def _energy(self) -> float | None:
        found = self._smi.amdsmi_get_energy_count(self._handle)
        ticks = _number(found.get("energy_accumulator", found.get("power")))  # its name before ROCm 6.2
        resolution_uj = _number(found.get("counter_resolution"))
        return None if not ticks or not resolution_uj else ticks * resolution_uj / 1e6

    def _reasons(self) -> tuple[str, ...] | None:
        status = self._smi.amdsmi_get_gpu_metrics_info(self._handle)["indep_throttle_status"]
        if not isinstance(status, int) or status == _NO_COUNTER:
            return None
        return tuple(
            name for first, end, name in _THROTTLE_GROUPS if (status >> first) & ((1 << (end - first)) - 1)
        )

    def _read_limits(self) -> DeviceLimits:
        told = Told((self._smi.AmdSmiException, AttributeError, KeyError))
        return DeviceLimits(
            told.ask(CLOCK, lambda: _scaled(self._clock(), "max_clk", 1e6)),
            told.ask(
                POWER, lambda: _scaled(self._smi.amdsmi_get_power_info(self._handle), "power_limit", 1.0)
            ),
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
    """Return a number; the library says "N/A" for what an ASIC lacks."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
