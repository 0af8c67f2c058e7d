"""Step times of a server as a finished run recorded them, for loads that the run did not send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llm_perf_opt.captures.serving.reader import read_serving
from llm_perf_opt.captures.serving.records import Bool, Float64, Int64, ServingRecords, Steps
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.files import read_document
from llm_perf_opt.stages.serve.facts import REQUESTS, SERVER, STEPS, STEPS_LOG
from llm_perf_opt.summary import Summary
from llm_perf_opt.what_if.serving import Capacity, ServingQuery, ServingRow, fill_capacity, fill_row, loads_of
from llm_perf_opt.what_if.simulate import Limits, Step
from llm_perf_opt.what_if.step_times import End, EngineCosts

_LEAST_STEPS = 30
_LEAST_ERROR = 0.10
"""Of the fitted times: a range is never narrower."""
_BLOCKS = 10
_OUTLIER = 0.995
_DEFAULT_LIMITS = {"max-num-batched-tokens": 2048, "max-num-seqs": 256}


@dataclass(frozen=True, slots=True)
class StepFit:
    """Step time = fixed + requests × decode + prompt tokens × prefill + requests with prompts × entry + arrivals × intake."""

    fixed_s: float
    decode_s: float
    """Per request that decodes."""
    prefill_s: float
    """Per prompt token."""
    entry_s: float
    """Per request with prompt tokens in the step."""
    intake_s: float
    """Per request that arrives during the step; 0 where the front end has cores of its own."""
    low_ratio: float
    high_ratio: float
    """Ends of recorded ÷ fitted time over tenths of the record."""
    steps: int

    def seconds(self, step: Step) -> float:
        """Return the fitted time of a step, the gap before the next one included."""
        tokens = step.tokens - step.decoding
        return (
            self.fixed_s
            + step.decoding * self.decode_s
            + tokens * self.prefill_s
            + len(step.chunks) * self.entry_s
            + step.arrivals * self.intake_s
        )


@dataclass(frozen=True, slots=True)
class RecordedTimes:
    """Step times of a record at one end of their range, and the way to the engine and back."""

    fit: StepFit
    end: End
    way_s: float

    def seconds(self, step: Step) -> float:
        """Return the time of a step."""
        ratio = {"low": self.fit.low_ratio, "expected": 1.0, "high": self.fit.high_ratio}[self.end]
        return self.fit.seconds(step) * ratio

    def before_s(self, prompt_tokens: int) -> float:
        """Return the time to the scheduler: most of the way."""
        return self.way_s * 0.8

    def intake_s(self, prompt_tokens: int) -> float:
        """Return what the front end does one request at a time: not recorded, taken as half of the way there."""
        return min(self.way_s * 0.4, EngineCosts().intake_s.high)

    def after_s(self) -> float:
        """Return the time back to the client."""
        return self.way_s * 0.2


def fit_steps(steps: Steps, rows: Bool | None = None) -> StepFit:
    """Fit step times by least squares, coefficients not below 0; rare long steps count as the 99.5th percentile.

    ``rows``: the steps to use; ``None``: all of them.
    """
    took = _intervals(steps)
    known = np.isfinite(took) & (took > 0)
    if rows is not None:
        known &= rows
    if int(known.sum()) < _LEAST_STEPS:
        raise InputError(
            f"{int(known.sum())} steps were recorded; at least {_LEAST_STEPS} are needed",
            hint="measure a longer load, with steps of different sizes",
        )
    chunks, tokens = np.maximum(steps.prefill_requests, 0), np.maximum(steps.prefill_tokens, 0)
    columns = np.stack([np.ones(len(took)), steps.decode_requests, tokens, chunks, _arrivals(steps)], 1)
    columns, took = columns[known].astype(np.float64), took[known]
    capped = np.minimum(took, np.quantile(took, _OUTLIER) * 2)
    found = _fit_positive(columns, capped)
    fitted = columns @ found
    # Outliers are part of what requests wait for: the sum of the record is kept.
    found = found * (took.sum() / max(fitted.sum(), 1e-12))
    fitted = columns @ found
    ratios = [
        float(took[rows].sum() / max(fitted[rows].sum(), 1e-12))
        for rows in np.array_split(np.arange(len(took)), _BLOCKS)
        if len(rows)
    ]
    low, high = np.quantile(ratios, [0.1, 0.9])
    fixed, decode, prefill, entry, intake = (float(one) for one in found)
    return StepFit(
        fixed,
        decode,
        prefill,
        entry,
        intake,
        min(float(low), 1 - _LEAST_ERROR),
        max(float(high), 1 + _LEAST_ERROR),
        len(took),
    )


def _intervals(steps: Steps) -> Float64:
    """Return the time from the end of the step before where requests were running or waiting, otherwise the duration.

    The host schedules a step and hands out its tokens between the recorded durations.
    """
    took = steps.duration_s.copy()
    if not steps.is_placed:
        return took
    for rows, going_on in _runs(steps):
        end = np.maximum.accumulate(steps.end_s[rows])
        between = np.concatenate(([np.inf], np.diff(end)))
        longer = going_on & np.isfinite(between) & (between > took[rows])
        took[rows] = np.where(longer, between, took[rows])
    return took


def _runs(steps: Steps) -> Iterator[tuple[Int64, Bool]]:
    """Return the rows of each engine, and which of them follow the step before without idle time."""
    for engine in np.unique(steps.engine):
        rows = np.flatnonzero(steps.engine == engine)
        waited = np.concatenate(([False], steps.waiting[rows][:-1] > 0))
        yield rows, (steps.decode_requests[rows] > 0) | waited


def _arrivals(steps: Steps) -> Int64:
    """Return requests that arrived during each step, about: those that got their first token in the step that follows.

    Records without first tokens give none: a prompt that is computed in several steps arrives only once.
    """
    found = np.zeros(len(steps), np.int64)
    new = np.maximum(steps.first_tokens, 0)
    for rows, going_on in _runs(steps):
        found[rows[:-1]] = np.where(going_on[1:], new[rows[1:]], 0)
    return found


def _fit_positive(columns: Float64, took: Float64) -> Float64:
    """Return least-squares coefficients of relative errors; negative ones are left out one after the other."""
    weights = 1.0 / np.sqrt(np.maximum(took, 1e-6))
    active = [place for place in range(columns.shape[1]) if columns[:, place].any()]
    found = np.zeros(columns.shape[1])
    while active:
        solved, *_ = np.linalg.lstsq(columns[:, active] * weights[:, None], took * weights, rcond=None)
        if (solved >= 0).all():
            found[active] = solved
            break
        active.pop(int(np.argmin(solved)))
    return found


def read_run(run: Path) -> ServingRecords | None:
    """Return the serving records of a run directory; ``None``: it has no steps."""
    folder = (run if run.is_dir() else run.parent) / "serve"
    steps = [folder / name for name in (STEPS, STEPS_LOG) if (folder / name).is_file()]
    if not steps or not (folder / REQUESTS).is_file():
        return None
    records = read_serving([folder / REQUESTS], optional=steps[:1])
    return records if records.steps else None


def recorded_limits(run: Path, query: ServingQuery) -> Limits:
    """Return the engine's limits: as given, as the server was started with, otherwise vLLM's usual ones."""
    path = (run if run.is_dir() else run.parent) / "serve" / SERVER
    arguments: list[str] = []
    if path.is_file():
        try:
            document: Any = json.loads(read_document(path))
        except (OSError, ValueError, RecursionError):
            document = {}
        command = document.get("command") if isinstance(document, dict) else None
        arguments = (
            [str(word) for word in command] if isinstance(command, list) else str(command or "").split()
        )
    tokens, sequences = (_option(arguments, name, usual) for name, usual in _DEFAULT_LIMITS.items())
    return Limits(query.most_tokens or tokens, query.most_sequences or sequences)


def _option(arguments: list[str], name: str, usual: int) -> int:
    for place, word in enumerate(arguments):
        key, _, value = word.lstrip("-").partition("=")
        text = value or (arguments[place + 1] if place + 1 < len(arguments) else "")
        if key.replace("_", "-") == name and text.isdigit() and int(text) > 0:
            return int(text)
    return usual


def serve_from_records(
    summary: Summary, run: Path, records: ServingRecords, query: ServingQuery
) -> tuple[list[ServingRow], list[Capacity], StepFit]:
    """Return rows and capacity of a recorded server at loads it was not measured at."""
    from llm_perf_opt.analysis.serving.matching import merge_steps

    steps = merge_steps(records.steps)
    if steps is None:
        raise InputError(f"run {summary.run.id} has no step records")
    fit, limits = fit_steps(steps), recorded_limits(run, query)
    way_s = way_of(summary)

    def times(end: End) -> RecordedTimes:
        return RecordedTimes(fit, end, way_s)

    device = summary.hardware.name or "this device"
    rows = []
    for load in loads_of(query):
        row = ServingRow(
            device,
            summary.workload.dtype or "",
            1,
            query.prompt_tokens,
            query.new_tokens,
            load.concurrency,
            load.rate_per_s,
        )
        row.source = f"{fit.steps} steps of run {summary.run.id}"
        fill_row(row, load, limits, times, query)
        rows.append(row)
    capacities = []
    if query.slo or query.target_rate_per_s is not None:
        found = Capacity(device, summary.workload.dtype or "", 1, query.target_rate_per_s, None)
        fill_capacity(found, limits, times, query)
        capacities.append(found)
    return rows, capacities, fit


def way_of(summary: Summary) -> float:
    """Return the time between client and engine: recorded at the lightest load, otherwise assumed."""
    costs = EngineCosts()
    points = summary.serving.load if summary.serving is not None else []
    ways = [
        one.ttft_parts_s.network
        for one in points
        if one.ttft_parts_s is not None and one.ttft_parts_s.network is not None
    ]
    return min(ways) if ways else costs.request_s.expected + costs.answer_s.expected
