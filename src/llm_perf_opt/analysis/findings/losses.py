"""Time in which a device does not compute, by what it waits for: every loss above a stated share, whatever the rest does.

A loss is a part of a phase's budget that is not ``compute``. Its finding says who owns the time, and the advice follows
the owner. Where phases are known, time outside all of them is a loss of the whole capture.
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_perf_opt.analysis.findings.common import (
    phase_words,
    sources,
    span_seconds,
)
from llm_perf_opt.analysis.findings.host_syncs import operator_evidence
from llm_perf_opt.analysis.findings.loss_words import Loss, advice_for, title_for
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import DECODE, WHOLE
from llm_perf_opt.model.summary import Budget, Finding, Summary
from llm_perf_opt.model.summary.parallel import IdleOwner

MATTERS = 0.05
"""Share of the wall-clock from which a loss is worth a word."""
_IDS: dict[str, Loss] = {
    "communication": "exposed-communication",
    "copy": "copies",
    "sync": "host-sync",
    "launch": "launch-bound",
    "allocation": "allocation",
    "data": "input-pipeline",
    "host": "host-idle",
    "queue": "queued-work",
}


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a budget, as a share of the wall-clock it is a loss of."""

    name: str
    share: float
    captured_s: float
    owner: IdleOwner | None


def find(summary: Summary) -> list[Finding]:
    """Report the losses of every phase, and those of the whole capture that lie in no phase."""
    phases = [phase for phase in summary.budget if phase != WHOLE]
    found = [finding for phase in phases for finding in _of_phase(summary, phase)]
    whole = summary.budget.get(WHOLE)
    if whole is None:
        return found
    if not phases:
        return _of_phase(summary, WHOLE)
    return found + _between_phases(summary, whole, [summary.budget[phase] for phase in phases])


def _of_phase(summary: Summary, phase: str) -> list[Finding]:
    budget = summary.budget[phase]
    # Against the wall-clock, the budget is of one sample already, and prefill's without the vision timed inside it.
    seconds = budget.span_s if budget.profiled_span_s is not None else span_seconds(summary, phase)
    if seconds is None or budget.span_s <= 0:
        return []
    parts = [_Part(part.name, part.share_ratio, part.seconds, part.owner) for part in budget.parts]
    return [
        finding
        for part in parts
        if part.name in _IDS and part.share >= MATTERS
        for finding in _findings(summary, phase, part, seconds, budget)
    ]


def _between_phases(summary: Summary, whole: Budget, phases: list[Budget]) -> list[Finding]:
    """Losses outside every phase. Phases may overlap, so this is only what is left when all of them are taken off."""
    if any(budget.profiled_span_s is not None for budget in phases):
        return []  # the phases are per sample without the profiler, the whole is not
    found = []
    for part in whole.parts:
        inside = sum(one.seconds for budget in phases for one in budget.parts if one.name == part.name)
        left = part.seconds - inside
        if part.name in _IDS and whole.span_s > 0 and left >= MATTERS * whole.span_s:
            rest = _Part(part.name, left / whole.span_s, left, part.owner)
            found += _findings(summary, WHOLE, rest, whole.span_s, whole)
    return found


def _findings(summary: Summary, phase: str, part: _Part, seconds: float, budget: Budget) -> list[Finding]:
    loss = _IDS[part.name]
    gain = seconds * part.share
    if loss == "exposed-communication":
        return _communication(summary, phase, part, seconds, budget)
    evidence = [
        _evidence(part, phase, budget),
        *_owner_evidence(part.owner),
        *_gap_evidence(summary, phase, part),
        *_count_evidence(summary, loss, phase),
    ]
    return [
        Finding(
            id=loss,
            title=title_for(loss, part.owner, phase),
            phase=phase,
            evidence=[*evidence, *_inflation(budget), *sources(summary, "nsys", "trace")],
            gain_upper_s=None if loss == "queued-work" else gain,
            arithmetic=_arithmetic(seconds, part.share, gain),
            advice=advice_for(loss, part.owner, summary.hardware.kind),
            confidence="low" if loss == "queued-work" else "high" if part.owner is not None else "medium",
        )
    ]


def _communication(
    summary: Summary, phase: str, part: _Part, seconds: float, budget: Budget
) -> list[Finding]:
    """Split exposed communication into waiting for a rank that comes late, and moving data."""
    talk = summary.communication
    exposed = seconds * part.share
    found = []
    late = _straggler(summary)
    if late is not None:
        gain = min(seconds, exposed * late.of_others)
        if gain >= MATTERS * seconds:
            found.append(_late_rank(summary, phase, late, gain))
            exposed *= 1.0 - late.of_all
    if exposed < MATTERS * seconds:
        return found
    evidence = [
        f"only communication runs for {units.percent(part.share)} of {units.seconds(budget.span_s)} of {phase_words(phase)}"
    ]
    if talk is not None:
        evidence += [
            f"{one.name}: {units.count(one.count)} calls, {units.seconds(one.total_s)}, of it exposed "
            f"{units.seconds(one.exposed_s)}"
            + (
                f", bus bandwidth {units.bytes_per_s(one.bus_bytes_per_s)}"
                if one.bus_bytes_per_s is not None
                else ""
            )
            for one in talk.collectives[:3]
        ]
    how = f"{units.seconds(seconds)} × {units.percent(part.share)}"
    if found:
        how += " − waiting for the last rank"
    found.append(
        Finding(
            id="exposed-communication",
            title=title_for("exposed-communication", None, phase),
            phase=phase,
            evidence=[
                *evidence,
                *_owner_evidence(part.owner),
                *_inflation(budget),
                *sources(summary, "nsys", "trace"),
            ],
            gain_upper_s=exposed,
            arithmetic=f"{how} = at most {units.seconds(exposed)}",
            advice=advice_for("exposed-communication", None, summary.hardware.kind),
            confidence="high",
        )
    )
    return found


@dataclass(frozen=True, slots=True)
class _Late:
    """The waiting that one rank causes, as shares: ranks are compared over the whole capture, and phases may be many."""

    rank: int
    of_others: float
    """Waiting of a rank that waits ÷ communication of a rank (mean over all): what the run would be shorter by."""
    of_all: float
    """Mean waiting of all ranks ÷ communication of a rank."""
    share: float
    last_in: int | None
    waits_s: float


def _straggler(summary: Summary) -> _Late | None:
    talk = summary.communication
    if talk is None or talk.straggler is None or talk.total_s <= 0:
        return None
    row = next((one for one in summary.ranks if one.rank == talk.straggler), None)
    if row is None or row.causes_wait_s is None:
        return None
    others = max(1, len(summary.ranks) - 1)
    of_all = min(1.0, row.causes_wait_s / talk.total_s * others / (others + 1))
    return _Late(
        rank=talk.straggler,
        of_others=of_all * (others + 1) / others,
        of_all=of_all,
        share=talk.straggler_share_ratio or 0.0,
        last_in=row.last_in,
        waits_s=row.causes_wait_s * min(1.0, talk.exposed_s / talk.total_s),
    )


def _late_rank(summary: Summary, phase: str, late: _Late, gain: float) -> Finding:
    evidence = [
        f"rank {late.rank} enters last where {units.percent(late.share)} of the waiting in collectives arises; the other ranks "
        f"wait for it for {units.seconds(late.waits_s)} on average with nothing else to run",
        *([f"it is last in {late.last_in} collectives"] if late.last_in is not None else []),
    ]
    return Finding(
        id="straggler",
        title=f"Rank {late.rank} keeps the other ranks waiting",
        phase=phase,
        evidence=[*evidence, *sources(summary, "nsys", "trace")],
        gain_upper_s=gain,
        arithmetic=f"waiting of the other ranks for rank {late.rank}, mean over them, nothing else running: at most "
        f"{units.seconds(gain)}",
        advice=advice_for("straggler", None, summary.hardware.kind),
        confidence="high",
    )


def _evidence(part: _Part, phase: str, budget: Budget) -> str:
    doing = {
        "copy": "copies and fills alone occupy",
        "sync": "the device runs nothing, because the host had waited for it, for",
        "launch": "the device runs nothing while the host dispatches the next work for",
        "allocation": "the device runs nothing while memory is allocated or freed for",
        "data": "the device runs nothing while its next input is prepared for",
        "host": "the device runs nothing while the host does something else for",
        "queue": "the device runs nothing although work is in its queue for",
    }[part.name]
    return (
        f"{doing} {units.percent(part.share)} of {phase_words(phase)} ({units.seconds(part.captured_s)} of "
        f"{units.seconds(budget.span_s)})"
    )


def _owner_evidence(owner: IdleOwner | None) -> list[str]:
    if owner is None or (owner.range is None and owner.thread is None):
        return []
    where = f"in {owner.range}" if owner.range is not None else "outside every range and operator"
    share = (
        f", {units.percent(owner.share_ratio)} of the time looked at" if owner.share_ratio is not None else ""
    )
    thread = f"; thread: {owner.thread}" if owner.thread else ""
    return [f"{owner.what}: {where}{share}{thread}"]


def _gap_evidence(summary: Summary, phase: str, part: _Part) -> list[str]:
    """The longest gaps that belong to this owner."""
    if part.owner is None:
        return []
    mine = [
        gap
        for gap in summary.idle_gaps
        if gap.owner.what == part.owner.what and (phase == WHOLE or gap.phase == phase)
    ]
    if not mine:
        return []
    lengths = ", ".join(units.seconds(gap.seconds) for gap in mine[:4])
    text = f"longest gaps: {lengths}"
    frames = next((gap.frames for gap in mine if gap.frames), [])
    return [text + (f"; in the longest: {frames[-1]}" if frames else "")]


def _count_evidence(summary: Summary, loss: Loss, phase: str) -> list[str]:
    """What was counted per token says how the time comes about."""
    launches = summary.metrics.get("launches_per_token")
    if loss == "launch-bound" and phase == DECODE and launches is not None:
        return [f"{units.number(launches)} kernel launches per generated token"]
    return operator_evidence(summary, phase) if loss == "host-sync" else []


def _inflation(budget: Budget) -> list[str]:
    if budget.profiled_span_s is None or budget.inflation_ratio is None:
        return []
    return [
        f"measured against {units.seconds(budget.span_s)} without a profiler; the same work took "
        f"{units.seconds(budget.profiled_span_s)} under it ({units.number(budget.inflation_ratio)} times as long)"
    ]


def _arithmetic(seconds: float, share: float, gain: float) -> str:
    return f"{units.seconds(seconds)} × {units.percent(share)} = at most {units.seconds(gain)}"
