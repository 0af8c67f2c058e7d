"""Attention as separate kernels: scores are written to memory, scaled, masked and normalised by themselves.

A softmax of attention runs once per layer, between two batched matrix products. The softmax that chooses a token
runs once per step, that of a router is small: neither reaches the share of time or has the neighbouring kernels required here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from llm_perf_opt.analysis.findings.common import (
    kernel_seconds,
    launches_of,
    longest_named,
    mean_launch_s,
    phase_seconds,
    seconds_of,
    share_of_sample,
    sources,
)
from llm_perf_opt.analysis.kernels.families import FLASH_2, attention_kind
from llm_perf_opt.core import units
from llm_perf_opt.core.files import packaged_rows
from llm_perf_opt.summary import Finding, Kernel, Summary

_ENOUGH = 0.05
"""Share of kernel time from which softmax is worth a word: choosing tokens and routing stay below it."""
_LEAST_PRODUCTS, _MOST_PRODUCTS = 2.0, 16.0
"""Matrix products per softmax in a layer: two of attention itself and four to a dozen linear ones. More than that is
a softmax per step (a model of four layers has seventeen products per step), fewer is not attention."""
_BATCHED_PER_SOFTMAX = 1.5
"""Scores and values are two batched products per softmax; some of the launches may not be in the capture."""
_BATCHED_OPERATORS = ("aten::bmm", "aten::baddbmm", "aten::bmm.out", "aten::baddbmm_")
_MATH_OPERATOR = "aten::_scaled_dot_product_attention_math"
_LOGARITHM = re.compile(
    r"log_?softmax|softmax_warp_\w+<[^<>]*,\s*(?:\(int\))?\d+,\s*(?:true|\(bool\)1)\b", re.IGNORECASE
)
"""Losses and sampling take the logarithm, attention never does (fifth argument of torch's warp kernels)."""
_SCALE_OR_MASK = re.compile(
    r"MulFunctor|DivFunctor|CUDAFunctor\w*_add|masked_fill|where_kernel|tril|triu", re.IGNORECASE
)
_AROUND_AT_MOST = 3
"""Scaling, masking and one more: launches around each softmax."""
_SHORTEST, _LONGEST = 0.25, 2.0
"""Length of a launch over the scores ÷ that of the softmax: both read and write the scores once."""
_PRODUCTS = ("gemm", "gemv")


@dataclass(slots=True)
class _Phase:
    """The parts of eager attention in one phase."""

    phase: str | None
    softmax: list[Kernel]
    products: int
    fused: int
    batched: int
    around: list[Kernel] = field(default_factory=list)

    @property
    def launches(self) -> int:
        return launches_of(self.softmax)


def find_eager_attention(summary: Summary) -> list[Finding]:
    """Report the kernels that attention without a fused kernel needs: by their order where a timeline is available."""
    pieces = summary.metrics.get("attention_pieces_s")
    return _by_names(summary) if pieces is None else _by_order(summary, pieces)


def _by_order(summary: Summary, pieces: float) -> list[Finding]:
    """Find what runs between the two products of attention, in launch order."""
    total = kernel_seconds(summary, lambda k: True)
    if not total or pieces / total < _ENOUGH:
        return []
    math = any(op.name == _MATH_OPERATOR for op in summary.operators)
    softmax = [k for k in summary.kernels if k.family == "softmax" and not _LOGARITHM.search(k.name)]
    launches = summary.metrics.get("attention_pieces_launches") or 0.0
    times = summary.metrics.get("attention_pieces_softmax") or 0.0
    phases = {kernel.phase for kernel in softmax}
    return [
        Finding(
            id="eager-attention",
            title="Attention runs as separate kernels" + (" (the math path of SDPA)" if math else ""),
            phase=next(iter(phases)) if len(phases) == 1 else None,
            evidence=[
                f"{units.percent(pieces / total)} of kernel time in {units.count(launches)} kernels that run between two matrix "
                f"products with a softmax among them, {units.count(times)} times",
                *longest_named(softmax),
                *sources(summary, "nsys", "trace"),
            ],
            gain_upper_s=share_of_sample(summary, pieces / total),
            arithmetic=f"{units.seconds(pieces)} of {units.seconds(total)} kernel time: a fused kernel keeps the scores on the "
            "chip and has none of it; what it saves in the matrix products is not counted",
            advice=_advice(math),
            confidence="high",
        )
    ]


def _by_names(summary: Summary) -> list[Finding]:
    """Without launch order: identify softmax kernels by the kernels around them, and scaling and masking by count and
    size.
    """
    phases = _phases(summary)
    if not phases:
        return []
    total = kernel_seconds(summary, lambda k: True)
    softmax = [kernel for one in phases for kernel in one.softmax]
    around = [kernel for one in phases for kernel in one.around]
    share = (seconds_of(softmax) + seconds_of(around)) / total
    math = any(op.name == _MATH_OPERATOR for op in summary.operators)
    sure = all(one.batched >= _BATCHED_PER_SOFTMAX * one.launches for one in phases)
    extra = f" + {units.seconds(seconds_of(around))} of scaling and masking" if around else ""
    return [
        Finding(
            id="eager-attention",
            title="Attention runs as separate kernels" + (" (the math path of SDPA)" if math else ""),
            phase=phases[0].phase if len(phases) == 1 else None,
            evidence=[
                f"{units.percent(seconds_of(softmax) / total)} of kernel time in softmax",
                *longest_named(softmax),
                *(f"around it: {line}" for line in (longest_named(around) if around else [])),
                *(_company(one) for one in phases),
                *sources(summary, "nsys", "trace"),
            ],
            gain_upper_s=share_of_sample(summary, share),
            arithmetic=f"{units.seconds(seconds_of(softmax))} of softmax{extra} of {units.seconds(total)} kernel time: a "
            "fused kernel keeps the scores on the chip; what it saves in the matrix products is not counted",
            advice=_advice(math),
            confidence="high" if sure else "medium",
        )
    ]


def claimed(summary: Summary) -> list[Kernel]:
    """Return the kernels whose time this finding claims; empty if it does not apply."""
    return [kernel for one in _phases(summary) for kernel in (*one.softmax, *one.around)]


def _phases(summary: Summary) -> list[_Phase]:
    total = kernel_seconds(summary, lambda k: True)
    if not total:
        return []
    names = dict.fromkeys(kernel.phase for kernel in summary.kernels)
    found = [phase for name in names if (phase := _phase(summary, name)) is not None]
    return found if seconds_of(k for one in found for k in one.softmax) / total >= _ENOUGH else []


def _phase(summary: Summary, phase: str | None) -> _Phase | None:
    """Return the eager attention of one phase; ``None`` where its softmax is something else."""
    rows = [kernel for kernel in summary.kernels if kernel.phase == phase]
    softmax = [k for k in rows if k.family == "softmax" and k.launches and not _LOGARITHM.search(k.name)]
    parts = _Phase(
        phase=phase,
        softmax=softmax,
        products=launches_of(k for k in rows if k.family in _PRODUCTS),
        fused=launches_of(k for k in rows if attention_kind(k.name) is not None),
        batched=_batched(summary, phase),
    )
    if not parts.launches or not _is_attention(parts):
        return None
    parts.around = [k for k in rows if k.family == "elementwise" and _is_around(k, softmax)]
    return parts


def _is_attention(parts: _Phase) -> bool:
    """Return whether softmax appears in layers together with products, and no fused kernel does their work."""
    if parts.fused >= parts.launches:
        return False
    if parts.batched >= _BATCHED_PER_SOFTMAX * parts.launches:
        return True
    return _LEAST_PRODUCTS <= parts.products / parts.launches <= _MOST_PRODUCTS


def _batched(summary: Summary, phase: str | None) -> int:
    named = [op for op in summary.operators if op.name in _BATCHED_OPERATORS]
    return sum(op.calls for op in named if op.phase == phase)


def _is_around(kernel: Kernel, softmax: Sequence[Kernel]) -> bool:
    """Return whether a kernel scales or masks scores: it runs one to three times per softmax and has its size."""
    mean = mean_launch_s(kernel)
    if mean is None or kernel.launches is None or not _SCALE_OR_MASK.search(kernel.name):
        return False
    for one in softmax:
        times, rest = divmod(kernel.launches, one.launches or kernel.launches + 1)
        length = mean / (mean_launch_s(one) or mean)
        same_module = None in (kernel.module, one.module) or kernel.module == one.module
        if same_module and not rest and times <= _AROUND_AT_MOST and _SHORTEST <= length <= _LONGEST:
            return True
    return False


def _company(parts: _Phase) -> str:
    fused = (
        f"{units.count(parts.fused)} launches of fused attention"
        if parts.fused
        else "no fused attention kernel"
    )
    where = f" in {parts.phase}" if parts.phase else ""
    if parts.batched >= _BATCHED_PER_SOFTMAX * parts.launches:
        return f"{units.number(parts.batched / parts.launches)} batched matrix products per softmax{where}, {fused}"
    return f"{units.number(parts.products / parts.launches)} matrix products per softmax{where}, {fused}"


def _advice(math: bool) -> str:
    if math:
        return (
            "SDPA fell back to its math path: look for a mask, data type, head size or layout that no fused backend takes, "
            "and name the backend (torch.nn.attention.sdpa_kernel) to learn why."
        )
    return (
        "Use a fused attention kernel: model.attn_implementation=sdpa, or flash_attention_2 where it is installed; in a program "
        "of your own torch.nn.functional.scaled_dot_product_attention in place of matmul, softmax, matmul."
    )


# FlashAttention 2 on devices for which newer implementations exist.


_OLD_FLASH_ATTENTION_ENOUGH = 0.05
_SHORTEST_S = 20e-6
"""Shorter launches are short sequences or single tokens: bound by latency and by reading the cache, for which nobody
published what a newer make gains."""
_DECODE = re.compile(r"splitkv|combine", re.IGNORECASE)
_BACKWARD = re.compile(r"_bwd|bwd_", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Generation:
    """Devices of one kind, and the published attention results for them."""

    generation: str
    devices: re.Pattern[str]
    newer: str
    forward_ratio: float | None = None
    backward_ratio: float | None = None
    source: str | None = None


@lru_cache(maxsize=1)
def generations() -> tuple[Generation, ...]:
    """Return the table that ships with the package."""
    rows = packaged_rows("llm_perf_opt.analysis.findings", "attention_generations.yaml")
    return tuple(Generation(**{**row, "devices": re.compile(row["devices"], re.IGNORECASE)}) for row in rows)


def find_old_flash_attention(summary: Summary) -> list[Finding]:
    """Report long launches of FlashAttention 2 on a device that has newer implementations."""
    generation = _generation(summary)
    total = kernel_seconds(summary, lambda k: True)
    rows = [kernel for kernel in summary.kernels if is_old(kernel)]
    if generation is None or not total or seconds_of(rows) / total < _OLD_FLASH_ATTENTION_ENOUGH:
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
    """Return the most that can be saved according to the published ratios, and the derivation."""
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


# Decode slows down as the key-value cache grows.


_BYTES_SHARE = 0.3
_GROWTH = 1.15


def find_kv_cache_growth(summary: Summary) -> list[Finding]:
    """Report when the cache is a large part of what a decode step reads, or when steps measurably slow down."""
    phase = summary.static.phases.get("decode") if summary.static is not None else None
    growth = summary.metrics.get("tpot_growth_ratio")
    evidence: list[str] = []
    share = None
    if phase is not None and phase.kv_bytes and phase.weight_bytes is not None:
        share = phase.kv_bytes / (phase.kv_bytes + phase.weight_bytes)
        if share >= _BYTES_SHARE:
            evidence.append(
                f"the cache is {units.percent(share)} of the bytes a decode step must read "
                f"({units.size(phase.kv_bytes)} of {units.size(phase.kv_bytes + phase.weight_bytes)})"
            )
    if growth is not None and growth >= _GROWTH:
        evidence.append(
            f"the last quarter of the tokens takes {units.number(growth)} times as long as the first"
        )
    if not evidence:
        return []
    seconds = phase_seconds(summary, "decode")
    gain = None
    if seconds is not None and growth is not None and growth >= _GROWTH:
        gain = seconds * (1 - 2 / (1 + growth))
        arithmetic = (
            f"if every step were as fast as the first quarter: {units.seconds(seconds)} × (1 − 2/(1 + "
            f"{units.number(growth)})) = {units.seconds(gain)}"
        )
    elif seconds is not None and share is not None:
        gain = seconds * share
        arithmetic = f"{units.seconds(seconds)} × {units.percent(share)} of the bytes = {units.seconds(gain)}"
    else:
        arithmetic = "decode was not timed"
    return [
        Finding(
            id="kv-cache-growth",
            title="The key-value cache weighs on decode",
            phase="decode",
            evidence=[*evidence, *sources(summary, "static", "timings")],
            gain_upper_s=gain,
            arithmetic=arithmetic,
            advice="Shorten the prompt (fewer image tokens: infer.mode, infer.max_tiles), keep keys and values in fewer bits "
            "(model.cache_dtype=bfloat16, or float8 if the answers remain acceptable), use grouped heads or a sliding window where "
            "the model allows it.",
            confidence="medium",
        )
    ]
