"""``env.json``: the environment of a result. An allow-list, so that no secrets or unrelated data are recorded."""

from __future__ import annotations

import logging
import math
import os
import platform
import re
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from llm_perf_opt.config.devices import cuda_device_count, torch_version
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core import layout
from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.core.errors import LlmPerfError
from llm_perf_opt.core.files import atomic_write_text
from llm_perf_opt.core.secrets import mask_arguments
from llm_perf_opt.core.stage import StageResult
from llm_perf_opt.core.version import __version__
from llm_perf_opt.hardware.detect import detect_cpu, detect_gpus, driver_versions
from llm_perf_opt.runs.manifest import Manifest
from llm_perf_opt.stages.workload import program_name, workload

# The commit a run was started in, read from the files of the repository, without the git program.


_CI_VARIABLES = ("GITHUB_SHA", "CI_COMMIT_SHA", "GIT_COMMIT", "BUILDKITE_COMMIT")
"""What CI systems call the commit they check out; asked where there is no repository."""
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_MOST_BYTES = 16 << 20


def current_commit(directory: Path, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the commit of the repository around a directory, or the one set by CI; ``None``: unknown."""
    for folder in (directory, *directory.parents):
        marker = folder / ".git"
        try:
            if marker.exists():
                return _head(_git_directory(marker))
        except OSError:
            return None
    named = (environment.get(name, "").strip().lower() for name in _CI_VARIABLES)
    return next((value for value in named if _COMMIT.fullmatch(value)), None)


def _git_directory(marker: Path) -> Path:
    """Return where the repository's files are; in a worktree and a submodule ``.git`` is a file with the path."""
    if marker.is_dir():
        return marker
    return marker.parent / _text(marker).removeprefix("gitdir:").strip()


def _head(git: Path) -> str | None:
    head = _text(git / "HEAD").strip()
    if not head.startswith("ref:"):
        return head if _COMMIT.fullmatch(head) else None
    name = head.removeprefix("ref:").strip()
    common = git / _text(git / "commondir").strip() if (git / "commondir").is_file() else git
    for place in (git, common):
        if (place / name).is_file():
            found = _text(place / name).strip()
            return found if _COMMIT.fullmatch(found) else None
    packed = _text(common / "packed-refs") if (common / "packed-refs").is_file() else ""
    rows = (line.split(" ", 1) for line in packed.splitlines() if line[:1] not in ("#", "^") and " " in line)
    return next((commit for commit, ref in rows if ref == name and _COMMIT.fullmatch(commit)), None)


def _text(path: Path) -> str:
    with path.open("rb") as stream:
        return stream.read(_MOST_BYTES).decode("utf-8", "replace")


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
_RUNTIME_PACKAGES = ("cuda-runtime", "cudnn", "cublas", "nccl", "cusparselt")
"""Libraries of NVIDIA that come as packages next to torch, under a name for every major version of CUDA."""
_ENVIRONMENT_VARIABLES = (
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


def _runtime_versions() -> dict[str, str]:
    """Return the versions of the libraries below torch, as far as they are packages."""
    names = [f"nvidia-{name}{suffix}" for name in _RUNTIME_PACKAGES for suffix in ("", "-cu12", "-cu13")]
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
    """Return the 1, 5 and 15 minute load: timings on a busy machine are less reliable."""
    return list(os.getloadavg()) if hasattr(os, "getloadavg") else None


def environment(started_in: Path | None = None) -> dict[str, Any]:
    """Collect the environment, without importing torch; ``started_in``: the directory whose repository commit is recorded."""
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
        "runtime": _runtime_versions(),
        "torch": torch_version(),
        "packages": {name: found for name in PACKAGES if (found := _package_version(name))},
        "variables": {name: os.environ[name] for name in _ENVIRONMENT_VARIABLES if name in os.environ},
        "executable": Path(sys.executable).name,
    }


# ``inputs.yaml``: the inputs of a run. Every run has one, whatever its stages.


LOGGER = logging.getLogger("llm_perf_opt.run")
_NO_SAMPLES = frozenset({"static_analysis", "serve"})
"""Stages that may work on configured shapes or send requests of their own; all others run the samples of the data set."""


def write_inputs(
    config: AppConfig, artifacts: Artifacts, manifest: Manifest, results: Mapping[str, StageResult]
) -> None:
    """Write the samples that were used, as recorded by the stages, else from the configuration."""
    if not manifest.stages:
        return  # the run ended before its first stage: nothing was used
    reported = [result.inputs for result in results.values() if result.inputs is not None]
    document = next((each for each in reported if each.get("samples")), None)
    if document is None and config.workload_command.command:
        document = next(iter(reported), None) or _program(config, artifacts)
    if document is None and any(name not in _NO_SAMPLES for name in manifest.stages):
        document = _configured(config, manifest)
    document = document or next(iter(reported), None) or _configured(config, manifest)
    import yaml  # not needed by `doctor`, which only reads versions

    text = yaml.safe_dump(document, allow_unicode=True, sort_keys=False, width=110)
    atomic_write_text(artifacts.path(layout.INPUTS), text)


def _program(config: AppConfig, artifacts: Artifacts) -> dict[str, Any]:
    program = workload(config, artifacts.root)
    return {
        "program": {
            "name": program_name(config),
            "argv": mask_arguments(program.argv),
            "cwd": str(program.cwd),
        }
    }


def _configured(config: AppConfig, manifest: Manifest) -> dict[str, Any]:
    """Return the samples of the configured data set, as used by the captured workload."""
    from llm_perf_opt.workloads.datasets.sampling import inputs_document
    from llm_perf_opt.workloads.registry import load_dataset
    from llm_perf_opt.workloads.setup import workload_config

    try:
        dataset = load_dataset(workload_config(config).dataset)
        samples = list(dataset.samples())
        document = inputs_document(samples, list(dataset.problems()))
    except LlmPerfError as error:
        LOGGER.warning("the samples of the run cannot be listed: %s", error.message)
        return {"count": None, "left_out": [error.message], "samples": []}
    except Exception as error:
        # A plug-in's data set may raise anything; the run's results must not be lost over the list of its samples.
        LOGGER.warning("the samples of the run cannot be listed: %s: %s", type(error).__name__, error)
        LOGGER.debug("the samples of the run cannot be listed", exc_info=True)
        return {"count": None, "left_out": [f"{type(error).__name__}: {error}"], "samples": []}
    _really_run(config, manifest, len(samples))
    return {"source": "the configuration: no stage recorded its samples", **document}


def _really_run(config: AppConfig, manifest: Manifest, samples: int) -> None:
    """Correct the batch size in reports if there are too few samples for a batch."""
    wanted = config.infer.batch_size
    if samples and samples % wanted:
        mean = samples / math.ceil(samples / wanted)
        manifest.facts["batch_size"] = mean
        manifest.notes.append(
            f"infer.batch_size={wanted}, but the data set gives {samples} samples: the mean batch is {mean:g}."
        )
