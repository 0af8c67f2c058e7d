"""The part of the model that loses most against the hardware's limits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from llm_perf_opt.analysis.findings.common import sample_seconds, sources
from llm_perf_opt.analysis.ncu.vendor_gains import phase_times
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import REQUEST_PHASES
from llm_perf_opt.model.statistics import decode_steps
from llm_perf_opt.model.summary import Finding, LedgerRow, Summary

_WORTH = 0.1
"""Least share of a sample's wall-clock that the gap must take."""
_MOSTLY = 0.6
"""A child that explains this much of its parent's gap is the better name for it."""
_COMPILED = {
    "vision": "a compiled version (model.compile_vision=true)",
    "decode": "a compiled version (model.compile=true with model.cache=static)",
}
_WAITING = ("launch", "sync", "copy")
"""Verdicts on phases that wait: their time above the floor is nobody's fault in particular, and other rules tell."""


@dataclass(slots=True)
class _Group:
    """The same module in all layers: ``model.layers.*.mlp``."""

    path: str
    measured_s: float = 0.0
    floor_s: float = 0.0
    rows: list[LedgerRow] = field(default_factory=list)

    @property
    def gap_s(self) -> float:
        return self.measured_s - self.floor_s


def find(summary: Summary) -> list[Finding]:
    """Report, per phase, the module whose measured time is farthest above its roofline floor."""
    total = sample_seconds(summary)
    found = []
    for phase in REQUEST_PHASES:
        verdict = summary.verdicts.get(phase)
        if verdict is not None and verdict.bound in _WAITING:
            continue
        steps = decode_steps(summary.timings) if phase == "decode" else 1.0
        if steps is None:
            continue  # rows are of one step: how many a sample has is not known
        group = _largest_gap([row for row in summary.ledger if row.phase == phase and row.depth > 0])
        if group is not None and total and group.gap_s * steps >= _WORTH * total:
            found.append(_finding(summary, phase, group, steps))
    return found


def _largest_gap(rows: Sequence[LedgerRow]) -> _Group | None:
    """Descend from the model to the innermost module that still explains most of the gap."""
    groups: dict[str, _Group] = {}
    for row in rows:
        if row.measured_s is None or row.floor_s is None:
            continue
        path = re.sub(r"\.\d+(?=\.|$)", ".*", row.module)
        group = groups.setdefault(path, _Group(path))
        group.measured_s += row.measured_s
        group.floor_s += row.floor_s
        group.rows.append(row)
    level = [group for path, group in groups.items() if path.rpartition(".")[0] not in groups]
    best = max(level, key=lambda group: group.gap_s, default=None)
    while best is not None:
        children = [group for path, group in groups.items() if path.rpartition(".")[0] == best.path]
        inner = max(children, key=lambda group: group.gap_s, default=None)
        if inner is None or inner.gap_s < _MOSTLY * best.gap_s:
            return best
        best = inner
    return None


def _finding(summary: Summary, phase: str, group: _Group, steps: float) -> Finding:
    measured, floor, gap = (value * steps for value in (group.measured_s, group.floor_s, group.gap_s))
    whole = phase_times(summary).get(phase)
    share = f" ({units.percent(group.measured_s / whole)} of {phase})" if whole else ""
    evidence = [
        f"{group.path} takes {units.seconds(measured)} per sample{share}, its floor is {units.seconds(floor)}"
    ]
    if len(group.rows) > 1:
        largest = max(group.rows, key=lambda row: (row.measured_s or 0.0) - (row.floor_s or 0.0))
        own = (largest.measured_s or 0.0) * steps
        evidence.append(f"largest of {len(group.rows)}: {largest.module} with {units.seconds(own)}")
    origins = sorted({row.measured_source for row in group.rows if row.measured_source})
    evidence.append(f"time by {', '.join(origins)}; floor by the static model and {summary.hardware.name}")
    name = ".".join(group.path.split(".")[-3:])
    return Finding(
        id="module-gap",
        title=f"{name} is farthest from the hardware's limit in {phase}",
        phase=phase,
        evidence=[*evidence, *sources(summary, "static", "trace", "nsys")],
        gain_upper_s=gap,
        arithmetic=f"{units.seconds(measured)} − {units.seconds(floor)} = {units.seconds(gap)}",
        advice=f"Start with {group.path}: {_ways(summary, phase, group.path)}.",
        # Tried on a processor, compiling the decode step closed a good part of such a gap, compiling an encoder little of it.
        confidence="low" if summary.hardware.kind == "cpu" and phase != "decode" else "medium",
    )


def _ways(summary: Summary, phase: str, path: str) -> str:
    """Say what may help this part of the model in this phase, by the setting that does it.

    Half precision is no promise on a processor: small products get slower by it; and there is no better attention for it than
    the one that is taken anyhow (docs/improve.md).
    """
    within = path.rpartition(".")[2]
    found = [_COMPILED.get(phase, "a fused version")]
    on_cpu = summary.hardware.kind == "cpu"
    if not on_cpu and phase != "decode" and not re.search(r"mlp|expert|moe|norm|head|embed", within):
        found.append("another attention (model.attn_implementation)")
    mixture = any("experts" in row.module.split(".") for row in summary.ledger)
    if (
        mixture
        and phase in ("prefill", "decode")
        and not re.search(r"attn|attention|norm|head|embed", within)
    ):
        found.append(f"for experts another implementation (model.{phase}_experts_implementation)")
    if not on_cpu:
        found.append("a lower precision (model.dtype=bfloat16)")
    if phase == "decode":
        found.append("weights of fewer bits (model.quantise_weights=int8)")
    return f"{', '.join(found)}, or less work for it"
