"""Which device a run uses, as far as it can be determined without importing torch; a run asks torch before it starts.

Files of the kernel and of the installed torch answer. Who starts a run confirms the answer with torch itself
(``workloads.devices.confirm_device``): a driver may be too old, a container may hide the device.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from llm_perf_opt.core.errors import ConfigError

_CUDA_SUCCESS = 0
_INTEL = "0x8086"
_BuildKind = Literal["cpu", "cuda", "rocm", "xpu", "mps"]
BUILD_NAMES: dict[str, str] = {
    "cpu": "CPU",
    "cuda": "CUDA",
    "rocm": "ROCm",
    "xpu": "XPU",
    "mps": "MPS (Apple)",
}
_DEVICE_OF_BUILD = {"cuda": "cuda", "rocm": "cuda", "xpu": "xpu", "mps": "mps"}
_HINT = "use auto, cpu, cuda, cuda:N (ROCm too), xpu, xpu:N, mps, or a device of a torch backend that is installed"


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """The installed torch."""

    version: str
    kind: _BuildKind
    """The accelerator it was built for."""


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


def rocm_device_count(root: Path = Path("/")) -> int:
    """Return the AMD GPUs that the kernel's compute driver lists; 0 where it is not loaded."""
    nodes = (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties")
    return sum(1 for path in nodes if re.search(r"^simd_count\s+[1-9]", _read(path), re.MULTILINE))


def xpu_device_count(root: Path = Path("/")) -> int:
    """Return the Intel GPUs that the kernel offers for rendering and computing."""
    vendors = (root / "sys/class/drm").glob("renderD*/device/vendor")
    return sum(1 for path in vendors if _read(path).strip() == _INTEL)


def mps_device_count() -> int:
    """Return whether this is a Mac with a GPU that torch can use."""
    return int(platform.system() == "Darwin" and platform.machine() == "arm64")


@functools.cache
def torch_version() -> str | None:
    """Return the installed torch version from its metadata (``2.13.0+cpu``), without importing it."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return None


@functools.cache
def torch_build() -> TorchBuild | None:
    """Say what the installed torch was built for, from its own version file; ``None``: there is no torch."""
    found, spec = torch_version(), find_spec("torch")
    if found is None or spec is None or spec.origin is None:
        return None
    return TorchBuild(found, build_kind(_read(Path(spec.origin).with_name("version.py")), found))


def build_kind(version_file: str, version_text: str) -> _BuildKind:
    """Read what ``torch/version.py`` says; without it, the suffix of the version."""
    given = dict(re.findall(r"^(cuda|hip|xpu)\b[^=\n]*=\s*(\S+)", version_file, re.MULTILINE))
    for key, kind in (("hip", "rocm"), ("xpu", "xpu"), ("cuda", "cuda")):
        if given.get(key, "None") != "None":
            return kind  # type: ignore[return-value]
    if not given:
        suffix = re.match(r"rocm|xpu|cu(?=\d)", version_text.partition("+")[2])
        if suffix:
            return {"rocm": "rocm", "xpu": "xpu", "cu": "cuda"}[suffix.group()]  # type: ignore[return-value]
    return "mps" if mps_device_count() else "cpu"


def is_rocm() -> bool:
    """Whether ``cuda`` means an AMD GPU in the installed torch."""
    build = torch_build()
    return build is not None and build.kind == "rocm"


def _usable_devices() -> tuple[str, int] | None:
    """Return kind and number of the accelerators for which torch was built and which this machine seems to have."""
    build = torch_build()
    if build is None or build.kind == "cpu":
        return None
    look: dict[str, Callable[[], int]] = {
        "cuda": cuda_device_count,
        "rocm": rocm_device_count,
        "xpu": xpu_device_count,
        "mps": mps_device_count,
    }
    count = look[build.kind]()
    return (_DEVICE_OF_BUILD[build.kind], count) if count else None


def torch_backends() -> list[str]:
    """Return the installed packages that bring torch a device of their own (``torch_npu``); torch loads them."""
    return sorted({point.name for point in entry_points(group="torch.backends")})


def may_have_accelerator() -> bool:
    """Whether only torch can say that there is no accelerator: it was built for one, or has a backend next to it."""
    build = torch_build()
    return build is not None and (build.kind != "cpu" or bool(torch_backends()))


def device_name(kind: str, index: int) -> str:
    """Return torch's name of a device, with its number; MPS has one device and no number."""
    return kind if kind in ("cpu", "mps") else f"{kind}:{index}"


def resolve_device(wanted: str) -> str:
    """Settle ``run.device``: ``auto`` takes the accelerator, an explicit device that is absent is an error."""
    usable = _usable_devices()
    if wanted == "auto":
        return device_name(usable[0], 0) if usable else "cpu"
    if wanted == "cpu":
        return "cpu"
    match = re.fullmatch(r"([a-z][a-z0-9_]*?)(?::(\d+))?", wanted)
    kind = match.group(1) if match else None
    known = kind in _DEVICE_OF_BUILD.values()
    if match is None or kind is None or not (known or (torch_backends() and kind != "auto")):
        raise ConfigError(f"run.device={wanted} is not a device", hint=_HINT, key="run.device")
    index = int(match.group(2) or 0)
    if known and not _left_to_torch(kind) and (usable is None or usable[0] != kind or index >= usable[1]):
        raise ConfigError(
            f"run.device={wanted} is not available: {_unavailable_reason(kind)}",
            hint="use run.device=auto or run.device=cpu",
            key="run.device",
            unavailable=True,
        )
    return device_name(kind, index)


def _left_to_torch(kind: str) -> bool:
    """Whether only torch knows the devices: the kernel's files may hide AMD's and Intel's, as under WSL."""
    build = torch_build()
    return build is not None and build.kind in ("rocm", "xpu") and _DEVICE_OF_BUILD[build.kind] == kind


def _unavailable_reason(kind: str) -> str:
    usable, build = _usable_devices(), torch_build()
    if usable and usable[0] == kind:
        last = device_name(kind, usable[1] - 1)
        return f"there are {usable[1]} {kind.upper()} devices ({device_name(kind, 0)} to {last})"
    built = build is not None and _DEVICE_OF_BUILD.get(build.kind) == kind
    there = {
        "cuda": (cuda_device_count() or rocm_device_count(), "CUDA device the driver can use"),
        "xpu": (xpu_device_count(), "Intel GPU that the kernel offers"),
        "mps": (mps_device_count(), "Apple GPU"),
    }[kind]
    if build is not None and not built and there[0]:
        article = "an" if build.kind in ("xpu", "mps") else "a"
        return f"torch {build.version} is {article} {BUILD_NAMES[build.kind]} build"
    return f"this machine has no {there[1]}"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
