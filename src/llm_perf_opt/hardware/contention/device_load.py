"""What other programs do on the GPUs: utilisation and how many hold a context, asked before this program touches one.

Asked of the driver through nvidia-ml-py, or ``nvidia-smi`` without it; through ``amdsmi`` on ROCm. A MIG slice, and a driver that
does not tell, has no answer: then the load is not known, which is not the same as none.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.hardware.accelerator import DeviceProperties
from llm_perf_opt.hardware.contention.gpu_programs import is_own
from llm_perf_opt.hardware.sensors import amd, nvml

_ASK_S = 10.0


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """What others do on one GPU."""

    busy_ratio: float | None = None
    """Share of the last sampling period (a sixth of a second to one) in which a kernel ran."""
    programs: int | None = None
    """Other programs that hold a context."""
    power_limit_w: float | None = None


@dataclass(frozen=True, slots=True)
class DeviceLoads:
    """All GPUs, by the names that torch and the driver share."""

    by_uuid: Mapping[str, DeviceLoad] = field(default_factory=dict)
    """Without ``GPU-``."""
    by_bus: Mapping[str, DeviceLoad] = field(default_factory=dict)
    """``0000:c1:00``."""

    def of(self, device: DeviceProperties) -> DeviceLoad | None:
        """Return the load of a device of torch; ``None``: not told."""
        return self.by_uuid.get(device.uuid or "") or self.by_bus.get(device.bus_id or "")

    def power_limits(self) -> list[str]:
        """Return the limits of all GPUs, for a key: a measurement under another limit is another measurement."""
        every = {**self.by_uuid, **self.by_bus}
        return [
            f"{name} {load.power_limit_w:g} W" for name, load in sorted(every.items()) if load.power_limit_w
        ]


def read_device_loads() -> DeviceLoads:
    """Ask every driver that is here; no torch, a few milliseconds with a library, some tens with a program."""
    return DeviceLoads(by_uuid=_nvidia(), by_bus=_amd())


def _nvidia() -> dict[str, DeviceLoad]:
    if importlib.util.find_spec(nvml.MODULE) is not None:
        library: Any = importlib.import_module(nvml.MODULE)
        try:
            library.nvmlInit()
        except library.NVMLError:
            return {}  # the program needs the same driver library
        try:
            handles = [library.nvmlDeviceGetHandleByIndex(i) for i in range(library.nvmlDeviceGetCount())]
            return {_uuid(library.nvmlDeviceGetUUID(gpu)): _from_nvml(library, gpu) for gpu in handles}
        except library.NVMLError:
            return {}  # a GPU that fell off the bus: nothing is known of any
        finally:
            library.nvmlShutdown()
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    gpus = _ask(tool, "--query-gpu=uuid,utilization.gpu,power.limit", "--format=csv,noheader,nounits")
    programs = _ask(tool, "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader,nounits")
    return parse_loads(gpus, programs)


def parse_loads(gpus: str, programs: str) -> dict[str, DeviceLoad]:
    """Read nvidia-smi's ``uuid,utilization.gpu,power.limit`` and ``gpu_uuid,pid`` lists, without headers and units."""
    holders: dict[str, int] = {}
    for row in csv.reader(io.StringIO(programs), skipinitialspace=True):
        if len(row) == 2 and row[1].isdigit() and not is_own(int(row[1])):
            holders[_uuid(row[0])] = holders.get(_uuid(row[0]), 0) + 1
    loads = {}
    for row in csv.reader(io.StringIO(gpus), skipinitialspace=True):
        if len(row) == 3 and row[0].startswith("GPU-"):
            name, percent, watts = _uuid(row[0]), _number(row[1]), _number(row[2])
            loads[name] = DeviceLoad(None if percent is None else percent / 100, holders.get(name, 0), watts)
    return loads


def _from_nvml(library: Any, gpu: Any) -> DeviceLoad:
    def told(question: str, *arguments: Any) -> Any:
        try:
            return getattr(library, question)(gpu, *arguments)
        except nvml.refusals(library):
            return None  # MIG, an old driver, no permission

    use, programs = told("nvmlDeviceGetUtilizationRates"), told("nvmlDeviceGetComputeRunningProcesses")
    limit = told("nvmlDeviceGetEnforcedPowerLimit")
    return DeviceLoad(
        None if use is None else float(use.gpu) / 100,
        None if programs is None else sum(not is_own(int(one.pid)) for one in programs),
        None if limit is None else float(limit) / 1e3,
    )


def _amd() -> dict[str, DeviceLoad]:
    if importlib.util.find_spec(amd.MODULE) is None:
        return {}
    try:
        library: Any = importlib.import_module(amd.MODULE)
    except (ImportError, OSError, KeyError):
        return {}  # it looks for its own library while it is imported
    try:
        library.amdsmi_init()
    except library.AmdSmiException:
        return {}
    try:
        return {
            str(library.amdsmi_get_gpu_device_bdf(gpu)).lower().partition(".")[0]: _from_amd(library, gpu)
            for gpu in library.amdsmi_get_processor_handles()
        }
    except library.AmdSmiException:
        return {}
    finally:
        library.amdsmi_shut_down()


def _from_amd(library: Any, gpu: Any) -> DeviceLoad:
    try:
        use = library.amdsmi_get_gpu_activity(gpu).get("gfx_activity")
        limit = library.amdsmi_get_power_info(gpu).get("power_limit")
    except (library.AmdSmiException, AttributeError):
        return DeviceLoad()
    percent, watts = (
        float(value) if isinstance(value, int | float) else None  # "N/A" for what an ASIC lacks
        for value in (use, limit)
    )
    return DeviceLoad(None if percent is None else percent / 100, None, watts)


def _uuid(name: str | bytes) -> str:
    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
    return text.strip().removeprefix("GPU-")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None  # [N/A], [Not Supported]


def _ask(tool: str, *arguments: str) -> str:
    from llm_perf_opt.process.launch import run_probe

    try:
        answer = run_probe([tool, *arguments], timeout_s=_ASK_S)
    except ToolError:
        return ""  # a driver tool that cannot be started tells nothing
    return answer.stdout if answer.returncode == 0 else ""
