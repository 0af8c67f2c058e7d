"""Device detection, as cheap as possible: files first, then the driver's tool, torch last."""

from __future__ import annotations

import csv
import ctypes
import io
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from llm_perf_opt.config.devices import cuda_device_count, is_rocm
from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.process.tools import find_program, has_package, import_optional

# GPUs as their vendors' own tools list them: nvidia-ml-py or nvidia-smi, amd-smi or rocm-smi, xpu-smi, Apple's sysctl.
#
# A tool that is missing, fails or answers in an unknown form is skipped; the next one is tried.


_TIMEOUT_S = 10.0
_NVML = "pynvml"
_UNITS = {"B": 1, "KB": 2**10, "MB": 2**20, "MIB": 2**20, "GB": 2**30, "GIB": 2**30}
Vendor = Literal["nvidia", "amd", "intel", "apple"]


@dataclass(frozen=True, slots=True)
class DetectedGpu:
    """A GPU as the driver describes it."""

    name: str
    memory_bytes: float | None
    source: str
    """``nvidia-smi``, ``amd-smi``, …, ``torch`` or the file it was read from."""
    vendor: Vendor | None = None


def nvidia_gpus() -> list[DetectedGpu]:
    """Query the driver's library if its package is installed, else nvidia-smi."""
    query = ["--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    return _from_nvml() or _query("nvidia-smi", query, parse_nvidia_smi)


def amd_gpus() -> list[DetectedGpu]:
    """Query amd-smi, or rocm-smi on older installations."""
    return _query("amd-smi", ["static", "--asic", "--vram", "--json"], parse_amd_smi) or _query(
        "rocm-smi", ["--showproductname", "--showmeminfo", "vram", "--json"], parse_rocm_smi
    )


def intel_gpus() -> list[DetectedGpu]:
    """Query xpu-smi for the devices, and for the memory of each."""
    found = _query("xpu-smi", ["discovery", "-j"], parse_xpu_smi)
    sizes = [
        _query("xpu-smi", ["discovery", "-d", str(number), "-j"], parse_xpu_smi)
        for number in range(len(found))
    ]
    return [detail[0] if len(detail) == 1 else gpu for gpu, detail in zip(found, sizes, strict=True)]


def apple_gpus() -> list[DetectedGpu]:
    """Return the chip of a Mac, which has processor, GPU and shared memory."""
    if platform.system() != "Darwin" or platform.machine() != "arm64":
        return []
    return _query("sysctl", ["-n", "machdep.cpu.brand_string", "hw.memsize"], parse_sysctl)


def parse_nvidia_smi(text: str) -> list[DetectedGpu]:
    """Read ``nvidia-smi --query-gpu=name,memory.total --format=csv,noheader,nounits``."""
    gpus = []
    for row in csv.reader(io.StringIO(text), skipinitialspace=True):
        if len(row) >= 2 and row[0].strip():
            mebibytes = row[-1].strip()
            size = float(mebibytes) * 2**20 if re.fullmatch(r"\d+(\.\d+)?", mebibytes) else None
            gpus.append(DetectedGpu(row[0].strip(), size, "nvidia-smi", "nvidia"))
    return gpus


def parse_amd_smi(text: str) -> list[DetectedGpu]:
    """Read ``amd-smi static --asic --vram --json``: a list, since ROCm 6.4 below ``gpu_data``."""
    document = _json(text)
    rows = document.get("gpu_data") if isinstance(document, dict) else document
    gpus = []
    for row in rows if isinstance(rows, list) else []:
        asic, vram = _mapping(row, "asic"), _mapping(row, "vram")
        name = asic.get("market_name")
        if isinstance(name, str) and name not in ("", "N/A"):
            gpus.append(DetectedGpu(name, _size(vram.get("size")), "amd-smi", "amd"))
    return gpus


def parse_rocm_smi(text: str) -> list[DetectedGpu]:
    """Read ``rocm-smi --showproductname --showmeminfo vram --json``: one object for each card."""
    document = _json(text)
    gpus = []
    for card, row in document.items() if isinstance(document, dict) else ():
        if not re.fullmatch(r"card\d+", card) or not isinstance(row, dict):
            continue
        # Names of the keys differ by release: "Card series", "Card Series".
        fields = {str(key).lower(): value for key, value in row.items()}
        name = fields.get("card series") or fields.get("device name") or fields.get("card model")
        total = str(fields.get("vram total memory (b)", ""))
        if name:
            gpus.append(DetectedGpu(str(name), float(total) if total.isdigit() else None, "rocm-smi", "amd"))
    return gpus


def parse_xpu_smi(text: str) -> list[DetectedGpu]:
    """Read ``xpu-smi discovery -j`` (a list of devices) or ``discovery -d N -j`` (one of them, with its memory)."""
    document = _json(text)
    rows = document.get("device_list", [document]) if isinstance(document, dict) else []
    gpus = []
    for row in rows if isinstance(rows, list) else []:
        name = row.get("device_name") if isinstance(row, dict) else None
        if name:
            total = str(row.get("memory_physical_size_byte", ""))
            gpus.append(DetectedGpu(str(name), float(total) if total.isdigit() else None, "xpu-smi", "intel"))
    return gpus


def parse_sysctl(text: str) -> list[DetectedGpu]:
    """Read ``sysctl -n machdep.cpu.brand_string hw.memsize``."""
    name, _, total = text.strip().partition("\n")
    size = float(total) if total.strip().isdigit() else None
    return [DetectedGpu(name.strip(), size, "sysctl", "apple")] if name.startswith("Apple") else []


def _from_nvml() -> list[DetectedGpu]:
    if not has_package(_NVML):
        return []
    library: Any = import_optional(_NVML)
    try:
        library.nvmlInit()
    except library.NVMLError:  # no driver
        return []
    try:
        handles = [library.nvmlDeviceGetHandleByIndex(at) for at in range(library.nvmlDeviceGetCount())]
        return [
            DetectedGpu(
                str(library.nvmlDeviceGetName(handle)),
                float(library.nvmlDeviceGetMemoryInfo(handle).total),
                "nvidia-ml-py",
                "nvidia",
            )
            for handle in handles
        ]
    except library.NVMLError:  # integrated GPUs do not report all of it
        return []
    finally:
        library.nvmlShutdown()


def _query(tool: str, arguments: list[str], parse: Callable[[str], list[DetectedGpu]]) -> list[DetectedGpu]:
    from llm_perf_opt.process.launch import run_probe

    path = find_program(tool)
    if path is None:
        return []
    try:
        result = run_probe([path, *arguments], timeout_s=_TIMEOUT_S)
    except ToolError:
        # A driver tool that cannot be started gives no information; the other ways remain.
        return []
    return parse(result.stdout) if result.returncode == 0 else []


def _json(text: str) -> Any:
    """Return the document after the warnings that these tools print before it; nothing when there is none."""
    start = re.search(r"^[\[{]", text, re.MULTILINE)
    try:
        return json.loads(text[start.start() :]) if start else None
    except ValueError:
        return None


def _mapping(row: Any, key: str) -> Mapping[str, Any]:
    value = row.get(key) if isinstance(row, dict) else None
    return value if isinstance(value, dict) else {}


def _size(given: Any) -> float | None:
    """Return bytes of ``{"value": 196592, "unit": "MB"}``; these tools count in powers of two."""
    value, unit = (given.get("value"), str(given.get("unit", ""))) if isinstance(given, dict) else (None, "")
    if isinstance(value, bool) or not isinstance(value, int | float) or unit.upper() not in _UNITS:
        return None
    return float(value) * _UNITS[unit.upper()]


_ARM_PARTS = {
    "0xd0c": "Neoverse N1",
    "0xd40": "Neoverse V1",
    "0xd49": "Neoverse N2",
    "0xd4f": "Neoverse V2",
    "0xd0b": "Cortex-A76",
    "0xd42": "Cortex-A78AE",
}


@dataclass(frozen=True, slots=True)
class DetectedCpu:
    """The processor this program may use."""

    name: str
    cores: int
    """Logical processors this process may run on."""
    memory_bytes: float | None


def detect_cpu(cpuinfo: Path = Path("/proc/cpuinfo"), meminfo: Path = Path("/proc/meminfo")) -> DetectedCpu:
    """Return the processor's name, usable cores and memory, without starting anything."""
    name = _cpu_name(_read(cpuinfo)) or platform.processor() or platform.machine() or "unknown CPU"
    found = re.search(r"^MemTotal:\s*(\d+) kB", _read(meminfo), re.MULTILINE)
    return DetectedCpu(name, _usable_cores(), float(found.group(1)) * 1024 if found else None)


def _usable_cores() -> int:
    """Return how many logical processors this process may use (containers and taskset included)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def detect_gpus(proc: Path = Path("/proc/driver/nvidia/gpus")) -> list[DetectedGpu]:
    """Return the GPUs of all vendors, in bus order per vendor, without torch; empty when there is no driver."""
    return [*_nvidia_gpus(proc), *amd_gpus(), *intel_gpus(), *apple_gpus()]


def _nvidia_gpus(proc: Path) -> list[DetectedGpu]:
    return nvidia_gpus() or [
        DetectedGpu(model.group(1).strip(), None, str(path), "nvidia")
        for path in sorted(proc.glob("*/information"))
        if (model := re.search(r"^Model:\s*(.+)$", _read(path), re.MULTILINE))
    ]


def detect_device(device: str) -> DetectedGpu | None:
    """Return an accelerator by torch's name of it.

    Drivers list GPUs by bus, CUDA by speed and after ``CUDA_VISIBLE_DEVICES``; where the GPUs differ, only
    torch can resolve an index, so then (or when it is loaded anyway) torch is queried.
    """
    if "torch" in sys.modules:
        return _from_torch(device)
    vendor = _vendor(device)
    found = [gpu for gpu in detect_gpus() if gpu.vendor == vendor]
    if not found or len({(gpu.name, gpu.memory_bytes) for gpu in found}) > 1:
        return _from_torch(device)
    return found[0]


def _vendor(device: str) -> Vendor | None:
    """Return the vendor of the installed torch's GPUs; unknown for other backends."""
    known: dict[str, Vendor] = {"cuda": "amd" if is_rocm() else "nvidia", "xpu": "intel", "mps": "apple"}
    return known.get(device.partition(":")[0])


def _from_torch(device: str) -> DetectedGpu | None:
    from llm_perf_opt.hardware.accelerator import device_properties, offered_device

    kind, _, index = device.partition(":")
    offered = offered_device()
    if offered is None or offered[0] != kind or int(index or 0) >= offered[1]:
        return None
    found = device_properties(device)
    size = None if found.memory_bytes is None else float(found.memory_bytes)
    name = found.name
    if name is None and kind == "mps":
        return next(iter(apple_gpus()), None)
    return DetectedGpu(name or kind, size, "torch", _vendor(device))


def _cpu_name(text: str) -> str | None:
    for key in ("model name", "Model", "cpu model", "uarch"):
        found = re.search(rf"^{key}\s*:\s*(\S.*)$", text, re.MULTILINE)
        if found:
            return " ".join(found.group(1).split())
    part = re.search(r"^CPU part\s*:\s*(\S+)", text, re.MULTILINE)
    return f"Arm {_ARM_PARTS.get(part.group(1), 'part ' + part.group(1))}" if part else None


def _read(path: Path) -> str:
    """Return a file of ``/proc``; on systems without it, nothing."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# Versions of drivers, from the kernel and the driver; no program is started and torch is not imported.


_SUCCESS = 0


def driver_versions(root: Path = Path("/")) -> dict[str, str]:
    """Return driver → version of installed drivers: ``nvidia``, ``cuda`` (the newest it can run), ``amdgpu``, ``rocm``,
    ``xe``, ``i915``, ``macos`` (which brings Apple's own)."""
    found = {
        "nvidia": _nvidia_version(root),
        # A library without a device shows what could run, not what ran.
        "cuda": _cuda_version() if cuda_device_count() else "",
        "amdgpu": _line(root / "sys/module/amdgpu/version"),
        "rocm": _line(root / "opt/rocm/.info/version"),
        "xe": _line(root / "sys/module/xe/version"),
        "i915": _line(root / "sys/module/i915/version"),
        "macos": platform.mac_ver()[0],
    }
    return {name: version for name, version in found.items() if version}


def _nvidia_version(root: Path) -> str:
    loaded = _line(root / "sys/module/nvidia/version")
    if loaded:
        return loaded
    # A container may expose /proc of the driver and hide /sys/module.
    match = re.search(r"Kernel Module(?: for \S+)?\s+(\d[\d.]+)", _line(root / "proc/driver/nvidia/version"))
    return match.group(1) if match else ""


def _cuda_version() -> str:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""
    number = ctypes.c_int(0)
    if driver.cuDriverGetVersion(ctypes.byref(number)) != _SUCCESS or not number.value:
        return ""
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def _line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
