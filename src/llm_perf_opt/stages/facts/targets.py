"""Kernel targets from the measured tables of the extra ``silicon``: asked here, compared in ``analysis.targets``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llm_perf_opt.analysis.join import Joined
    from llm_perf_opt.analysis.ncu.counters import CounterFacts
    from llm_perf_opt.hardware.silicon import Silicon
    from llm_perf_opt.model.summary import Hardware

_STAGE = "torch_profiler"


def add_kernel_targets(
    joined: Joined, hardware: Hardware, silicon: Silicon | None, counters: CounterFacts | None = None
) -> None:
    """Put targets beside the kernels whose shapes are known, and say what could not be compared and why.

    Nothing is said where there is nothing to compare: no shapes, or without the extra a device it would not help.
    """
    from llm_perf_opt.analysis.targets.calls import traced_times
    from llm_perf_opt.analysis.targets.measured import look_up_in
    from llm_perf_opt.analysis.targets.profiled import add_profiled_targets, has_shapes
    from llm_perf_opt.analysis.targets.section import missing_section, target_section
    from llm_perf_opt.analysis.targets.targets import add_targets
    from llm_perf_opt.hardware.silicon.locate import PACKAGE, absent_words

    shaped_ranges = counters is not None and has_shapes(joined.counters)
    if hardware.name is None or not (joined.shaped_calls or shaped_ranges):
        return
    if silicon is None:
        if hardware.reached_flops_per_s:  # a device the tables hold
            words = absent_words()
            joined.sections += missing_section(_STAGE, f"{words[0].upper()}{words[1:]}.")
        return
    name = hardware.name
    if silicon.system(name) is None:
        words = f"No measured table is of {name}, so its kernels have no target."
        joined.sections += missing_section(_STAGE, words)
        joined.notes += _problem_notes(silicon)
        return
    look_up = look_up_in(lambda operator: silicon.time(operator, name), hardware)
    traced_s = traced_times(joined.traced_kernels)
    coverage = add_targets(joined.kernels, joined.shaped_calls, look_up, traced_s)
    profiled = None
    if counters is not None:
        profiled = add_profiled_targets(joined.kernels, counters.facts, counters.matches, look_up)
    joined.metrics |= {
        "kernel_targets_compared_s": coverage.compared_s,
        "kernel_targets_outside_s": coverage.outside_s,
        "kernel_targets_at_stake_s": coverage.at_stake_s,
    }
    origin = f"tables of {PACKAGE} {silicon.version}"
    joined.sections += target_section(_STAGE, coverage, origin, profiled)
    joined.notes += _problem_notes(silicon)


def _problem_notes(silicon: Silicon) -> list[str]:
    return [f"Measured tables: {problem}" for problem in silicon.problems]
