"""The metrics of a side: every raw value of its timings documents, and the scalars of its captures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_perf_opt.analysis.compare.series import Series
from llm_perf_opt.model.comparison import Better
from llm_perf_opt.model.statistics import percentile
from llm_perf_opt.model.summary import Summary

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
}
"""What can be compared and gated by name; ``component.<label>`` besides. ``total`` is ttft + decode, ``program`` the
wall-clock of the user's own program."""


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
    """Median token where tokens were timed, as in the summary: one stall must not stand for all of them."""
    tokens = repeat.get("token_s")
    if tokens:
        return percentile(sorted(tokens), 0.5)
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
    """Return what captures say about a run as a whole."""
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
    """Return the medians a summary keeps, for sides whose raw values are not there."""
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
    values = {name: stat.median for name, stat in named.items() if stat is not None}
    if "ttft" in values and "decode" in values:
        values["total"] = values["ttft"] + values["decode"]
    return values


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
    return found


def _by_repeat(samples: Mapping[str, Sequence[float]]) -> list[dict[str, list[float]]]:
    repeats = min(len(values) for values in samples.values())
    return [{name: [values[k]] for name, values in samples.items()} for k in range(repeats)]


def measured_in_turns(a: Sequence[Mapping[str, Any] | None], b: Sequence[Mapping[str, Any] | None]) -> bool:
    """Whether repeat k of A and repeat k of B were measured next to each other (``compare --run --together``)."""
    tokens = [(side[0] or {}).get("interleaved") if len(side) == 1 else None for side in (a, b)]
    return tokens[0] is not None and tokens[0] == tokens[1]
