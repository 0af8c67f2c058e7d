"""Decode slows down as the key-value cache grows."""

from __future__ import annotations

from llm_perf_opt.analysis.findings.common import phase_seconds, sources
from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Finding, Summary

_BYTES_SHARE = 0.3
_GROWTH = 1.15


def find(summary: Summary) -> list[Finding]:
    """Report when the cache is a large part of what a decode step reads, or when steps measurably slow down."""
    phase = summary.static.phases.get("decode") if summary.static is not None else None
    growth = summary.metrics.get("tpot_growth_ratio")
    evidence: list[str] = []
    share = None
    if phase is not None and phase.kv_bytes and phase.weight_bytes is not None:
        share = phase.kv_bytes / (phase.kv_bytes + phase.weight_bytes)
        if share >= _BYTES_SHARE:
            evidence.append(
                f"the cache is {units.percent(share)} of the bytes a decode step must read "
                f"({units.size(phase.kv_bytes)} of {units.size(phase.kv_bytes + phase.weight_bytes)})"
            )
    if growth is not None and growth >= _GROWTH:
        evidence.append(
            f"the last quarter of the tokens takes {units.number(growth)} times as long as the first"
        )
    if not evidence:
        return []
    seconds = phase_seconds(summary, "decode")
    gain = None
    if seconds is not None and growth is not None and growth >= _GROWTH:
        gain = seconds * (1 - 2 / (1 + growth))
        arithmetic = (
            f"if every step were as fast as the first quarter: {units.seconds(seconds)} × (1 − 2/(1 + "
            f"{units.number(growth)})) = {units.seconds(gain)}"
        )
    elif seconds is not None and share is not None:
        gain = seconds * share
        arithmetic = f"{units.seconds(seconds)} × {units.percent(share)} of the bytes = {units.seconds(gain)}"
    else:
        arithmetic = "decode was not timed"
    return [
        Finding(
            id="kv-cache-growth",
            title="The key-value cache weighs on decode",
            phase="decode",
            evidence=[*evidence, *sources(summary, "static", "timings")],
            gain_upper_s=gain,
            arithmetic=arithmetic,
            advice="Shorten the prompt (fewer image tokens: infer.mode, infer.max_tiles), keep keys and values in fewer bits "
            "(model.cache_dtype=bfloat16, or float8 where the answers stand it), use grouped heads or a sliding window where "
            "the model allows it.",
            confidence="medium",
        )
    ]
