"""The bound of each phase with the deciding comparison, or ``unknown`` with what is missing.

The order of questions: is the device waiting (then for whom), is it moving data, and if it is computing, which
of its two limits is near. No question is answered from a number that was not measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from llm_perf_opt.analysis.context import (
    LEAST_LAUNCHES,
    LEAST_SPAN_S,
    Program,
    copy_advice,
    describe_families,
    evidence_of,
    launch_advice,
    program_of,
    seconds_by_limit,
)
from llm_perf_opt.analysis.cpu import DISPATCH_LEVER, cpu_answer
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import PHASES, WHOLE
from llm_perf_opt.summary import Bound, Budget, BudgetPart, Kernel, Summary, Verdict, Workload

BUSY_ENOUGH = 0.5
"""Below this share of device activity, waiting is the problem whatever the kernels do."""
_QUEUE_DECIDES = 0.5
FULL = 0.8
"""Share of the time that kernels fill, from which the verdict is about kernels."""
_MOST_UNDER_ONE = 0.6
_MOSTLY_ONCE = 0.5
"""Share of one-off costs from which a capture says nothing of the steady state."""
_HOST_PARTS = ("host", "data", "allocation")
_NEAR_A_LIMIT = 0.4
"""MFU or MBU from which a limit of the hardware is a fair explanation."""
_COUNTER_NEAR = 0.6
"""Share of a unit's peak from which ncu itself calls it the limiter."""
_BALANCED_WITHIN = 0.1
_LESS_WORK = "less work: fewer tokens, fewer pixels"
_LEVERS: dict[Bound, str | None] = {
    "launch": "fewer, larger launches: CUDA graphs or torch.compile, fused kernels, larger batch",
    "sync": "remove device-to-host reads inside the loop (.item(), .cpu(), boolean indexing, nonzero)",
    "copy": "keep data on the device, pin host memory, overlap copies with computing",
    "communication": "overlap collectives with computing, send fewer bytes, or use faster links",
    "host": "take work off the thread that feeds the device, or do it ahead in another one",
    "queue": None,
    "one-off": "capture after warm-up: these costs do not recur",
    "memory": "move fewer bytes: lower-precision weights and cache, larger batch, fused operators",
    "compute": f"lower precision, or {_LESS_WORK}",
    "balanced": "both limits are near: only less work or other hardware helps much",
    "unknown": None,
}


@dataclass(frozen=True, slots=True)
class _Answer:
    bound: Bound
    arithmetic: str
    evidence: list[str]


def judge(summary: Summary) -> dict[str, Verdict]:
    """Return a verdict for every phase with data."""
    verdicts: dict[str, Verdict] = {}
    for phase in (*PHASES, WHOLE):
        answer = _judge_phase(summary, phase)
        if answer is not None:
            verdicts[phase] = Verdict(
                answer.bound, answer.arithmetic, answer.evidence, _lever(summary, answer.bound)
            )
    return verdicts


def _lever(summary: Summary, bound: Bound) -> str | None:
    if bound == "launch" and summary.hardware.kind == "cpu":
        return DISPATCH_LEVER
    program = program_of(summary)
    if not program.own and bound in ("launch", "copy", "compute", "memory"):
        return _lever_elsewhere(summary, bound, program)
    if bound == "compute" and not _has_faster_type(summary):
        return _LESS_WORK
    return _LEVERS[bound]


def _lever_elsewhere(summary: Summary, bound: Bound, program: Program) -> str | None:
    """Return advice for a capture taken elsewhere, without what the program already does."""
    if bound == "copy":
        return copy_advice(summary) or _LEVERS[bound]
    if bound == "launch":
        return launch_advice(program)
    if bound == "memory":
        what = "of weights and cache, a larger batch" if program.caches_keys else "of weights and activations"
        return f"move fewer bytes: fused operators, lower precision {what}"
    return (
        "faster kernels, lower precision, or less work"
        if _has_faster_type(summary)
        else "faster kernels, or less work"
    )


def _has_faster_type(summary: Summary) -> bool:
    """Whether the device computes in another data type faster than in the run's; false on a CPU without a peak for the run's type.

    Half precision made the default workload 3.7 times slower on a processor without instructions for it (docs/improve.md).
    """
    peaks = summary.hardware.peak_flops_per_s
    own = peaks.get(summary.workload.dtype or "")
    if own is None:
        return summary.hardware.kind != "cpu"
    return any(peak.dense > own.dense for peak in peaks.values())


def shown_bound(summary: Summary, phase: str) -> str | None:
    """Return what limits a phase as shown to readers: on a CPU nothing is launched, so calls are called overhead."""
    verdict = summary.verdicts.get(phase)
    if verdict is None:
        return None
    return "overhead" if verdict.bound == "launch" and summary.hardware.kind == "cpu" else verdict.bound


def phases_to_show(verdicts: Mapping[str, Verdict]) -> list[str]:
    """Return the phases with an informative verdict: the whole capture is left out if it only repeats that of a phase."""
    own = {verdicts[phase].bound for phase in verdicts if phase != WHOLE}
    return [phase for phase in verdicts if phase != WHOLE or verdicts[phase].bound not in own]


def _judge_phase(summary: Summary, phase: str) -> _Answer | None:
    budget = summary.budget.get(phase)
    known = (
        budget is not None
        or phase in summary.utilisation
        or getattr(summary.timings, f"{phase}_s", None) is not None
    )
    if not known:
        return None
    for question in (
        _too_little,
        _waiting_by_budget,
        _waiting_by_busy_share,
        _near_a_counter_limit,
        _near_a_model_limit,
        _full_device,
        _host_by_operators,
    ):
        answer = question(summary, phase)
        if answer is not None:
            return answer
    return _Answer("unknown", _missing_inputs(summary, phase), [])


def _too_little(summary: Summary, phase: str) -> _Answer | None:
    """Abstain if the capture is too small for shares of its time."""
    evidence = evidence_of(summary)
    if evidence is None or evidence.is_enough or phase not in summary.budget or _is_full(summary, phase):
        return None
    return _Answer(
        "unknown",
        f"too little was captured to conclude anything: {evidence.describe()} (at least {LEAST_LAUNCHES} launches in "
        f"{units.seconds(LEAST_SPAN_S)} are needed)",
        [],
    )


def _waiting_by_budget(summary: Summary, phase: str) -> _Answer | None:
    """Compare computing with each other part of a timeline, and with all waiting.

    The largest part that is not computing is the cause: single parts are compared with single parts.
    """
    budget = summary.budget.get(phase)
    if budget is None or budget.span_s <= 0:
        return None
    parts = {part.name: part for part in budget.parts}
    share = {name: part.share_ratio for name, part in parts.items()}
    once, compute = share.get("one-off", 0.0), share.get("compute", 0.0)
    waits: dict[Bound, float] = {
        "launch": share.get("launch", 0.0),
        "sync": share.get("sync", 0.0),
        "host": sum(share.get(name, 0.0) for name in _HOST_PARTS),
    }
    queue = share.get(
        "queue", 0.0
    )  # not attributable from the capture: decides only if it is most of the time
    if queue > _QUEUE_DECIDES:
        waits["queue"] = queue
    single: dict[Bound, float] = {
        **waits,
        "communication": share.get("communication", 0.0),
        "copy": share.get("copy", 0.0),
    }
    answer = max(single, key=lambda name: single[name])
    listed = ", ".join(
        f"{part.name} {units.percent(part.share_ratio)}" for part in budget.parts if part.seconds
    )
    if once >= _MOSTLY_ONCE:
        answer = "one-off"
    elif single[answer] <= 0 or (sum(waits.values()) < compute and single[answer] <= compute):
        return None
    owner = _describe_owner(parts, answer)
    decided = single.get(answer, once)
    of = (
        "the largest"
        if decided >= max(compute, queue)
        else "the largest with a cause"
        if decided >= compute
        else "the largest wait"
    )
    arithmetic = f"of {units.seconds(budget.span_s)}: {listed}; {of}: {_named(answer)}{owner}"
    return _Answer(answer, arithmetic, [f"timeline: {budget.source or 'capture'}", *_against(budget)])


def _named(answer: Bound) -> str:
    return f"host ({' + '.join(_HOST_PARTS)})" if answer == "host" else answer


def _describe_owner(parts: Mapping[str, BudgetPart], answer: Bound) -> str:
    names = _HOST_PARTS if answer == "host" else (answer,)
    found = [parts[name] for name in names if name in parts and parts[name].owner is not None]
    if not found:
        return ""
    part = max(found, key=lambda one: one.seconds)
    owner = part.owner
    if owner is None:
        return ""
    return f" ({owner.what}{f' in {owner.range}' if owner.range else ''})"


def _against(budget: Budget) -> list[str]:
    if budget.profiled_span_s is None or budget.inflation_ratio is None:
        return []
    return [
        f"the span is the wall-clock without a profiler; under it the same work took {units.seconds(budget.profiled_span_s)}"
        f" ({units.number(budget.inflation_ratio)} times as long)"
    ]


def _waiting_by_busy_share(summary: Summary, phase: str) -> _Answer | None:
    """Without a timeline: device time against wall-clock. For one phase of many it can only be an upper bound."""
    if phase in summary.budget:
        return None
    own = summary.utilisation.get(phase)
    if own is not None and own.device_busy_ratio is not None:
        busy, text = own.device_busy_ratio, "the device is busy for"
    else:
        bound = _busy_at_most(summary, phase)
        if bound is None:
            return None
        busy, text = (
            bound,
            "even if all kernel time of the run fell into this phase, the device would be busy for at most",
        )
    if busy >= BUSY_ENOUGH:
        return None
    arithmetic = (
        f"{text} {units.percent(busy)} of its wall-clock (less than {units.percent(BUSY_ENOUGH)}): the rest is "
        "spent launching and on the host"
    )
    return _Answer("launch", arithmetic, _sources(summary, "nsys", "trace", "timings"))


def measured_passes(workload: Workload) -> int | None:
    """Return how many passes all samples take: a timing is of one batch, not of one sample."""
    return math.ceil(round(workload.samples / (workload.batch_size or 1), 6)) if workload.samples else None


def _busy_at_most(summary: Summary, phase: str) -> float | None:
    stat = getattr(summary.timings, f"{phase}_s", None)
    total = summary.metrics.get("device_busy_s")
    passes = measured_passes(summary.workload)
    if stat is None or total is None or passes is None:
        return None
    wall = float(stat.shown) * passes
    return min(1.0, total / wall) if wall > 0 else None


def _near_a_counter_limit(summary: Summary, phase: str) -> _Answer | None:
    """Use ncu's counters, weighted by the time of the kernels they cover."""
    rows = [
        k
        for k in summary.kernels
        if (k.phase == phase or phase == WHOLE)
        and k.total_s
        and k.counters.get("dram_ratio") is not None
        and k.counters_are_representative
    ]
    covered = sum(k.total_s or 0.0 for k in rows)
    everything = sum(k.total_s or 0.0 for k in summary.kernels if k.phase == phase or phase == WHOLE)
    if not rows or covered < BUSY_ENOUGH * everything:
        return None
    compute = _weighted(rows, "compute_ratio", covered)
    memory = _weighted(rows, "dram_ratio", covered)
    if compute is None or memory is None or max(compute, memory) < _COUNTER_NEAR:
        return None
    arithmetic = (
        f"counters of {units.percent(covered / everything)} of the kernel time: compute units "
        f"{units.percent(compute)}, DRAM {units.percent(memory)} of peak"
    )
    return _Answer(_larger(compute, memory), arithmetic, _sources(summary, "ncu"))


def _weighted(rows: list[Kernel], counter: str, covered: float) -> float | None:
    values = [(k.counters.get(counter), k.total_s or 0.0) for k in rows]
    if any(value is None for value, _ in values) or covered <= 0:
        return None
    return sum((value or 0.0) * weight for value, weight in values) / covered


def _near_a_model_limit(summary: Summary, phase: str) -> _Answer | None:
    use = summary.utilisation.get(phase)
    if use is None or use.mfu_ratio is None or use.mbu_ratio is None:
        return None
    if max(use.mfu_ratio, use.mbu_ratio) < _NEAR_A_LIMIT:
        return None
    arithmetic = (
        f"MFU {units.percent(use.mfu_ratio)}, MBU {units.percent(use.mbu_ratio)}:"
        f" a limit is near from {units.percent(_NEAR_A_LIMIT)}"
    )
    return _Answer(_larger(use.mfu_ratio, use.mbu_ratio), arithmetic, _sources(summary, "static", "timings"))


def _larger(compute: float, memory: float) -> Bound:
    if abs(compute - memory) <= _BALANCED_WITHIN * max(compute, memory):
        return "balanced"
    return "compute" if compute > memory else "memory"


def _is_full(summary: Summary, phase: str) -> bool:
    """Whether kernels fill the time of a phase, so that they explain it."""
    budget = summary.budget.get(phase)
    return budget is not None and sum(p.share_ratio for p in budget.parts if p.name == "compute") >= FULL


def _full_device(summary: Summary, phase: str) -> _Answer | None:
    """Return the limit that applies to most of the kernel time of a busy device, by shapes and families."""
    if not _is_full(summary, phase):
        return None
    total, found = seconds_by_limit(summary, phase)
    side: Bound = "compute" if found["compute"] >= found["memory"] else "memory"
    if total <= 0 or found[side] < _MOST_UNDER_ONE * total:
        return None
    use = summary.utilisation.get(phase)
    ratio = use.mfu_ratio if use is not None and side == "compute" else None
    mfu = f"; MFU {units.percent(ratio)}" if ratio is not None else ""
    arithmetic = (
        f"{_device_full(summary, phase)}; {units.percent(found[side] / total)} of the kernel time is in work that "
        f"{'arithmetic' if side == 'compute' else 'memory'} limits by its shapes and kinds{mfu}"
    )
    return _Answer(side, arithmetic, _sources(summary, "trace", "nsys"))


def _host_by_operators(summary: Summary, phase: str) -> _Answer | None:
    """Return the verdict on a CPU from its operators, because there is no waiting device."""
    answer = cpu_answer(summary, phase)
    if answer is None:
        return None
    return _Answer(answer.bound, answer.arithmetic, _sources(summary, *answer.sources))


def _missing_inputs(summary: Summary, phase: str) -> str:
    use = summary.utilisation.get(phase)
    wants = []
    traced = summary.hardware.kind == "cpu" and any(op.phase == phase for op in summary.operators)
    if phase not in summary.budget and not traced:
        wants.append(
            "a torch trace of this phase"
            if summary.hardware.kind == "cpu"
            else "the device's activity in the trace (ProfilerActivity.CUDA)"
            if summary.metrics.get("device_events") == 0.0
            else "a timeline (nsys or torch trace with a GPU)"
        )
    if use is None or use.mfu_ratio is None:
        known_peak = bool(summary.hardware.peak_flops_per_s)
        wants.append(
            "the FLOPs of the work (shapes of operators)" if known_peak else "FLOPs and a hardware peak"
        )
    elif use.mbu_ratio is not None and summary.hardware.kind == "cpu":
        near = f"MFU {units.percent(use.mfu_ratio)} and MBU {units.percent(use.mbu_ratio)}"
        return f"no single limit: {near} are both below {units.percent(_NEAR_A_LIMIT)}"
    elif use.mbu_ratio is not None:
        wants.append(
            f"kernel counters (MFU {units.percent(use.mfu_ratio)} and MBU {units.percent(use.mbu_ratio)} "
            f"are both below {units.percent(_NEAR_A_LIMIT)})"
        )
    full = _device_full(summary, phase)
    if full is not None and wants:
        return f"{full}; which limit of the device they meet would need {' or '.join(wants)}"
    if full is not None:
        return f"{full}; neither arithmetic nor memory limits most of it"
    return "not decided; would need " + " or ".join(wants) if wants else "not decided: no limit is near"


def _device_full(summary: Summary, phase: str) -> str | None:
    """State that kernels fill the time, where they do: the device is not waiting, whatever its limit."""
    budget = summary.budget.get(phase)
    compute = sum(part.share_ratio for part in budget.parts if part.name == "compute") if budget else 0.0
    if budget is None or compute < BUSY_ENOUGH:
        return None
    families = describe_families(summary, phase)
    return f"kernels run for {units.percent(compute)} of {units.seconds(budget.span_s)}" + (
        f" ({families} of the kernel time)" if families else ""
    )


def _sources(summary: Summary, *kinds: str) -> list[str]:
    return [f"{kind}: {summary.sources[kind]}" for kind in kinds if kind in summary.sources]
