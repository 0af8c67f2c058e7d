"""Cautions about a summary's ratios: inconsistent work, times and limits."""

from __future__ import annotations

from llm_perf_opt.core import units
from llm_perf_opt.summary import Summary

_OTHER_SHAPES = 0.05
"""Relative difference of prompt lengths from which work and times are not of the same requests."""
_CACHE_SIZED_BYTES = 2.0**30
"""Working sets up to this size can lie in a cache: the largest server processors have about a GiB."""


def below_floor(memory_bytes: float | None) -> str:
    """Name the likely cause of a time below its floor; ``memory_bytes``: what it reads, where memory sets the floor."""
    if memory_bytes is None:
        return "the peak is likely too low (measured on a busy machine?), or the time covers less than the counted work"
    if memory_bytes <= _CACHE_SIZED_BYTES:
        return (
            f"its working set of {units.size(memory_bytes)} likely stays in a cache, which is faster than the main "
            "memory the floor counts with"
        )
    return (
        "the bandwidth is likely too low (measured on a busy machine?), or not all weights are read each time"
    )


def cautions(summary: Summary) -> list[str]:
    """Return every caution that applies, as sentences for the top of a report."""
    found = (
        _compiled_while_measuring(summary),
        _beaten_ceiling(summary),
        _ceiling_under_load(summary),
        _does_not_fit(summary),
        _other_shapes(summary),
        _wide_interval(summary),
    )
    return [sentence for sentence in found if sentence is not None]


def _compiled_while_measuring(summary: Summary) -> str | None:
    """Warn about passes that include a compilation and are therefore too long."""
    found = summary.workload.compilations
    if found is None or not found.measured:
        return None
    where = ", ".join(f"{count} in {phase}" for phase, count in found.phases.items())
    passes = "compilation" if found.measured == 1 else "compilations"
    return (
        f"{found.measured} {passes} of {units.seconds(found.measured_s)} fell into measured passes ({where}): their times hold "
        "it, so look at medians rather than means, and raise infer.warmup_rounds or give prompts of fewer lengths."
    )


def beaten_ceilings(summary: Summary) -> list[str]:
    """Return the phases that beat their ceiling, which means that the ceiling is wrong."""
    return [
        phase
        for phase, use in summary.utilisation.items()
        if any(ratio is not None and ratio > 1.0 for ratio in (use.mfu_ratio, use.mbu_ratio))
    ]


def _beaten_ceiling(summary: Summary) -> str | None:
    beaten = beaten_ceilings(summary)
    if not beaten:
        return None
    cached = [phase for phase in beaten if _is_cached(summary, phase)]
    if cached == beaten:
        moved = max(_read_at_once(summary, phase) or 0.0 for phase in cached)
        return (
            f"Bandwidth used above 100 % in {', '.join(beaten)}: the {units.size(moved)} it reads likely stay in a "
            "cache, which is faster than the main memory the ceiling is of."
        )
    cause = (
        "the machine was busy while it was probed"
        if summary.hardware.source == "probe"
        else "the device or data type is not the one assumed"
    )
    return (
        f"Utilisation above 100 % in {', '.join(beaten)}: the ceiling is too low, probably because {cause}."
    )


def _ceiling_under_load(summary: Summary) -> str | None:
    """Warn about limits measured under other load, which are too low; not for data-sheet or unused limits."""
    hardware = summary.hardware
    used = any(u.mfu_ratio is not None or u.mbu_ratio is not None for u in summary.utilisation.values())
    if hardware.source != "probe" or not hardware.measured_under_load or not (used or summary.predictions):
        return None
    share = hardware.measured_other_load_ratio
    others = "other programs used" + (f" {units.percent(share)} of" if share is not None else "")
    used_by_others = "GPU" if hardware.kind == "gpu" else "processor"
    several = (hardware.measurements or 1) > 1
    which = (
        f"the best of {hardware.measurements} measurements, even the quietest made" if several else "measured"
    )
    return (
        f"The limits of {hardware.name or 'this machine'} are {which} while {others} the {used_by_others}: they may be too "
        "low, and utilisation too high and floors too long. A run on the quiet machine measures them again."
    )


def _is_cached(summary: Summary, phase: str) -> bool:
    """Whether only the bandwidth is beaten, by a working set that a cache can hold."""
    use, moved = summary.utilisation[phase], _read_at_once(summary, phase)
    computed = use.mfu_ratio is None or use.mfu_ratio <= 1.0
    return computed and moved is not None and moved <= _CACHE_SIZED_BYTES and summary.hardware.kind == "cpu"


def _read_at_once(summary: Summary, phase: str) -> float | None:
    counted = summary.static.phases.get(phase) if summary.static is not None else None
    return counted.weight_bytes if counted is not None else None


def _does_not_fit(summary: Summary) -> str | None:
    needed = summary.static.resident_bytes.get("total", 0.0) if summary.static is not None else 0.0
    there = summary.hardware.memory_bytes
    if there is None or needed <= there or not summary.predictions:
        return None
    return (
        f"The model needs {units.size(needed)} of memory, and {summary.hardware.name or 'the device'} has"
        f" {units.size(there)}: its floors are those of a device with enough memory."
    )


def _other_shapes(summary: Summary) -> str | None:
    """Warn about a static model from another run, whose shapes may differ from those of the timings."""
    counted = summary.static.scaling if summary.static is not None else None
    measured = summary.workload.prompt_tokens
    if counted is None or not measured or summary.timings.prefill_s is None:
        return None
    if abs(counted.prompt_tokens / measured - 1) <= _OTHER_SHAPES:
        return None
    return (
        f"The work was counted at a prompt of {counted.prompt_tokens:,.0f} tokens, the times are of prompts of"
        f" {measured:,.0f}: utilisation and floors mix the two."
    )


def _wide_interval(summary: Summary) -> str | None:
    """Warn if repeats ended before the intervals reached the target width."""
    timings = summary.timings
    if timings.stopped not in ("time", "most") or timings.interval_ratio is None:
        return None
    ended = "run.max_measure_s was used up" if timings.stopped == "time" else "more are not sensible"
    return (
        f"The 95 % interval of the pass time is {units.percent(timings.interval_ratio)} wide after"
        f" {timings.repeats} repeats; {ended}. Smaller differences between runs cannot be detected: raise"
        " run.max_measure_s, set run.repeats, or use compare --run."
    )
