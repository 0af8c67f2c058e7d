"""Statistics of repeated measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from llm_perf_opt.model.summary import Stat, Timings


def percentile(ordered: Sequence[float], q: float) -> float:
    """Return the ``q`` quantile (0 to 1) of sorted values, interpolating between neighbours."""
    if not ordered:
        raise ValueError("no values")
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def describe(values: Sequence[float | None]) -> Stat | None:
    """Summarise values, missing ones left out; ``None`` when nothing was measured."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    mean = math.fsum(known) / len(known)
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in known) / (len(known) - 1)) if len(known) > 1 else None
    return Stat(
        median=percentile(known, 0.5),
        p5=percentile(known, 0.05),
        p95=percentile(known, 0.95),
        mean=mean,
        std=std,
        n=len(known),
    )


def mean_of(values: Sequence[float | int | None]) -> float | None:
    """Return the mean of the known values; ``None`` when there is none."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def interval_ratio(log_values: Sequence[float], confidence: float = 0.95) -> float | None:
    """Return how wide the interval of the mean of log values is, as (high − low) ÷ low of the values themselves.

    Student's interval; ``None`` for fewer than three values, which say next to nothing.
    """
    count = len(log_values)
    if count < 3:
        return None
    mean = math.fsum(log_values) / count
    variance = math.fsum((value - mean) ** 2 for value in log_values) / (count - 1)
    half = student_quantile((1 + confidence) / 2, count - 1) * math.sqrt(variance / count)
    return math.expm1(2 * half)


def student_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t by its expansion around the normal one: within 1 % from three degrees on, 5 % at two."""
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / degrees**power for power, term in enumerate(terms, 1))


def decode_steps(timings: Timings) -> float | None:
    """Return how many steps one sample's decode holds; ``None`` where that is not known."""
    decode, token = timings.decode_s, timings.tpot_s
    return decode.mean / token.mean if decode is not None and token is not None and token.mean > 0 else None
