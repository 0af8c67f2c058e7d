"""Matrix products with narrow loads, because a dimension or an address is not a multiple of 16 bytes."""

from __future__ import annotations

import re

from llm_perf_opt.analysis.findings.common import kernel_seconds, share_of_sample, sources
from llm_perf_opt.analysis.findings.full_precision import is_full_precision
from llm_perf_opt.analysis.findings.kernel_rows import longest_named, seconds_of
from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Finding, Kernel, Summary

_ENOUGH = 0.05
_ALIGNED_BYTES = 16
"""The widest load of a thread, which kernels for aligned matrices use."""
_ALIGNMENT = re.compile(r"_align(?P<elements>[12])(?!\d)")
_PLAIN_CORES = re.compile(r"simt", re.IGNORECASE)
"""Kernels without matrix units load element by element whatever the alignment."""
_ELEMENT_BYTES = (
    (1, re.compile(r"_(s8|u8|i8|e4m3|e5m2)|_i\d+gemm")),
    (2, re.compile(r"bf16|f16|_h\d+gemm")),
    (8, re.compile(r"_d\d+gemm|f64")),
    (4, re.compile(r"tf32|_s\d+gemm|f32")),
)


def find(summary: Summary) -> list[Finding]:
    """Report CUTLASS products whose names say that they load one or two elements at a time."""
    total = kernel_seconds(summary, lambda k: True)
    rows = [kernel for kernel in summary.kernels if _narrowing(kernel) is not None]
    narrow = seconds_of(rows)
    if not total or narrow / total < _ENOUGH:
        return []
    saved = sum((k.total_s or 0.0) * (1 - 1 / (_narrowing(k) or 1.0)) for k in rows)
    widest = max(_narrowing(kernel) or 1.0 for kernel in rows)
    return [
        Finding(
            id="misaligned-gemm",
            title="Matrix products run with narrow loads: a dimension is not a multiple of 16 bytes",
            phase=None,
            evidence=[
                f"{units.percent(narrow / total)} of kernel time in products whose names end in align1 or align2",
                *longest_named(rows),
                *sources(summary, "nsys", "trace"),
            ],
            gain_upper_s=share_of_sample(summary, saved / total),
            arithmetic=f"{units.seconds(narrow)} of {units.seconds(total)} kernel time; aligned loads of {_ALIGNED_BYTES} "
            f"bytes are up to {units.number(widest)} times as wide, so at most {units.seconds(saved)} can go",
            advice="Pad the dimension to a multiple of 8 elements of 2 bytes (4 of 4 bytes): vocabulary, hidden size, "
            "sequence length, or the start of a slice.",
            confidence="medium",
        )
    ]


def _narrowing(kernel: Kernel) -> float | None:
    """Return how many times as wide the loads of an aligned product would be; ``None`` for other kernels."""
    match = _ALIGNMENT.search(kernel.name)
    if (
        match is None
        or kernel.family != "gemm"
        or _PLAIN_CORES.search(kernel.name)
        or is_full_precision(kernel)
    ):
        return None
    size = next((size for size, pattern in _ELEMENT_BYTES if pattern.search(kernel.name)), None)
    if size is None or (wide := _ALIGNED_BYTES / (size * int(match["elements"]))) <= 1:
        return None
    return wide
