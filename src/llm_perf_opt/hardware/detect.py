"""Which device is here, asked as cheaply as possible: files first, then the driver's tool, torch last."""

from __future__ import annotations

import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.config.devices import is_rocm
from llm_perf_opt.hardware.vendor_tools import (
    DetectedGpu,
    Vendor,
    amd_gpus,
    apple_gpus,
    intel_gpus,
    nvidia_gpus,
    parse_nvidia_smi,
)

__all__ = [
    "DetectedCpu",
    "DetectedGpu",
    "detect_cpu",
    "detect_device",
    "detect_gpu",
    "detect_gpus",
    "parse_nvidia_smi",
    "usable_cores",
]

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
    return DetectedCpu(name, usable_cores(), float(found.group(1)) * 1024 if found else None)


def usable_cores() -> int:
    """Return how many logical processors this process may use (containers and taskset included)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def detect_gpus(proc: Path = Path("/proc/driver/nvidia/gpus")) -> list[DetectedGpu]:
    """Return the GPUs of all vendors, each vendor's in bus order, without torch; empty when there is no driver."""
    return [*_nvidia_gpus(proc), *amd_gpus(), *intel_gpus(), *apple_gpus()]


def _nvidia_gpus(proc: Path) -> list[DetectedGpu]:
    return nvidia_gpus() or [
        DetectedGpu(model.group(1).strip(), None, str(path), "nvidia")
        for path in sorted(proc.glob("*/information"))
        if (model := re.search(r"^Model:\s*(.+)$", _read(path), re.MULTILINE))
    ]


def detect_gpu(index: int = 0) -> DetectedGpu | None:
    """Return CUDA or ROCm device ``index``."""
    return detect_device(f"cuda:{index}")


def detect_device(device: str) -> DetectedGpu | None:
    """Return an accelerator by torch's name of it.

    Drivers list GPUs by bus, CUDA by speed and after ``CUDA_VISIBLE_DEVICES``; where the GPUs differ, only
    torch knows which one an index means, so then (or when it is loaded anyway) torch is asked.
    """
    if "torch" in sys.modules:
        return _from_torch(device)
    vendor = _vendor(device)
    found = [gpu for gpu in detect_gpus() if gpu.vendor == vendor]
    if not found or len({(gpu.name, gpu.memory_bytes) for gpu in found}) > 1:
        return _from_torch(device)
    return found[0]


def _vendor(device: str) -> Vendor | None:
    """Say whose GPU a device of the installed torch is; a backend of its own has a vendor we do not know."""
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
