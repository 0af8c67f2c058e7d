"""Many small element-by-element kernels where one fused kernel would do."""

from __future__ import annotations

from llm_perf_opt.analysis.findings.common import kernel_seconds, share_of_sample, sources
from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Finding, Summary

_FAMILIES = ("elementwise", "reduction", "reduce", "norm", "softmax", "activation", "rope")
_ENOUGH = 0.2


def find(summary: Summary) -> list[Finding]:
    """Report when a fifth of the kernel time goes into kernels a compiler could fuse."""
    total = kernel_seconds(summary, lambda k: True)
    rows = [k for k in summary.kernels if k.family in _FAMILIES]
    small = sum(k.total_s or 0.0 for k in rows)
    if not total or small / total < _ENOUGH:
        return []
    share = small / total
    launches = sum(k.launches or 0 for k in rows)
    return [
        Finding(
            id="unfused-elementwise",
            title="Small element-by-element kernels take a large share",
            phase=None,
            evidence=[
                f"{units.percent(share)} of kernel time in {units.count(launches)} launches of {len(rows)} "
                "element-wise, norm and reduction kernels",
                *sources(summary, "nsys", "trace"),
            ],
            gain_upper_s=share_of_sample(summary, share),
            arithmetic=f"{units.seconds(small)} of {units.seconds(total)} kernel time; fusing cannot save more "
            "than all of it",
            advice="Compile the model (model.compile=true) or use fused norm, rotary and activation kernels.",
            confidence="medium",
        )
    ]
