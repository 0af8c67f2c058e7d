"""The host stops inside a phase to wait for the device."""

from __future__ import annotations

from llm_perf_opt.analysis.findings.common import (
    sources,
)
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import WHOLE
from llm_perf_opt.model.summary import Finding, Summary

_SYNC_OPERATORS = ("aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero")
_PER_STEP = 2.0
"""One read per step is how generation stops at end-of-sequence; more than two is a habit."""


def find(summary: Summary) -> list[Finding]:
    """Report operators that force a wait inside decode; with a timeline, the wait itself is a loss of it."""
    return [] if "decode" in summary.budget else _by_operators(summary)


def _by_operators(summary: Summary) -> list[Finding]:
    """Without a timeline, counts per step are evidence of the habit, not of its cost."""
    evidence = operator_evidence(summary, "decode")
    if not evidence or summary.hardware.kind == "cpu":
        return []
    return [
        _finding(
            "decode",
            [*evidence, *sources(summary, "trace")],
            None,
            "counts only; a timeline would tell the cost",
            "medium",
        )
    ]


def operator_evidence(summary: Summary, phase: str) -> list[str]:
    """Name the operators that read results back more often than a step needs."""
    steps = summary.metrics.get("profiled_decode_steps")
    if phase != "decode" or not steps:
        return []
    rows = [
        op
        for op in summary.operators
        if op.phase == phase and op.name in _SYNC_OPERATORS and op.calls / steps > _PER_STEP
    ]
    return [f"{op.name} runs {units.number(op.calls / steps)} times per token" for op in rows]


def _finding(
    phase: str, evidence: list[str], gain: float | None, arithmetic: str, confidence: str
) -> Finding:
    return Finding(
        id="host-sync",
        title=f"{'The run' if phase == WHOLE else phase.capitalize()} stops to read results back to the host",
        phase=phase,
        evidence=evidence,
        gain_upper_s=gain,
        arithmetic=arithmetic,
        advice="Find .item(), .cpu(), .tolist(), nonzero and boolean indexing inside the loop (expert routing "
        "is the usual place) and keep the decision on the device.",
        confidence="high" if confidence == "high" else "medium",
    )
