"""Under which conditions counters were taken, and what a reader has to know of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llm_perf_opt.analysis.ncu.phases import profiled_phase
from llm_perf_opt.core.phases import PHASES
from llm_perf_opt.model.counters import NcuCapture
from llm_perf_opt.model.summary import Kernel
from llm_perf_opt.model.summary.profiled import CounterConditions

_CLOCKS = {
    "base": "clocks locked to base",
    "none": "clocks left alone",
    "boost": "clocks locked to boost",
}
_CACHES = {"all": "caches flushed before every replay", "none": "caches left as the launch before left them"}
_NAMED = 3


def counter_conditions(capture: NcuCapture, kernels: Iterable[Kernel]) -> CounterConditions:
    """Return how a capture was taken; what its files do not record stays ``None``."""
    settings = [launch.settings for launch in capture.launches if launch.settings is not None]
    complete = len(settings) == len(capture.launches)
    phases = {phase for launch in capture.launches if (phase := profiled_phase(launch)) is not None}
    return CounterConditions(
        launches=len(capture.launches),
        clock_control=_joined(each.clock_control for each in settings) if complete else None,
        cache_control=_joined(each.cache_control for each in settings) if complete else None,
        source=_joined(each.source for each in settings) if complete else None,
        phases=[*(phase for phase in PHASES if phase in phases), *sorted(phases - {*PHASES})],
        not_representative=sum(not kernel.counters_stand_for_run for kernel in kernels),
    )


def condition_notes(found: CounterConditions, kernels: Sequence[Kernel]) -> list[str]:
    """Say how the counters were taken, which do not stand for the run, and what the capture does not tell."""
    if found.clock_control is None or found.cache_control is None:
        notes = [
            "The counters' capture does not record clock and cache control: unless told otherwise, ncu locks clocks to "
            "base and flushes caches before every replay, so that kernels last longer than in the run."
        ]
    else:
        clocks = ", ".join(_CLOCKS.get(word, word) for word in found.clock_control.split(", "))
        caches = ", ".join(_CACHES.get(word, word) for word in found.cache_control.split(", "))
        notes = [f"Counters were taken with {clocks} and {caches} ({found.source})."]
    counted = [kernel for kernel in kernels if kernel.profiled is not None]
    phased = {kernel.phase for kernel in counted if kernel.phase is not None and kernel.total_s is not None}
    if phased and not found.phases:
        notes.append(
            "The counters' capture does not tell phases (no NVTX ranges in it): its counters stand with their kernels "
            "in every phase."
        )
    unfit = [kernel for kernel in counted if not kernel.counters_stand_for_run]
    if unfit:
        named = "; ".join(
            f"{kernel.short_name}{f' in {kernel.phase}' if kernel.phase else ''}: {kernel.profiled.remark}"
            for kernel in unfit[:_NAMED]
            if kernel.profiled is not None
        )
        more = f"; and {len(unfit) - _NAMED} more" if len(unfit) > _NAMED else ""
        notes.append(
            f"Counters of {len(unfit)} of {len(counted)} profiled kernels do not stand for the run and are not used for "
            f"verdicts: {named}{more}."
        )
    return notes


def _joined(words: Iterable[str]) -> str | None:
    return ", ".join(dict.fromkeys(words)) or None
