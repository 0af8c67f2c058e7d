"""Where a processor spends its time beside matrix work: a cache that grows by copying, memory movement, dispatch.

The advice of these rules was tried on the default workload (docs/decisions/0010-advice-on-a-cpu.md): what made the whole answer
slower there is not advised.
"""

from __future__ import annotations

from collections.abc import Callable

from llm_perf_opt.analysis.findings.common import phase_words, sources
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import DECODE
from llm_perf_opt.model.summary import Confidence, Finding, Summary
from llm_perf_opt.model.summary.cpu_work import CpuPart, CpuPartName, CpuWork

_Rule = Callable[[Summary, str, CpuWork, CpuPart], Finding]
MATTERS = 0.05
"""Share of a phase from which a part is worth a word."""


def find(summary: Summary) -> list[Finding]:
    """Report what every phase on the processor loses, and at most what removing it would gain."""
    found = []
    for phase, work in summary.cpu_work.items():
        for name, make in _RULES.items():
            part = work.part(name)
            if part is not None and part.share_ratio >= MATTERS:
                found.append(make(summary, phase, work, part))
    return found


def _growing_cache(summary: Summary, phase: str, work: CpuWork, part: CpuPart) -> Finding:
    evidence = [
        f"{part.operator} takes {units.percent(part.share_ratio)} of {phase_words(phase)} in {units.count(part.calls)} calls; "
        f"model.cache={summary.workload.cache} copies all keys and values for every token",
        *_bandwidth(summary, part),
    ]
    return Finding(
        id="growing-cache",
        title="Decode copies the whole key-value cache for every token",
        phase=phase,
        evidence=[*evidence, *_basis(summary, work)],
        gain_upper_s=part.seconds,
        arithmetic=_arithmetic(work, part),
        advice="Use model.cache=preallocated: room for the whole answer is reserved at the start (prompt and infer.max_new_tokens, "
        "so a short answer holds memory that it never fills), tokens are written in place, and the answer stays the same. What "
        "it gains grows with the context; with a cache of a few megabytes it may be too little to measure. "
        "model.cache=static by itself makes decode slower on a processor, because attention then works on all of the room "
        "behind a mask; it pays only together with model.compile=true.",
        confidence=_confidence(work),
    )


def _movement(summary: Summary, phase: str, work: CpuWork, part: CpuPart) -> Finding:
    return Finding(
        id="memory-movement",
        title=f"{phase.capitalize()} copies and rearranges data",
        phase=phase,
        evidence=[
            f"copies, joins, look-ups and fills take {units.percent(part.share_ratio)} of {phase_words(phase)} in "
            f"{units.count(part.calls)} calls, most of it in {part.operator} ({units.percent(part.operator_share_ratio)})",
            *_basis(summary, work),
        ],
        gain_upper_s=part.seconds,
        arithmetic=_arithmetic(work, part),
        advice=f"Find who calls {part.operator} (pipeline.torch_profiler.record_shapes=true gives the sizes, with_stack=true the "
        "lines; both slow the profiled pass down) and leave the copy out: keep one layout and one data type, write into a "
        "buffer that is there, use views.",
        confidence=_confidence(work),
    )


def _dispatch(summary: Summary, phase: str, work: CpuWork, part: CpuPart) -> Finding:
    evidence = [
        f"{units.percent(part.share_ratio)} of {phase_words(phase)} is left when the work inside operators is taken off: Python, "
        f"views, and the cost of {units.count(part.calls)} operator calls",
    ]
    if work.operator_cost_s is not None:
        evidence.append(
            f"an operator on one element takes {units.seconds(work.operator_cost_s)} on this machine"
        )
    return Finding(
        id="dispatch",
        title=f"{phase.capitalize()} spends time calling operators, not computing",
        phase=phase,
        evidence=[*evidence, *_basis(summary, work)],
        gain_upper_s=part.seconds,
        arithmetic=_arithmetic(work, part),
        advice=_dispatch_advice(phase),
        confidence=_confidence(work),
    )


def _dispatch_advice(phase: str) -> str:
    larger = "A larger infer.batch_size divides the same calls among more answers, each of which then takes longer."
    if phase != DECODE:
        return larger
    return (
        "Compile the decode step: model.compile=true together with model.cache=static, never the static cache alone. The first "
        "pass then compiles for a minute or more, which the timings leave out, and a mixture of experts decodes with batched "
        f"products. {larger}"
    )


_RULES: dict[CpuPartName, _Rule] = {
    "growing cache": _growing_cache,
    "movement": _movement,
    "dispatch": _dispatch,
}


def _bandwidth(summary: Summary, part: CpuPart) -> list[str]:
    """How fast the cache is copied, where its size is known: read once, written once per step."""
    phase = summary.static.phases.get(DECODE) if summary.static is not None else None
    whole, step = summary.timings.decode_s, summary.timings.tpot_s
    if (
        phase is None
        or not phase.kv_bytes
        or whole is None
        or step is None
        or step.median <= 0
        or part.seconds <= 0
    ):
        return []
    moved = 2 * phase.kv_bytes * (whole.median / step.median)
    reached = moved / part.seconds
    limit = summary.hardware.bandwidth_bytes_per_s
    of = f", {units.percent(reached / limit)} of this machine's bandwidth" if limit else ""
    return [
        f"a step's cache is {units.size(phase.kv_bytes)}; reading and writing it once per token in that time is "
        f"{units.bytes_per_s(reached)}{of}"
    ]


def _basis(summary: Summary, work: CpuWork) -> list[str]:
    said = []
    if work.of == "wall-clock" and work.profiled_ratio is not None:
        said.append(
            f"measured against the wall-clock without a profiler; under it the same work took "
            f"{units.number(work.profiled_ratio)} times as long"
        )
    elif work.of == "profiled":
        said.append("measured against the time under the profiler: shares of work are at least this large")
    return [*said, *sources(summary, "trace", "timings")]


def _confidence(work: CpuWork) -> Confidence:
    return "high" if work.of == "wall-clock" else "medium"


def _arithmetic(work: CpuWork, part: CpuPart) -> str:
    return f"{units.seconds(work.span_s)} × {units.percent(part.share_ratio)} = at most {units.seconds(part.seconds)}"
