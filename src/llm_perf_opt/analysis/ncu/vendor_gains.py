"""NVIDIA's rules as rows of the summary: estimated saving × the kernel's share of a phase × the phase's time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llm_perf_opt.analysis.kernels.names import short_name
from llm_perf_opt.analysis.ncu.facts import NcuKernelFacts
from llm_perf_opt.analysis.ncu.rules import RankedRule, ranked_rules
from llm_perf_opt.core.phases import WHOLE
from llm_perf_opt.model.statistics import decode_steps
from llm_perf_opt.model.summary import Summary, VendorRule

_MOST = 100


def vendor_rules(
    summary: Summary, facts: Sequence[NcuKernelFacts], matches: Mapping[str, str]
) -> list[VendorRule]:
    """Return the rules with an estimate, largest possible gain first."""
    shown = {kernel.name: kernel.short_name for kernel in summary.kernels}
    names = {row.kernel: matches.get(row.kernel, row.kernel) for row in facts}
    return [
        VendorRule(
            kernel=shown.get(names[row.kernel]) or short_name(names[row.kernel]),
            phase=row.phase,
            rule=row.rule.name,
            text=row.rule.text,
            estimated_ratio=row.rule.speedup_ratio,
            share_ratio=row.share_ratio,
            gain_upper_s=row.gain_upper_s,
            arithmetic=row.arithmetic,
        )
        for row in rank(summary, facts, matches)[:_MOST]
    ]


def rank(summary: Summary, facts: Sequence[NcuKernelFacts], matches: Mapping[str, str]) -> list[RankedRule]:
    """Rank the rules by what they could gain at most in this run."""
    shares = {fact.kernel: _shares(summary, matches.get(fact.kernel, fact.kernel)) for fact in facts}
    unfit = {fact.kernel: _unfit(summary, matches.get(fact.kernel, fact.kernel)) for fact in facts}
    rows = ranked_rules(facts, shares, phase_times(summary), unfit)
    # A gain in decode is per token, elsewhere per sample: compare them over a whole sample.
    steps = decode_steps(summary.timings) or 1.0
    return sorted(
        rows, key=lambda row: -(row.gain_upper_s or 0.0) * (steps if row.phase == "decode" else 1.0)
    )


def phase_times(summary: Summary) -> dict[str, float]:
    """Return what a user feels: parts of the time to first token, time per output token, time per sample.

    Vision and prefill get their own time, not all of the time to first token: a kernel's share is of its phase.
    """
    timings = summary.timings
    times: dict[str, float] = {}
    prefill = timings.prefill_s or timings.ttft_s
    if prefill is not None:
        times["prefill"] = prefill.mean
    if timings.vision_s is not None:
        times["vision"] = timings.vision_s.mean
    if timings.encode_s is not None:
        times["encode"] = timings.encode_s.mean
    if timings.tpot_s is not None:
        times["decode"] = timings.tpot_s.mean
    if timings.ttft_s is not None and timings.decode_s is not None:
        times[WHOLE] = timings.ttft_s.mean + timings.decode_s.mean
    return times


def _shares(summary: Summary, kernel: str) -> dict[str, float]:
    """Return phase → share of its wall-clock in which this kernel runs."""
    shares: dict[str, float] = {}
    for row in summary.kernels:
        if row.name != kernel or row.total_s is None:
            continue
        phase = row.phase or WHOLE
        wall = _wall(summary, phase)
        if wall:
            shares[phase] = shares.get(phase, 0.0) + min(1.0, row.total_s / wall)
    return shares


def _unfit(summary: Summary, kernel: str) -> dict[str, str]:
    """Return phase → why the profiled launches of this kernel do not stand for the run there."""
    return {
        row.phase or WHOLE: row.profiled.remark or "its launches do not stand for the run"
        for row in summary.kernels
        if row.name == kernel and row.profiled is not None and not row.counters_stand_for_run
    }


def _wall(summary: Summary, phase: str) -> float | None:
    """Return the wall-clock the kernel totals belong to: the captured span, else all measured samples."""
    budget = summary.budget.get(phase)
    if budget is not None:
        return budget.span_s
    return summary.metrics.get("measured_wall_s") if phase == WHOLE else None
