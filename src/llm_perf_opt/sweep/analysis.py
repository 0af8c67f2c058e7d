"""Analysis over all jobs of a sweep: effects of keys, fronts, the best."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from llm_perf_opt.summary.statistics import student_quantile
from llm_perf_opt.sweep.data import Best, Effect, Front, JobMetric, Sweep, SweepJob, SweptKey, count_statuses
from llm_perf_opt.sweep.metrics import CONFIDENCE, FLOORS, HEADLINE, METRICS, WIDEST

# Effect of each swept key on each metric, between jobs that are equal in all other keys.


MOST_VALUES = 64
"""A key with more values (a seed, a continuous search) has no table of effects: each would be one job."""
_SURE_FROM = 3
"""So many pairs give an interval of their own; fewer take those of the measurements."""


@dataclass(frozen=True, slots=True)
class _Pair:
    log_ratio: float
    half: float | None
    """Half the interval of the log ratio, from those of the two measurements."""


def settings_of(job: SweepJob) -> dict[str, str]:
    """Return key → value of a job's overrides."""
    pairs = (text.partition("=") for text in job.overrides)
    return {key.lstrip("+"): value for key, separator, value in pairs if separator}


def swept_keys(jobs: Sequence[SweepJob], metrics: Sequence[str]) -> dict[str, SweptKey]:
    """Return every key with more than one value, and its effects on ``metrics``."""
    settings = [settings_of(job) for job in jobs]
    values: dict[str, dict[str, None]] = defaultdict(dict)
    for each in settings:
        for key, value in each.items():
            values[key][value] = None
    swept = {key: list(found) for key, found in values.items() if len(found) > 1}
    done = [(job, each) for job, each in zip(jobs, settings, strict=True) if job.status == "ok"]
    return {key: SweptKey(found, _effects(key, found, swept, done, metrics)) for key, found in swept.items()}


def _effects(
    key: str,
    values: Sequence[str],
    swept: Mapping[str, Sequence[str]],
    done: Sequence[tuple[SweepJob, Mapping[str, str]]],
    metrics: Sequence[str],
) -> dict[str, list[Effect]]:
    if len(values) > MOST_VALUES:
        return {}
    others = [other for other in swept if other != key]
    # Jobs that are equal in every other key, by the value of this one; of repeated jobs the first.
    alike: dict[tuple[str | None, ...], dict[str, SweepJob]] = defaultdict(dict)
    by_value: dict[str, list[SweepJob]] = defaultdict(list)
    for job, settings in done:
        value = settings.get(key)
        if value is not None:
            alike[tuple(settings.get(other) for other in others)].setdefault(value, job)
            by_value[value].append(job)
    found = {}
    for metric in metrics:
        rows = [_effect(value, values[0], metric, by_value[value], alike.values()) for value in values]
        known = [row for row in rows if row is not None]
        if known:
            found[metric] = known
    return found


def _effect(
    value: str, first: str, metric: str, jobs: Sequence[SweepJob], groups: Iterable[Mapping[str, SweepJob]]
) -> Effect | None:
    measured = [job.metrics[metric].value for job in jobs if metric in job.metrics]
    if not measured:
        return None
    effect = Effect(value, len(measured), median(measured))
    if value == first:
        return effect
    pairs = [
        pair
        for group in groups
        if first in group and value in group
        if (pair := _pair(group[first].metrics.get(metric), group[value].metrics.get(metric))) is not None
    ]
    if pairs:
        effect.pairs = len(pairs)
        _add_change(effect, pairs)
    return effect


def _pair(a: JobMetric | None, b: JobMetric | None) -> _Pair | None:
    if a is None or b is None or a.value <= 0 or b.value <= 0:
        return None
    halves = [_log_half(a), _log_half(b)]
    half = None if None in halves else math.hypot(*(each or 0.0 for each in halves))
    return _Pair(math.log(b.value / a.value), half)


def _log_half(metric: JobMetric) -> float | None:
    if metric.low is None or metric.high is None or metric.low <= 0:
        return None
    return math.log(metric.high / metric.low) / 2


def _add_change(effect: Effect, pairs: Sequence[_Pair]) -> None:
    """Fill in the geometric mean of the ratios and its interval."""
    count = len(pairs)
    mean = math.fsum(pair.log_ratio for pair in pairs) / count
    effect.change_ratio = math.exp(mean)
    halves = [pair.half for pair in pairs]
    if count >= _SURE_FROM:
        variance = math.fsum((pair.log_ratio - mean) ** 2 for pair in pairs) / (count - 1)
        half = student_quantile((1 + CONFIDENCE) / 2, count - 1) * math.sqrt(variance / count)
    elif all(each is not None for each in halves):
        half = math.sqrt(math.fsum((each or 0.0) ** 2 for each in halves)) / count
    else:
        return
    if half > WIDEST:
        return
    effect.low, effect.high = math.exp(mean - half), math.exp(mean + half)


def largest_effects(keys: Mapping[str, SweptKey], metric: str) -> list[str]:
    """Return keys by their effect on a metric, the largest first; those without an effect last."""

    def reach(key: str) -> float:
        ratios = [effect.change_ratio for effect in keys[key].effects.get(metric, [])]
        return max((abs(math.log(ratio)) for ratio in ratios if ratio), default=0.0)

    return sorted(keys, key=reach, reverse=True)


# Pareto fronts of two metrics, and the best jobs by one.


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
    """Return the best finished job by each main metric, with those that cannot be distinguished from it."""
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
    """Whether two intervals share a value."""
    (a_low, a_high), (b_low, b_high) = _range(a), _range(b)
    return a_low <= b_high and b_low <= a_high


def _range(metric: JobMetric) -> tuple[float, float]:
    """Return the interval; for too few repeats one of maximum width; without repeats the value."""
    if metric.low is not None and metric.high is not None:
        return metric.low, metric.high
    factor = math.exp(WIDEST) if metric.n is not None and metric.n > 1 else 1.0
    return metric.value / factor, metric.value * factor


def shown_metrics(jobs: Sequence[SweepJob]) -> list[str]:
    """Return the main metrics that any job has; where none was measured, the floors."""
    present = {name for job in jobs for name in job.metrics}
    return [name for name in HEADLINE if name in present] or [name for name in FLOORS if name in present]


def complete(sweep: Sweep) -> Sweep:
    """Fill in the fields derived from the jobs."""
    sweep.counts = count_statuses(sweep.jobs)
    sweep.keys = swept_keys(sweep.jobs, shown_metrics(sweep.jobs))
    sweep.pareto = fronts(sweep.jobs)
    sweep.best = best_jobs(sweep.jobs)
    started = [job.started for job in sweep.jobs if job.started]
    sweep.started = min(started, default=None)
    return sweep
