"""A side whose device was shared is slower than it would be alone: what that leaves of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from llm_perf_opt.analysis.compare.origin import Side
from llm_perf_opt.model.comparison import GateResult
from llm_perf_opt.model.summary import Summary

_UNEQUAL_RATIO = 0.10
"""So much more of the device taken by others on one side than on the other, and the sides are not alike."""


def shared_notes(a: Side, b: Side) -> list[str]:
    """Say which side had to share its device, and with whom."""
    notes = []
    for side, name in ((a, "A"), (b, "B")):
        words = [shared for summary in side.summaries if (shared := _use(summary).get("shared"))]
        if words:
            runs = "" if len(side.summaries) == 1 else f" in {len(words)} of {len(side.summaries)} runs"
            notes.append(f"{name}: the device was shared{runs}: {words[0]}. Its times may be too long.")
    return notes


def discount_gates(gates: Sequence[GateResult], a: Side, b: Side, *, in_turns: bool) -> list[GateResult]:
    """Leave a gate undecided where its answer may come from others' use of one side's device.

    Sharing makes slower, never faster. So a regression of a B that was shared more is not shown, nor is a pass against
    an A that was shared more. Sides measured in turns had the same company.
    """
    more = _taken(b) - _taken(a)
    if in_turns or len(a.summaries) > 1 or len(b.summaries) > 1 or abs(more) <= _UNEQUAL_RATIO:
        return list(gates)
    doubtful = "regression" if more > 0 else "passed"
    name = "B" if more > 0 else "A"
    return [
        replace(gate, status="undecided", reason=f"{gate.reason}; but the device of {name} was shared")
        if gate.status == doubtful
        else gate
        for gate in gates
    ]


def _taken(side: Side) -> float:
    """Return how much of the device others took; where it is only known that they did, all of it."""
    use = _use(side.first)
    ratio = use.get("others_ratio")
    if isinstance(ratio, int | float):
        return float(ratio)
    return 1.0 if use.get("shared") else 0.0


def _use(summary: Summary) -> Mapping[str, Any]:
    use = summary.environment.get("device_use")
    return use if isinstance(use, Mapping) else {}
