"""Time spent moving or re-typing data instead of computing with it."""

from __future__ import annotations

from llm_perf_opt.analysis.findings.common import (
    kernel_seconds,
    share_of_sample,
    sources,
)
from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Finding, Summary

_FAMILIES = ("copy", "cast", "copy/cast", "copy_cast", "memcpy", "transpose")
_ENOUGH_KERNELS = 0.1


def find(summary: Summary) -> list[Finding]:
    """Report copy and cast kernels; copies that the copy engine makes are a loss of the timeline."""
    total = kernel_seconds(summary, lambda k: True)
    moved = kernel_seconds(summary, lambda k: k.family in _FAMILIES) - _claimed(summary)
    if not total or moved / total < _ENOUGH_KERNELS:
        return []
    share = moved / total
    return [
        Finding(
            id="copy-kernels",
            title="Copy and cast kernels take a noticeable share",
            phase=None,
            evidence=[
                f"{units.percent(share)} of kernel time in copy and cast kernels",
                *sources(summary, "nsys", "trace"),
            ],
            gain_upper_s=share_of_sample(summary, share),
            arithmetic=f"{units.seconds(moved)} of {units.seconds(total)} kernel time",
            advice="Let the cache be written in place (model.cache=preallocated) instead of growing by copies; look for "
            ".to(dtype), .contiguous() and cat; keep one data type and one layout.",
            confidence="medium",
        )
    ]


def _claimed(summary: Summary) -> float:
    """Copies inside attention in pieces and inside chains go with those."""
    return sum(
        summary.metrics.get(name) or 0.0 for name in ("attention_pieces_copy_s", "kernel_chain_copy_s")
    )
