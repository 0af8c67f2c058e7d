"""Time in which a device does not compute, by cause: every loss above a stated share is reported.

A loss is a part of a phase's budget that is not ``compute``. Its finding names the owner of the time, and the advice
follows the owner. Where phases are known, time outside all of them is a loss of the whole capture.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from llm_perf_opt.analysis.findings.common import (
    describe_phase,
    part_share,
    phase_seconds,
    sources,
    span_seconds,
)
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import DECODE, PHASES, WHOLE, captured_count_name
from llm_perf_opt.summary import Budget, Finding, Summary
from llm_perf_opt.summary.devices import IdleOwner

# Titles of losses, and advice: the advice follows the owner of the time.


Loss = Literal[
    "exposed-communication",
    "straggler",
    "copies",
    "host-sync",
    "launch-bound",
    "allocation",
    "input-pipeline",
    "host-idle",
    "queued-work",
    "one-off-costs",
]
_TITLES: dict[Loss, str] = {
    "exposed-communication": "{who} waits for communication that is not overlapped",
    "straggler": "One rank keeps the others waiting",
    "copies": "{who} waits for copies",
    "host-sync": "{who} stops to wait for the device",
    "launch-bound": "{who} waits for the host to launch work",
    "allocation": "{who} waits for device memory to be allocated or freed",
    "input-pipeline": "{who} waits for its input",
    "host-idle": "{who} waits for the host between launches",
    "queued-work": "{who} has work in the queue that the device does not run",
    "one-off-costs": "{who} includes one-off costs",
}
_ADVICE: dict[Loss, str] = {
    "exposed-communication": "Overlap collectives with computing (start them earlier, in smaller buckets, on their own stream), "
    "send fewer bytes (lower precision, fused or fewer collectives), or split the model so that ranks communicate less; compare the "
    "bus bandwidth with what the links can do.",
    "straggler": "Look at what that rank does before it enters: more work (uneven batches, longer sequences, another expert "
    "load), a slower or throttled device, or host work that the others do not have. Its own capture shows which.",
    "copies": "Pin host memory (infer.pinned_inputs=true), copy asynchronously, prepare the next input while the device "
    "computes; keep on the device what is used again.",
    "host-sync": "Find .item(), .cpu(), .tolist(), nonzero, boolean indexing and explicit synchronisations inside the loop; keep the "
    "decision on the device, or read it one step later.",
    "launch-bound": "Replay the step as a CUDA graph (model.cuda_graphs=true with model.cache=static) or compile it "
    "(model.compile=true with model.cache=static); fuse small kernels; a larger infer.batch_size shares the launches.",
    "allocation": "Let the caching allocator keep its memory: do not call empty_cache in the loop, allocate buffers once, use "
    "expandable segments (run.env.PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True') when sizes vary.",
    "input-pipeline": "Prepare the next input while the device works on this one: more loader workers, prefetch, pinned "
    "memory and asynchronous copies, or the same work on the device; cache what does not change.",
    "host-idle": "Move that work off the thread that feeds the device, or do it ahead, while the device is busy; a decode "
    "step that is replayed (model.cuda_graphs=true with model.cache=static) has none of it.",
    "queued-work": "The host is not the cause. Look for what blocks the stream: another process or stream on the device, an event "
    "or a peer it waits for, or kernels that the capture left out.",
    "one-off-costs": "Capture after warm-up: run the same shapes a few times first, then record. Nothing of this time can be gained in "
    "the steady state; at start-up, a cache of compiled kernels or eager module loading moves it.",
}


_READS_BACK = "{who} stops to read results back to the host"
_ONCE_PER_STEP = "{who} waits for the device once per step"
_ONCE_ADVICE = (
    "One wait per step is usual where a loop logs a value or checks for the last token. Launch the next step before waiting for this "
    "one, read the value one step later or every few steps; an explicit synchronisation can go."
)


def title_for(loss: Loss, owner: IdleOwner | None, phase: str) -> str:
    """Return the title of a finding."""
    who = "The run" if phase == WHOLE else phase.capitalize()
    if loss == "input-pipeline" and owner is not None and owner.what == "tokenising":
        return f"{who} waits for text to be tokenised"
    if loss == "host-idle" and owner is not None and owner.what == "compilation":
        return f"{who} waits for code to be compiled"
    return _TITLES[loss].format(who=who)


def advice_for(loss: Loss, owner: IdleOwner | None, hardware: str) -> str:
    """Return the advice for a loss, by the owner of the time."""
    if loss == "launch-bound" and hardware == "cpu":
        return (
            "Compile the decode step (model.compile=true with model.cache=static) so that small operators are fused; raise "
            "infer.batch_size."
        )
    if loss == "host-idle" and owner is not None:
        if owner.what == "compilation":
            return "Warm up before measuring; keep shapes static or mark them dynamic, so that nothing is compiled in the loop."
        if owner.what == "not recorded":
            return (
                "Put NVTX ranges around the steps of the program, or record Python frames (with_stack=True), and capture again: "
                "the capture does not record what the host does there. " + _ADVICE[loss]
            )
        if owner.range is not None:
            return f"{_ADVICE[loss]} It happens in {owner.range}."
    return _ADVICE[loss]


# One-off costs: no gain in the steady state.


_MOSTLY_ONCE = 0.5


def find_one_off(summary: Summary) -> list[Finding]:
    """Report one-off costs where they are a noticeable part of the capture; they have no gain."""
    whole = summary.budget.get(WHOLE)
    part = next((one for one in whole.parts if one.name == "one-off"), None) if whole is not None else None
    if whole is None or part is None or part.share_ratio < MATTERS:
        return []
    mostly = part.share_ratio >= _MOSTLY_ONCE
    return [
        Finding(
            id="one-off-costs",
            title="The capture is mostly one-off costs, not the steady state"
            if mostly
            else "A part of the capture is one-off costs",
            phase=WHOLE,
            evidence=[
                f"the device runs nothing for {units.percent(part.share_ratio)} of {units.seconds(whole.span_s)} "
                f"({units.seconds(part.seconds)}) while the host does what is done once",
                *_owner_evidence(part.owner),
                *_first_launch_evidence(summary),
                *sources(summary, "nsys", "trace"),
            ],
            gain_upper_s=None,
            time_s=part.seconds,
            arithmetic=f"{units.seconds(part.seconds)} of {units.seconds(whole.span_s)}; it does not recur, so there is no gain",
            advice=_ADVICE["one-off-costs"],
            confidence="high",
        )
    ]


def _first_launch_evidence(summary: Summary) -> list[str]:
    first, first_s, later, later_s = (
        summary.metrics.get(name)
        for name in ("first_launches", "first_launch_s", "repeated_launches", "repeated_launch_s")
    )
    if not first or not first_s or not later or later_s is None or first_s / first < 10 * later_s / later:
        return []
    return [
        f"{units.count(first)} calls that launch a kernel for the first time take {units.seconds(first_s)}, "
        f"{units.count(later)} later ones {units.seconds(later_s)}"
    ]


# The device waits for the host to launch work. Where the processor does the work itself: ``cpu_work``.


def find_launch_bound(summary: Summary) -> list[Finding]:
    """Report launch-bound phases without a timeline (timelines have their own losses); the whole run if no phase was classified."""
    if summary.hardware.kind == "cpu":
        return []
    phases = [p for p in PHASES if _is_launch(summary, p)] or [p for p in (WHOLE,) if _is_launch(summary, p)]
    return [_finding(summary, phase) for phase in phases if phase not in summary.budget]


def _is_launch(summary: Summary, phase: str) -> bool:
    verdict = summary.verdicts.get(phase)
    return verdict is not None and verdict.bound == "launch"


def _finding(summary: Summary, phase: str) -> Finding:
    seconds = span_seconds(summary, phase)
    verdict = summary.verdicts[phase]
    gain, arithmetic = _gain(summary, phase, seconds)
    evidence = [verdict.arithmetic, *verdict.evidence]
    launches = summary.metrics.get("launches_per_token")
    if launches is not None and phase == "decode":
        evidence.append(f"{units.number(launches)} kernel launches per generated token")
    advice = (
        "Replay the decode step as a CUDA graph (model.cuda_graphs=true with model.cache=static) or compile it "
        "(model.compile=true with model.cache=static); fuse small kernels; a larger infer.batch_size shares the launches."
    )
    name = "The run" if phase == WHOLE else phase.capitalize()
    return Finding(
        id="launch-bound",
        title=f"{name} waits for the host to launch work",
        phase=phase,
        evidence=evidence,
        gain_upper_s=gain,
        arithmetic=arithmetic or verdict.arithmetic,
        advice=advice,
        confidence="high"
        if phase in summary.budget
        or (phase in summary.utilisation and summary.utilisation[phase].device_busy_ratio is not None)
        else "medium",
    )


def _gain(summary: Summary, phase: str, seconds: float | None) -> tuple[float | None, str | None]:
    """Bound the gain by the phase's own idle time, else by the idle time of the whole run."""
    if seconds is None:
        return None, None
    waiting = _waiting_share(summary, phase)
    if waiting is not None:
        gain = seconds * waiting
        return (
            gain,
            f"{units.seconds(seconds)} × {units.percent(waiting)} spent launching or on the host = at most "
            f"{units.seconds(gain)}",
        )
    whole, idle = span_seconds(summary, WHOLE), _waiting_share(summary, WHOLE)
    if whole is None or idle is None:
        return None, None
    gain = min(seconds, whole * idle)
    of = "per sample" if phase_seconds(summary, WHOLE) is not None else "captured"
    text = (
        f"the device idles for {units.percent(idle)} of {units.seconds(whole)} {of}; at most "
        f"{units.seconds(gain)} of that is in {phase}"
    )
    return gain, text


def _waiting_share(summary: Summary, phase: str) -> float | None:
    """Return the remainder of the device's own activity."""
    if phase in summary.budget:
        return sum(part_share(summary, phase, name) or 0.0 for name in ("launch", "host"))
    use = summary.utilisation.get(phase)
    if use is not None and use.device_busy_ratio is not None:
        return 1.0 - use.device_busy_ratio
    return None


# The host stops inside a phase to wait for the device.


_SYNC_OPERATORS = ("aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero")
_PER_STEP = 2.0
"""One read per step is how generation stops at end-of-sequence; more than two is a habit."""
_ONCE = 1.5
"""Waits per step; fewer happen once in a step, which is a property of the step and not of what runs inside it."""
_READING = (*_SYNC_OPERATORS, "aten::to", "aten::_to_copy", "aten::copy_", "aten::cpu", "aten::tolist")


def _once_per_step(summary: Summary, phase: str, waits: float | None) -> bool:
    """Whether a device runs dry about once per step after a wait; unknown steps: no."""
    steps = (summary.metrics.get(captured_count_name(phase)) or 0.0) / max(1, len(summary.ranks))
    return waits is not None and steps >= 1 and waits <= _ONCE * steps


def _reads_back(summary: Summary, owner: IdleOwner | None) -> bool:
    """Whether the capture shows that results are read: an operator that does so, or copies to the host."""
    return (
        (owner is not None and owner.range in _READING)
        or any(one.name in _SYNC_OPERATORS for one in summary.operators)
        or bool(summary.metrics.get("copy_d2h_s"))
    )


def find_host_syncs(summary: Summary) -> list[Finding]:
    """Report operators that force a wait inside decode; with a timeline, the wait itself is a loss of it."""
    return [] if "decode" in summary.budget else _by_operators(summary)


def _by_operators(summary: Summary) -> list[Finding]:
    """Report counts per step without a timeline: they show that synchronisation happens, not its cost."""
    evidence = _operator_evidence(summary, "decode")
    if not evidence or summary.hardware.kind == "cpu":
        return []
    return [
        _host_syncs_finding(
            "decode",
            [*evidence, *sources(summary, "trace")],
            None,
            "counts only; a timeline is needed for the cost",
            "medium",
        )
    ]


def _operator_evidence(summary: Summary, phase: str) -> list[str]:
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


def _host_syncs_finding(
    phase: str, evidence: list[str], gain: float | None, arithmetic: str, confidence: str
) -> Finding:
    return Finding(
        id="host-sync",
        title=f"{'The run' if phase == WHOLE else phase.capitalize()} stops to read results back to the host",
        phase=phase,
        evidence=evidence,
        gain_upper_s=gain,
        arithmetic=arithmetic,
        advice=_ADVICE["host-sync"],
        confidence="high" if confidence == "high" else "medium",
    )


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
_LEAST_WAITS = 3
"""Fewer waits are not a habit of the loop: a synchronisation at the start of a step, or the end of the capture."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a budget, as a share of the wall-clock it is a loss of."""

    name: str
    share: float
    captured_s: float
    owner: IdleOwner | None
    count: float | None = None


def find_losses(summary: Summary) -> list[Finding]:
    """Report the losses of every phase, and those of the whole capture that lie in no phase."""
    phases = [phase for phase in summary.budget if phase != WHOLE]
    found = [finding for phase in phases for finding in _of_phase(summary, phase)]
    whole = summary.budget.get(WHOLE)
    if whole is None:
        return found
    if not phases:
        # If most of a capture is start-up, the remainder is not the steady state either.
        mostly_once = (part_share(summary, WHOLE, "one-off") or 0.0) >= _MOSTLY_ONCE
        return [] if mostly_once else _of_phase(summary, WHOLE)
    return found + _between_phases(summary, whole, [summary.budget[phase] for phase in phases])


def _of_phase(summary: Summary, phase: str) -> list[Finding]:
    budget = summary.budget[phase]
    # Against the wall-clock, the budget is of one sample already, and prefill's without the vision timed inside it.
    seconds = budget.span_s if budget.profiled_span_s is not None else span_seconds(summary, phase)
    if seconds is None or budget.span_s <= 0:
        return []
    parts = [
        _Part(part.name, part.share_ratio, part.seconds, part.owner, part.count) for part in budget.parts
    ]
    return [
        finding
        for part in parts
        if part.name in _IDS and part.share >= MATTERS
        for finding in _findings(summary, phase, part, seconds, budget)
    ]


def _between_phases(summary: Summary, whole: Budget, phases: list[Budget]) -> list[Finding]:
    """Return losses outside every phase. Phases may overlap, so this is only the remainder after subtracting all of
    them.
    """
    if any(budget.profiled_span_s is not None for budget in phases):
        return []  # the phases are per sample without the profiler, the whole is not
    found = []
    for part in whole.parts:
        inside = sum(one.seconds for budget in phases for one in budget.parts if one.name == part.name)
        left = part.seconds - inside
        if part.name in _IDS and whole.span_s > 0 and left >= MATTERS * whole.span_s:
            rest = _Part(part.name, left / whole.span_s, left, part.owner, part.count)
            found += _findings(summary, WHOLE, rest, whole.span_s, whole)
    return found


def _findings(summary: Summary, phase: str, part: _Part, seconds: float, budget: Budget) -> list[Finding]:
    loss = _IDS[part.name]
    gain = seconds * part.share
    if loss == "exposed-communication":
        return _communication(summary, phase, part, seconds, budget)
    if loss == "host-sync" and part.count is not None and part.count < _LEAST_WAITS:
        return []
    single = _single_gap(summary, phase, part) if loss in _MAY_HAPPEN_ONCE else None
    evidence = [
        _evidence(part, phase, budget),
        *([f"a single gap of {units.seconds(single)} is most of it: it may not recur"] if single else []),
        *_owner_evidence(part.owner),
        *_gap_evidence(summary, phase, part),
        *_count_evidence(summary, loss, phase),
    ]
    known = loss != "queued-work" and single is None
    title, advice = (
        title_for(loss, part.owner, phase),
        advice_for(loss, part.owner, summary.hardware.kind),
    )
    if loss == "host-sync":
        who = "The run" if phase == WHOLE else phase.capitalize()
        if _once_per_step(summary, phase, part.count):
            title, advice = _ONCE_PER_STEP.format(who=who), _ONCE_ADVICE
        elif _reads_back(summary, part.owner):
            title = _READS_BACK.format(who=who)
    return [
        Finding(
            id=loss,
            title=title,
            phase=phase,
            evidence=[*evidence, *_inflation(budget), *sources(summary, "nsys", "trace")],
            gain_upper_s=gain if known else None,
            time_s=None if known else gain,
            arithmetic=_arithmetic(seconds, part.share, gain),
            advice=advice,
            confidence="low" if not known else "high" if part.owner is not None else "medium",
        )
    ]


def _communication(
    summary: Summary, phase: str, part: _Part, seconds: float, budget: Budget
) -> list[Finding]:
    """Split exposed communication into waiting for a late rank, and moving data."""
    talk = summary.communication
    exposed = whole = seconds * part.share
    found = []
    late = _straggler(summary)
    if late is not None:
        gain = min(seconds, exposed * late.of_others)
        if gain >= MATTERS * seconds:
            found.append(replace(_late_rank(summary, phase, late, gain), time_s=whole))
            exposed *= 1.0 - late.of_all
    if exposed < MATTERS * seconds:
        return found
    evidence = [
        f"only communication runs for {units.percent(part.share)} of {units.seconds(budget.span_s)} of {describe_phase(phase)}"
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
            time_s=whole,
            arithmetic=f"{how} = at most {units.seconds(exposed)}",
            advice=_many_small(summary) or advice_for("exposed-communication", None, summary.hardware.kind),
            confidence="high",
        )
    )
    return found


_MANY_CALLS = 1000
_SMALL_CALL_S = 100e-6
_SMALL_BYTES = 1e6


def _many_small(summary: Summary) -> str | None:
    """Return advice for thousands of small collectives: the problem is their number, not their size."""
    talk = summary.communication
    rows = talk.collectives if talk is not None else []
    calls = sum(one.count for one in rows)
    if calls < _MANY_CALLS:
        return None
    small = sum(
        one.count
        for one in rows
        if one.count
        and (
            one.bytes / one.count <= _SMALL_BYTES
            if one.bytes is not None
            else one.total_s / one.count <= _SMALL_CALL_S
        )
    )
    if small < calls / 2:
        return None
    return (
        f"{units.count(calls)} collectives, most of them small: combine them (larger buckets, fewer calls; coalesced or fused "
        "collectives), then overlap what is left with computing."
    )


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
        f"{doing} {units.percent(part.share)} of {describe_phase(phase)} ({units.seconds(part.captured_s)} of "
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


_MAY_HAPPEN_ONCE = frozenset(("host-idle", "launch-bound", "allocation"))
_MOST_IN_ONE = 0.8
_LEAST_SINGLE_S = 1e-3
"""Shorter gaps are dispatch."""


def _single_gap(summary: Summary, phase: str, part: _Part) -> float | None:
    """Return the length of the one gap that holds most of a loss; a single event is not a recurring cost."""
    gaps = [gap.seconds for gap in summary.idle_gaps if phase in (WHOLE, gap.phase)]
    longest = max(gaps, default=0.0)
    if longest < _LEAST_SINGLE_S or not _MOST_IN_ONE * part.captured_s <= longest <= 1.05 * part.captured_s:
        return None
    return longest


def _gap_evidence(summary: Summary, phase: str, part: _Part) -> list[str]:
    """Return the longest gaps with this owner."""
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
    """Return counts per token that explain the time."""
    launches = summary.metrics.get("launches_per_token")
    if loss == "launch-bound" and phase == DECODE and launches is not None:
        return [f"{units.number(launches)} kernel launches per generated token"]
    return _operator_evidence(summary, phase) if loss == "host-sync" else []


def _inflation(budget: Budget) -> list[str]:
    if budget.profiled_span_s is None or budget.inflation_ratio is None:
        return []
    return [
        f"measured against {units.seconds(budget.span_s)} without a profiler; the same work took "
        f"{units.seconds(budget.profiled_span_s)} under it ({units.number(budget.inflation_ratio)} times as long)"
    ]


def _arithmetic(seconds: float, share: float, gain: float) -> str:
    return f"{units.seconds(seconds)} × {units.percent(share)} = at most {units.seconds(gain)}"
