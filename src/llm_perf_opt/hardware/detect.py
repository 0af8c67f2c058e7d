"""Which device is here, asked as cheaply as possible: files first, then the driver's tool, torch last."""

from __future__ import annotations

import csv
import io
import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.core.errors import ToolError

_ARM_PARTS = {
    "0xd0c": "Neoverse N1",
    "0xd40": "Neoverse V1",
    "0xd49": "Neoverse N2",
    "0xd4f": "Neoverse V2",
    "0xd0b": "Cortex-A76",
    "0xd42": "Cortex-A78AE",
}


@dataclass(frozen=True, slots=True)
class DetectedGpu:
    """A GPU as the driver describes it."""

    name: str
    memory_bytes: float | None
    source: str
    """``nvidia-smi``, ``torch`` or the file it was read from."""


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
    """Return NVIDIA GPUs in bus order, without torch; empty when there is no driver."""
    tool = shutil.which("nvidia-smi")
    if tool is not None:
        found = _from_nvidia_smi(tool)
        if found:
            return found
    return [
        DetectedGpu(model.group(1).strip(), None, str(path))
        for path in sorted(proc.glob("*/information"))
        if (model := re.search(r"^Model:\s*(.+)$", _read(path), re.MULTILINE))
    ]


def detect_gpu(index: int = 0) -> DetectedGpu | None:
    """Return CUDA or ROCm device ``index``.

    Drivers list GPUs by bus, CUDA by speed and after ``CUDA_VISIBLE_DEVICES``; where the GPUs differ, only
    torch knows which one an index means, so then (or when it is loaded anyway) torch is asked.
    """
    if "torch" in sys.modules:
        return _from_torch(index)
    found = detect_gpus()
    if not found or len({(gpu.name, gpu.memory_bytes) for gpu in found}) > 1:
        return _from_torch(index)
    return found[0]


def parse_nvidia_smi(text: str) -> list[DetectedGpu]:
    """Read ``nvidia-smi --query-gpu=name,memory.total --format=csv,noheader,nounits``."""
    gpus = []
    for row in csv.reader(io.StringIO(text), skipinitialspace=True):
        if len(row) >= 2 and row[0].strip():
            mebibytes = row[-1].strip()
            size = float(mebibytes) * 2**20 if re.fullmatch(r"\d+(\.\d+)?", mebibytes) else None
            gpus.append(DetectedGpu(row[0].strip(), size, "nvidia-smi"))
    return gpus


def _from_nvidia_smi(tool: str) -> list[DetectedGpu]:
    from llm_perf_opt.process.launch import run_probe

    argv = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        result = run_probe(argv, timeout_s=10.0)
    except ToolError:
        # A driver tool that cannot be started tells us nothing; the other ways remain.
        return []
    return parse_nvidia_smi(result.stdout) if result.returncode == 0 else []


def _from_torch(index: int) -> DetectedGpu | None:
    import torch

    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        return None
    properties = torch.cuda.get_device_properties(index)
    return DetectedGpu(str(torch.cuda.get_device_name(index)), float(properties.total_memory), "torch")


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
