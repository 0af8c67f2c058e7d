"""NVIDIA's rules as time: what each could save at most, in the phase where the kernel runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llm_perf_opt.core import units
from llm_perf_opt.core.phases import WHOLE

if TYPE_CHECKING:
    from llm_perf_opt.analysis.ncu.facts import NcuKernelFacts
    from llm_perf_opt.model.counters import NcuRule


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
    ``unfit``: the same → why the profiled launches do not stand for the run there: no gain is derived from them.
    ``phase_times``: phase → seconds (TTFT for prefill, TPOT for decode). NVIDIA's estimate of a launch is
    taken for all launches of the kernel in that phase, so each gain is an upper bound, and gains of one kernel
    do not add up: its rules compete for the same time.
    """
    rows: list[RankedRule] = []
    for kernel in facts:
        shares = _of_phase(kernel_shares.get(kernel.kernel, {}), kernel.phase)
        doubts = (unfit or {}).get(kernel.kernel, {})
        for rule in kernel.rules:
            if rule.speedup_ratio is None:
                continue
            if not shares:
                rows.append(RankedRule(kernel.kernel, kernel.phase, rule, None, None, _unknown(rule)))
            for phase, share in shares.items():
                if phase in doubts:
                    words = f"{units.percent(rule.speedup_ratio)} of the profiled launch; {doubts[phase]}"
                    rows.append(RankedRule(kernel.kernel, phase, rule, share, None, words))
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
