"""Kernels too small to fill the device."""

from __future__ import annotations

from llm_perf_opt.analysis.findings.common import kernel_seconds, share_of_sample, sources
from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Finding, Kernel, Summary

_ENOUGH = 0.05


def _underfilled(kernel: Kernel) -> bool:
    waves = kernel.counters.get("waves")
    return kernel.bound == "underfilled" or (waves is not None and waves < 1.0)


def find(summary: Summary) -> list[Finding]:
    """Report when kernels whose grid is less than one wave take a noticeable part of the kernel time."""
    rows = [k for k in summary.kernels if k.counters_stand_for_run and _underfilled(k)]
    total = kernel_seconds(summary, lambda k: True)
    small = sum(k.total_s or 0.0 for k in rows)
    if not rows or (total and small / total < _ENOUGH):
        return []
    share = small / total if total else None
    best = max(rows, key=lambda k: (k.total_s or 0.0, k.short_name))
    waves = [w for k in rows if (w := k.counters.get("waves")) is not None]
    evidence = [
        f"{len(rows)} kernels, among them {best.short_name}"
        + (f" (waves per device {units.number(min(waves))} to {units.number(max(waves))})" if waves else "")
    ]
    if share is not None:
        evidence.append(f"together {units.percent(share)} of the kernel time")
    return [
        Finding(
            id="underfilled-grids",
            title="Kernels are too small to fill the device",
            phase=None,
            evidence=[*evidence, *sources(summary, "ncu")],
            gain_upper_s=share_of_sample(summary, share) if share is not None else None,
            arithmetic=f"{units.seconds(small)} of {units.seconds(total)} kernel time"
            if total
            else "kernel times unknown without a timeline",
            advice="Give each launch more work: a larger infer.batch_size, grouped or batched matrix products for experts "
            "(model.experts_implementation=grouped_mm), split-K.",
            confidence="high" if share is not None else "medium",
        )
    ]
