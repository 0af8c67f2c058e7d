"""Positions that are computed only because sequences in a batch differ in length."""

from __future__ import annotations

from llm_perf_opt.analysis.findings.common import phase_seconds, sources
from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Finding, Summary

_ENOUGH = 0.1


def find(summary: Summary) -> list[Finding]:
    """Report when a tenth or more of the prompt positions is padding."""
    share = summary.metrics.get("padding_ratio")
    if share is None or share < _ENOUGH:
        return []
    seconds = phase_seconds(summary, "prefill")
    gain = seconds * share if seconds is not None else None
    return [
        Finding(
            id="padding-waste",
            title="Padding takes part of every batch",
            phase="prefill",
            evidence=[
                f"{units.percent(share)} of the prompt positions are padding",
                *sources(summary, "timings"),
            ],
            gain_upper_s=gain,
            arithmetic=f"{units.seconds(seconds)} × {units.percent(share)} = {units.seconds(gain)}",
            advice="Batch requests of similar length (infer.bucket_by_length=true), or use a runtime that packs sequences.",
            confidence="high",
        )
    ]
