"""The metrics of a job: shown, compared and optimised in sweeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llm_perf_opt.analysis.metrics import highest_load
from llm_perf_opt.core import layout
from llm_perf_opt.core.errors import ConfigError, InputError, nearest_key
from llm_perf_opt.runs.manifest import read_manifest
from llm_perf_opt.summary import LatencyStat, MemoryUse, Prediction, Serving, Stat, Telemetry, Timings
from llm_perf_opt.summary.codec import decode_file
from llm_perf_opt.summary.statistics import student_quantile
from llm_perf_opt.sweep.data import Better, JobMetric

CONFIDENCE = 0.95
_MEDIAN_OVER_MEAN = math.sqrt(math.pi / 2)
"""Standard error of the median ÷ that of the mean, for values that spread like a normal distribution."""
WIDEST = math.log(2)
"""Half an interval on the logarithmic scale. A wider one means that there are too few repeats: none is given."""
_INNER_OVER_DEVIATION = 3.29
"""Distance between the 5th and the 95th percentile ÷ standard deviation, likewise."""


@dataclass(slots=True)
class Measured:
    """Those parts of ``summary.json`` that metrics are taken from; the rest is not kept."""

    timings: Timings = field(default_factory=Timings)
    predictions: dict[str, Prediction] = field(default_factory=dict)
    memory: dict[str, MemoryUse] = field(default_factory=dict)
    telemetry: Telemetry | None = None
    serving: Serving | None = None
    schema_version: str = ""


@dataclass(frozen=True, slots=True)
class SweepMetric:
    """Name, direction and source of a metric."""

    title: str
    unit: str
    """``s``, ``bytes``, ``J``, ``1/s``."""
    better: Better
    of: Callable[[Measured], JobMetric | None]


def _timing(name: str) -> Callable[[Measured], JobMetric | None]:
    def of(measured: Measured) -> JobMetric | None:
        stat: Stat | None = getattr(measured.timings, name)
        return None if stat is None else with_interval(stat)

    return of


def _floor(phase: str) -> Callable[[Measured], JobMetric | None]:
    def of(measured: Measured) -> JobMetric | None:
        found = measured.predictions.get(phase)
        return None if found is None else JobMetric(found.floor_s)

    return of


def _peak(measured: Measured) -> JobMetric | None:
    peaks = [use.peak_bytes for use in measured.memory.values() if use.peak_bytes > 0]
    return JobMetric(float(max(peaks))) if peaks else None


def _energy(name: str) -> Callable[[Measured], JobMetric | None]:
    def of(measured: Measured) -> JobMetric | None:
        value = getattr(measured.telemetry.energy_j, name) if measured.telemetry is not None else None
        return None if value is None else JobMetric(value)

    return of


def _served(name: str) -> Callable[[Measured], JobMetric | None]:
    """Return a p99 with its interval, or a rate, at the highest load that the client sustained."""

    def of(measured: Measured) -> JobMetric | None:
        point = highest_load(measured.serving) if measured.serving is not None else None
        value = getattr(point, name) if point is not None else None
        if isinstance(value, LatencyStat):
            if value.p99 is None:
                return None
            low, high = (value.p99_low, value.p99_high) if value.p99_high is not None else (None, None)
            return JobMetric(value.p99, low, high, value.n)
        return None if value is None else JobMetric(value)

    return of


METRICS: dict[str, SweepMetric] = {
    "ttft_s": SweepMetric("Time to first token", "s", "lower", _timing("ttft_s")),
    "tpot_s": SweepMetric("Time per output token", "s", "lower", _timing("tpot_s")),
    "tokens_per_s": SweepMetric("Tokens per second", "1/s", "higher", _timing("tokens_per_s")),
    "vision_s": SweepMetric("Vision", "s", "lower", _timing("vision_s")),
    "prefill_s": SweepMetric("Prefill", "s", "lower", _timing("prefill_s")),
    "decode_s": SweepMetric("Decode", "s", "lower", _timing("decode_s")),
    "program_s": SweepMetric("Your program", "s", "lower", _timing("program_s")),
    "peak_bytes": SweepMetric("Peak memory", "bytes", "lower", _peak),
    "energy_per_token_j": SweepMetric("Energy per token", "J", "lower", _energy("per_token")),
    "energy_per_sample_j": SweepMetric("Energy per sample", "J", "lower", _energy("per_sample")),
    "served_ttft_p99_s": SweepMetric("TTFT p99 of the server", "s", "lower", _served("ttft_s")),
    "served_tpot_p99_s": SweepMetric("TPOT p99 of the server", "s", "lower", _served("tpot_s")),
    "served_requests_per_s": SweepMetric("Requests per second", "1/s", "higher", _served("completed_per_s")),
    "goodput_per_s": SweepMetric("Goodput", "1/s", "higher", _served("goodput_per_s")),
    "prefill_floor_s": SweepMetric("Prefill, least by the roofline", "s", "lower", _floor("prefill")),
    "decode_floor_s": SweepMetric("Decode step, least by the roofline", "s", "lower", _floor("decode")),
}
"""By the name they have in ``sweep.json``; in the order of tables."""
HEADLINE = (
    "ttft_s",
    "tpot_s",
    "tokens_per_s",
    "program_s",
    "served_ttft_p99_s",
    "served_tpot_p99_s",
    "served_requests_per_s",
    "goodput_per_s",
    "peak_bytes",
    "energy_per_token_j",
)
"""What tables and effects show; where nothing was measured, the floors."""
FLOORS = ("prefill_floor_s", "decode_floor_s")


def job_metrics(measured: Measured) -> dict[str, JobMetric]:
    """Return every metric a job has."""
    found = {name: metric.of(measured) for name, metric in METRICS.items()}
    return {name: value for name, value in found.items() if value is not None}


def with_interval(stat: Stat) -> JobMetric:
    """Return the value that reports show with its 95 % interval, from the spread of the values; no interval if they are too few."""
    if stat.std is None or stat.n < 3 or stat.shown <= 0:
        return JobMetric(stat.shown, n=stat.n)
    # The central 90 % measure the spread as well, and are robust against a single stall, unlike the standard deviation.
    spread = min(stat.std, (stat.p95 - stat.p5) / _INNER_OVER_DEVIATION)
    error = _MEDIAN_OVER_MEAN * spread / math.sqrt(stat.n) / stat.shown
    half = student_quantile((1 + CONFIDENCE) / 2, stat.n - 1) * error
    if half > WIDEST:
        return JobMetric(stat.shown, n=stat.n)
    factor = math.exp(half)
    return JobMetric(stat.shown, stat.shown / factor, stat.shown * factor, stat.n)


def metric_named(name: str) -> str | None:
    """Return the full name of a metric, which users may write without its unit (``tpot``); ``None``: there is none."""
    if name in METRICS:
        return name
    return next((known for known in METRICS if known.rpartition("_")[0] == name), None)


# ``sweep.objective``: the value a job returns to an optimising sweeper.


Objective = str
"""The whole name of a metric."""


def checked_objective(names: Sequence[str]) -> list[Objective]:
    """Return full names of metrics; :class:`ConfigError` for an unknown one."""
    found = []
    for name in names:
        known = metric_named(name)
        if known is None:
            near = nearest_key(name, METRICS)
            raise ConfigError(
                f"sweep.objective: there is no metric '{name}'",
                hint=f"did you mean '{near}'?" if near else f"one of {', '.join(METRICS)}",
                key="sweep.objective",
            )
        found.append(known)
    return found


def objective_values(run_dir: Path, names: Sequence[Objective]) -> list[float] | float | None:
    """Read the objective of a job from its summary; ``None``: it is not ok or has none, and the sweeper counts it as failed."""
    if not names:
        return None
    try:
        if read_manifest(run_dir).status != "ok":
            return None
        metrics = job_metrics(decode_file(run_dir / layout.SUMMARY, Measured))
    except InputError:
        return None
    if any(name not in metrics for name in names):
        return None
    values = [metrics[name].value for name in names]
    return values if len(values) > 1 else values[0]
