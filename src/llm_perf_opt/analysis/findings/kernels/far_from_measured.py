"""Kernels that take much longer than the best measured time of their shape on their device."""

from __future__ import annotations

from llm_perf_opt.analysis.findings.common import kernel_seconds, share_of_sample, sources
from llm_perf_opt.analysis.findings.kernels import misaligned_gemm, old_flash_attention
from llm_perf_opt.analysis.targets.words import target_text
from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Finding, Kernel, Summary

_ENOUGH = 0.05
"""Share of kernel time that must be at stake."""
_FAR = 1.5
"""Times the best; tables of one shape and device lie within a few percent of one another, interpolation within ten."""
_FAR_FROM_MEDIAN = 1.25
"""A single good table is not enough: the kernel must be slow beside the usual ones too."""
_LEAST_EXCESS_S = 3e-6
"""Per call. Tables repeat one call, so that small operands are in a cache; what that saves is less than this."""
_NAMED = 3


def find(summary: Summary) -> list[Finding]:
    """Report kernels far from the best measured, where their time above it is a good part of all kernel time.

    Kernels whose time another finding already claims for a cause it can name are left to it.
    """
    total = kernel_seconds(summary, lambda k: True)
    claimed = _claimed(summary)
    rows = [kernel for kernel in summary.kernels if _is_far(kernel) and kernel.name not in claimed]
    rows.sort(key=lambda kernel: (-_stake(kernel), kernel.name))
    stake = sum(map(_stake, rows))
    if not total or stake / total < _ENOUGH:
        return []
    exact = all(kernel.target is not None and kernel.target.how == "measured" for kernel in rows)
    left = len(rows) - _NAMED
    more = [f"{left} more with {units.seconds(sum(map(_stake, rows[_NAMED:])))} at stake"] if left > 0 else []
    return [
        Finding(
            id="far-from-measured",
            title="Kernels take much longer than was measured for their shapes on this device",
            phase=None,
            evidence=[*(_evidence(kernel) for kernel in rows[:_NAMED]), *more, *sources(summary, "trace")],
            gain_upper_s=share_of_sample(summary, stake / total),
            arithmetic=f"{' + '.join(_term(kernel) for kernel in rows[:_NAMED])}{' + …' if left > 0 else ''} = "
            f"{units.seconds(stake)} above the best measured, of {units.seconds(total)} kernel time",
            advice="Find out why another kernel was not chosen: sizes that are no multiple of 8 elements (pad them), an old "
            "library (update torch, cuBLAS, cuDNN), another clock or another process on the device, an attention "
            "implementation that is not the newest, a backend for experts that is not the framework's best.",
            confidence="high" if exact else "medium",
        )
    ]


def _claimed(summary: Summary) -> set[str]:
    names: set[str] = set()
    if misaligned_gemm.find(summary):
        names |= {kernel.name for kernel in summary.kernels if misaligned_gemm.is_narrow(kernel)}
    if old_flash_attention.find(summary):
        names |= {kernel.name for kernel in summary.kernels if old_flash_attention.is_old(kernel)}
    return names


def _is_far(kernel: Kernel) -> bool:
    target = kernel.target
    if target is None or target.at_stake_s is None:
        return False
    return (
        target.ratio >= _FAR
        and target.measured_s >= _FAR_FROM_MEDIAN * target.median_s
        and target.measured_s - target.best_s >= _LEAST_EXCESS_S
    )


def _stake(kernel: Kernel) -> float:
    return (kernel.target.at_stake_s or 0.0) if kernel.target is not None else 0.0


def _evidence(kernel: Kernel) -> str:
    target = kernel.target
    if target is None:
        return kernel.short_name
    shape = f", {target.shapes[0]}" if target.shapes else ""
    return f"{kernel.short_name}: {target_text(target)}{shape}"


def _term(kernel: Kernel) -> str:
    target = kernel.target
    if target is None:
        return ""
    return (
        f"{units.count(target.calls)} × ({units.seconds(target.measured_s)} − {units.seconds(target.best_s)})"
    )
