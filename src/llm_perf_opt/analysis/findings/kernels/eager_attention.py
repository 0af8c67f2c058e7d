"""Attention as separate kernels: scores are written to memory, scaled, masked and normalised by themselves.

A softmax of attention runs once per layer, between two batched matrix products. The softmax that chooses a token
runs once per step, that of a router is small: neither reaches the share of time and the company asked for here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from llm_perf_opt.analysis.findings.common import kernel_seconds, share_of_sample, sources
from llm_perf_opt.analysis.findings.kernels.kernel_rows import (
    launches_of,
    longest_named,
    mean_launch_s,
    seconds_of,
)
from llm_perf_opt.analysis.kernels.attention import attention_kind
from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Finding, Kernel, Summary

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


def find(summary: Summary) -> list[Finding]:
    """Report the kernels that attention without a fused kernel needs: by their order where a timeline tells it."""
    pieces = summary.metrics.get("attention_pieces_s")
    return _by_names(summary) if pieces is None else _by_order(summary, pieces)


def _by_order(summary: Summary, pieces: float) -> list[Finding]:
    """What runs between the two products of attention, each time it runs."""
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
    """Without an order: softmax kernels by their company, and what scales and masks around them by number and size."""
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
    """Return the kernels whose time this finding has; none where it does not speak."""
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
    """Return whether softmax stands in layers, beside products, and no fused kernel does their work."""
    if parts.fused >= parts.launches:
        return False
    if parts.batched >= _BATCHED_PER_SOFTMAX * parts.launches:
        return True
    return _LEAST_PRODUCTS <= parts.products / parts.launches <= _MOST_PRODUCTS


def _batched(summary: Summary, phase: str | None) -> int:
    named = [op for op in summary.operators if op.name in _BATCHED_OPERATORS]
    return sum(op.calls for op in named if op.phase == phase)


def _is_around(kernel: Kernel, softmax: Sequence[Kernel]) -> bool:
    """Return whether a kernel scales or masks scores: as often as a softmax (or twice, thrice), and of its size."""
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
            "and name the backend (torch.nn.attention.sdpa_kernel) to be told why."
        )
    return (
        "Use a fused attention kernel: model.attn_implementation=sdpa, or flash_attention_2 where it is installed; in a program "
        "of your own torch.nn.functional.scaled_dot_product_attention in place of matmul, softmax, matmul."
    )
