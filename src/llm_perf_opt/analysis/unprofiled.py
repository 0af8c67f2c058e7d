"""Budgets against the wall-clock without a profiler: device time over that wall-clock decides.

A profiler slows the host down, not the device. Where a phase was also timed without one, the time the device works is
taken from the capture and the rest of the unprofiled time is what it waits; the capture only tells how that wait is
split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from llm_perf_opt.analysis.timeline.budget import WORKING
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import DECODE, PREFILL, VISION, WHOLE
from llm_perf_opt.model.summary import Budget, BudgetPart, Timings, Workload

_MORE_THAN_FITS = 1.05
"""Device time this much above the wall-clock is of other work than was timed."""


def against_wall_clock(
    budgets: Mapping[str, Budget],
    counts: Mapping[str, int],
    timings: Timings,
    workload: Workload,
    *,
    prefill_includes_vision: bool = False,
) -> tuple[dict[str, Budget], list[str]]:
    """Return the budgets, those of timed phases against their wall-clock, and notes on what does not fit.

    ``counts`` says how often the capture holds a phase; decode counts steps. Where it is not known, or the phase was not
    timed, a budget stays as captured.
    """
    found, notes = dict(budgets), []
    for phase, budget in budgets.items():
        wall, per = _wall_clock(phase, timings, workload)
        if wall is not None and phase == PREFILL and prefill_includes_vision:
            wall = _without_vision(wall, timings, vision_captured=VISION in budgets)
        count = counts.get(phase)
        if wall is None or wall <= 0 or not count or budget.span_s <= 0:
            continue
        device_s = sum(part.seconds for part in budget.parts if part.name in WORKING) / count
        if device_s > _MORE_THAN_FITS * wall:
            notes.append(
                f"{phase.capitalize()} was timed at {units.seconds(wall)} per {per}, but the capture holds "
                f"{units.seconds(device_s)} of device work per {per}: the capture is not of the same work, and is not "
                "measured against these timings."
            )
            continue
        found[phase] = _rebased(budget, count, wall, _times_per_sample(phase, timings, wall))
    if WHOLE in found and any(found[phase] is not budgets[phase] for phase in budgets):
        whole = _whole({phase: one for phase, one in found.items() if phase != WHOLE}, found[WHOLE])
        if whole is not None:
            found[WHOLE] = whole
    return found, notes


def _without_vision(prefill_s: float, timings: Timings, *, vision_captured: bool) -> float | None:
    """Time of a prefill that was timed with the vision encoder inside, as the capture has it; ``None`` when not known."""
    if timings.vision_s is None:
        # Neither timed nor captured apart: both are of the same work.
        return None if vision_captured else prefill_s
    return prefill_s - timings.vision_s.median if vision_captured else None


def occurrences(
    counts: Mapping[str, int], ranges: Mapping[str, int], steps_per_sample: float | None
) -> dict[str, int]:
    """Return how often a capture holds each phase, decode in steps.

    Where no range of decode calls itself a step, as many ranges as there are of prefill are whole passes, and more are
    steps.
    """
    found = dict(counts)
    decode = ranges.get(DECODE, 0)
    if DECODE in found or not decode:
        return found
    if decode > max(1, ranges.get(PREFILL, 1)):
        found[DECODE] = decode
    elif steps_per_sample and steps_per_sample >= 1:
        found[DECODE] = round(decode * steps_per_sample)
    return found


def _wall_clock(phase: str, timings: Timings, workload: Workload) -> tuple[float | None, str]:
    """Unprofiled seconds of one occurrence of a phase, and what one is."""
    if phase == DECODE:
        stat = timings.tpot_s
        if stat is not None:
            return stat.median, "token"
        steps = (workload.new_tokens or 0) - 1
        whole = timings.decode_s
        return (whole.median / steps if whole is not None and steps > 0 else None), "token"
    stat = getattr(timings, f"{phase}_s", None) if phase != WHOLE else None
    return (stat.median if stat is not None else None), "pass"


def _times_per_sample(phase: str, timings: Timings, wall: float) -> float:
    if phase == DECODE and timings.decode_s is not None and wall > 0:
        return timings.decode_s.median / wall
    return 1.0


def _rebased(budget: Budget, count: int, wall: float, times: float) -> Budget:
    """Put the device's work of one occurrence into its unprofiled wall-clock, times its occurrences in a sample."""
    scale = times / count
    span = wall * times
    working = sum(part.seconds for part in budget.parts if part.name in WORKING) * scale
    squeeze = min(1.0, span / working) if working > 0 else 1.0
    idle = sum(part.seconds for part in budget.parts if part.name not in WORKING)
    left = max(0.0, span - working)
    wait = left / idle if idle > 0 else 0.0
    parts = []
    for part in budget.parts:
        seconds = part.seconds * (scale * squeeze if part.name in WORKING else wait)
        parts.append(replace(part, seconds=seconds, share_ratio=seconds / span))
    if idle <= 0 < left:
        parts.append(BudgetPart("host", left, left / span))
        parts = _once(parts, span)
    profiled = budget.span_s * scale
    return replace(
        budget, span_s=span, parts=parts, profiled_span_s=profiled, inflation_ratio=profiled / span
    )


def _once(parts: list[BudgetPart], span: float) -> list[BudgetPart]:
    """Join parts of one name."""
    found: dict[str, BudgetPart] = {}
    for part in parts:
        before = found.get(part.name)
        seconds = part.seconds + (before.seconds if before is not None else 0.0)
        found[part.name] = replace(part, seconds=seconds, share_ratio=seconds / span)
    return list(found.values())


def _whole(phases: Mapping[str, Budget], captured: Budget) -> Budget | None:
    """The whole of a sample, where every phase of the capture was timed."""
    if not phases or any(one.profiled_span_s is None for one in phases.values()):
        return None
    span = sum(one.span_s for one in phases.values())
    profiled = sum(one.profiled_span_s or 0.0 for one in phases.values())
    found: dict[str, BudgetPart] = {}
    for part in (part for one in phases.values() for part in one.parts):
        before = found.get(part.name)
        if before is None:
            found[part.name] = replace(part)
            continue
        owner = part.owner if part.seconds > before.seconds else before.owner
        found[part.name] = replace(before, seconds=before.seconds + part.seconds, owner=owner)
    parts = [replace(part, share_ratio=part.seconds / span) for part in found.values()]
    return replace(
        captured, span_s=span, parts=parts, profiled_span_s=profiled, inflation_ratio=profiled / span
    )
