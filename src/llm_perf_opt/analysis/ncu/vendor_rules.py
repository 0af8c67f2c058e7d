"""NVIDIA's rules as time: the largest saving of each, in the phase where the kernel runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llm_perf_opt.analysis.kernels.names import short_name
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import WHOLE
from llm_perf_opt.summary import Summary, VendorRule
from llm_perf_opt.summary.statistics import decode_steps

if TYPE_CHECKING:
    from llm_perf_opt.analysis.ncu.kernels import NcuKernelFacts
    from llm_perf_opt.captures.ncu.launches import NcuRule


@dataclass(frozen=True, slots=True)
class RankedRule:
    """One rule of one kernel in one phase."""

    kernel: str
    phase: str | None
    rule: NcuRule
    share_ratio: float | None
    """The kernel's share of the phase's time; ``None`` when no timeline says."""
    gain_upper_s: float | None
    """Estimated saving × share × phase time: at most this much of TTFT or TPOT."""
    arithmetic: str


def best_global_estimate(rules: Iterable[NcuRule]) -> float | None:
    """Return the largest share of run time any rule estimates could be saved; local estimates do not count."""
    estimates = [
        rule.speedup_ratio
        for rule in rules
        if rule.speedup_scope == "global" and rule.speedup_ratio is not None
    ]
    return max(estimates, default=None)


def ranked_rules(
    facts: Iterable[NcuKernelFacts],
    kernel_shares: Mapping[str, Mapping[str, float]],
    phase_times: Mapping[str, float],
    unfit: Mapping[str, Mapping[str, str]] | None = None,
) -> list[RankedRule]:
    """Return every rule with an estimate, the largest gain first.

    ``kernel_shares``: ncu kernel name → phase → share of that phase's wall-clock this kernel takes (from nsys).
    ``unfit``: the same → why the profiled launches do not represent the run there: no gain is derived from them.
    ``phase_times``: phase → seconds (TTFT for prefill, TPOT for decode). NVIDIA's estimate of a launch is
    taken for all launches of the kernel in that phase, so each gain is an upper bound, and gains of one kernel
    do not add up: its rules compete for the same time.
    """
    rows: list[RankedRule] = []
    for kernel in facts:
        shares = _of_phase(kernel_shares.get(kernel.kernel, {}), kernel.phase)
        reasons = (unfit or {}).get(kernel.kernel, {})
        for rule in kernel.rules:
            if rule.speedup_ratio is None:
                continue
            if not shares:
                rows.append(RankedRule(kernel.kernel, kernel.phase, rule, None, None, _unknown(rule)))
            for phase, share in shares.items():
                if phase in reasons:
                    text = f"{units.percent(rule.speedup_ratio)} of the profiled launch; {reasons[phase]}"
                    rows.append(RankedRule(kernel.kernel, phase, rule, share, None, text))
                    continue
                rows.append(_row(kernel.kernel, phase, rule, share, phase_times.get(phase)))
    return sorted(
        rows,
        key=lambda row: (
            -(row.gain_upper_s or 0.0),
            row.rule.speedup_scope != "global",
            -(row.share_ratio or 0.0),
            -(row.rule.speedup_ratio or 0.0),
            row.kernel,
            row.rule.name,
        ),
    )


def _of_phase(shares: Mapping[str, float], phase: str | None) -> Mapping[str, float]:
    """Leave out other phases than the one a kernel was profiled in; a run without phases has only the whole."""
    if phase is None:
        return shares
    return {name: share for name, share in shares.items() if name in (phase, WHOLE)}


def _row(kernel: str, phase: str, rule: NcuRule, share: float, time_s: float | None) -> RankedRule:
    if time_s is None or rule.speedup_ratio is None:
        return RankedRule(kernel, phase, rule, share, None, _unknown(rule))
    gain = rule.speedup_ratio * share * time_s
    arithmetic = (
        f"{units.percent(rule.speedup_ratio)} estimated × {units.percent(share)} of {phase} × "
        f"{units.seconds(time_s)} = at most {units.seconds(gain)}"
    )
    if rule.speedup_scope == "local":
        arithmetic += " (local estimate: of one unit's efficiency, the run time may gain less)"
    return RankedRule(kernel, phase, rule, share, gain, arithmetic)


def _unknown(rule: NcuRule) -> str:
    return f"{units.percent(rule.speedup_ratio)} of the kernel's time; its share of the run is not known"


# NVIDIA's rules as rows of the summary: estimated saving × the kernel's share of a phase × the phase's time.


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
    """Return user-visible times: parts of the time to first token, time per output token, time per sample.

    Vision and prefill get their own time, not all of the time to first token: a kernel's share is of its phase.
    """
    timings = summary.timings
    times: dict[str, float] = {}
    prefill = timings.prefill_s or timings.ttft_s
    if prefill is not None:
        times["prefill"] = prefill.shown
    if timings.vision_s is not None:
        times["vision"] = timings.vision_s.shown
    if timings.encode_s is not None:
        times["encode"] = timings.encode_s.shown
    if timings.tpot_s is not None:
        times["decode"] = timings.tpot_s.shown
    if timings.ttft_s is not None and timings.decode_s is not None:
        times[WHOLE] = timings.ttft_s.shown + timings.decode_s.shown
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
    """Return phase → why the profiled launches of this kernel do not represent the run there."""
    return {
        row.phase or WHOLE: row.profiled.remark or "its launches are not representative of the run"
        for row in summary.kernels
        if row.name == kernel and row.profiled is not None and not row.counters_are_representative
    }


def _wall(summary: Summary, phase: str) -> float | None:
    """Return the wall-clock the kernel totals belong to: the captured span, else all measured samples."""
    budget = summary.budget.get(phase)
    if budget is not None:
        return budget.span_s
    return summary.metrics.get("measured_wall_s") if phase == WHOLE else None
