"""Whether a model fits into memory, determined before it is loaded: from its configuration, without torch.

Weights, key-value cache and activations are estimated from the closed form of the architecture; an architecture
without one is not estimated, and the engine explains it when memory runs out.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.analysis.static.build import kv_resident_bytes
from llm_perf_opt.analysis.static.closed_forms import DECODERS, Decoder
from llm_perf_opt.config.devices import is_rocm, torch_backends
from llm_perf_opt.config.schema import CacheDtype, Dtype
from llm_perf_opt.core import units
from llm_perf_opt.core.errors import LlmPerfError
from llm_perf_opt.core.stage import Problem, Severity
from llm_perf_opt.hardware.detect import detect_device
from llm_perf_opt.workloads.models import loading
from llm_perf_opt.workloads.models.model_types import (
    checkpoint_quantisation,
    loading_problem,
    named_config,
    reason_not_quantised,
)

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import AppConfig, ModelConfig

_BYTES = {Dtype.float32: 4, Dtype.bfloat16: 2, Dtype.float16: 2}
_CACHED_BYTES = {CacheDtype.bfloat16: 2, CacheDtype.float16: 2, CacheDtype.float8: 1}
_DEFAULT_PROMPT_TOKENS = 1024
"""Of a request whose length is not known yet: more than a made-up prompt, about a page."""
_OCR_FAMILIES = {"deepseek_ocr": "unlimited_ocr_text", "deepseek_ocr2": "deepseek_ocr2_text"}
_OCR_VISION_RATIO = 0.065
"""Parameters of the published image encoders, for each of the language model's."""
_ACTIVATION_WIDTHS = 8
"""Hidden-size vectors per position that are alive at once in a layer, about."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Estimated bytes of one workload."""

    weights: float
    cache: float
    activations: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.weights + self.cache + self.activations


def memory_problems(config: AppConfig, stage: str) -> list[Problem]:
    """Return problems of loading the model: a missing package, weights that do not fit, or a tight remainder."""
    if config.workload_command.command is not None:
        return []
    if (unloadable := loading_problem(config.model)) is not None:
        return [unloadable]
    available = available_bytes(config.resolved_device)
    chosen = _settled_dtype(config.model.dtype, config.resolved_device)
    need = memory_need(config, chosen)
    if available is None or need is None or need.total <= available:
        return []
    parts = (
        f"{units.size(need.weights)} of weights in {chosen.value}, {units.size(need.cache)} of cache, "
        f"{units.size(need.activations)} of activations"
    )
    where = "this machine" if config.resolved_device == "cpu" else config.resolved_device
    message = (
        f"{config.model.name} needs about {units.size(need.total)} ({parts}); "
        f"{where} has {units.size(available)}"
    )
    severity: Severity = "skip" if need.weights > available else "degraded"
    return [Problem(severity, message, _fixes(config, chosen, available, stage), "model")]


def loaded_need(config: AppConfig) -> MemoryNeed | None:
    """Estimate a workload's memory in the data type it is loaded in; ``None``: not known."""
    if config.workload_command.command is not None or loading_problem(config.model) is not None:
        return None
    return memory_need(config, _settled_dtype(config.model.dtype, config.resolved_device))


def memory_need(config: AppConfig, dtype: Dtype) -> MemoryNeed | None:
    """Estimate a workload's memory in a data type; ``None`` for an architecture without a closed form."""
    decoder = _decoder(config.model)
    if decoder is None or _is_smaller_as_stored(config):
        return None
    element = _BYTES[dtype]
    infer, prompt = config.infer, config.dataset.synthetic_tokens or _DEFAULT_PROMPT_TOKENS
    if decoder.context_limit is not None:
        prompt = min(prompt, decoder.context_limit)
    params = decoder.params() * (1 + _OCR_VISION_RATIO * (config.model.adapter in _OCR_FAMILIES))
    return MemoryNeed(
        weights=params * element,
        cache=kv_resident_bytes(
            decoder.kv_layers(_cached_bytes(config.model, element)),
            prompt + infer.max_new_tokens,
            infer.batch_size,
        ),
        activations=float(infer.batch_size * prompt * decoder.hidden * _ACTIVATION_WIDTHS * element),
    )


def predicted_bytes(
    model: ModelConfig, element_bytes: int, batch_size: int, tokens: int
) -> dict[str, float] | None:
    """Estimate weights and cache of ``batch_size`` sequences of ``tokens``; ``None`` without a closed form."""
    decoder = _decoder(model)
    if decoder is None:
        return None
    vision = 1 + _OCR_VISION_RATIO * (model.adapter in _OCR_FAMILIES)
    found = {"weights": decoder.params() * vision * element_bytes}
    if batch_size * tokens:
        cached = decoder.kv_layers(_cached_bytes(model, element_bytes))
        found["cache"] = kv_resident_bytes(cached, tokens, batch_size)
    return found


def _cached_bytes(model: ModelConfig, element_bytes: int) -> int:
    return element_bytes if model.cache_dtype is None else _CACHED_BYTES[model.cache_dtype]


def _is_smaller_as_stored(config: AppConfig) -> bool:
    """Whether the stored weights are smaller than their data type: quantised ones are not estimated."""
    if checkpoint_quantisation(config.model) is None:
        return False
    return reason_not_quantised(config.model, config.resolved_device, measured=True) is None


def available_bytes(device: str) -> int | None:
    """Return the memory available to a model: free host memory, or all of a GPU; ``None``: not known."""
    return _host_bytes() if device == "cpu" else _accelerator_bytes(device)


def _fixes(config: AppConfig, chosen: Dtype, available: int, stage: str) -> str:
    """Describe what would fit, the smallest change first."""
    found = []
    for dtype in (Dtype.bfloat16, Dtype.float16):
        smaller = memory_need(config, dtype)
        if _BYTES[dtype] < _BYTES[chosen] and smaller is not None and smaller.total <= available:
            found.append(f"model.dtype={dtype.value} ({units.size(smaller.total)})")
            break
    found.append("a smaller model (model=llama_tiny)")
    found.append(f"without loading it, only what it must do: pipeline.{stage}.enable=false")
    return "; or ".join(found)


def _settled_dtype(wanted: Dtype, device: str) -> Dtype:
    if wanted is not Dtype.auto:
        return wanted
    return Dtype.float32 if device == "cpu" else Dtype.bfloat16


def _decoder(model: ModelConfig) -> Decoder | None:
    try:
        document = _document(model)
        kind = DECODERS.get(str(document.get("model_type")))
        return kind(document) if kind is not None else None
    except (
        LlmPerfError,
        KeyError,
        TypeError,
        ValueError,
        ZeroDivisionError,
    ):  # no such file, or a dimension that only the library knows
        return None


def _document(model: ModelConfig) -> dict[str, Any]:
    """Return the language model's configuration as far as it is recorded."""
    document: dict[str, Any] = {}
    if model.path is not None and Path(model.path).expanduser().is_dir():
        document = loading.read_json(Path(model.path).expanduser() / "config.json")
    elif model.config_name is not None:
        document = dict(named_config(model.config_name))
    document |= model.arch
    if model.adapter in _OCR_FAMILIES:
        text = document.get("text_config") or document.get("language_config") or {}
        document = {**text, "model_type": _OCR_FAMILIES[model.adapter]}
    return document


def _host_bytes() -> int | None:
    """Return the kernel's available memory, limited by the container."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    if "MemAvailable" not in fields:
        return None
    limits = [int(fields["MemAvailable"].split()[0]) * 1024]
    group = Path("/sys/fs/cgroup")
    try:
        most, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return limits[0]
    return min([*limits, *([int(most) - int(used)] if most.isdigit() else [])])


def _accelerator_bytes(device: str) -> int | None:
    """Return all memory of an accelerator: free memory is known only to a process that uses it."""
    kind, _, index = device.partition(":")
    if kind == "mps":
        return _host_bytes()  # one memory for both
    if kind == "cuda" and not is_rocm():
        return _cuda_bytes(int(index or 0))
    found = detect_device(device) if "torch" in sys.modules or not torch_backends() else None
    return None if found is None or found.memory_bytes is None else int(found.memory_bytes)


def _cuda_bytes(index: int) -> int | None:
    """Query the driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, total = ctypes.c_int(0), ctypes.c_size_t(0)
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), index):
        return None
    return None if driver.cuDeviceTotalMem_v2(ctypes.byref(total), device) else int(total.value)
