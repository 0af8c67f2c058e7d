"""Time spent moving or re-typing data instead of computing with it."""

from __future__ import annotations

from llm_perf_opt.analysis.findings.common import (
    kernel_seconds,
    part_share,
    phase_words,
    share_of_sample,
    sources,
    span_seconds,
)
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import PHASES, WHOLE
from llm_perf_opt.model.summary import Finding, Summary

_FAMILIES = ("copy", "cast", "copy/cast", "copy_cast", "memcpy", "transpose")
_ENOUGH_KERNELS = 0.1
_ENOUGH_COPIES = 0.1


def find(summary: Summary) -> list[Finding]:
    """Report copy and cast kernels, and copies between host and device that the timeline shows."""
    return [*_kernels(summary), *_transfers(summary)]


def _kernels(summary: Summary) -> list[Finding]:
    total = kernel_seconds(summary, lambda k: True)
    moved = kernel_seconds(summary, lambda k: k.family in _FAMILIES)
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
            advice="Look for .to(dtype), .contiguous(), cat and cache updates that copy; keep one data type "
            "and one layout.",
            confidence="medium",
        )
    ]


def _transfers(summary: Summary) -> list[Finding]:
    found = []
    for phase in (*PHASES, WHOLE):
        share, seconds = part_share(summary, phase, "copy"), span_seconds(summary, phase)
        if share is None or seconds is None or share < _ENOUGH_COPIES:
            continue
        if phase == WHOLE and any(p in summary.budget for p in PHASES):
            continue
        found.append(
            Finding(
                id="copies",
                title=f"{'The run' if phase == WHOLE else phase.capitalize()} waits for copies",
                phase=phase,
                evidence=[
                    f"copies and fills alone occupy {units.percent(share)} of {phase_words(phase)}",
                    *sources(summary, "nsys", "trace"),
                ],
                gain_upper_s=seconds * share,
                arithmetic=f"{units.seconds(seconds)} × {units.percent(share)} = {units.seconds(seconds * share)}",
                advice="Pin host memory, copy asynchronously, prepare the next input while the device computes.",
                confidence="high",
            )
        )
    return found
