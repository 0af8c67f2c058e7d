"""What repeated timings say about the measurement itself: noise, warm-up, drift, growth, padding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from llm_perf_opt.core.phases import BEFORE_PREFILL, REQUEST_PHASES
from llm_perf_opt.model.limits import is_count
from llm_perf_opt.model.statistics import describe, interval_ratio, mean_of, percentile
from llm_perf_opt.model.summary import SampleTimes, Stat
from llm_perf_opt.model.wall_clock import SampleTotal

_QUARTERS = 4
_FEWEST_TOKENS = 16
"""Fewer tokens than this say nothing about growth."""

SampleEntry = Mapping[str, Any]
"""One entry of ``samples`` in a timings document."""


def _median(values: Sequence[float]) -> float:
    return percentile(sorted(values), 0.5)


def repeat_spread(samples: Sequence[SampleEntry]) -> dict[str, Stat]:
    """Return, per phase, every repeat's time divided by the median of the same sample's repeats."""
    spreads: dict[str, Stat] = {}
    for phase in REQUEST_PHASES:
        ratios: list[float] = []
        for sample in samples:
            values = [r[f"{phase}_s"] for r in sample["repeats"] if r.get(f"{phase}_s")]
            if len(values) > 1:
                middle = _median(values)
                ratios.extend(value / middle for value in values)
        stat = describe(ratios)
        if stat is not None:
            spreads[phase] = stat
    return spreads


def repeat_interval_ratio(samples: Sequence[SampleEntry]) -> float | None:
    """Return how wide the 95 % interval of a pass over all samples is, as a share of its time."""
    totals = [values for sample in samples if (values := _totals(sample))]
    repeats = min((len(values) for values in totals), default=0)
    levels = [[math.log(values[k]) for values in totals if values[k] > 0] for k in range(repeats)]
    return interval_ratio([math.fsum(level) / len(level) for level in levels if level])


def measurement_metrics(samples: Sequence[SampleEntry]) -> dict[str, float | None]:
    """Return scalars that findings use; a metric that cannot be made is ``None``."""
    return {
        "first_repeat_ratio": _first_over_rest(samples),
        "last_over_first_repeat_ratio": _last_over_first(samples),
        "tpot_growth_ratio": _token_growth(samples),
        "padding_ratio": _padding(samples),
    }


def _totals(sample: SampleEntry) -> list[float]:
    return [sum(repeat.get(f"{phase}_s") or 0.0 for phase in REQUEST_PHASES) for repeat in sample["repeats"]]


def _first_over_rest(samples: Sequence[SampleEntry]) -> float | None:
    """Only the very first measured pass can be cold; it is compared with later repeats of the same sample."""
    totals = _totals(samples[0]) if samples else []
    return totals[0] / _median(totals[1:]) if len(totals) > 2 and _median(totals[1:]) > 0 else None


def _last_over_first(samples: Sequence[SampleEntry]) -> float | None:
    ratios = [
        totals[-1] / totals[0] for sample in samples if len(totals := _totals(sample)) > 2 and totals[0] > 0
    ]
    return _median(ratios) if ratios else None


def _token_growth(samples: Sequence[SampleEntry]) -> float | None:
    """Median token time of the last quarter over that of the first quarter."""
    ratios = []
    for sample in samples:
        for repeat in sample["repeats"]:
            tokens = repeat.get("token_s") or []
            quarter = len(tokens) // _QUARTERS
            if len(tokens) >= _FEWEST_TOKENS and (first := _median(tokens[:quarter])) > 0:
                ratios.append(_median(tokens[-quarter:]) / first)
    return _median(ratios) if ratios else None


def _padding(samples: Sequence[SampleEntry]) -> float | None:
    """Share of prompt positions that are padding, over all batches whose sequence lengths are known."""
    told = mean_of([(sample.get("facts") or {}).get("padding_ratio") for sample in samples])
    if told is not None:
        return told
    computed = used = 0
    for sample in samples:
        lengths: Any = (sample.get("facts") or {}).get("prompt_tokens")
        if _are_counts(lengths) and sample.get("prompt_tokens"):
            computed += sample["prompt_tokens"] * len(lengths)
            used += sum(lengths)
    return min(max(0.0, 1 - used / computed), 1.0) if computed else None


def _are_counts(lengths: Any) -> bool:
    return isinstance(lengths, list) and bool(lengths) and all(map(is_count, lengths))


def sample_totals(samples: Sequence[SampleEntry]) -> dict[str, SampleTotal]:
    """Return, per sample, its tokens and the median of its repeats, preprocessing left out."""
    totals = {}
    for sample in samples:
        seconds = [value for value in _totals(sample) if value > 0]
        if seconds:
            totals[str(sample["id"])] = SampleTotal(int(sample["new_tokens"]), _median(seconds))
    return totals


def sample_rows(samples: Sequence[SampleEntry]) -> list[SampleTimes]:
    """Return every sample by itself: its size and the medians of its repeats."""
    return [_sample_row(sample) for sample in samples]


def _sample_row(sample: SampleEntry) -> SampleTimes:
    repeats = sample["repeats"]

    def middle(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return _median(known) if known else None

    medians = {
        f"{phase}_s": middle([repeat.get(f"{phase}_s") for repeat in repeats]) for phase in REQUEST_PHASES
    }
    steps = sample["new_tokens"] - 1
    decode = [repeat.get("decode_s") for repeat in repeats]
    return SampleTimes(
        id=str(sample["id"]),
        n=len(repeats),
        prompt_tokens=sample.get("prompt_tokens"),
        image_tokens=sample.get("image_tokens"),
        new_tokens=sample["new_tokens"],
        preprocess_s=middle([repeat.get("preprocess_s") for repeat in repeats]),
        vision_s=medians.get("vision_s"),
        encode_s=medians.get("encode_s"),
        prefill_s=medians.get("prefill_s"),
        decode_s=medians.get("decode_s"),
        ttft_s=middle(
            [
                sum(repeat.get(f"{phase}_s") or 0.0 for phase in BEFORE_PREFILL) + repeat["prefill_s"]
                for repeat in repeats
                if repeat.get("prefill_s") is not None
            ]
        ),
        tpot_s=middle([None if value is None else value / steps for value in decode]) if steps > 0 else None,
    )
