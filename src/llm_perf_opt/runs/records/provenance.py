"""``env.json``: what a result depends on. An allow-list, so that no secret and no stranger's data gets in."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from llm_perf_opt.config.devices import cuda_device_count, torch_version
from llm_perf_opt.core.version import __version__
from llm_perf_opt.hardware.detect import detect_cpu, detect_gpus
from llm_perf_opt.hardware.drivers import driver_versions
from llm_perf_opt.runs.records.commit import current_commit

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "polars",
    "hydra-core",
    "pillow",
    "triton",
    "flash-attn",
    "pytorch-triton-rocm",
    "nvidia-ml-py",
)
RUNTIME_PACKAGES = ("cuda-runtime", "cudnn", "cublas", "nccl", "cusparselt")
"""Libraries of NVIDIA that come as packages beside torch, under a name for every major version of CUDA."""

ENVIRONMENT_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "MKL_NUM_THREADS",
    "ONEDNN_MAX_CPU_ISA",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCHINDUCTOR_CACHE_DIR",
    "NVIDIA_TF32_OVERRIDE",
    "NSYS_NVTX_PROFILER_REGISTER_ONLY",
    "LLM_PERF_OPT_CACHE",
)
"""The only variables that are recorded: each changes performance or where files go, none holds a secret."""


def _package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def runtime_versions() -> dict[str, str]:
    """Return the versions of the libraries below torch, as far as they are packages."""
    names = [f"nvidia-{name}{suffix}" for name in RUNTIME_PACKAGES for suffix in ("", "-cu12", "-cu13")]
    return {name: found for name in names if (found := _package_version(name))}


def cpu_name() -> str:
    """Return the processor's name, as the hardware detection reads it."""
    return detect_cpu().name


def memory_bytes() -> int | None:
    """Return the machine's memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def load_average() -> list[float] | None:
    """Return the 1, 5 and 15 minute load: timings on a busy machine mean less."""
    return list(os.getloadavg()) if hasattr(os, "getloadavg") else None


def environment(started_in: Path | None = None) -> dict[str, Any]:
    """Collect the environment, without importing torch; ``started_in``: whose repository's commit is named."""
    return {
        "llm_perf_opt": __version__,
        "commit": current_commit(started_in or Path.cwd()),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": {"name": cpu_name(), "cores": os.cpu_count(), "memory_bytes": memory_bytes()},
        "load_average": load_average(),
        "cuda_devices": cuda_device_count(),
        "devices": [gpu.name for gpu in detect_gpus()],
        "drivers": driver_versions(),
        "runtime": runtime_versions(),
        "torch": torch_version(),
        "packages": {name: found for name in PACKAGES if (found := _package_version(name))},
        "variables": {name: os.environ[name] for name in ENVIRONMENT_VARIABLES if name in os.environ},
        "executable": Path(sys.executable).name,
    }
