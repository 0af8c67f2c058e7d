"""Captures of one run against the launches its model needs: which phases are captured only in part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llm_perf_opt.analysis.captures.completeness import Shortage, cut_pass, shortage
from llm_perf_opt.analysis.facts import Capture
from llm_perf_opt.analysis.verdicts import measured_passes
from llm_perf_opt.core.phases import DECODE, PHASES
from llm_perf_opt.model.captured import CapturedRange
from llm_perf_opt.model.summary import Kernel, Static
from llm_perf_opt.model.wall_clock import WallClock


def find_shortages(
    static: Static | None,
    kernels: Sequence[Kernel],
    captures: Sequence[Capture],
    phase_counts: Mapping[str, int],
    clock: WallClock | None,
) -> list[Shortage]:
    """Return what is captured only in part; nothing without a static model.

    A timeline counts its phases itself. A table of one range holds it as often as its configuration says, at least
    once; a table of the whole run holds all samples that were timed.
    """
    if static is None or not kernels:
        return []
    if any(capture.facts.budget for capture in captures):
        found = [shortage(static, kernels, phase, phase_counts) for phase in PHASES if phase in phase_counts]
        return [each for each in found if each is not None]
    ranges = [capture.range for capture in captures if capture.range is not None and capture.range.phase]
    if ranges:
        return [each for one in ranges if (each := _of_range(static, kernels, one, clock)) is not None]
    count = float(measured_passes(clock.workload) or 1) if clock is not None else 1.0
    passes = {phase: count * _steps(phase, clock) for phase in PHASES if phase in static.phases}
    whole = shortage(static, kernels, None, passes)
    return [whole] if whole is not None else []


def _of_range(
    static: Static, kernels: Sequence[Kernel], one: CapturedRange, clock: WallClock | None
) -> Shortage | None:
    phase = one.phase or ""
    count = (one.passes or 1) * _steps(phase, clock)
    return shortage(static, kernels, phase, {phase: count}, component=one.component) or cut_pass(
        static, kernels, phase, count, component=one.component
    )


def _steps(phase: str, clock: WallClock | None) -> float:
    """Return the model passes of a phase in one pass over a sample: in decode, its steps; one where they are not known."""
    if phase != DECODE or clock is None:
        return 1.0
    if clock.decode_steps:
        return clock.decode_steps
    tokens = clock.workload.new_tokens
    return max(1.0, tokens - 1) if tokens else 1.0
