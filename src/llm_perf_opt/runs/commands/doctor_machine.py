"""The machine, its GPUs and the installed torch, as ``doctor`` shows them; without importing torch."""

from __future__ import annotations

import os
import shutil
from typing import Any

from llm_perf_opt.config.devices import (
    BUILD_NAMES,
    cuda_device_count,
    mps_device_count,
    resolve_device,
    rocm_device_count,
    torch_backends,
    torch_build,
    xpu_device_count,
)
from llm_perf_opt.core import units
from llm_perf_opt.hardware.detect import detect_gpus
from llm_perf_opt.hardware.drivers import driver_versions
from llm_perf_opt.hardware.mig_detect import listed_slices
from llm_perf_opt.runs.records.provenance import cpu_name, load_average, memory_bytes

_FEWEST_SHOWN_APART = 4


def describe_machine() -> dict[str, Any]:
    """Return processor, memory, GPUs of all vendors with their slices, drivers, and the device a run would take."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_bytes": memory_bytes(),
        "load_average": load_average(),
        "cuda_devices": cuda_device_count(),
        "gpus": [
            {"name": gpu.name, "memory_bytes": gpu.memory_bytes, "vendor": gpu.vendor, "source": gpu.source}
            for gpu in detect_gpus()
        ],
        "slices": [one.name for one in listed_slices()],
        "drivers": driver_versions(),
        "device": resolve_device("auto"),
    }


def describe_torch() -> dict[str, Any]:
    """Return version and build, and what to install where the build is not for this machine's GPUs."""
    build = torch_build()
    if build is None:
        return {"version": None, "build": None, "backends": [], "fix": "pip install torch"}
    return {
        "version": build.version,
        "build": build.kind,
        "backends": torch_backends(),
        "fix": build_problem(build.kind),
    }


def build_problem(kind: str) -> str | None:
    """Say which build of torch this machine's GPUs want, where the installed one cannot use them."""
    there = {
        "cuda": cuda_device_count(),
        "rocm": rocm_device_count(),
        "xpu": xpu_device_count(),
        "mps": mps_device_count(),
    }
    wanted = [name for name, count in there.items() if count]
    if not wanted or kind in wanted:
        return None
    names = " or ".join(BUILD_NAMES[name] for name in wanted)
    article = "an" if kind in ("xpu", "mps") else "a"
    return f"this torch is {article} {BUILD_NAMES[kind]} build although the machine has a GPU: install a {names} build of torch"


def machine_lines(machine: dict[str, Any]) -> list[str]:
    """Lay the machine out as lines of the report."""
    lines = [
        f"device    {machine['device']}  (CPU: {machine['cpu']}, {machine['cores']} cores, "
        f"{units.size(machine['memory_bytes'])})"
    ]
    gpus = machine["gpus"]
    shown = gpus[: _FEWEST_SHOWN_APART if len(gpus) <= _FEWEST_SHOWN_APART else 1]
    lines += [
        f"GPU       {gpu['name']}, {units.size(gpu['memory_bytes'])} ({gpu['source']})" for gpu in shown
    ]
    if len(gpus) > len(shown):
        lines.append(
            f"          and {len(gpus) - len(shown)} more: {', '.join(sorted({gpu['name'] for gpu in gpus}))}"
        )
    if not gpus:
        lines.append("GPU       none found")
    lines += [f"slice     {name}" for name in machine["slices"]]
    if (
        gpus
        and all(gpu["vendor"] == "nvidia" for gpu in gpus)
        and shutil.which("nvidia-smi") is None
        and not machine["slices"]
    ):
        lines.append("          nvidia-smi is not there: whether the GPU is a MIG slice is not known")
    versions = ", ".join(f"{name} {number}" for name, number in machine["drivers"].items())
    return [*lines, f"driver    {versions or 'none'}"]
