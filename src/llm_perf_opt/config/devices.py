"""Which device a run uses, found out without importing torch."""

from __future__ import annotations

import ctypes
import functools
import re
from importlib.metadata import PackageNotFoundError, version

from llm_perf_opt.core.errors import ConfigError

_CUDA_SUCCESS = 0


@functools.cache
def cuda_device_count() -> int:
    """Ask the driver how many CUDA devices there are; 0 without a driver or a device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    if driver.cuInit(0) != _CUDA_SUCCESS:
        return 0
    count = ctypes.c_int(0)
    return count.value if driver.cuDeviceGetCount(ctypes.byref(count)) == _CUDA_SUCCESS else 0


def torch_version() -> str | None:
    """Return the installed torch version from its metadata (``2.13.0+cpu``), without importing it."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return None


def torch_has_cuda() -> bool:
    """Tell a CUDA build from a CPU build by its version suffix (wheels from PyPI have none and carry CUDA)."""
    found = torch_version()
    return found is not None and not found.endswith("+cpu")


def usable_cuda_devices() -> int:
    """Devices that both the driver and the torch build can use."""
    return cuda_device_count() if torch_has_cuda() else 0


def resolve_device(wanted: str) -> str:
    """Settle ``run.device``: ``auto`` takes CUDA if there, an explicit device that is absent is an error."""
    available = usable_cuda_devices()
    if wanted == "auto":
        return "cuda:0" if available else "cpu"
    if wanted == "cpu":
        return "cpu"
    match = re.fullmatch(r"cuda(?::(\d+))?", wanted)
    if match is None:
        raise ConfigError(
            f"run.device={wanted} is not a device", hint="use auto, cpu, cuda or cuda:N", key="run.device"
        )
    index = int(match.group(1) or 0)
    if index >= available:
        raise ConfigError(
            f"run.device={wanted} is not available: {_unavailable_reason(available)}",
            hint="use run.device=auto or run.device=cpu",
            key="run.device",
            unavailable=True,
        )
    return f"cuda:{index}"


def _unavailable_reason(available: int) -> str:
    if available:
        return f"there are {available} CUDA devices (cuda:0 to cuda:{available - 1})"
    if cuda_device_count() and not torch_has_cuda():
        return f"torch {torch_version()} is a CPU build"
    return "this machine has no CUDA device the driver can use"
