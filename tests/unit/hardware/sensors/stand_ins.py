"""Vendor libraries that answer with values of our own making; a value that is an exception is raised."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any


class NvmlError(Exception):
    """As pynvml.NVMLError."""


H100: dict[str, Any] = {
    "name": "NVIDIA H100 80GB HBM3",
    "clock_mhz": 1980,
    "max_clock_mhz": 1980,
    "power_mw": 412_700,
    "limit_mw": 700_000,
    "celsius": 51,
    "energy_mj": 9_216_000_000,
    "used_bytes": 17_179_869_184,
    "reasons": 0x0,
}
HOT: dict[str, Any] = {**H100, "clock_mhz": 1215, "celsius": 88, "power_mw": 498_300, "reasons": 0x60}
POWER_CAPPED: dict[str, Any] = {**H100, "clock_mhz": 1755, "power_mw": 699_800, "reasons": 0x04}
IDLE_OR_SET: dict[str, Any] = {**H100, "clock_mhz": 345, "reasons": 0x103}
"""Idle, application clocks and display clocks: nothing that holds a busy device back."""
MIG: dict[str, Any] = {
    **H100,
    "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    **{
        key: NvmlError("Not Supported")
        for key in ("clock_mhz", "max_clock_mhz", "power_mw", "limit_mw", "celsius", "energy_mj", "reasons")
    },
}


def nvml(*transcript: dict[str, Any], old_names: bool = False) -> ModuleType:
    """Return a module like pynvml that plays one entry per clock it is asked for, and stays at the last."""
    module: Any = ModuleType("pynvml")
    place = iter(range(10**9))
    now = {"row": -1}

    def answer(key: str) -> Any:
        value = transcript[max(0, min(now["row"], len(transcript) - 1))][key]
        if isinstance(value, Exception):
            raise value
        return value

    def clock(handle: object, kind: int) -> Any:
        now["row"] = next(place)  # the first value of every reading
        return answer("clock_mhz")

    def by_uuid(uuid: str) -> str:
        module.calls.append(uuid)
        if uuid.startswith("GPU-") and "MIG" in str(transcript[0]["name"]):
            raise NvmlError("Not Found")
        return "gpu"

    module.calls = []
    module.NVMLError = NvmlError
    module.NVML_CLOCK_SM, module.NVML_TEMPERATURE_GPU = 1, 0
    module.nvmlInit = lambda: module.calls.append("init")
    module.nvmlShutdown = lambda: module.calls.append("shutdown")
    module.nvmlDeviceGetHandleByUUID = by_uuid
    module.nvmlDeviceGetHandleByIndex = lambda index: module.calls.append(index) or "gpu"
    module.nvmlDeviceGetName = lambda handle: answer("name").encode()
    module.nvmlDeviceGetClockInfo = clock
    module.nvmlDeviceGetMaxClockInfo = lambda handle, kind: answer("max_clock_mhz")
    module.nvmlDeviceGetPowerUsage = lambda handle: answer("power_mw")
    module.nvmlDeviceGetEnforcedPowerLimit = lambda handle: answer("limit_mw")
    module.nvmlDeviceGetTemperature = lambda handle, kind: answer("celsius")
    module.nvmlDeviceGetTotalEnergyConsumption = lambda handle: answer("energy_mj")
    module.nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(used=answer("used_bytes"))
    name = "Throttle" if old_names else "Event"
    setattr(module, f"nvmlDeviceGetCurrentClocks{name}Reasons", lambda handle: answer("reasons"))
    return module


class AmdSmiException(Exception):
    """As amdsmi's."""


MI300X: dict[str, Any] = {
    "bdf": "0000:C1:00.0",
    "asic": {"market_name": "AMD Instinct MI300X"},
    "clock": {"clk": 2100, "max_clk": 2100, "min_clk": 500},
    "power": {"current_socket_power": 521, "average_socket_power": "N/A", "power_limit": 750},
    "celsius": 63,
    "energy": {"energy_accumulator": 6_553_600_000, "counter_resolution": 15.3, "timestamp": 1},
    "vram": {"vram_total": 196_592, "vram_used": 20_480},
    "metrics": {"indep_throttle_status": 0},
}


def amdsmi(*gpus: dict[str, Any]) -> ModuleType:
    """Return a module like amdsmi with these GPUs."""
    module: Any = ModuleType("amdsmi")

    def get(gpu: dict[str, Any], key: str) -> Any:
        if isinstance(gpu[key], Exception):
            raise gpu[key]
        return gpu[key]

    module.AmdSmiException = AmdSmiException
    module.AmdSmiClkType = SimpleNamespace(GFX=0)
    module.AmdSmiTemperatureType = SimpleNamespace(HOTSPOT=1)
    module.AmdSmiTemperatureMetric = SimpleNamespace(CURRENT=0)
    module.amdsmi_init = module.amdsmi_shut_down = lambda: None
    module.amdsmi_get_processor_handles = lambda: list(gpus)
    module.amdsmi_get_gpu_device_bdf = lambda gpu: gpu["bdf"]
    module.amdsmi_get_gpu_asic_info = lambda gpu: get(gpu, "asic")
    module.amdsmi_get_clock_info = lambda gpu, kind: get(gpu, "clock")
    module.amdsmi_get_power_info = lambda gpu: get(gpu, "power")
    module.amdsmi_get_temp_metric = lambda gpu, kind, metric: get(gpu, "celsius")
    module.amdsmi_get_energy_count = lambda gpu: get(gpu, "energy")
    module.amdsmi_get_gpu_vram_usage = lambda gpu: get(gpu, "vram")
    module.amdsmi_get_gpu_metrics_info = lambda gpu: get(gpu, "metrics")
    return module
