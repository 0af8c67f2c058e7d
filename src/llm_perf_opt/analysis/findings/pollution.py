"""Numbers that include something other than steady inference."""

from __future__ import annotations

from llm_perf_opt.analysis.findings.common import sources
from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Finding, Summary

_FIRST_SLOWER = 1.3
_PROFILER_SLOWER = 1.5


def find(summary: Summary) -> list[Finding]:
    """Report a first repeat that is much slower than the rest, and a profiler that slows the profiled pass."""
    return [*_warm_up(summary), *_profiler(summary)]


def _warm_up(summary: Summary) -> list[Finding]:
    ratio = summary.metrics.get("first_repeat_ratio")
    if ratio is None or ratio < _FIRST_SLOWER:
        return []
    return [
        Finding(
            id="warm-up-pollution",
            title="The first measured pass was not warmed up",
            phase=None,
            evidence=[
                f"the first repeat took {units.number(ratio)} times the median of the others",
                *sources(summary, "timings"),
            ],
            gain_upper_s=None,
            arithmetic="a measurement problem, not a saving",
            advice="Raise infer.warmup_rounds, so that caches, autotuning and lazy initialisation are over "
            "before timing starts.",
            confidence="high",
        )
    ]


def _profiler(summary: Summary) -> list[Finding]:
    ratio = summary.metrics.get("profiled_over_unprofiled_ratio")
    if ratio is None or ratio < _PROFILER_SLOWER:
        return []
    return [
        Finding(
            id="profiler-pollution",
            title="The profiled pass is much slower than the measured ones",
            phase=None,
            evidence=[
                f"with the profiler attached the same work took {units.number(ratio)} times as long",
                *sources(summary, "trace", "timings"),
            ],
            gain_upper_s=None,
            arithmetic="shares of the operator table lean towards operators that are called often",
            advice="Trust the timings (they are taken without the profiler); use torch-profiler.min for truer shares.",
            confidence="high",
        )
    ]
