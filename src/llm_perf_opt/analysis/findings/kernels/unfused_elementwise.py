"""Many small or unfused element-by-element kernels where one fused kernel would do.

A long kernel is not small, whatever it is called. Two signs count: launches so short that starting and ending them is
most of their time; and longer ones where several run for every matrix product, which a fused model does not have.
"""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.analysis.findings.common import kernel_seconds, share_of_sample, sources, span_seconds
from llm_perf_opt.analysis.findings.kernels import eager_attention
from llm_perf_opt.analysis.findings.kernels.kernel_rows import (
    launches_of,
    longest_named,
    mean_launch_s,
    seconds_of,
)
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import WHOLE
from llm_perf_opt.model.summary import Finding, Kernel, Summary

_FAMILIES = ("elementwise", "reduction", "reduce", "norm", "softmax", "activation", "rope")
_PRODUCTS = ("gemm", "gemv", "conv", "moe")
_ENOUGH = 0.2
_MANY = 50
"""Launches; fewer are not a habit of the model."""
_SMALL_S = 10e-6
"""A launch costs its host 3 to 5 µs and a device about 2 µs to start and drain: below three of these, what the kernel
computes is the smaller part of what it costs."""
_LARGE_S = 1e-3
"""In 1 ms a device of 1 to 3 TB/s streams over a gigabyte: no launch between two layers of a model is that large."""
_UNFUSED_PER_PRODUCT = 2.0
"""A fused layer has four or five such kernels (two norms, rotary, activation) for four to seven products; one in
pieces has five for every norm alone."""


ADVICE = (
    "Compile the decode step (model.compile=true with model.cache=static) and the image encoder (model.compile_vision=true), or "
    "use fused norm, rotary and activation kernels."
)
_WORTH_IT = 0.01
"""Share of the wall-clock."""
_ENOUGH_SAVED = 0.08
"""Share of kernel time that fusing chains must be able to save."""


def find(summary: Summary) -> list[Finding]:
    """Report small or unfused kernels that a compiler could fuse: by their order where a timeline tells it."""
    saving = summary.metrics.get("kernel_chain_saving_s")
    return _by_names(summary) if saving is None else _by_order(summary, saving)


def _by_order(summary: Summary, saving: float) -> list[Finding]:
    """Chains of three and more such kernels between two heavy ones."""
    total = kernel_seconds(summary, lambda k: True)
    launches = summary.metrics.get("kernel_chain_launches") or 0.0
    if not total or launches < _MANY or saving / total < _ENOUGH_SAVED:
        return []
    gain = share_of_sample(summary, saving / total)
    span = span_seconds(summary, WHOLE)
    if gain is not None and span is not None and gain < _WORTH_IT * span:
        return []  # kernels are a small part of the time
    seconds = summary.metrics.get("kernel_chain_s") or 0.0
    rows = [kernel for kernel in summary.kernels if kernel.family in (*_FAMILIES, "copy")]
    return [
        Finding(
            id="unfused-elementwise",
            title="Element-by-element work runs in many small kernels",
            phase=None,
            evidence=[
                f"{units.percent(seconds / total)} of kernel time in {units.count(launches)} launches that follow one another in "
                f"{units.count(summary.metrics.get('kernel_chains'))} chains, {units.seconds(seconds / launches)} per launch",
                *longest_named(rows),
                *sources(summary, "nsys", "trace"),
            ],
            gain_upper_s=gain,
            arithmetic=f"{units.seconds(seconds)} of chains; one kernel for each takes as long as its longest part at least, so "
            f"at most {units.seconds(saving)} of {units.seconds(total)} kernel time can go",
            advice=ADVICE,
            confidence="medium",
        )
    ]


def _by_names(summary: Summary) -> list[Finding]:
    """Without an order: a fifth of the kernel time in small kernels, or in several for every product."""
    total = kernel_seconds(summary, lambda k: True)
    rows = _fusible(summary)
    seconds, launches = seconds_of(rows), launches_of(rows)
    if not total or not launches or launches < _MANY or seconds / total < _ENOUGH:
        return []
    share = seconds / total
    return [
        Finding(
            id="unfused-elementwise",
            title="Small element-by-element kernels take a large share",
            phase=None,
            evidence=[
                f"{units.percent(share)} of kernel time in {units.count(launches)} launches of {len(rows)} "
                f"element-wise, norm and reduction kernels, {units.seconds(seconds / launches)} per launch",
                *longest_named(rows),
                *_per_product(summary, launches),
                *sources(summary, "nsys", "trace"),
            ],
            gain_upper_s=share_of_sample(summary, share),
            arithmetic=f"{units.seconds(seconds)} of {units.seconds(total)} kernel time; fusing cannot save more "
            "than all of it",
            advice=ADVICE,
            confidence="medium",
        )
    ]


def _fusible(summary: Summary) -> list[Kernel]:
    taken = {id(kernel) for kernel in eager_attention.claimed(summary)}
    rows = [kernel for kernel in summary.kernels if kernel.family in _FAMILIES and id(kernel) not in taken]
    longest = _LARGE_S if _in_pieces(summary, rows) else _SMALL_S
    return [kernel for kernel in rows if (mean := mean_launch_s(kernel)) is not None and mean <= longest]


def _in_pieces(summary: Summary, rows: Sequence[Kernel]) -> bool:
    """Return whether several of these kernels run for every matrix product; without products nothing tells."""
    products = _products(summary)
    return bool(products) and launches_of(rows) >= _UNFUSED_PER_PRODUCT * products


def _products(summary: Summary) -> int:
    return launches_of(kernel for kernel in summary.kernels if kernel.family in _PRODUCTS)


def _per_product(summary: Summary, launches: int) -> list[str]:
    products = _products(summary)
    return [f"{units.number(launches / products)} such launches per matrix product"] if products else []
