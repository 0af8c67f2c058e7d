"""The work in two captures: a capture with less work is shorter, which is not a gain.

Counted by the first of these that both sides have: passes of each phase (decode: steps), steps of the profiler, launches of
the same kernels. Launches also check the other counts: a capture that was cut off in the middle of a step still holds
that step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_perf_opt.analysis.metrics import Series, side_series, summary_scalars, timing_scalars
from llm_perf_opt.analysis.origin import Side
from llm_perf_opt.compare.data import Comparison, KernelChange, Work
from llm_perf_opt.compare.kernels import compare_kernels
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import DECODE, WHOLE, captured_count_name
from llm_perf_opt.summary import Budget, BudgetPart, Summary

STEPS = "profiler_steps"
_SAME_KERNEL = ("exact", "renamed", "retyped")
_EQUAL_SHARE = 1 / 3
"""Votes for "as many launches on both sides" that settle it: a shorter capture leaves no count as it was, while a changed
program leaves many."""
_LEAST_AGREEMENT = 0.6
_NEAR_RATIO, _NEAR_LAUNCHES = 0.1, 2.0
"""How far a kernel's launches may be from the common ratio: a cut through a step does not meet all kernels alike."""
_LEAST_TIME_SHARE = 0.3
"""Kernel time that must belong to kernels of both sides."""
_SAME_KERNELS_SHARE = 0.9
"""From here on another number of launches is more or less captured; below it the program may have changed."""
_SAME_RATIO = 0.02
_CONTRADICTION = 0.05


@dataclass(frozen=True, slots=True)
class _Consensus:
    """By how much most kernels' launches differ."""

    launches_ratio: float
    """B ÷ A, of the kernels that agree."""
    time_ratio: float
    """The same, each launch weighted by its mean time on A: what that many launches are worth."""
    common_share: float
    """Least share of either side's kernel time that belongs to kernels of both."""

    @property
    def same_kernels(self) -> bool:
        """Whether both sides run nearly the same kernels, as a shorter capture of the same program does."""
        return self.common_share >= _SAME_KERNELS_SHARE


@dataclass(frozen=True, slots=True)
class Scaling:
    """Scales B's times to A's work."""

    work: Work

    def factor(self, phase: str | None) -> float | None:
        """Return the factor of B's times in a phase (``None``: outside the phases); ``None`` where it is not known."""
        ratio = self.work.phases.get(phase, self.work.ratio) if phase is not None else self.work.ratio
        return 1 / ratio if ratio else None

    def at_equal_work(self, b_over_a: float | None, phase: str | None) -> float | None:
        """Return a ratio of captured times scaled to equal work."""
        factor = self.factor(phase)
        return None if b_over_a is None or factor is None else b_over_a * factor


def captured_work(a: Summary, b: Summary, kernels: Sequence[KernelChange]) -> Work:
    """Return the captured work of B relative to A."""
    launches = _launch_consensus(kernels)
    if (counted := _phase_work(a, b, kernels)) is not None:
        return _checked(counted, launches) if counted.ratio is not None else counted
    steps_a, steps_b = a.metrics.get(STEPS), b.metrics.get(STEPS)
    if steps_a and steps_b:
        return _checked(_counted_work("steps", "step", "profiler steps", steps_a, steps_b), launches)
    if launches is not None and (launches.same_kernels or launches.time_ratio == 1):
        return _launch_work(launches)
    return Work(None, "", None, None, None, _reason_unknown(a, b, kernels))


def _launch_consensus(rows: Sequence[KernelChange]) -> _Consensus | None:
    """Return the ratio that the launches of most kernels share; ``None`` where they do not agree.

    Every kernel has one vote, weighted by the logarithm of its launches: a kernel with one launch is not informative, and
    one kernel that is launched more often must not outvote all others.
    """
    pairs = [
        (row, row.a_launches, row.b_launches)
        for row in rows
        if row.matched in _SAME_KERNEL and row.a_launches and row.b_launches
    ]
    common = _common_share(rows, [row for row, _, _ in pairs])
    if not pairs or common < _LEAST_TIME_SHARE:
        return None
    weights = [math.log2(max(a, b)) for _, a, b in pairs]
    whole = math.fsum(weights)
    if whole == 0:
        return _Consensus(1.0, 1.0, common)
    equal = math.fsum(w for w, (_, a, b) in zip(weights, pairs, strict=True) if a == b)
    if equal >= _EQUAL_SHARE * whole:
        return _Consensus(1.0, 1.0, common)
    ratio = _weighted_median([b / a for _, a, b in pairs], weights)
    agreeing = [
        (weight, pair)
        for weight, pair in zip(weights, pairs, strict=True)
        if abs(pair[2] - ratio * pair[1]) <= max(_NEAR_LAUNCHES, _NEAR_RATIO * ratio * pair[1])
    ]
    if math.fsum(weight for weight, _ in agreeing) < _LEAST_AGREEMENT * whole:
        return None
    total_a, total_b = sum(a for _, (_, a, _) in agreeing), sum(b for _, (_, _, b) in agreeing)
    priced = [(a, b, row.a_s / a) for _, (row, a, b) in agreeing if row.a_s]
    worth_a, worth_b = (math.fsum(n[side] * n[2] for n in priced) for side in (0, 1))
    return _Consensus(total_b / total_a, worth_b / worth_a if worth_a else total_b / total_a, common)


def _common_share(rows: Sequence[KernelChange], common: Sequence[KernelChange]) -> float:
    """Return the least share of either side's kernel time that ``common`` has; 1 for captures without times."""
    shares = [1.0]
    for side in ("a_s", "b_s"):
        whole = math.fsum(getattr(row, side) or 0.0 for row in rows)
        if whole:
            shares.append(math.fsum(getattr(row, side) or 0.0 for row in common) / whole)
    return min(shares)


def _weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    ordered = sorted(zip(values, weights, strict=True))
    half, passed = math.fsum(weights) / 2, 0.0
    for value, weight in ordered:
        passed += weight
        if passed >= half:
            return value
    return ordered[-1][0]


def _phase_work(a: Summary, b: Summary, kernels: Sequence[KernelChange]) -> Work | None:
    """Count passes of the phases both sides split their time by; launches are used where a phase was not counted."""
    phases = [phase for phase in a.budget if phase in b.budget and phase != WHOLE]
    counts: dict[str, tuple[float, float]] = {}
    ratios: dict[str, float] = {}
    for phase in phases:
        name = captured_count_name(phase)
        one, two = a.metrics.get(name), b.metrics.get(name)
        if one and two:
            counts[phase] = (one, two)
            ratios[phase] = two / one
        elif found := _launch_consensus([row for row in kernels if row.phase == phase]):
            ratios[phase] = found.time_ratio
    if not counts or len(ratios) < len(phases):
        return None
    phase = DECODE if DECODE in counts else next(iter(counts))
    unit = "decode step" if phase == DECODE else f"pass of {phase}"
    if _close(ratios.values()):
        work = _counted_work("phases", unit, f"{unit}s", *counts[phase])
        work.phases = ratios
        return work
    text = "; ".join(
        f"{name}: {_amounts(*counts[name])}" if name in counts else f"{name}: {_more_or_less(ratio)}"
        for name, ratio in ratios.items()
    )
    return Work("phases", "unit of work", None, None, None, f"Passes of each phase. {text}", phases=ratios)


def _close(ratios: Iterable[float]) -> bool:
    values = list(ratios)
    return max(values) <= min(values) * (1 + _SAME_RATIO)


def _counted_work(basis: str, unit: str, plural: str, a: float, b: float) -> Work:
    text = f"Counted in {plural}: {_amounts(a, b)}"
    return Work("phases" if basis == "phases" else "steps", unit, a, b, b / a, text)


def _launch_work(launches: _Consensus) -> Work:
    text = f"Counted in launches of the same kernels: {_describe_launch(launches)}"
    apart = abs(math.log(launches.time_ratio / launches.launches_ratio))
    return Work("launches", "unit of work", None, None, launches.time_ratio, text, uncertainty_ratio=apart)


def _checked(counted: Work, launches: _Consensus | None) -> Work:
    """Check the number of steps against the launches; on contradiction the launches are used, marked as uncertain."""
    if counted.ratio is None:
        return counted
    if launches is None or not launches.same_kernels:
        counted.confirmed = False
        counted.text += f". The kernels do not show that a {counted.unit} is the same work on both sides"
        return counted
    if abs(math.log(launches.time_ratio / counted.ratio)) <= _CONTRADICTION:
        return counted
    work = _launch_work(launches)
    work.sure = False
    work.text = (
        f"{work.text}. This contradicts another count ({counted.text[0].lower()}{counted.text[1:]}): either less was "
        f"captured of some {counted.unit}s, or a {counted.unit} now launches another number of kernels. Taken as "
        "captured work, which no gate decides on"
    )
    return work


def _reason_unknown(a: Summary, b: Summary, kernels: Sequence[KernelChange]) -> str:
    if not a.kernels or not b.kernels:
        return f"{'A' if not a.kernels else 'B'} contains no kernels"
    counted = [row for row in kernels if row.matched in _SAME_KERNEL and row.a_launches and row.b_launches]
    why = (
        "too few kernels are in both captures with their number of launches"
        if not counted or _common_share(kernels, counted) < _SAME_KERNELS_SHARE
        else "the launches of the kernels that both sides have do not differ by a common factor"
    )
    return f"How much work each capture contains is not known: neither side counts steps or passes of phases, and {why}"


def _describe_launch(found: _Consensus) -> str:
    text = _more_or_less(found.launches_ratio, "launches")
    if abs(found.time_ratio - found.launches_ratio) > 0.01:
        text += f", which are worth {_percent(found.time_ratio)} {_direction(found.time_ratio)} of their time"
    return text


def _amounts(a: float, b: float) -> str:
    if a == b:
        return f"{units.count(a)} on both sides"
    return f"{units.count(b)} in B, {units.count(a)} in A ({_more_or_less(b / a)})"


def _more_or_less(ratio: float, what: str = "") -> str:
    if abs(ratio - 1) < 0.0005:
        return f"as many {what}".rstrip() if what else "the same"
    word = {True: "more", False: "fewer" if what else "less"}[ratio > 1]
    return f"{_percent(ratio)} {word} {what}".rstrip()


def _percent(ratio: float) -> str:
    return units.percent(abs(ratio - 1))


def _direction(ratio: float) -> str:
    return "more" if ratio > 1 else "less"


# Scale B's measurements to A's work: a side that did or captured less is not faster because of it.


_CAPTURED = ("kernel_time", "copy_time", "launches")
"""Metrics that grow with the length of a capture."""
CAPTURED_PART = "captured time: "
"""How rows of phases begin that grow with the length of a capture."""
Document = Mapping[str, Any]


def _captured_scalars(summary: Summary, reference: Summary) -> tuple[dict[str, float], str | None]:
    """Return the scalars of captures scaled to the work of another run, and the reasons where that is unknown.

    Values that cannot be scaled are returned as captured.
    """
    plain = summary_scalars(summary)
    if summary is reference or not summary.kernels or not reference.kernels:
        return plain, None
    work = captured_work(reference, summary, compare_kernels(reference.kernels, summary.kernels))
    if work.basis is None or not work.sure:
        return plain, work.text
    scaling = Scaling(work)
    factors = {kernel.phase: scaling.factor(kernel.phase) for kernel in summary.kernels}
    if any(factor is None for factor in factors.values()):
        return plain, f"the work of some kernels is not known. {work.text}"
    if "kernel_time" in plain:
        plain["kernel_time"] = math.fsum(
            (k.total_s or 0.0) * (factors[k.phase] or 1.0) for k in summary.kernels
        )
    if "launches" in plain:
        plain["launches"] = math.fsum((k.launches or 0) * (factors[k.phase] or 1.0) for k in summary.kernels)
    whole = scaling.factor(None)
    if whole is None:
        plain.pop("copy_time", None)  # copies belong to no phase
    elif "copy_time" in plain:
        plain["copy_time"] *= whole
    return plain, None


def _at_equal_steps(document: Document | None, reference: Document | None) -> Document | None:
    """Return a timings document whose samples decode as many tokens as those of another, at their own speed."""
    if not document or not reference or "samples" not in document or "samples" not in reference:
        return document
    wanted = {str(sample["id"]): sample.get("new_tokens") for sample in reference["samples"]}
    samples = [_at_steps(sample, wanted.get(str(sample["id"]))) for sample in document["samples"]]
    return {**document, "samples": samples}


def _at_steps(sample: Document, tokens: float | None) -> Document:
    own = sample.get("new_tokens")
    if not tokens or not own or tokens == own or tokens < 2 or own < 2:
        return sample
    factor = (tokens - 1) / (own - 1)
    repeats = [
        {**repeat, "decode_s": repeat["decode_s"] * factor} if repeat.get("decode_s") is not None else repeat
        for repeat in sample["repeats"]
    ]
    return {**sample, "new_tokens": tokens, "repeats": repeats}


def _timed_scalars(summary: Summary, reference: Summary) -> dict[str, float]:
    """Return the medians a summary keeps, decode at as many tokens as another summary's."""
    values = timing_scalars(summary)
    own, wanted = summary.workload.new_tokens, reference.workload.new_tokens
    if own and wanted and own > 1 and wanted > 1 and "decode" in values:
        values["decode"] *= (wanted - 1) / (own - 1)
        if "total" in values:
            values["total"] = values["ttft"] + values["decode"]
    return values


def series_at_work(
    side: Side, reference: Side, *, by_repeat: bool
) -> tuple[dict[str, Series], dict[str, str]]:
    """Return every metric of a side at the work of another's first run, and metric → why it could not be scaled."""
    unlike: dict[str, str] = {}
    first, timings = reference.first, next(iter(reference.documents), None)

    def captured(summary: Summary) -> dict[str, float]:
        values, why = _captured_scalars(summary, first)
        if why is not None:
            unlike.update({name: why for name in _CAPTURED if name in values})
        return values

    series = side_series(
        side.summaries,
        [_at_equal_steps(document, timings) for document in side.documents],
        by_repeat=by_repeat,
        captured=captured,
        timed=lambda summary: _timed_scalars(summary, first),
    )
    return series, unlike


def put_rows_at_equal_work(result: Comparison, scaling: Scaling) -> None:
    """Make the ratios of captured times those at equal work; without a known factor there is none."""
    for family in result.families:
        family.ratio = scaling.at_equal_work(family.ratio, family.phase)
    for kernel in result.kernels:
        kernel.ratio = scaling.at_equal_work(kernel.ratio, kernel.phase)
    for row in result.phases if result.kernels else []:
        if row.what.startswith(CAPTURED_PART):
            row.ratio = scaling.at_equal_work(row.ratio, row.phase)


# The stretches of a capture that are compared: its phases and what lies outside them, or all of it.


_OVERLAP_RATIO = 0.001
"""Of the span: phases that overlap by more are not taken apart."""


@dataclass(frozen=True, slots=True)
class Scope:
    """One stretch on both sides."""

    phase: str | None
    """``None``: outside the phases, or all of the capture."""
    a: Budget
    b: Budget
    factor: float
    """Puts B's times at A's work."""
    kernels: list[KernelChange]

    @property
    def a_s(self) -> float:
        """Length on A."""
        return self.a.span_s

    @property
    def b_s(self) -> float:
        """Length on B, at A's work."""
        return self.b.span_s * self.factor


def find_scopes(a: Summary, b: Summary, scaling: Scaling, kernels: Sequence[KernelChange]) -> list[Scope]:
    """Return what to compare; empty where no budget is on both sides or the work of none is known."""
    phases = [name for name in a.budget if name in b.budget and name != WHOLE]
    has_phases = any(row.phase for row in kernels)
    scopes = [
        Scope(name, a.budget[name], b.budget[name], factor, [row for row in kernels if row.phase == name])
        for name in phases
        if (factor := scaling.factor(name)) is not None and has_phases
    ]
    whole = scaling.factor(None)
    if WHOLE not in a.budget or WHOLE not in b.budget or whole is None:
        return scopes if len(scopes) == len(phases) else []
    if scopes and len(scopes) == len(phases):
        outside = [_outside(side, phases) for side in (a, b)]
        if outside[0] is not None and outside[1] is not None:
            rest = [row for row in kernels if row.phase not in phases]
            return [*scopes, Scope(None, outside[0], outside[1], whole, rest)]
    return [Scope(None, a.budget[WHOLE], b.budget[WHOLE], whole, list(kernels))]


def _outside(side: Summary, phases: Sequence[str]) -> Budget | None:
    """Return the part of a capture's budget outside all phases; ``None`` where phases overlap."""
    whole = side.budget[WHOLE]
    parts = []
    for name in dict.fromkeys(part.name for part in whole.parts):
        inside = math.fsum(p.seconds for phase in phases for p in side.budget[phase].parts if p.name == name)
        same = [part for part in whole.parts if part.name == name]
        left = math.fsum(part.seconds for part in same) - inside
        if left < -_OVERLAP_RATIO * whole.span_s:
            return None
        parts.append(BudgetPart(name, left, 0.0, same[0].owner))
    return Budget(whole.span_s - math.fsum(side.budget[phase].span_s for phase in phases), parts)
