"""A phase on the processor, split by what its operators do and what dispatching them costs.

The profiler slows the host down between operators, hardly inside their kernels. So what operators do is taken from the
profiled pass, and dispatch is what the wall-clock of the same work *without* a profiler leaves over. Where that is not
known, or other programs disturbed one of the two (the profiled pass is the faster one, or has more work in its operators
than the other has time), dispatch is not told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from llm_perf_opt.analysis.cpu.classes import BOOKKEEPING, class_of, joins_tensors
from llm_perf_opt.analysis.facts import ProfiledPass
from llm_perf_opt.core.phases import DECODE, PHASES
from llm_perf_opt.model.summary import Operator, SampleTimes, Summary
from llm_perf_opt.model.summary.cpu_work import Basis, CpuPart, CpuPartName, CpuWork

GROWS_BY_COPYING = "dynamic"
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
            grows=phase == DECODE and summary.workload.cache == GROWS_BY_COPYING,
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

    ``grows``: tensors that are joined are a key-value cache that grows by copying.
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
    told = of == "wall-clock" and "compiled" not in sums
    if rest > 0:
        sums["dispatch" if told else "outside operators"] = _Sum(rest, calls)
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
    """Return what operators do, apart from what calling them costs, and how many calls there were."""
    sums: dict[str, _Sum] = {}
    dispatched_s, calls = 0.0, 0
    for operator in operators:
        kind = class_of(operator.name)
        calls += operator.calls
        if kind == BOOKKEEPING:
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
    """Turn the profiled sample's seconds into those of the median sample; shares stay."""
    stat = getattr(summary.timings, f"{phase}_s", None)
    if stat is None or stat.median <= 0:
        return work
    for part in work.parts:
        part.seconds = part.share_ratio * stat.median
    work.span_s = stat.median
    return work
