"""What limits a phase on the processor: the part of its time that is largest, and for matrix work how near its limit it is."""

from __future__ import annotations

from dataclasses import dataclass

from llm_perf_opt.analysis.cpu.work import PhaseClock, phase_work
from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Bound, Summary
from llm_perf_opt.model.summary.cpu_work import CpuPart, CpuPartName, CpuWork

DOMINATES = 0.4
"""Share of a phase from which its largest part explains it."""
EVEN_WITHIN = 0.1
"""Two parts this close to one another (of the larger) are as large."""
MATRIX_NEAR = 0.25
"""Share of its limit that matrix work must reach, in its own time, before the limit explains it."""
_MOVING: tuple[CpuPartName, ...] = ("movement", "growing cache")
_SMALL: tuple[CpuPartName, ...] = ("element-wise", "normalisation", "sampling", "other")
DISPATCH_LEVER = "fewer operator calls: a compiled decode step, larger batches"
"""What moves dispatch on a processor."""
_SAID = 0.02
"""Smaller parts are not listed."""


@dataclass(frozen=True, slots=True)
class CpuAnswer:
    """A bound, the comparison behind it, and the kinds of sources it rests on."""

    bound: Bound
    arithmetic: str
    sources: tuple[str, ...]


def work_of(summary: Summary, phase: str) -> CpuWork | None:
    """Return a phase's work as the summary has it, else from its operators alone, which says nothing of dispatch."""
    if summary.hardware.kind != "cpu":
        return None
    known = summary.cpu_work.get(phase)
    if known is not None:
        return known
    rows = [operator for operator in summary.operators if operator.phase == phase]
    return phase_work(rows, PhaseClock(), operator_cost_s=summary.hardware.measured_operator_s)


def cpu_answer(summary: Summary, phase: str) -> CpuAnswer | None:
    """Judge a phase by the largest of matrix work, memory movement, small operators and dispatch; ``None``: no operators."""
    work = work_of(summary, phase)
    if work is None:
        return None
    groups = {
        "matrix": work.share("matrix"),
        "movement": work.share(*_MOVING),
        "small": work.share(*_SMALL),
        "dispatch": work.share("dispatch"),
        "hidden": work.share("unknown", "compiled", "outside operators"),
    }
    first, second = sorted(groups, key=lambda name: (-groups[name], name))[:2]
    listed = shares_in_words(work)
    if groups[first] < DOMINATES:
        return CpuAnswer("unknown", f"no single limit: {listed}", ("trace",))
    even = groups[second] >= (1 - EVEN_WITHIN) * groups[first]
    if even:
        return _even(summary, phase, work, {first, second}, listed)
    if first == "matrix":
        return _matrix(summary, phase, work, listed)
    if first == "movement":
        return CpuAnswer("memory", f"memory movement is the largest part: {listed}", ("trace",))
    if first == "dispatch":
        return CpuAnswer("launch", f"dispatch is the largest part: {listed}", ("trace", "timings"))
    if first == "small":
        text = "operators that are neither matrix products nor copies are the largest part, and their sizes were not recorded"
        return CpuAnswer("unknown", f"{text}: {listed}", ("trace",))
    return CpuAnswer("unknown", f"most of the time is not known to be any kind of work: {listed}", ("trace",))


def shares_in_words(work: CpuWork) -> str:
    """Say what the shares are of, the parts from the largest, and the largest operator."""
    of = {
        "wall-clock": f"{units.seconds(work.span_s)} without a profiler",
        "profiled": "its time under the profiler",
        "operators": "operator time",
    }[work.of]
    parts = ", ".join(
        f"{_words(part)} {units.percent(part.share_ratio)}"
        for part in work.parts
        if part.share_ratio >= _SAID
    )
    largest = max(
        (part for part in work.parts if part.operator is not None),
        key=lambda part: part.operator_share_ratio or 0.0,
        default=None,
    )
    tail = (
        f"; the largest operator is {largest.operator} ({units.percent(largest.operator_share_ratio)})"
        if largest is not None
        else ""
    )
    return f"of {of}: {parts}{tail}"


def _words(part: CpuPart) -> str:
    return {
        "matrix": "matrix work",
        "movement": "memory movement",
        "growing cache": "copying the growing cache",
        "dispatch": "dispatch (Python, views, calls)",
        "outside operators": "outside operators (dispatch, compiled code, the profiler)",
        "compiled": "compiled code",
        "unknown": "unknown operators",
        "other": "other operators",
    }.get(part.name, part.name)


def _matrix(summary: Summary, phase: str, work: CpuWork, listed: str) -> CpuAnswer:
    """Matrix work explains a phase only where it is near its own limit."""
    prediction = summary.predictions.get(phase)
    if prediction is None or not prediction.error_ratio:
        return CpuAnswer(
            "unknown", f"matrix work is the largest part, its limit is not known: {listed}", ("trace",)
        )
    reached = _reached(summary, phase, work)
    if reached is None or reached < MATRIX_NEAR:
        text = (
            f"no single limit: matrix work is the largest part, but in that time it reaches {units.percent(reached)} of its "
            f"{prediction.bound} limit: small products, or kernels that do not use the machine; {listed}"
        )
        return CpuAnswer("unknown", text, ("trace", "static"))
    text = f"matrix work is the largest part, and its roofline floor is set by {prediction.bound}: {prediction.arithmetic}; {listed}"
    return CpuAnswer(prediction.bound, text, ("trace", "static"))


def _even(summary: Summary, phase: str, work: CpuWork, names: set[str], listed: str) -> CpuAnswer:
    """Two parts as large as one another: a balance only where both are work at a limit."""
    reached = _reached(summary, phase, work)
    if names == {"matrix", "movement"} and reached is not None and reached >= MATRIX_NEAR:
        prediction = summary.predictions[phase]
        if prediction.bound == "memory":
            return CpuAnswer(
                "memory", f"matrix work that reads memory, and memory movement: {listed}", ("trace", "static")
            )
        return CpuAnswer(
            "balanced",
            f"matrix work near its limit and memory movement are even: {listed}",
            ("trace", "static"),
        )
    return CpuAnswer(
        "unknown", f"no single limit: two parts are as large as one another: {listed}", ("trace",)
    )


def _reached(summary: Summary, phase: str, work: CpuWork) -> float | None:
    """Share of its limit that matrix work reaches in its own time."""
    prediction, share = summary.predictions.get(phase), work.share("matrix")
    if prediction is None or not prediction.error_ratio or share <= 0:
        return None
    return 1 / (prediction.error_ratio * share)
