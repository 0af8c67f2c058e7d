"""MIG: a slice of a GPU is a separate device, with its share of multiprocessors, memory and bandwidth.

CUDA and torch call a slice ``NVIDIA A100-SXM4-40GB MIG 1g.5gb``; ``nvidia-smi --query-gpu`` reports the whole GPU only. So
slices are found with ``nvidia-smi -L``, and the share of one is queried from the driver: nvidia-ml-py has its multiprocessors,
``nvidia-smi mig -lgip`` those of its profile. Without either, NVIDIA's rule is used: a ``1g`` is one of seven (or four)
compute slices, and memory and its bandwidth come in eighths.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.hardware.sensors import gpu
from llm_perf_opt.process.tools import find_program, has_package, import_optional
from llm_perf_opt.summary import Hardware, Peak

_NAME = re.compile(
    r"(?P<gpu>.+?) MIG (?P<profile>(?:(?P<part>\d)c\.)?(?P<compute>\d)g\.(?P<gb>\d+)gb(?:\+[\w.+-]+)?)"
)
_GPU_LINE = re.compile(r"^GPU (\d+): (.+?) \(UUID: (GPU-[^)]+)\)\s*$")
_SLICE_LINE = re.compile(r"^\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)]+)\)\s*$")
_PROFILE_LINE = re.compile(
    r"^\|\s+(?P<gpu>\d+)\s+MIG (?P<name>\S+)\s+\d+\s+\d+/\d+\s+(?P<gib>[\d.]+)\s+\S+\s+(?P<sms>\d+)\s",
    re.MULTILINE,
)
_COMPUTE_SLICES = 7
_FOUR_SLICE_GPUS = re.compile(r"\bA30\b|RTX PRO \d{4}")
"""GPUs that are cut into four, not seven."""
_MEMORY_SLICES = 8
_GUIDE = "NVIDIA MIG User Guide, supported profiles"


@dataclass(frozen=True, slots=True)
class MigSlice:
    """One slice as CUDA would use it."""

    gpu: str
    """Name of the whole GPU."""
    profile: str
    """``1g.5gb``, ``1c.3g.20gb``, ``1g.10gb+me``."""
    uuid: str | None = None
    gpu_uuid: str | None = None
    memory_bytes: float | None = None
    multiprocessors: int | None = None
    gpu_multiprocessors: int | None = None
    """Of the whole GPU, or of its largest profile where only that is reported."""
    count_source: str | None = None
    """Source of the multiprocessor count."""

    @property
    def name(self) -> str:
        """Its name in CUDA and torch."""
        return f"{self.gpu} MIG {self.profile}"


@dataclass(frozen=True, slots=True)
class ListedGpu:
    """A GPU of ``nvidia-smi -L`` and its slices."""

    name: str
    uuid: str
    slices: tuple[MigSlice, ...] = ()


def slice_by_name(name: str) -> MigSlice | None:
    """Return the slice in a device name; ``None`` for the name of a whole GPU."""
    found = _NAME.fullmatch(" ".join(name.split()))
    return MigSlice(found["gpu"], found["profile"]) if found else None


def parse_list(text: str) -> list[ListedGpu]:
    """Read ``nvidia-smi -L``: every GPU, and below it its slices."""
    gpus: list[ListedGpu] = []
    for line in text.splitlines():
        if found := _GPU_LINE.match(line):
            gpus.append(ListedGpu(found[2], found[3]))
        elif gpus and (found := _SLICE_LINE.match(line)):
            gpu = gpus[-1]
            one = MigSlice(gpu.name, found[1], uuid=found[3], gpu_uuid=gpu.uuid)
            gpus[-1] = replace(gpu, slices=(*gpu.slices, one))
    return gpus


def with_profile(one: MigSlice, text: str, gpu_number: int) -> MigSlice:
    """Add the profile from ``nvidia-smi mig -lgip``; unchanged if not available (no permission)."""
    rows = {
        row["name"]: (float(row["gib"]), int(row["sms"]))
        for row in _PROFILE_LINE.finditer(text)
        if int(row["gpu"]) == gpu_number
    }
    part = _NAME.fullmatch(one.name)
    # A compute instance (1c.3g.20gb) has its GPU instance's memory and a part of its multiprocessors.
    instance = one.profile.partition("c.")[2] or one.profile
    if part is None or instance not in rows:
        return one
    gib, multiprocessors = rows[instance]
    if part["part"]:
        multiprocessors = multiprocessors * int(part["part"]) // int(part["compute"])
    return replace(
        one,
        memory_bytes=one.memory_bytes or gib * 2**30,
        multiprocessors=multiprocessors,
        gpu_multiprocessors=max(sms for _, sms in rows.values()),
        count_source="nvidia-smi mig -lgip, of the largest profile",
    )


def visible_slice(
    gpus: Sequence[ListedGpu], index: int, environment: Mapping[str, str] = os.environ
) -> MigSlice | Literal["unclear"] | None:
    """Return the slice CUDA means by ``cuda:<index>``; ``None``: a whole GPU.

    CUDA gives a program one slice: the one ``CUDA_VISIBLE_DEVICES`` names, else the first of the first GPU it may see.
    If only some GPUs are partitioned and nothing is named, CUDA's choice is unknown.
    """
    named = [
        entry.strip() for entry in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry.strip()
    ]
    if named:
        return _named(gpus, named[index] if index < len(named) else "")
    cut = [gpu for gpu in gpus if gpu.slices]
    if not cut:
        return None
    return cut[0].slices[0] if len(cut) == len(gpus) and index == 0 else "unclear"


def _named(gpus: Sequence[ListedGpu], entry: str) -> MigSlice | Literal["unclear"] | None:
    if entry.startswith("MIG-"):
        fitting = [one for gpu in gpus for one in gpu.slices if (one.uuid or "").startswith(entry)]
        return fitting[0] if len(fitting) == 1 else "unclear"
    if entry.isdigit() and int(entry) < len(gpus):
        # CUDA orders by speed, the driver by bus: indices agree only if all are identical.
        alike = len({gpu.name for gpu in gpus}) == 1 and len({bool(gpu.slices) for gpu in gpus}) == 1
        slices = gpus[int(entry)].slices
        return (
            (slices[0] if slices else None) if alike else "unclear" if any(g.slices for g in gpus) else None
        )
    fitting_gpus = [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]
    return fitting_gpus[0].slices[0] if len(fitting_gpus) == 1 and fitting_gpus[0].slices else None


def limits_of_slice(whole: Hardware, one: MigSlice) -> Hardware:
    """Return a slice's limits: the whole GPU's, each times the slice's share, with the share in its source."""
    compute, compute_source = _compute_share(one)
    memory, memory_source = _memory_share(one, whole.memory_bytes)
    bandwidth = whole.bandwidth_bytes_per_s
    return replace(
        whole,
        name=one.name,
        kind="gpu",
        peak_flops_per_s={
            dtype: Peak(peak.dense * compute, f"{peak.source}; {compute_source}")
            for dtype, peak in whole.peak_flops_per_s.items()
        },
        bandwidth_bytes_per_s=None if bandwidth is None or memory is None else bandwidth * memory,
        bandwidth_source=f"{whole.bandwidth_source or whole.source}; {memory_source}" if memory else None,
        memory_bytes=one.memory_bytes
        or (whole.memory_bytes * memory if whole.memory_bytes and memory else None),
    )


def _compute_share(one: MigSlice) -> tuple[float, str]:
    if one.multiprocessors and one.gpu_multiprocessors:
        share = one.multiprocessors / one.gpu_multiprocessors
        return share, (
            f"× {one.multiprocessors} of {one.gpu_multiprocessors} multiprocessors of MIG {one.profile} ({one.count_source})"
        )
    found = _NAME.fullmatch(one.name)
    slices = int(found["part"] or found["compute"]) if found else _COMPUTE_SLICES
    total = 4 if _FOUR_SLICE_GPUS.search(one.gpu) else _COMPUTE_SLICES
    return slices / total, f"× {slices} of {total} compute slices of MIG {one.profile} ({_GUIDE})"


def _memory_share(one: MigSlice, gpu_bytes: float | None) -> tuple[float | None, str]:
    """Capacity and bandwidth come in eighths, and a profile's name rounds its gigabytes."""
    found = _NAME.fullmatch(one.name)
    if found is None or not gpu_bytes:
        return None, ""
    eighths = max(1, min(_MEMORY_SLICES, round(float(found["gb"]) * 2**30 / gpu_bytes * _MEMORY_SLICES)))
    shared = ", shared with the other compute instances" if found["part"] else ""
    return (
        eighths / _MEMORY_SLICES,
        f"× {eighths} of {_MEMORY_SLICES} memory slices of MIG {one.profile}{shared} ({_GUIDE})",
    )


# Query the driver for the MIG slice of a CUDA device and its size; no torch.


_PROBE_S = 10.0
_CORES_OF_A100 = 64
_CORES = 128
"""FP32 cores of a multiprocessor: 64 in compute capability 8.0, 128 in every later one that can be cut."""


def listed_slices() -> list[MigSlice]:
    """Return every slice listed by the driver."""
    tool = find_program("nvidia-smi")
    listed = _query(tool, "-L") if tool is not None else ""
    return [one for gpu in parse_list(listed) for one in gpu.slices]


def detect_slice(index: int) -> MigSlice | Literal["unclear"] | None:
    """Return the slice that ``cuda:<index>`` is, with all information of the driver; ``None``: a whole GPU."""
    tool = find_program("nvidia-smi")
    listed = _query(tool, "-L") if tool is not None else ""
    # Nearly every machine: one short query, and no slice in the result.
    if tool is None or "MIG " not in listed:
        return None
    gpus = parse_list(listed)
    chosen = visible_slice(gpus, index)
    return _describe_slice(chosen, gpus, tool) if isinstance(chosen, MigSlice) else chosen


def _describe_slice(one: MigSlice, gpus: list[ListedGpu], tool: str) -> MigSlice:
    """Add multiprocessors and memory: from nvidia-ml-py, else from the driver's list of profiles."""
    reported = _from_nvml(one)
    if reported.multiprocessors is not None:
        return reported
    number = next((place for place, gpu in enumerate(gpus) if gpu.uuid == one.gpu_uuid), 0)
    return with_profile(reported, _query(tool, "mig", "-lgip"), number)


def _from_nvml(one: MigSlice) -> MigSlice:
    if one.uuid is None or one.gpu_uuid is None or not has_package(gpu.MODULE):
        return one
    library: Any = import_optional(gpu.MODULE)
    try:
        library.nvmlInit()
    except library.NVMLError:
        return one  # no driver library, or a version mismatch: the other ways remain
    try:
        part = library.nvmlDeviceGetHandleByUUID(one.uuid)
        whole = library.nvmlDeviceGetHandleByUUID(one.gpu_uuid)
        sizes = library.nvmlDeviceGetAttributes(part)
        capability = tuple(library.nvmlDeviceGetCudaComputeCapability(whole))
        cores = int(library.nvmlDeviceGetNumGpuCores(whole))
    except gpu.refusals(library):
        return one  # not supported by an old driver
    finally:
        library.nvmlShutdown()
    return replace(
        one,
        memory_bytes=float(sizes.memorySizeMB) * 2**20,
        multiprocessors=int(sizes.multiprocessorCount),
        gpu_multiprocessors=cores // (_CORES_OF_A100 if capability == (8, 0) else _CORES),
        count_source="nvidia-ml-py",
    )


def _query(tool: str, *arguments: str) -> str:
    from llm_perf_opt.process.launch import run_probe

    try:
        answer = run_probe([tool, *arguments], timeout_s=_PROBE_S)
    except ToolError:
        return ""  # a driver tool that cannot be started gives no information
    return answer.stdout if answer.returncode == 0 else ""
