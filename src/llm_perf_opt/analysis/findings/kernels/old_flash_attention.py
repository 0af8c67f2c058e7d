"""FlashAttention 2 on devices for which newer makes were written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from llm_perf_opt.analysis.findings.common import kernel_seconds, share_of_sample, sources
from llm_perf_opt.analysis.findings.kernels.kernel_rows import longest_named, mean_launch_s, seconds_of
from llm_perf_opt.analysis.kernels.attention import FLASH_2, attention_kind
from llm_perf_opt.core import units
from llm_perf_opt.core.packaged import packaged_rows
from llm_perf_opt.model.summary import Finding, Kernel, Summary

_ENOUGH = 0.05
_SHORTEST_S = 20e-6
"""Shorter launches are short sequences or single tokens: bound by latency and by reading the cache, for which nobody
published what a newer make gains."""
_DECODE = re.compile(r"splitkv|combine", re.IGNORECASE)
_BACKWARD = re.compile(r"_bwd|bwd_", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Generation:
    """Devices of one kind, and what is published about attention on them."""

    generation: str
    devices: re.Pattern[str]
    newer: str
    forward_ratio: float | None = None
    backward_ratio: float | None = None
    source: str | None = None


@lru_cache(maxsize=1)
def generations() -> tuple[Generation, ...]:
    """Return the table that ships with the package."""
    rows = packaged_rows("llm_perf_opt.analysis.findings.kernels", "attention_generations.yaml")
    return tuple(Generation(**{**row, "devices": re.compile(row["devices"], re.IGNORECASE)}) for row in rows)


def find(summary: Summary) -> list[Finding]:
    """Report long launches of FlashAttention 2 on a device that has newer makes."""
    generation = _generation(summary)
    total = kernel_seconds(summary, lambda k: True)
    rows = [kernel for kernel in summary.kernels if is_old(kernel)]
    if generation is None or not total or seconds_of(rows) / total < _ENOUGH:
        return []
    gain, arithmetic = _bound(generation, rows, total)
    return [
        Finding(
            id="old-flash-attention",
            title=f"FlashAttention 2 on a {generation.generation} device",
            phase=None,
            evidence=[
                f"{units.percent(seconds_of(rows) / total)} of kernel time in FlashAttention 2 on {_device(summary)}",
                *longest_named(rows),
                *sources(summary, "nsys", "trace"),
            ],
            gain_upper_s=share_of_sample(summary, gain / total) if gain is not None else None,
            arithmetic=arithmetic,
            advice=f"Try {generation.newer}: model.attn_implementation=flash_attention_3 (transformers), "
            "sdpa_kernel(SDPBackend.CUDNN_ATTENTION) in torch, or the engine's own switch; compare the outputs.",
            confidence="medium",
        )
    ]


def is_old(kernel: Kernel) -> bool:
    """Whether a kernel is a long launch of FlashAttention 2."""
    mean = mean_launch_s(kernel)
    if mean is None or mean < _SHORTEST_S or _DECODE.search(kernel.name):
        return False
    return attention_kind(kernel.name) == FLASH_2


def _bound(generation: Generation, rows: Iterable[Kernel], total: float) -> tuple[float | None, str]:
    """Return the most that the published ratios save, and how."""
    forward = seconds_of(k for k in rows if not _BACKWARD.search(k.name))
    backward = seconds_of(k for k in rows if _BACKWARD.search(k.name))
    of = f"of {units.seconds(total)} kernel time"
    if generation.forward_ratio is None or generation.backward_ratio is None:
        both = units.seconds(forward + backward)
        return None, f"{both} {of}; no published ratio for {generation.generation}, so no bound is given"
    parts = [(forward, generation.forward_ratio), (backward, generation.backward_ratio)]
    gain = sum(seconds * (1 - 1 / ratio) for seconds, ratio in parts)
    terms = [f"{units.seconds(s)} × (1 − 1/{units.number(ratio)})" for s, ratio in parts if s]
    return gain, f"{' + '.join(terms)} = {units.seconds(gain)} {of}; {generation.source}"


def _generation(summary: Summary) -> Generation | None:
    name = _device(summary)
    if name is None:
        return None
    return next((one for one in generations() if one.devices.search(name)), None)


def _device(summary: Summary) -> str | None:
    """Return the name of the devices; ``None`` where they differ or have none."""
    names = {device.name for device in summary.devices if device.name}
    if not names:
        return summary.hardware.name
    return next(iter(names)) if len(names) == 1 else None
