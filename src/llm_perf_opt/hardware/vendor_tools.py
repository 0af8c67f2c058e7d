"""GPUs as their vendors' own tools list them: nvidia-ml-py or nvidia-smi, amd-smi or rocm-smi, xpu-smi, Apple's sysctl.

A tool that is missing, fails or answers in an unknown form says nothing; the next way is tried.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import json
import platform
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from llm_perf_opt.core.errors import ToolError

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
    """Ask the driver's library where its package is installed, else nvidia-smi."""
    query = ["--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    return _from_nvml() or _ask("nvidia-smi", query, parse_nvidia_smi)


def amd_gpus() -> list[DetectedGpu]:
    """Ask amd-smi, or rocm-smi where that is older than it."""
    return _ask("amd-smi", ["static", "--asic", "--vram", "--json"], parse_amd_smi) or _ask(
        "rocm-smi", ["--showproductname", "--showmeminfo", "vram", "--json"], parse_rocm_smi
    )


def intel_gpus() -> list[DetectedGpu]:
    """Ask xpu-smi for the devices, and for the memory of each."""
    found = _ask("xpu-smi", ["discovery", "-j"], parse_xpu_smi)
    sizes = [
        _ask("xpu-smi", ["discovery", "-d", str(number), "-j"], parse_xpu_smi) for number in range(len(found))
    ]
    return [detail[0] if len(detail) == 1 else gpu for gpu, detail in zip(found, sizes, strict=True)]


def apple_gpus() -> list[DetectedGpu]:
    """Name the chip of a Mac: processor and GPU are one, and share their memory."""
    if platform.system() != "Darwin" or platform.machine() != "arm64":
        return []
    return _ask("sysctl", ["-n", "machdep.cpu.brand_string", "hw.memsize"], parse_sysctl)


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
    if importlib.util.find_spec(_NVML) is None:
        return []
    library: Any = importlib.import_module(_NVML)
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
    except library.NVMLError:  # integrated GPUs do not tell all of it
        return []
    finally:
        library.nvmlShutdown()


def _ask(tool: str, arguments: list[str], parse: Callable[[str], list[DetectedGpu]]) -> list[DetectedGpu]:
    from llm_perf_opt.process.launch import run_probe

    path = shutil.which(tool)
    if path is None:
        return []
    try:
        result = run_probe([path, *arguments], timeout_s=_TIMEOUT_S)
    except ToolError:
        # A driver tool that cannot be started tells us nothing; the other ways remain.
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
