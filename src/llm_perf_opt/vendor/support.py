"""Which devices a vendor's tool can watch, and what to use for the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_perf_opt.config.devices import is_rocm
from llm_perf_opt.core.stage import Problem

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import AppConfig

_PRODUCTS = {"nsys": "Nsight Systems", "ncu": "Nsight Compute"}
_OWN_TOOLS = {
    "AMD GPUs": "rocprofv3 (ROCm) or rocprof-compute",
    "Intel GPUs": "unitrace or VTune",
    "Apple GPUs": "Instruments (Metal System Trace)",
}


def unsupported_device(tool: str, config: AppConfig) -> Problem | None:
    """Return why a tool of NVIDIA cannot watch the built-in workload on the run's device; ``None``: it can.

    The CPU is no reason: who captures there (nsys) sees the program's phases and calls.
    """
    device = config.resolved_device
    kind = device.partition(":")[0]
    if config.workload_command.command or kind == "cpu" or (kind == "cuda" and not is_rocm()):
        return None
    what = {"cuda": "AMD GPUs", "xpu": "Intel GPUs", "mps": "Apple GPUs"}.get(kind, f"{kind} devices")
    own = _OWN_TOOLS.get(what, "its vendor's profiler")
    return Problem(
        "skip",
        f"{_PRODUCTS[tool]} ({tool}) watches NVIDIA GPUs only, and this run is on {device}: it does not exist for {what}",
        f"kernels and their times are in the torch profiler's stage; for counters use {own}",
        "run.device",
    )
