"""Budgets against the wall-clock without a profiler: device time over that wall-clock decides.

A profiler slows the host down, not the device. Where a phase was also timed without one, the time the device works is
taken from the capture and the rest of the unprofiled time is waiting; the capture only determines how that
waiting is split.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from llm_perf_opt.analysis.captures import CapturedWork
from llm_perf_opt.analysis.facts import Capture
from llm_perf_opt.analysis.timeline.budget import WORKING
from llm_perf_opt.analysis.verdicts import BUSY_ENOUGH, measured_passes
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import DECODE, PREFILL, VISION, WHOLE
from llm_perf_opt.summary import Budget, BudgetPart, Summary, Timings, Utilisation, Workload

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
    """Return the budgets, those of timed phases against their wall-clock, and notes on mismatches.

    ``counts`` gives the occurrences of each phase in the capture; decode counts steps. Where it is not known, or the phase was not
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
                f"{phase.capitalize()} was timed at {units.seconds(wall)} per {per}, but the capture contains "
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
    """Time of a prefill that was timed with the vision encoder inside, split as in the capture; ``None`` when not known."""
    if timings.vision_s is None:
        # Neither timed nor captured apart: both are of the same work.
        return None if vision_captured else prefill_s
    return prefill_s - timings.vision_s.shown if vision_captured else None


def occurrences(
    counts: Mapping[str, int], ranges: Mapping[str, int], steps_per_sample: float | None
) -> dict[str, int]:
    """Return how often a capture holds each phase, decode in steps.

    Where no range of decode calls itself a step, as many ranges as there are of prefill are whole passes, and more are
    steps.
    """
    found = {phase: count for phase, count in counts.items() if phase != WHOLE}
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
            return stat.shown, "token"
        steps = (workload.new_tokens or 0) - 1
        whole = timings.decode_s
        return (whole.shown / steps if whole is not None and steps > 0 else None), "token"
    stat = getattr(timings, f"{phase}_s", None) if phase != WHOLE else None
    return (stat.shown if stat is not None else None), "pass"


def _times_per_sample(phase: str, timings: Timings, wall: float) -> float:
    if phase == DECODE and timings.decode_s is not None and wall > 0:
        return timings.decode_s.shown / wall
    return 1.0


def _rebased(budget: Budget, count: int, wall: float, times: float) -> Budget:
    """Rebase the device's work of one occurrence on its unprofiled wall-clock, times its occurrences in a sample."""
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


# How busy the device was, from kernel tables without a time axis and the wall-clock of unprofiled passes.


_OVERLAP = "streams that overlap are counted twice, so this is an upper bound"


def busy_from_totals(summary: Summary, work: CapturedWork) -> None:
    """Relate the kernel time of tables to the wall-clockof their range, else of the whole run."""
    if (
        work.has_time_axis
        or WHOLE in work.facts.device_busy_ratio
        or not summary.metrics.get("kernel_time_s")
    ):
        return
    ranges = [capture for capture in work.used if capture.range is not None and capture.range.phase]
    for capture in ranges:
        _busy_of_range(summary, capture, work.truncated)
    if not ranges and None not in work.truncated:
        _busy_of_run(summary)


def _busy_of_run(summary: Summary) -> None:
    """Kernel time of the whole capture against the wall-clock of all samples."""
    busy = (summary.metrics.get("kernel_time_s") or 0.0) + (summary.metrics.get("copy_s") or 0.0)
    first, decode = summary.timings.ttft_s, summary.timings.decode_s
    passes = measured_passes(summary.workload)
    if passes is None:
        return
    # Without the time of the other phases this still bounds how busy a timed phase can have been.
    summary.metrics["device_busy_s"] = busy
    if first is None or decode is None:
        return
    wall = passes * (first.shown + decode.shown)
    of = "samples" if passes == summary.workload.samples else "batches"
    summary.metrics["measured_wall_s"] = wall
    use = summary.utilisation.setdefault(WHOLE, Utilisation())
    use.device_busy_ratio = min(1.0, busy / wall)
    use.arithmetic = f"{busy:.3f} s of device work ÷ ({passes} {of} × ({first.shown:.4f} + {decode.shown:.4f}) s); {_OVERLAP}"
    if busy > wall:
        summary.notes.append(
            "The kernel table contains more device time than the wall-clock file: they are not of the same run, "
            "or streams overlap."
        )


def _busy_of_range(summary: Summary, capture: Capture, truncated: Collection[str | None]) -> None:
    """Kernel time of one phase against that phase's own wall-clock; a partial capture of a phase is not used."""
    of = capture.range
    if of is None or of.phase is None or of.component is not None or of.phase in truncated:
        return
    stat = getattr(summary.timings, f"{of.phase}_s", None)
    busy = sum(kernel.total_s or 0.0 for kernel in capture.facts.kernels)
    if stat is None or not stat.shown or not busy:
        return
    least = max(1, math.ceil(busy / stat.shown - 1e-9))
    passes = of.passes or least
    ratio = busy / (passes * stat.shown)
    most = measured_passes(summary.workload)
    if of.passes is None and ratio >= BUSY_ENOUGH and most != least:
        low = busy / (most * stat.shown) if most is not None and most > least else 0.0
        summary.notes.append(
            f"The kernel table of {of.name} does not record its number of passes: the device is busy for "
            f"{units.percent(low)} to {units.percent(ratio)} of {of.phase}, which is inconclusive."
        )
        return
    held = f"{passes} {'pass' if passes == 1 else 'passes'}" + ("" if of.passes else ", the fewest possible")
    use = summary.utilisation.setdefault(of.phase, Utilisation())
    use.device_busy_ratio = min(1.0, ratio)
    text = f"busy: {busy:.6f} s of device work ÷ ({held} × {stat.shown:.4f} s of {of.phase}); {_OVERLAP}"
    use.arithmetic = f"{use.arithmetic}; {text}" if use.arithmetic else text
