"""Matrix products with narrow loads, because a dimension or an address is not a multiple of 16 bytes."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.analysis.findings.common import kernel_seconds, share_of_sample, sources
from llm_perf_opt.analysis.findings.kernels.full_precision import is_full_precision
from llm_perf_opt.analysis.findings.kernels.kernel_rows import longest_named, seconds_of
from llm_perf_opt.analysis.kernels.alignment import ALIGNED_BYTES, load_narrowing
from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Finding, Kernel, Summary

_ENOUGH = 0.05
_COUNTED = 0.9
"""Share of their time whose work must be known before their rate is compared."""


def find(summary: Summary) -> list[Finding]:
    """Report CUTLASS products whose names say that they load one or two elements at a time."""
    total = kernel_seconds(summary, lambda k: True)
    rows = [kernel for kernel in summary.kernels if _narrowing(kernel) is not None]
    narrow = seconds_of(rows)
    if not total or narrow / total < _ENOUGH:
        return []
    at_rate = _at_aligned_rate(summary, narrow)
    measured = _above_measured(rows, narrow)
    if measured is not None:
        saved = at_rate = measured
        how = f"at the best measured times of these shapes {units.seconds(saved)} of it would go"
    elif at_rate is not None:
        saved = at_rate
        how = f"at the rate of the aligned products in the same capture {units.seconds(saved)} of it would go"
    else:
        saved = sum((k.total_s or 0.0) * (1 - 1 / (_narrowing(k) or 1.0)) for k in rows)
        widest = max(_narrowing(kernel) or 1.0 for kernel in rows)
        how = (
            f"aligned loads of {ALIGNED_BYTES} bytes are up to {units.number(widest)} times as wide, so at most "
            f"{units.seconds(saved)} can go"
        )
    if at_rate is not None and at_rate / total < _ENOUGH:
        return []
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
            arithmetic=f"{units.seconds(narrow)} of {units.seconds(total)} kernel time; {how}",
            advice="Pad the dimension to a multiple of 8 elements of 2 bytes (4 of 4 bytes): vocabulary, hidden size, "
            "sequence length (infer.pad_to_multiple=8), or the start of a slice.",
            confidence="high" if at_rate is not None else "medium",
        )
    ]


def is_narrow(kernel: Kernel) -> bool:
    """Whether a product loads fewer bytes at a time than an aligned one would."""
    return _narrowing(kernel) is not None


def _narrowing(kernel: Kernel) -> float | None:
    """Return how many times as wide the loads of an aligned product would be; ``None`` for other kernels."""
    if kernel.family != "gemm" or is_full_precision(kernel):
        return None
    return load_narrowing(kernel.name)


def _above_measured(rows: Sequence[Kernel], narrow: float) -> float | None:
    """Return their time above the best measured of their shapes; ``None`` where it is not known of nearly all."""
    targets = [kernel.target for kernel in rows if kernel.target is not None]
    if sum(target.calls * target.measured_s for target in targets) < _COUNTED * narrow:
        return None
    if any(target.at_stake_s is None for target in targets):
        return None
    return sum(target.at_stake_s or 0.0 for target in targets)


def _at_aligned_rate(summary: Summary, narrow: float) -> float | None:
    """Return what the products would save at the rate of the aligned ones beside them; ``None`` where shapes do not tell."""
    flops, seconds, rate = (
        summary.metrics.get(name)
        for name in ("narrow_product_flops", "narrow_product_s", "wide_product_flops_per_s")
    )
    if not flops or not seconds or not rate or seconds < _COUNTED * narrow:
        return None
    return max(0.0, seconds - flops / rate) * narrow / seconds
