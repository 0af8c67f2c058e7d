"""Other users of a device during a measurement: other programs on the processor cores, other processes on the GPU."""

from __future__ import annotations

import csv
import io
import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_perf_opt.core import units
from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.hardware.accelerator import DeviceProperties
from llm_perf_opt.hardware.sensors import gpu
from llm_perf_opt.hardware.sensors import gpu as sensors_gpu
from llm_perf_opt.process.groups import is_started_by
from llm_perf_opt.process.tools import find_program, has_package, import_optional

# Which processes compute on a GPU or a slice of one, by the driver's library (nvidia-ml-py) or ``nvidia-smi``.


Programs = dict[int, str]
"""Process number → name of the program; empty where that is not known."""
_ASK_S = 10.0
_NUMBERS = Path("/proc/self/ns/pid")
_NUMBERS_OF_MACHINE = "pid:[4026531836]"
"""The kernel's name for the process numbers that drivers use."""


def _gpu_programs(names: Sequence[str]) -> dict[str, Programs | None]:
    """Return for each GPU (``GPU-…``) or slice (``MIG-…``) the processes on it; ``None``: unknown."""
    return _by_library(names) if has_library() else _by_tool(names)


def has_library() -> bool:
    """Whether the driver can be queried without starting a program."""
    return has_package(gpu.MODULE)


def is_own(pid: int, root: int | None = None) -> bool:
    """Whether a process belongs to this run: itself, its descendants and its ancestors.

    ``root``: the process whose programs are this run's; by default this one.
    """
    return pid == os.getppid() or is_started_by(pid, os.getpid() if root is None else root)


def numbers_are_the_drivers() -> bool:
    """Whether process ids are the same here and for the driver; in a container they differ."""
    try:
        return str(_NUMBERS.readlink()) == _NUMBERS_OF_MACHINE
    except OSError:
        return False


def _by_library(names: Sequence[str]) -> dict[str, Programs | None]:
    library: Any = import_optional(gpu.MODULE)
    try:
        library.nvmlInit()
    except library.NVMLError:
        return dict.fromkeys(names)  # the program needs the same driver library
    try:
        return {name: _of_handle(library, name) for name in names}
    finally:
        library.nvmlShutdown()


def _of_handle(library: Any, name: str) -> Programs | None:
    try:
        gpu = library.nvmlDeviceGetHandleByUUID(name)
        found = [int(one.pid) for one in library.nvmlDeviceGetComputeRunningProcesses(gpu)]
    except sensors_gpu.refusals(library):
        return None
    return {pid: _program(pid) for pid in found}


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""  # already gone, or an id of another namespace


def _by_tool(names: Sequence[str]) -> dict[str, Programs | None]:
    if find_program("nvidia-smi") is None:
        return dict.fromkeys(names)
    found: dict[str, Programs | None] = {}
    rows = _query_tool("gpu_uuid,pid,process_name", of="compute-apps")
    for name in names:
        # The tool lists programs by whole GPUs, not by slice.
        found[name] = {
            int(pid): program.rpartition("/")[2]
            for uuid, pid, program in rows
            if uuid == name and pid.isdigit()
        }
        if name.startswith("MIG-"):
            found[name] = None
    return found


def _query_tool(columns: str, *, of: str = "gpu") -> list[tuple[str, ...]]:
    """Return what ``nvidia-smi`` lists, one row for each line that has all columns; empty if it is not available."""
    from llm_perf_opt.process.launch import run_probe

    tool = find_program("nvidia-smi")
    if tool is None:
        return []
    try:
        result = run_probe([tool, f"--query-{of}={columns}", "--format=csv,noheader"], timeout_s=_ASK_S)
    except ToolError:
        return []
    if result.returncode != 0:
        return []
    rows = csv.reader(io.StringIO(result.stdout), skipinitialspace=True)
    wanted = columns.count(",") + 1
    return [tuple(cell.strip() for cell in row) for row in rows if len(row) == wanted]


# What other programs do on the GPUs: utilisation and how many hold a context, queried before this program uses one.
#
# Queried from the driver through nvidia-ml-py, or ``nvidia-smi`` without it; through ``amdsmi`` on ROCm. For a MIG slice, and a driver
# without this information, the load is unknown, which is not the same as zero.


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """Load by others on one GPU."""

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
        """Return the load of a torch device; ``None``: not reported."""
        return self.by_uuid.get(device.uuid or "") or self.by_bus.get(device.bus_id or "")

    def power_limits(self) -> list[str]:
        """Return the limits of all GPUs, for a key: a measurement under another limit is another measurement."""
        every = {**self.by_uuid, **self.by_bus}
        return [
            f"{name} {load.power_limit_w:g} W" for name, load in sorted(every.items()) if load.power_limit_w
        ]


def read_device_loads() -> DeviceLoads:
    """Query every installed driver; no torch, a few milliseconds with a library, some tens with a program."""
    return DeviceLoads(by_uuid=_nvidia(), by_bus=_amd())


def _nvidia() -> dict[str, DeviceLoad]:
    if has_package(gpu.MODULE):
        library: Any = import_optional(gpu.MODULE)
        try:
            library.nvmlInit()
        except library.NVMLError:
            return {}  # the program needs the same driver library
        try:
            handles = [library.nvmlDeviceGetHandleByIndex(i) for i in range(library.nvmlDeviceGetCount())]
            return {_uuid(library.nvmlDeviceGetUUID(gpu)): _from_nvml(library, gpu) for gpu in handles}
        except library.NVMLError:
            return {}  # a GPU that fell off the bus: all loads are unknown
        finally:
            library.nvmlShutdown()
    tool = find_program("nvidia-smi")
    if tool is None:
        return {}
    gpus = _query(tool, "--query-gpu=uuid,utilization.gpu,power.limit", "--format=csv,noheader,nounits")
    programs = _query(tool, "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader,nounits")
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
    def reported(question: str, *arguments: Any) -> Any:
        try:
            return getattr(library, question)(gpu, *arguments)
        except sensors_gpu.refusals(library):
            return None  # MIG, an old driver, no permission

    use, programs = (
        reported("nvmlDeviceGetUtilizationRates"),
        reported("nvmlDeviceGetComputeRunningProcesses"),
    )
    limit = reported("nvmlDeviceGetEnforcedPowerLimit")
    return DeviceLoad(
        None if use is None else float(use.gpu) / 100,
        None if programs is None else sum(not is_own(int(one.pid)) for one in programs),
        None if limit is None else float(limit) / 1e3,
    )


def _amd() -> dict[str, DeviceLoad]:
    if not has_package(gpu.AMD_MODULE):
        return {}
    try:
        library: Any = import_optional(gpu.AMD_MODULE)
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
        float(value) if isinstance(value, int | float) else None  # "N/A" if not supported by an ASIC
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


def _query(tool: str, *arguments: str) -> str:
    from llm_perf_opt.process.launch import run_probe

    try:
        answer = run_probe([tool, *arguments], timeout_s=_ASK_S)
    except ToolError:
        return ""  # a driver tool that cannot be started gives no information
    return answer.stdout if answer.returncode == 0 else ""


# How much of the processor other programs use while something is measured.
#
# A ceiling measured while other work runs is too low. The load average is unsuitable: it covers a minute and includes this
# program's own work too. So the processor's time accounting is read before and after, and our own share subtracted.


UNDER_LOAD_RATIO = 0.10
"""Share of the processor's time from which other programs count as a load; a quiet machine has one or two percent."""
_BUSY_LOAD_PER_CORE = 0.75
_WORKING_COLUMNS = (0, 1, 2, 5, 6, 7)
"""user, nice, system, irq, softirq and steal of a line of ``/proc/stat``; idle and waiting for disks are left out."""


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """Accounted processor time up to a point."""

    all_s: float
    """Work of all programs on the cores this one may use, other tenants of the machine included."""
    own_s: float
    """Work of this process, all threads."""
    clock_s: float
    cores: int


def processor_time(stat: Path = Path("/proc/stat")) -> ProcessorTime | None:
    """Read the time accounting; ``None`` if not available."""
    try:
        lines = stat.read_text(encoding="ascii").splitlines()
        tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    usable = {f"cpu{core}" for core in os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else None
    ticks = cores = 0
    for line in lines:
        name, *columns = line.split()
        if not name.startswith("cpu") or name == "cpu" or (usable is not None and name not in usable):
            continue
        ticks += sum(int(columns[place]) for place in _WORKING_COLUMNS if place < len(columns))
        cores += 1
    return ProcessorTime(ticks * tick_s, time.process_time(), time.monotonic(), cores) if cores else None


def other_load_ratio(before: ProcessorTime | None, after: ProcessorTime | None) -> float | None:
    """Return the share of the processor's time used by others between two readings; ``None`` when not known."""
    if before is None or after is None or after.clock_s <= before.clock_s:
        return None
    others_s = (after.all_s - before.all_s) - (after.own_s - before.own_s)
    return min(1.0, max(0.0, others_s / ((after.clock_s - before.clock_s) * after.cores)))


def machine_is_idle(look_s: float = 0.2) -> bool:
    """Return whether the processor is otherwise idle now; takes ``look_s``. ``False`` if unknown."""
    before = processor_time()
    time.sleep(look_s)
    ratio = other_load_ratio(before, processor_time())
    return ratio is not None and ratio <= UNDER_LOAD_RATIO


def machine_is_busy(cores: int) -> bool:
    """Return whether the processor was in use in the last minute, for systems without time accounting."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > _BUSY_LOAD_PER_CORE * cores


_VISIBLE = "CUDA_VISIBLE_DEVICES"
_WHOLE_NAME = re.compile(r"(GPU|MIG)-\S+")
_LEAST_WATCHED_S = 0.5
"""The processor's account has ticks of a hundredth of a second: less is too short to tell."""


@dataclass(frozen=True, slots=True)
class Use:
    """Observed use by others."""

    others_ratio: float | None = None
    """Share of the processor's time, or of the looks at a GPU at which others were there; ``None``: not known."""
    description: str | None = None
    """What they did; ``None``: nothing worth saying."""


class CpuWatch:
    """Measures the core usage of other programs since its creation."""

    def __init__(self) -> None:
        self._before = processor_time()
        self._children_s = _children_s()

    def use(self) -> Use:
        """Return the use so far; waited-for children count as own."""
        after = processor_time()
        if self._before is None or after is None or after.clock_s - self._before.clock_s < _LEAST_WATCHED_S:
            return Use()
        own_s = after.own_s + _children_s() - self._children_s
        ratio = other_load_ratio(self._before, ProcessorTime(after.all_s, own_s, after.clock_s, after.cores))
        if ratio is None or ratio <= UNDER_LOAD_RATIO:
            return Use(ratio)
        used = f"other processes used {units.percent(ratio)} of the processor"
        # Workers of Ray have niceness 15: next to a busy program they get 3 % of a core.
        own = os.getpriority(os.PRIO_PROCESS, 0)
        return Use(
            ratio, f"{used} and may have had priority over this run (niceness {own})" if own > 0 else used
        )


@dataclass(slots=True)
class _Seen:
    """Samples of one GPU."""

    looks: int = 0
    with_others: int = 0
    most: int = 0
    """Others at one look."""
    anybody: bool = False
    """Whether any process was listed, be it our own."""
    others: Programs = field(default_factory=dict)


class GpuWatch:
    """Detects other processes on GPUs: at creation, at each :meth:`look`, and at the end."""

    def __init__(self, *names: str, root: int | None = None) -> None:
        """``root``: the process whose programs are this run's; by default this one."""
        self._root = root
        self._lock = threading.Lock()
        self._seen = {name: _Seen() for name in names}
        self._known: dict[str, Programs] | None = None
        if not numbers_are_the_drivers():
            # Our own process ids cannot be identified: processes present before us belong to others.
            there = _gpu_programs(names) if not _uses_gpu() else {}
            self._known = {name: programs for name, programs in there.items() if programs is not None}
        self.look()

    @property
    def looks_cheaply(self) -> bool:
        """Whether sampling starts no program, so that it is allowed during measurements."""
        return has_library()

    def look(self) -> None:
        """Sample once; thread-safe."""
        with self._lock:
            for name, programs in _gpu_programs(list(self._seen)).items():
                others = None if programs is None else self._others(name, programs)
                if others is None:
                    continue
                seen = self._seen[name]
                seen.looks += 1
                seen.anybody |= bool(programs)
                seen.with_others += bool(others)
                seen.most = max(seen.most, len(others))
                seen.others.update(others)

    def use(self) -> Use:
        """Sample a last time and return the result."""
        self.look()
        # Drivers list no processes in some containers: there an empty list is not an answer.
        reported = [
            seen for seen in self._seen.values() if seen.looks and (self._known is None or seen.anybody)
        ]
        ratios = [seen.with_others / seen.looks for seen in reported]
        text = "; ".join(self._describe(name, seen) for name, seen in self._seen.items() if seen.with_others)
        if not text and len(ratios) < len(self._seen):
            return Use()  # unknown for one of them
        return Use(max(ratios, default=None), text or None)

    def _others(self, name: str, programs: Programs) -> Programs | None:
        if self._known is None:
            return {pid: program for pid, program in programs.items() if not is_own(pid, self._root)}
        if name not in self._known:
            return None
        return {pid: program for pid, program in programs.items() if pid in self._known[name]}

    def _describe(self, name: str, seen: _Seen) -> str:
        named = ", ".join(f"{program} {pid}".strip() for pid, program in list(seen.others.items())[:4])
        which = f"the GPU {name}" if len(self._seen) > 1 else "the GPU"
        who = f"{seen.most} other process{'es' if seen.most > 1 else ''}"
        return f"{who} ({named}) used {which}, seen at {seen.with_others} of {seen.looks} looks"


def _uses_gpu() -> bool:
    """Whether this process already has a GPU context, from an earlier run."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def _children_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def gpu_name(index: int) -> str:
    """Return the UUID of CUDA device ``index`` as this process sees it; without a driver's tool, its number."""
    return gpu_names([index])[0]


def gpu_names(indices: Iterable[int]) -> list[str]:
    """Return the UUIDs of CUDA devices as this process sees them; without a driver's tool, their numbers."""
    visible = _visible()
    chosen = [visible[index] if index < len(visible) else str(index) for index in indices]
    whole = [_WHOLE_NAME.fullmatch(name) is not None for name in chosen]
    listed = {} if all(whole) else _uuids()
    return [
        name if is_whole else listed.get(name, f"gpu {name}")
        for name, is_whole in zip(chosen, whole, strict=True)
    ]


def allotted_gpus() -> list[str]:
    """Return the GPUs assigned to this process (``CUDA_VISIBLE_DEVICES``) that exist."""
    visible = _visible()
    listed = _uuids() if visible else {}
    found = [part if _WHOLE_NAME.fullmatch(part) else listed.get(part) for part in visible]
    return sorted({name for name in found if name is not None})


def _visible() -> list[str]:
    return [part.strip() for part in os.environ.get(_VISIBLE, "").split(",") if part.strip()]


def _uuids() -> dict[str, str]:
    return {row[0]: row[1] for row in _query_tool("index,uuid")}
