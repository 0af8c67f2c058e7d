"""Ask the driver which MIG slice a CUDA device is, and how large; no torch."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
from dataclasses import replace
from typing import Any, Literal

from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.hardware.mig import ListedGpu, MigSlice, parse_list, visible_slice, with_profile
from llm_perf_opt.hardware.sensors import nvml

_PROBE_S = 10.0
_CORES_OF_A100 = 64
_CORES = 128
"""FP32 cores of a multiprocessor: 64 in compute capability 8.0, 128 in every later one that can be cut."""


def listed_slices() -> list[MigSlice]:
    """Return every slice of this machine that the driver lists."""
    tool = shutil.which("nvidia-smi")
    listed = _ask(tool, "-L") if tool is not None else ""
    return [one for gpu in parse_list(listed) for one in gpu.slices]


def detect_slice(index: int) -> MigSlice | Literal["unclear"] | None:
    """Return the slice that ``cuda:<index>`` is, with all the driver tells of it; ``None``: a whole GPU."""
    tool = shutil.which("nvidia-smi")
    listed = _ask(tool, "-L") if tool is not None else ""
    # Nearly every machine: one short question, and no slice in the answer.
    if tool is None or "MIG " not in listed:
        return None
    gpus = parse_list(listed)
    chosen = visible_slice(gpus, index)
    return describe_slice(chosen, gpus, tool) if isinstance(chosen, MigSlice) else chosen


def describe_slice(one: MigSlice, gpus: list[ListedGpu], tool: str) -> MigSlice:
    """Add multiprocessors and memory: from nvidia-ml-py, else from the driver's list of profiles."""
    told = _from_nvml(one)
    if told.multiprocessors is not None:
        return told
    number = next((place for place, gpu in enumerate(gpus) if gpu.uuid == one.gpu_uuid), 0)
    return with_profile(told, _ask(tool, "mig", "-lgip"), number)


def _from_nvml(one: MigSlice) -> MigSlice:
    if one.uuid is None or one.gpu_uuid is None or importlib.util.find_spec(nvml.MODULE) is None:
        return one
    library: Any = importlib.import_module(nvml.MODULE)
    try:
        library.nvmlInit()
    except library.NVMLError:
        return one  # no driver library, or another version than the driver's: the other ways remain
    try:
        part = library.nvmlDeviceGetHandleByUUID(one.uuid)
        whole = library.nvmlDeviceGetHandleByUUID(one.gpu_uuid)
        sizes = library.nvmlDeviceGetAttributes(part)
        capability = tuple(library.nvmlDeviceGetCudaComputeCapability(whole))
        cores = int(library.nvmlDeviceGetNumGpuCores(whole))
    except nvml.refusals(library):
        return one  # an old driver lacks a question
    finally:
        library.nvmlShutdown()
    return replace(
        one,
        memory_bytes=float(sizes.memorySizeMB) * 2**20,
        multiprocessors=int(sizes.multiprocessorCount),
        gpu_multiprocessors=cores // (_CORES_OF_A100 if capability == (8, 0) else _CORES),
        told_by="nvidia-ml-py",
    )


def _ask(tool: str, *arguments: str) -> str:
    from llm_perf_opt.process.launch import run_probe

    try:
        answer = run_probe([tool, *arguments], timeout_s=_PROBE_S)
    except ToolError:
        return ""  # a driver tool that cannot be started tells nothing
    return answer.stdout if answer.returncode == 0 else ""
