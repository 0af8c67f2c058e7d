"""The metrics of a side: every raw value of its timings documents, and the scalars of its captures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Literal

from llm_perf_opt.analysis import statistics
from llm_perf_opt.summary import LoadPoint, Serving, Summary
from llm_perf_opt.summary.statistics import Better, percentile

# Raw measurements of one metric on both sides, and the resulting ratio B ÷ A.
#
# Blocks, in order of preference:
#
# - **rounds**: several runs of each side, made in turn (``compare --run``). Each round is one pair, so anything that changes
#   slowly on the machine affects both sides.
# - **repeats**: one run of each side with three or more repeats. A repeat over all samples is one block (what disturbs
#   one sample of a repeat often disturbs the next one too), the sides are independent.
# - **samples**: one or two repeats but five or more samples in common: each sample is one pair.


Samples = Mapping[str, Sequence[float]]
"""Sample → value of every repeat, in the order they were measured."""
_BlockKind = Literal["rounds", "repeats", "samples"]
ALPHA = 0.05
"""Most false alarms a rank test may give when nothing changed."""
_TOGETHER = "all samples"
SHOWN_CHANGE = 0.2
"""The change that a recommended number of repeats would show."""
_POWER = 0.8
_RANK_EFFICIENCY = 3 / math.pi
"""Of rank tests against the t test, for normal noise."""


@dataclass(slots=True)
class Series:
    """One metric of one side: a mapping per run."""

    runs: list[dict[str, list[float]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Both sides' values and the blocks that statistics may use."""

    a: float
    b: float
    kind: _BlockKind | None
    differences: tuple[float, ...] = ()
    """Log ratios of paired blocks (rounds, samples)."""
    blocks_a: tuple[float, ...] = ()
    """Log values of unpaired blocks (repeats)."""
    blocks_b: tuple[float, ...] = ()
    note: str | None = None

    @property
    def n(self) -> int:
        """Blocks: pairs, or those of the smaller side."""
        return len(self.differences) or min(len(self.blocks_a), len(self.blocks_b))

    def decidable(self, *, two_sided: bool) -> bool:
        """Whether there are enough blocks for a rank test to reach significance."""
        limit = ALPHA / 2 if two_sided else ALPHA
        if self.kind is None:
            return False
        if self.kind == "repeats":
            return statistics.smallest_shift_p(len(self.blocks_a), len(self.blocks_b)) <= limit
        return statistics.smallest_paired_p(len(self.differences)) <= limit

    def p_above(self, log_limit: float) -> float:
        """One-sided p of "the ratio is at most ``exp(log_limit)``"."""
        if self.kind == "repeats":
            return statistics.rank_sum_p(self.blocks_a, [value - log_limit for value in self.blocks_b])
        return statistics.signed_rank_p([value - log_limit for value in self.differences])

    def p_below(self, log_limit: float) -> float:
        """One-sided p of "the ratio is at least ``exp(log_limit)``"."""
        if self.kind == "repeats":
            return statistics.rank_sum_p([value - log_limit for value in self.blocks_b], self.blocks_a)
        return statistics.signed_rank_p([log_limit - value for value in self.differences])

    def blocks_to_show(self, change: float) -> int | None:
        """Return how many blocks (per side) show a relative change in four of five cases; ``None`` without a spread.

        Normal approximation with the rank tests' efficiency; never fewer than the test needs to reach significance.
        """
        groups = [self.differences] if self.differences else [self.blocks_a, self.blocks_b]
        if self.kind is None or any(len(group) < 2 for group in groups):
            return None
        variance = math.fsum(_variance(group) for group in groups)
        reach = (NormalDist().inv_cdf(1 - ALPHA / 2) + NormalDist().inv_cdf(_POWER)) / math.log1p(change)
        needed = math.ceil(variance * reach**2 / _RANK_EFFICIENCY)
        least = 6 if self.differences else 4
        return max(needed, least)

    def interval(self, *, confidence: float, resamples: int, seed: int) -> statistics.Interval | None:
        """Return the log ratio of the two values with its interval; ``None`` without two blocks.

        The interval is that of the Hodges–Lehmann estimate over the blocks, extended to the quotient of the values where
        it does not contain it: skewed blocks can put the two estimates apart, and then neither is certain.
        """
        if self.kind is None or self.n < 2:
            return None
        if self.kind == "repeats":
            found = statistics.shift_interval(
                self.blocks_a, self.blocks_b, confidence=confidence, resamples=resamples, seed=seed
            )
            drift = max(_drift(self.blocks_a), _drift(self.blocks_b))
        else:
            found = statistics.paired_interval(
                self.differences, confidence=confidence, resamples=resamples, seed=seed
            )
            drift = 0.0
        quotient = math.log(self.b / self.a)
        return statistics.Interval(
            quotient, min(found.low - drift, quotient), max(found.high + drift, quotient)
        )


def _variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def weigh(a: Series, b: Series) -> Evidence | None:
    """Pair what belongs together; ``None`` when a side has no positive value."""
    runs_a, runs_b = [_positive(run) for run in a.runs], [_positive(run) for run in b.runs]
    runs_a, runs_b = [run for run in runs_a if run], [run for run in runs_b if run]
    if not runs_a or not runs_b:
        return None
    common = _common(runs_a, runs_b)
    # Without common samples each side has the value of its own report: over all its samples.
    own_a, own_b = (common, common) if common else (_common(runs_a, runs_a), _common(runs_b, runs_b))
    a_value = _value(runs_a, own_a) if own_a else _value([_together(run) for run in runs_a], [_TOGETHER])
    b_value = _value(runs_b, own_b) if own_b else _value([_together(run) for run in runs_b], [_TOGETHER])
    note = None
    if not common:
        runs_a, runs_b = [_together(run) for run in runs_a], [_together(run) for run in runs_b]
        common = [_TOGETHER]
        note = "no sample is in both sides: compared over all samples, not pair by pair"
    rounds = min(len(runs_a), len(runs_b))
    if rounds > 1:
        pairs = zip(runs_a[:rounds], runs_b[:rounds], strict=True)
        differences = tuple(_log_level(two, common) - _log_level(one, common) for one, two in pairs)
        return Evidence(a_value, b_value, "rounds", differences, note=note)
    blocks_a, blocks_b = _slots(runs_a[0], common), _slots(runs_b[0], common)
    if statistics.smallest_shift_p(len(blocks_a), len(blocks_b)) <= ALPHA or len(common) < 2:
        kind: _BlockKind | None = "repeats" if min(len(blocks_a), len(blocks_b)) > 1 else None
        return Evidence(a_value, b_value, kind, blocks_a=blocks_a, blocks_b=blocks_b, note=note)
    by_sample = tuple(math.log(_median(runs_b[0][sample]) / _median(runs_a[0][sample])) for sample in common)
    return Evidence(a_value, b_value, "samples", by_sample, note=note)


def _drift(blocks: Sequence[float]) -> float:
    """Return the drift within one run: the largest shift between its consecutive thirds or halves.

    Two consecutive runs can differ by as much without any change of the program, and neither run shows by how much. The
    interval of their ratio is therefore widened by the drift seen within a run.
    """
    parts = 3 if len(blocks) >= 9 else 2
    size = len(blocks) // parts
    if size < 1:
        return 0.0
    pieces = [blocks[k * size : (k + 1) * size] for k in range(parts)]
    pairs = [(one, two) for i, one in enumerate(pieces) for two in pieces[i + 1 :]]
    return max(abs(statistics.shift_location(one, two)) for one, two in pairs)


def _positive(run: Samples) -> dict[str, list[float]]:
    kept = {sample: [v for v in values if v > 0] for sample, values in run.items()}
    return {sample: values for sample, values in kept.items() if values}


def _common(runs_a: Sequence[Samples], runs_b: Sequence[Samples]) -> list[str]:
    everywhere = [set(run) for run in (*runs_a, *runs_b)]
    return sorted(set.intersection(*everywhere))


def _together(run: Samples) -> dict[str, list[float]]:
    """Average the samples of each repeat."""
    repeats = min(len(values) for values in run.values())
    return {_TOGETHER: [math.fsum(v[k] for v in run.values()) / len(run) for k in range(repeats)]}


def _median(values: Sequence[float]) -> float:
    return percentile(sorted(values), 0.5)


def _value(runs: Sequence[Samples], common: Sequence[str]) -> float:
    medians = [_median([v for run in runs for v in run[sample]]) for sample in common]
    return math.fsum(medians) / len(medians)


def _log_level(run: Samples, common: Sequence[str]) -> float:
    return math.fsum(math.log(_median(run[sample])) for sample in common) / len(common)


def _slots(run: Samples, common: Sequence[str]) -> tuple[float, ...]:
    """Mean log value of each repeat over the samples, so that every block holds the same work."""
    repeats = min(len(run[sample]) for sample in common)
    return tuple(
        math.fsum(math.log(run[sample][k]) for sample in common) / len(common) for k in range(repeats)
    )


COMPONENT = "component."
WHOLE_RUN = "run"
"""Key of a value that belongs to a run, not to a sample."""


@dataclass(frozen=True, slots=True)
class MetricKind:
    """Unit of a metric and which direction is an improvement."""

    unit: str
    better: Better = "lower"


METRICS: dict[str, MetricKind] = {
    "program": MetricKind("s"),
    "preprocess": MetricKind("s"),
    "vision": MetricKind("s"),
    "encode": MetricKind("s"),
    "prefill": MetricKind("s"),
    "ttft": MetricKind("s"),
    "decode": MetricKind("s"),
    "tpot": MetricKind("s"),
    "total": MetricKind("s"),
    "tokens_per_s": MetricKind("1/s", "higher"),
    "kernel_time": MetricKind("s"),
    "copy_time": MetricKind("s"),
    "launches": MetricKind("count"),
    "launches_per_token": MetricKind("count"),
    "device_busy": MetricKind("ratio", "higher"),
    "ttft_p50": MetricKind("s"),
    "ttft_p99": MetricKind("s"),
    "tpot_p50": MetricKind("s"),
    "tpot_p99": MetricKind("s"),
    "e2e_p50": MetricKind("s"),
    "e2e_p99": MetricKind("s"),
    "goodput": MetricKind("1/s", "higher"),
    "requests_per_s": MetricKind("1/s", "higher"),
}
"""What can be compared and gated by name; ``component.<label>`` besides. ``total`` is ttft + decode, ``program`` the
wall-clock of the user's own program, ``…_p50``, ``…_p99`` and ``goodput`` are of a server under load."""


def kind_of(name: str) -> MetricKind:
    """Return unit and direction of a metric."""
    return METRICS.get(name, MetricKind("s"))


Repeat = Mapping[str, Any]
Sample = Mapping[str, Any]


def _ttft(repeat: Repeat, _: Sample) -> float | None:
    prefill = repeat.get("prefill_s")
    return None if prefill is None else prefill + (repeat.get("vision_s") or repeat.get("encode_s") or 0.0)


def _total(repeat: Repeat, sample: Sample) -> float | None:
    first, decode = _ttft(repeat, sample), repeat.get("decode_s")
    return None if first is None or decode is None else first + decode


def _steps(sample: Sample) -> int:
    return int(sample.get("new_tokens") or 0) - 1


def _tpot(repeat: Repeat, sample: Sample) -> float | None:
    """Decode time of a pass ÷ its steps, as in the reports: with the time to first token it adds up to the whole."""
    decode = repeat.get("decode_s")
    return decode / _steps(sample) if decode and _steps(sample) > 0 else None


def _rate(repeat: Repeat, sample: Sample) -> float | None:
    decode = repeat.get("decode_s")
    return (
        _steps(sample) * int(sample.get("batch_size") or 1) / decode
        if decode and _steps(sample) > 0
        else None
    )


_FROM_REPEAT: dict[str, Callable[[Repeat, Sample], float | None]] = {
    "preprocess": lambda repeat, _: repeat.get("preprocess_s"),
    "vision": lambda repeat, _: repeat.get("vision_s"),
    "encode": lambda repeat, _: repeat.get("encode_s"),
    "prefill": lambda repeat, _: repeat.get("prefill_s"),
    "ttft": _ttft,
    "decode": lambda repeat, _: repeat.get("decode_s"),
    "tpot": _tpot,
    "total": _total,
    "tokens_per_s": _rate,
}


def run_series(document: Mapping[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Return metric → sample → value per repeat, of one timings document of the engine."""
    found: dict[str, dict[str, list[float]]] = {}
    if "runs" in document:
        return {
            "program": {WHOLE_RUN: [float(run["wall_s"]) for run in document["runs"] if run.get("ok", True)]}
        }
    for sample in document["samples"]:
        for repeat in sample["repeats"]:
            values = {name: make(repeat, sample) for name, make in _FROM_REPEAT.items()}
            for name, value in (repeat.get("components") or {}).items():
                values[COMPONENT + name.removesuffix("_s")] = value
            for name, value in values.items():
                if value is not None:
                    found.setdefault(name, {}).setdefault(str(sample["id"]), []).append(float(value))
    return found


def summary_scalars(summary: Summary) -> dict[str, float]:
    """Return the run-wide scalars of captures."""
    kernels = [kernel.total_s for kernel in summary.kernels if kernel.total_s is not None]
    launches = [kernel.launches for kernel in summary.kernels if kernel.launches is not None]
    busy = summary.utilisation.get("all") or summary.utilisation.get("decode")
    values = {
        "kernel_time": sum(kernels) if kernels else None,
        "copy_time": summary.metrics.get("copy_s"),
        "launches": float(sum(launches)) if launches else None,
        "launches_per_token": summary.metrics.get("launches_per_token"),
        "device_busy": busy.device_busy_ratio if busy is not None else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def timing_scalars(summary: Summary) -> dict[str, float]:
    """Return the typical values a summary keeps, for sides without raw values."""
    timings = summary.timings
    named = {
        "program": timings.program_s,
        "preprocess": timings.preprocess_s,
        "vision": timings.vision_s,
        "encode": timings.encode_s,
        "prefill": timings.prefill_s,
        "ttft": timings.ttft_s,
        "decode": timings.decode_s,
        "tpot": timings.tpot_s,
        "tokens_per_s": timings.tokens_per_s,
        **{COMPONENT + name.removesuffix("_s"): stat for name, stat in timings.components.items()},
    }
    values = {name: stat.shown for name, stat in named.items() if stat is not None}
    if "ttft" in values and "decode" in values:
        values["total"] = values["ttft"] + values["decode"]
    return values


def highest_load(serving: Serving) -> LoadPoint | None:
    """Return the highest measured load that the client sustained."""
    measured = [one for one in serving.load if one.ttft_s is not None and not one.client_bound]
    return max(
        measured,
        key=lambda one: (one.rate_per_s or 0.0) if one.kind != "closed" else (one.concurrency or 0.0),
        default=None,
    )


def _comparable_loads(summary: Summary) -> Iterator[tuple[str, LoadPoint]]:
    """Yield (name, load point) for points that the client sustained and that finished."""
    for point in summary.serving.load if summary.serving is not None else []:
        if point.client_bound or not point.is_complete:
            continue
        kind = point.kind or "open"
        load = point.concurrency if kind == "closed" else point.rate_per_s
        yield f"{kind} {load:.2g}" if load is not None else kind, point


def _point_values(point: LoadPoint) -> dict[str, float]:
    values = {}
    for metric, stat in (("ttft", point.ttft_s), ("tpot", point.tpot_s), ("e2e", point.e2e_s)):
        for place in ("p50", "p99"):
            value = getattr(stat, place, None)
            if value is not None:
                values[f"{metric}_{place}"] = value
    rates = {"goodput": point.goodput_per_s, "requests_per_s": point.completed_per_s}
    return values | {metric: rate for metric, rate in rates.items() if rate is not None}


SERVING_METRICS = (
    "ttft_p50",
    "ttft_p99",
    "tpot_p50",
    "tpot_p99",
    "e2e_p50",
    "e2e_p99",
    "goodput",
    "requests_per_s",
)
"""Metrics of a server, by load point."""


def serving_values(summary: Summary) -> dict[str, dict[str, float]]:
    """Return load point → metric → value over all its requests."""
    return {name: _point_values(point) for name, point in _comparable_loads(summary)}


def _serving_series(summary: Summary) -> dict[str, dict[str, list[float]]]:
    """Return metric → load point → value in each tenth of its requests; of points without single requests, their one value.

    Load points that the client could not sustain, or that did not finish, are left out.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for name, point in _comparable_loads(summary):
        values = {metric: [value] for metric, value in _point_values(point).items()} | point.blocks
        for metric, several in values.items():
            found.setdefault(metric, {})[name] = several
    return found


Scalars = Callable[[Summary], dict[str, float]]


def side_series(
    summaries: Sequence[Summary],
    documents: Sequence[Mapping[str, Any] | None],
    *,
    by_repeat: bool = False,
    captured: Scalars = summary_scalars,
    timed: Scalars = timing_scalars,
) -> dict[str, Series]:
    """Return every metric of a side, one mapping per run; ``by_repeat``: one per repeat of its only run."""
    found: dict[str, Series] = {}
    for summary, document in zip(summaries, documents, strict=True):
        raw = run_series(document) if document is not None else {}
        single = captured(summary) | (timed(summary) if document is None else {})
        for name, samples in raw.items():
            found.setdefault(name, Series()).runs.extend(_by_repeat(samples) if by_repeat else [samples])
        for name, value in single.items():
            found.setdefault(name, Series()).runs.append({WHOLE_RUN: [value]})
        for name, loads in _serving_series(summary).items():
            found.setdefault(name, Series()).runs.append(loads)
    return found


def _by_repeat(samples: Mapping[str, Sequence[float]]) -> list[dict[str, list[float]]]:
    repeats = min(len(values) for values in samples.values())
    return [{name: [values[k]] for name, values in samples.items()} for k in range(repeats)]


def measured_in_turns(a: Sequence[Mapping[str, Any] | None], b: Sequence[Mapping[str, Any] | None]) -> bool:
    """Whether repeat k of A and repeat k of B were measured next to each other (``compare --run --together``)."""
    tokens = [(side[0] or {}).get("interleaved") if len(side) == 1 else None for side in (a, b)]
    return tokens[0] is not None and tokens[0] == tokens[1]
