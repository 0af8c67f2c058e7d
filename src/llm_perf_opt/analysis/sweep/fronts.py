"""Which jobs nobody beats: fronts of two metrics, and the best by one."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.analysis.sweep.metrics import FLOORS, HEADLINE, METRICS
from llm_perf_opt.model.sweep import Best, Front, JobMetric, SweepJob

PAIRS = (
    ("tpot_s", "tokens_per_s"),
    ("ttft_s", "tokens_per_s"),
    ("tpot_s", "peak_bytes"),
    ("tpot_s", "energy_per_token_j"),
)
"""Latency against throughput, time against memory, time against energy."""


def fronts(jobs: Sequence[SweepJob]) -> list[Front]:
    """Return the front of every pair of metrics that at least two finished jobs have."""
    found = []
    for x, y in PAIRS:
        known = [job for job in jobs if job.status == "ok" and x in job.metrics and y in job.metrics]
        if len(known) > 1:
            found.append(Front(x, y, [job.number for job in _front(known, x, y)], len(known)))
    return found


def _front(jobs: Sequence[SweepJob], x: str, y: str) -> list[SweepJob]:
    """Jobs such that every other one is worse in a metric, or equal in both; along x."""

    def cost(job: SweepJob, name: str) -> float:
        value = job.metrics[name].value
        return value if METRICS[name].better == "lower" else -value

    kept: list[SweepJob] = []
    lowest = float("inf")
    for job in sorted(jobs, key=lambda job: (cost(job, x), cost(job, y), job.number)):
        if cost(job, y) < lowest:
            kept.append(job)
            lowest = cost(job, y)
    return kept


def best_jobs(jobs: Sequence[SweepJob]) -> list[Best]:
    """Return the best finished job by each main metric, with those that cannot be told apart from it."""
    done = [job for job in jobs if job.status == "ok"]
    names = [name for name in HEADLINE if any(name in job.metrics for job in done)]
    found = []
    for name in names or [name for name in FLOORS if any(name in job.metrics for job in done)]:
        better = METRICS[name].better
        known = [job for job in done if name in job.metrics]
        sign = 1.0 if better == "lower" else -1.0
        first = min(known, key=lambda job: (sign * job.metrics[name].value, job.number))
        tied = [
            job.number
            for job in known
            if job is not first and _overlap(first.metrics[name], job.metrics[name])
        ]
        found.append(Best(name, better, first.number, first.metrics[name].value, tied))
    return found


def _overlap(a: JobMetric, b: JobMetric) -> bool:
    """Whether two intervals share a value; a metric without one is a point."""
    a_low, a_high = (a.value, a.value) if a.low is None or a.high is None else (a.low, a.high)
    b_low, b_high = (b.value, b.value) if b.low is None or b.high is None else (b.low, b.high)
    return a_low <= b_high and b_low <= a_high
