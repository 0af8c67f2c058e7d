"""Versions of drivers, as the kernel and the driver tell them; no program is started and torch is not imported."""

from __future__ import annotations

import ctypes
import platform
import re
from pathlib import Path

from llm_perf_opt.config.devices import cuda_device_count

_SUCCESS = 0


def driver_versions(root: Path = Path("/")) -> dict[str, str]:
    """Return driver → version of those that are there: ``nvidia``, ``cuda`` (the newest it can run), ``amdgpu``, ``rocm``,
    ``xe``, ``i915``, ``macos`` (which brings Apple's own)."""
    found = {
        "nvidia": _nvidia_version(root),
        # A library without a device says what could be, not what ran.
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
    # A container may show /proc of the driver and hide /sys/module.
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
