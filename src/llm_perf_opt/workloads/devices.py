"""Data types and devices: resolution of ``auto``, and checks that this machine supports the request."""

from __future__ import annotations

import functools
import os
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llm_perf_opt.config.devices import device_name, may_have_accelerator, torch_version
from llm_perf_opt.config.schema import Dtype
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.hardware.accelerator import computes_natively, device_properties, offered_device
from llm_perf_opt.process.tools import find_program

if TYPE_CHECKING:
    import torch

_PROBE_TIMEOUT_S = 120.0
# The operations a transformer spends its time in; a machine without the instructions crashes in the first of them.
_PROBE = """
import torch
kind = getattr(torch, {dtype!r})
a = torch.ones(256, 256, dtype=kind)
torch.nn.functional.linear(a, a)
torch.nn.functional.conv2d(torch.ones(1, 3, 64, 64, dtype=kind), torch.ones(32, 3, 16, 16, dtype=kind), stride=16)
q = torch.ones(1, 2, 64, 64, dtype=kind)
torch.nn.functional.scaled_dot_product_attention(q, q, q)
print(float((a @ a)[0, 0]))
"""


@dataclass(frozen=True, slots=True)
class ConfirmedDevice:
    """The device of a run, as confirmed by torch."""

    name: str
    note: str | None = None
    """What a reader must know: ``auto`` is not what the machine seemed to have."""


def confirm_device(wanted: str, expected: str) -> ConfirmedDevice:
    """Confirm ``run.device`` with torch: ``auto`` selects what torch offers, and an explicit device must be available.

    ``expected`` is the result of file-based detection (``config.devices.resolve_device``). Where torch has nothing but the CPU,
    it is not asked.
    """
    if wanted == "cpu" or not may_have_accelerator():
        return ConfirmedDevice(expected)
    offered = offered_device()
    if wanted == "auto":
        if offered is not None:
            return ConfirmedDevice(device_name(offered[0], 0))
        if expected == "cpu":
            return ConfirmedDevice("cpu")
        note = f"run.device=auto means cpu: this machine has {expected}, and torch {torch_version()} cannot use it"
        return ConfirmedDevice("cpu", note)
    kind, _, index = expected.partition(":")
    if offered is not None and offered[0] == kind and int(index or 0) < offered[1]:
        return ConfirmedDevice(expected)
    have = "only the CPU" if offered is None else f"{offered[1]} {offered[0]} devices"
    raise ConfigError(
        f"run.device={wanted} is not available: torch {torch_version()} offers {have}",
        hint="use run.device=auto or run.device=cpu",
        key="run.device",
    )


def resolve_dtype(wanted: Dtype, device: str) -> torch.dtype:
    """Resolve ``model.dtype`` for a device; reject types that would crash the process."""
    import torch

    if wanted is Dtype.auto:
        return _automatic(device)
    chosen: torch.dtype = getattr(torch, wanted.value)
    if chosen is torch.float32 or device == "meta":
        return chosen
    if device == "cpu":
        problem = cpu_problem(wanted.value)
        if problem is not None:
            raise ConfigError(
                f"model.dtype={wanted.value} does not work on this CPU: {problem}",
                hint="use model.dtype=float32, or limit oneDNN before starting: ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 (or AVX2)",
                key="model.dtype",
            )
    elif not computes_natively(device, chosen):
        raise ConfigError(
            f"model.dtype={wanted.value} is not supported by {device_properties(device).name or device}",
            hint="use model.dtype=float16 or float32"
            if chosen is torch.bfloat16
            else "use model.dtype=float32",
            key="model.dtype",
        )
    return chosen


def _automatic(device: str) -> torch.dtype:
    """The smallest of bfloat16 and float16 with native support, bfloat16 first; float32 on a CPU."""
    import torch

    if device == "meta":
        return torch.bfloat16
    if device == "cpu":
        return torch.float32
    halves = (torch.bfloat16, torch.float16)
    return next((dtype for dtype in halves if computes_natively(device, dtype)), torch.float32)


@functools.cache
def cpu_problem(dtype: str) -> str | None:
    """Try ``dtype`` on the CPU in a child process; return what went wrong, or ``None``.

    Some virtual machines announce matrix instructions and then trap them: the process dies of SIGILL, which
    no exception handler sees. So a child process tries first.
    """
    from llm_perf_opt.process.launch import run_probe

    result = run_probe([sys.executable, "-c", _PROBE.format(dtype=dtype)], timeout_s=_PROBE_TIMEOUT_S)
    if result.returncode == 0:
        return None
    if result.returncode is None:
        return f"a trial run did not end within {_PROBE_TIMEOUT_S:.0f} s"
    if result.returncode < 0 or result.returncode > 128:
        number = -result.returncode if result.returncode < 0 else result.returncode - 128
        return f"a trial run died of signal {number}{' (illegal instruction)' if number == 4 else ''}"
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"a trial run ended with exit code {result.returncode}"


def missing_compiler(device: str) -> str | None:
    """Return the compiler that torch.compile calls for a device and that is not installed; ``None``: it is installed.

    Code for the CPU is C++; launchers of Triton kernels are C.
    """
    if device == "cpu":
        names = [os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")]
    else:
        names = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang", "cc"]
    return None if any(find_program(name) for name in names) else names[0]


# Out-of-memory messages of allocators as numbers; accelerators and the host have different formats.


_UNITS = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_AMOUNT = r"(\d+(?:\.\d+)?)\s*(bytes|B|[KMGT]iB)"
_TRIED = re.compile(rf"(?:Tried|tried) to allocate {_AMOUNT}")
_TOTAL = re.compile(rf"total capacity of {_AMOUNT}")
_FREE = re.compile(rf"of which {_AMOUNT} is free")
_ALLOCATED = re.compile(rf"{_AMOUNT} is allocated by PyTorch")
_UNUSED = re.compile(rf"{_AMOUNT} is reserved by PyTorch but unallocated")
_OUT_OF_MEMORY_TEXTS = (
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "std::bad_alloc",
    "out of memory",
    # Libraries report that they could not allocate their workspace; torch raises a plain RuntimeError.
    "cublas_status_alloc_failed",
    "cusolver_status_alloc_failed",
    "cusparse_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "cudnn_status_internal_error_device_allocation_failed",
    "cufft_alloc_failed",
    "hipblas_status_alloc_failed",
    "rocblas_status_memory_error",
    "miopenstatusallocfailed",
    "hiperroroutofmemory",
    "cudaerrormemoryallocation",
    "cuda_error_out_of_memory",
    "ur_result_error_out_of_device_memory",
)


@dataclass(frozen=True, slots=True)
class Shortage:
    """Values of an allocator's message; ``None``: not in the message."""

    tried_bytes: float | None = None
    total_bytes: float | None = None
    free_bytes: float | None = None
    allocated_bytes: float | None = None
    unused_bytes: float | None = None
    """Held by torch's allocator in pieces that fit nothing."""

    @property
    def missing_bytes(self) -> float | None:
        """How much more would have been needed for this one allocation."""
        if self.tried_bytes is None or self.free_bytes is None:
            return None
        return max(0.0, self.tried_bytes - self.free_bytes)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on an accelerator or on the host."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (any(phrase in text for phrase in _OUT_OF_MEMORY_TEXTS))


def shortage(error: BaseException, host_free_bytes: int | None = None) -> Shortage:
    """Read an allocator's message; the host's message lacks the free memory, so it is passed in."""
    text = str(error)
    found = {
        "tried_bytes": _amount(_TRIED, text),
        "total_bytes": _amount(_TOTAL, text),
        "free_bytes": _amount(_FREE, text),
        "allocated_bytes": _amount(_ALLOCATED, text),
        "unused_bytes": _amount(_UNUSED, text),
    }
    if found["free_bytes"] is None and host_free_bytes is not None:
        found["free_bytes"] = float(host_free_bytes)
    return Shortage(**found)


def _amount(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    return None if match is None else float(match[1]) * _UNITS[match[2]]
