"""A phase on the processor, split by what its operators do and what dispatching them costs.

The profiler slows the host down between operators, hardly inside their kernels. So what operators do is taken from the
profiled pass, and dispatch is the remainder of the wall-clock of the same work *without* a profiler. Where that is not
known, or other programs disturbed one of the two (the profiled pass is the faster one, or has more work in its operators
than the other has time), dispatch is not reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import cast

from llm_perf_opt.analysis.facts import ProfiledPass
from llm_perf_opt.core import units
from llm_perf_opt.core.files import packaged_rows
from llm_perf_opt.core.phases import DECODE, PHASES
from llm_perf_opt.summary import Bound, Operator, SampleTimes, Section, SectionTable, Summary
from llm_perf_opt.summary.phases import Basis, CpuPart, CpuPartName, CpuWork

# What an operator does, by its name. The rules are data (``operator_classes.yaml``).


UNKNOWN = "unknown"
"""Class of names that no rule knows."""
_BOOKKEEPING = "bookkeeping"
"""Views and allocation: no work on elements."""
_JOINS = frozenset({"cat", "concat", "concatenate"})


@lru_cache(maxsize=1)
def class_rules() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Return the ordered rules that ship with the package."""
    return tuple(
        (row["class"], re.compile(row["pattern"]))
        for row in packaged_rows("llm_perf_opt.analysis", "operator_classes.yaml")
    )


@lru_cache(maxsize=65536)
def class_of(name: str) -> str:
    """Return what an operator does; :data:`UNKNOWN` when no rule matches."""
    bare = bare_name(name)
    return next((kind for kind, pattern in class_rules() if pattern.search(bare)), UNKNOWN)


def bare_name(name: str) -> str:
    """Return a name without its namespace and the mark of working in place."""
    bare = name if " " in name else name.rsplit("::", 1)[-1]
    return bare if bare.startswith("__") else bare.removesuffix("_") or bare


def joins_tensors(name: str) -> bool:
    """Whether an operator concatenates tensors, which is how a cache grows by copying."""
    return bare_name(name) in _JOINS


_GROWS_BY_COPYING = "dynamic"
"""The cache implementation (``Workload.cache``) that joins old and new keys in a new tensor for every token."""
_FITS = 1.05
"""Work inside operators this much above the wall-clock without a profiler: the profiled pass was disturbed."""


@dataclass(slots=True)
class _Sum:
    seconds: float = 0.0
    calls: int = 0
    operators: dict[str, float] = field(default_factory=dict)

    def add(self, operator: Operator, seconds: float) -> None:
        self.seconds += seconds
        self.calls += operator.calls
        self.operators[operator.name] = self.operators.get(operator.name, 0.0) + seconds


@dataclass(frozen=True, slots=True)
class PhaseClock:
    """How long a phase took: under the profiler, and the same work without it."""

    host_s: float | None = None
    wall_s: float | None = None


def cpu_work(
    summary: Summary, host_seconds: Mapping[str, float], profiled: ProfiledPass | None
) -> dict[str, CpuWork]:
    """Return the work of every phase that ran on the processor; nothing where a device did it.

    ``host_seconds`` has what the phases' ranges took under the profiler, ``profiled`` which pass that was.
    """
    if summary.hardware.kind != "cpu" or summary.kernels:
        return {}
    found = {}
    for phase in PHASES:
        rows = [operator for operator in summary.operators if operator.phase == phase]
        clock = PhaseClock(host_seconds.get(phase), unprofiled_seconds(summary.samples, profiled, phase))
        work = phase_work(
            rows,
            clock,
            operator_cost_s=summary.hardware.measured_operator_s,
            grows=phase == DECODE and summary.workload.cache == _GROWS_BY_COPYING,
        )
        if work is not None:
            found[phase] = _of_a_sample(summary, phase, work)
    return found


def phase_work(
    operators: Iterable[Operator],
    clock: PhaseClock,
    *,
    operator_cost_s: float | None = None,
    grows: bool = False,
) -> CpuWork | None:
    """Split one phase; ``None`` without operators.

    ``grows``: whether concatenated tensors are a key-value cache that grows by copying.
    """
    sums, dispatched_s, calls = _sums(operators, operator_cost_s, grows)
    working_s = sum(one.seconds for one in sums.values())
    if working_s + dispatched_s <= 0:
        return None
    host_s = None if clock.host_s is None else max(clock.host_s, working_s + dispatched_s)
    ratio = host_s / clock.wall_s if host_s is not None and clock.wall_s else None
    span_s: float
    of: Basis
    if host_s is None:
        span_s, of = working_s + dispatched_s, "operators"
    elif clock.wall_s and clock.wall_s <= host_s and working_s <= _FITS * clock.wall_s:
        span_s, of = max(clock.wall_s, working_s), "wall-clock"
    else:
        span_s, of = host_s, "profiled"
    rest = max(0.0, span_s - working_s)
    reported = of == "wall-clock" and "compiled" not in sums
    if rest > 0:
        sums["dispatch" if reported else "outside operators"] = _Sum(rest, calls)
    parts = sorted(
        (_part(name, one, span_s) for name, one in sums.items()), key=lambda p: (-p.seconds, p.name)
    )
    return CpuWork(span_s, parts, of, ratio, operator_cost_s)


def unprofiled_seconds(
    samples: Iterable[SampleTimes], profiled: ProfiledPass | None, phase: str
) -> float | None:
    """Return what the profiled work takes without a profiler; ``None`` where the same sample was not timed."""
    if profiled is None:
        return None
    row = next((row for row in samples if row.id == "+".join(profiled.sample_ids)), None)
    if row is None:
        return None
    seconds: float | None = getattr(row, f"{phase}_s", None)
    if phase == DECODE and row.new_tokens != profiled.new_tokens:
        # Cut short: as many steps as were profiled.
        seconds = None if row.tpot_s is None else row.tpot_s * (profiled.new_tokens - 1)
    return None if seconds is None else seconds * profiled.active_passes


def _sums(
    operators: Iterable[Operator], cost_s: float | None, grows: bool
) -> tuple[dict[str, _Sum], float, int]:
    """Sum the operators by class, separately from their call overhead, and count the calls."""
    sums: dict[str, _Sum] = {}
    dispatched_s, calls = 0.0, 0
    for operator in operators:
        kind = class_of(operator.name)
        calls += operator.calls
        if kind == _BOOKKEEPING:
            dispatched_s += operator.self_cpu_s
            continue
        own = min(operator.self_cpu_s, operator.calls * (cost_s or 0.0))
        dispatched_s += own
        if grows and joins_tensors(operator.name):
            kind = "growing cache"
        sums.setdefault(kind, _Sum()).add(operator, operator.self_cpu_s - own)
    return sums, dispatched_s, calls


def _part(name: str, one: _Sum, span_s: float) -> CpuPart:
    largest = min(one.operators, key=lambda key: (-one.operators[key], key), default=None)
    return CpuPart(
        cast("CpuPartName", name),
        one.seconds,
        one.seconds / span_s,
        one.calls,
        largest,
        None if largest is None else one.operators[largest] / span_s,
    )


def _of_a_sample(summary: Summary, phase: str, work: CpuWork) -> CpuWork:
    """Scale the seconds of the profiled sample to those of the median sample; shares are unchanged."""
    stat = getattr(summary.timings, f"{phase}_s", None)
    if stat is None or stat.shown <= 0:
        return work
    for part in work.parts:
        part.seconds = part.share_ratio * stat.shown
    work.span_s = stat.shown
    return work


# The report's table of what the processor does in each phase.


_OF = {
    "wall-clock": "the wall-clock without a profiler",
    "profiled": "the time under the profiler, which slows dispatch down",
    "operators": "the time inside operators",
}


def work_section(work: Mapping[str, CpuWork]) -> list[Section]:
    """Return the section, or nothing where no phase ran on the processor."""
    if not work:
        return []
    rows = [
        [
            phase,
            part.name,
            units.seconds(part.seconds),
            units.percent(part.share_ratio),
            part.operator or "",
            units.percent(part.operator_share_ratio) if part.operator is not None else "",
        ]
        for phase, one in work.items()
        for part in one.parts
    ]
    columns = ["phase", "part", "time per sample", "share", "largest operator", "its share"]
    return [
        Section("torch_profiler", "What the processor does", _paragraphs(work), [SectionTable(columns, rows)])
    ]


def _paragraphs(work: Mapping[str, CpuWork]) -> list[str]:
    parts = [f"{phase}: shares of {_OF[one.of]}" + _slower(one) for phase, one in work.items()]
    cost = next((one.operator_cost_s for one in work.values() if one.operator_cost_s is not None), None)
    dispatch = "Dispatch is what is left of the wall-clock without a profiler when the work inside operators is taken off"
    if cost is None:
        return [
            f"{'; '.join(parts)}.",
            f"{dispatch}. What an operator costs by itself was not measured: only views count.",
        ]
    return [
        f"{'; '.join(parts)}.",
        f"{dispatch}; of each operator call, {units.seconds(cost)} count as dispatch, which an operator on one element takes "
        "on this machine.",
    ]


def _slower(work: CpuWork) -> str:
    if work.profiled_ratio is None:
        return ""
    return f" (under the profiler the same work took {units.number(work.profiled_ratio)} times as long)"


# What limits a phase on the processor: the largest part of its time, and for matrix work its distance to the limit.


_DOMINATES = 0.4
"""Share of a phase from which its largest part explains it."""
_EVEN_WITHIN = 0.1
"""Two parts this close to one another (of the larger) are as large."""
_MATRIX_NEAR = 0.25
"""Share of its limit that matrix work must reach, in its own time, before the limit explains it."""
_MOVING: tuple[CpuPartName, ...] = ("movement", "growing cache")
_SMALL: tuple[CpuPartName, ...] = ("element-wise", "normalisation", "sampling", "other")
_SMALL_CALL_S = 30e-6
"""At its limit a matrix product that is shorter than this takes less time than calling it: the dispatch of an eager call and
starting and joining the threads of the processor take 5 to 30 µs."""
_OVERHEAD_FROM = 0.5
"""Share of a phase that is overhead, from which it explains the phase."""
DISPATCH_LEVER = "fewer operator calls: a compiled decode step, larger batches"
"""What moves dispatch on a processor."""
_LEAST_LISTED = 0.02
"""Smaller parts are not listed."""


@dataclass(frozen=True, slots=True)
class CpuAnswer:
    """A bound, the comparison behind it, and the kinds of sources it rests on."""

    bound: Bound
    arithmetic: str
    sources: tuple[str, ...]


def work_of(summary: Summary, phase: str) -> CpuWork | None:
    """Return a phase's work from the summary, else from its operators alone, which excludes dispatch."""
    if summary.hardware.kind != "cpu":
        return None
    known = summary.cpu_work.get(phase)
    if known is not None:
        return known
    rows = [operator for operator in summary.operators if operator.phase == phase]
    return phase_work(rows, PhaseClock(), operator_cost_s=summary.hardware.measured_operator_s)


def cpu_answer(summary: Summary, phase: str) -> CpuAnswer | None:
    """Classify a phase by the largest of matrix work, memory movement, small operators and dispatch; ``None``: no operators."""
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
    listed = _describe_shares(work)
    overhead = overhead_of(summary, phase, work)
    if overhead is not None:
        text = f"operators are too small for this machine: {overhead.describe()}; {listed}"
        return CpuAnswer("launch", text, ("trace", "static"))
    if groups[first] < _DOMINATES:
        return CpuAnswer("unknown", f"no single limit: {listed}", ("trace",))
    even = groups[second] >= (1 - _EVEN_WITHIN) * groups[first]
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


@dataclass(frozen=True, slots=True)
class SmallCalls:
    """Matrix products that are too short for this machine: the time of a call, and its time at the limit."""

    calls: int
    mean_s: float
    limit_s: float
    reached: float


def _small_calls(summary: Summary, phase: str, work: CpuWork) -> SmallCalls | None:
    """Return the matrix calls of a phase whose time at the limit is less than the cost of starting a call."""
    reached = _reached(summary, phase, work)
    rows = [op for op in summary.operators if op.phase == phase and class_of(op.name) == "matrix"]
    calls = sum(op.calls for op in rows)
    if reached is None or not calls:
        return None
    mean_s = sum(op.self_cpu_s for op in rows) / calls
    if work.of == "profiled" and work.profiled_ratio:
        mean_s /= work.profiled_ratio
    limit_s = mean_s * min(reached, 1.0)
    return SmallCalls(calls, mean_s, limit_s, reached) if limit_s < _SMALL_CALL_S else None


@dataclass(frozen=True, slots=True)
class Overhead:
    """What a phase spends on calling operators that are too small for the machine, as shares of its time."""

    small: SmallCalls
    beyond: float
    """Inside matrix products, above their limit."""
    calling: float
    """Around operators."""

    @property
    def share(self) -> float:
        """Both together."""
        return self.beyond + self.calling

    def describe(self) -> str:
        """Describe how small the products are and what that costs."""
        return (
            f"a matrix product takes {units.seconds(self.small.mean_s)} on average, {units.seconds(self.small.limit_s)} at its limit "
            f"(below about {units.seconds(_SMALL_CALL_S)} a call costs more than its work); overhead is {units.percent(self.beyond)} "
            f"inside such products and {units.percent(self.calling)} around operators, {units.percent(self.share)} together"
        )


def overhead_of(summary: Summary, phase: str, work: CpuWork) -> Overhead | None:
    """Return the overhead of small products and dispatch where together they explain a phase; ``None``: they do not."""
    small = _small_calls(summary, phase, work)
    if small is None:
        return None
    beyond = work.share("matrix") * max(0.0, 1 - small.reached)
    found = Overhead(small, beyond, work.share("dispatch", "outside operators"))
    return found if found.share >= max(_OVERHEAD_FROM, work.share(*_MOVING)) else None


def _describe_shares(work: CpuWork) -> str:
    """Describe the shares: their base, the parts in descending order, and the largest operator."""
    of = {
        "wall-clock": f"{units.seconds(work.span_s)} without a profiler",
        "profiled": "its time under the profiler",
        "operators": "operator time",
    }[work.of]
    parts = ", ".join(
        f"{_describe_part(part)} {units.percent(part.share_ratio)}"
        for part in work.parts
        if part.share_ratio >= _LEAST_LISTED
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


def _describe_part(part: CpuPart) -> str:
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
    """Return the verdict for matrix work, which explains a phase only where it is near its own limit."""
    prediction = summary.predictions.get(phase)
    if prediction is None or not prediction.error_ratio:
        return CpuAnswer(
            "unknown", f"matrix work is the largest part, its limit is not known: {listed}", ("trace",)
        )
    reached = _reached(summary, phase, work)
    if (
        reached is not None
        and reached < _MATRIX_NEAR
        and prediction.bound == "compute"
        and had_processor_alone(summary)
    ):
        text = (
            f"matrix work is the largest part and limited by arithmetic, at {units.percent(reached)} of the machine's rate: the "
            f"kernels or the number of threads do not use the machine; {listed}"
        )
        return CpuAnswer("compute", text, ("trace", "static"))
    if reached is None or reached < _MATRIX_NEAR:
        shared = "" if had_processor_alone(summary) else "; other programs used the processor meanwhile"
        text = (
            f"no single limit: matrix work is the largest part, but in that time it reaches {units.percent(reached)} of its "
            f"{prediction.bound} limit: kernels that do not use the machine{shared}; {listed}"
        )
        return CpuAnswer("unknown", text, ("trace", "static"))
    text = f"matrix work is the largest part, and its roofline floor is set by {prediction.bound}: {prediction.arithmetic}; {listed}"
    return CpuAnswer(prediction.bound, text, ("trace", "static"))


def had_processor_alone(summary: Summary) -> bool:
    """Whether the run had the processor to itself, as far as that is known."""
    use = summary.environment.get("device_use")
    return not (isinstance(use, Mapping) and use.get("shared"))


def _even(summary: Summary, phase: str, work: CpuWork, names: set[str], listed: str) -> CpuAnswer:
    """Return the verdict for two equally large parts: balanced only if both are work at a limit."""
    reached = _reached(summary, phase, work)
    if names == {"matrix", "movement"} and reached is not None and reached >= _MATRIX_NEAR:
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
