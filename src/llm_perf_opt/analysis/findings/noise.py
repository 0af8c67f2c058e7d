"""Timings that vary too much to compare: a busy machine, throttling, other users."""

from __future__ import annotations

from llm_perf_opt.analysis.findings.common import sources
from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Finding, Stat, Summary

_SPREAD = 0.25
_FEWEST = 3
_DRIFT = 1.15


def find(summary: Summary) -> list[Finding]:
    """Report a spread or a drift that makes small differences meaningless."""
    evidence = [text for name, stat in _repeated(summary) if (text := _spread(name, stat))]
    drift = summary.metrics.get("last_over_first_repeat_ratio")
    if drift is not None and drift >= _DRIFT:
        evidence.append(
            f"the last repeat took {units.number(drift)} times the first: throttling or growing load"
        )
    load, cores = summary.environment.get("load_average"), (summary.environment.get("cpu") or {}).get("cores")
    if evidence and load and cores and load[0] > cores:
        evidence.append(f"load average {load[0]:.1f} on {cores} cores when the run began")
    if not evidence:
        return []
    return [
        Finding(
            id="noisy-timings",
            title="The timings are noisy",
            phase=None,
            evidence=[*evidence, *sources(summary, "timings")],
            gain_upper_s=None,
            arithmetic="spread = (p95 − p5) ÷ median, over repeats of the same work",
            advice="Raise run.repeats, fix the clocks, keep the machine to yourself; compare runs with "
            "`llm-perf-opt compare --run`.",
            confidence="high",
        )
    ]


def _repeated(summary: Summary) -> list[tuple[str, Stat | None]]:
    """Spread over repeats only: samples of different size differ for good reasons."""
    spreads = summary.repeat_spread
    return list(spreads.items())


def _spread(name: str, stat: Stat | None) -> str | None:
    if stat is None or stat.n < _FEWEST or stat.median <= 0:
        return None
    spread = (stat.p95 - stat.p5) / stat.median
    return (
        f"{name}: spread {units.percent(spread)} of the median over {stat.n} repeats"
        if spread > _SPREAD
        else None
    )
