"""Findings that no setting answers, and why: what is to be done is code, another program, or how it is measured."""

from __future__ import annotations

_CODE = (
    "its remedy is a change of code, which no setting makes (from Python: llm_perf_opt.try_remedy(patch=…))"
)
_MEASURING = "it is about how the run was measured; there is no time to gain"

UNANSWERED: dict[str, str] = {
    "exposed-communication": "experiments run in one process, and this takes several",
    "straggler": "experiments run in one process, and this takes several",
    "host-sync": _CODE,
    "host-idle": _CODE,
    "full-precision-kernels": _CODE,
    "more-work-than-needed": "its remedy is another engine, or a change of code",
    "input-pipeline": "inputs are prepared before an experiment's clock starts",
    "queued-work": "what holds the device is not known",
    "noisy-timings": _MEASURING,
    "profiler-pollution": _MEASURING,
    "warm-up-pollution": _MEASURING,
}
"""Finding → reason; ids that remedies answer in some phases only are here for the others."""
UNKNOWN = "no remedy is known"


def why_unanswered(finding_id: str) -> str:
    """Say why nothing is tried against a finding."""
    return UNANSWERED.get(finding_id, UNKNOWN)
