"""Statistics that hold on noisy machines: robust location, bootstrap interval, exact rank tests.

Times on shared machines have heavy tails to one side and drift. So locations are Hodges–Lehmann estimates (Hodges
and Lehmann 1963), intervals come from resampling whole blocks, and tests use ranks with their exact distribution,
ties included. All values here are logarithms of times: a difference is the logarithm of a ratio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_MOST_EXACT = 60
"""Values up to which the exact null distribution is cheap; beyond it the normal approximation is good."""
_CHUNK_ELEMENTS = 2_000_000
"""Most numbers worked on at once, so that many blocks do not need much memory."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Estimate of a log ratio with its interval."""

    estimate: float
    low: float
    high: float


def paired_location(differences: Sequence[float] | Array) -> float:
    """Median of all means of two differences (each with itself too)."""
    return float(_walsh_medians(np.asarray(differences, dtype=np.float64)[None, :])[0])


def shift_location(a: Sequence[float] | Array, b: Sequence[float] | Array) -> float:
    """Median of all differences between a value of B and a value of A."""
    return float(
        _shift_medians(np.asarray(a, dtype=np.float64)[None, :], np.asarray(b, dtype=np.float64)[None, :])[0]
    )


def _walsh_medians(rows: Array) -> Array:
    first, second = np.triu_indices(rows.shape[1])
    medians: Array = np.median((rows[:, first] + rows[:, second]) / 2, axis=1)
    return medians


def _shift_medians(a: Array, b: Array) -> Array:
    medians: Array = np.median((b[:, :, None] - a[:, None, :]).reshape(len(a), -1), axis=1)
    return medians


def paired_interval(
    differences: Sequence[float] | Array, *, confidence: float, resamples: int, seed: int
) -> Interval:
    """Bootstrap the location of paired differences over their blocks; needs two or more."""
    values = np.asarray(differences, dtype=np.float64)
    generator = np.random.default_rng(seed)
    picks = generator.integers(0, len(values), (resamples, len(values)))
    step = max(1, _CHUNK_ELEMENTS // (len(values) ** 2))
    chunks = [_walsh_medians(values[picks[i : i + step]]) for i in range(0, resamples, step)]
    return _widened(paired_location(values), np.concatenate(chunks), len(values), confidence)


def shift_interval(
    a: Sequence[float] | Array,
    b: Sequence[float] | Array,
    *,
    confidence: float,
    resamples: int,
    seed: int,
) -> Interval:
    """Bootstrap the shift between two independent sets of blocks; each needs two or more."""
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    generator = np.random.default_rng(seed)
    left = generator.integers(0, len(first), (resamples, len(first)))
    right = generator.integers(0, len(second), (resamples, len(second)))
    step = max(1, _CHUNK_ELEMENTS // (len(first) * len(second)))
    chunks = [
        _shift_medians(first[left[i : i + step]], second[right[i : i + step]])
        for i in range(0, resamples, step)
    ]
    smaller = min(len(first), len(second))
    return _widened(shift_location(first, second), np.concatenate(chunks), smaller, confidence)


def _widened(estimate: float, replicates: Array, n: int, confidence: float) -> Interval:
    """Percentile interval, stretched by √(n/(n−1)): resampling n values shows too little spread by that factor."""
    tail = (1 - confidence) / 2
    low, high = (float(x) for x in np.quantile(replicates, [tail, 1 - tail]))
    stretch = math.sqrt(n / (n - 1)) if n > 1 else 1.0
    return Interval(
        estimate,
        min(estimate, estimate + (low - estimate) * stretch),
        max(estimate, estimate + (high - estimate) * stretch),
    )


def doubled_ranks(values: Sequence[float]) -> list[int]:
    """Twice the rank of each value; equal values share their mean rank, which doubling keeps whole."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    ranks = [0] * len(values)
    start = 0
    while start < len(order):
        stop = start
        while stop < len(order) and values[order[stop]] == values[order[start]]:
            stop += 1
        for place in range(start, stop):
            ranks[order[place]] = start + stop + 1
        start = stop
    return ranks


def signed_rank_p(differences: Sequence[float]) -> float:
    """One-sided Wilcoxon signed-rank test: how often differences without a direction look this positive."""
    known = [d for d in differences if d != 0]
    if not known:
        return 1.0
    ranks = doubled_ranks([abs(d) for d in known])
    observed = sum(rank for rank, d in zip(ranks, known, strict=True) if d > 0)
    if len(known) > _MOST_EXACT:
        variance = sum(rank * rank for rank in ranks) / 4
        return _normal_tail((observed - sum(ranks) / 2 - 1) / math.sqrt(variance))
    ways = [1] + [0] * sum(ranks)
    for rank in ranks:
        for total in range(len(ways) - 1, rank - 1, -1):
            ways[total] += ways[total - rank]
    return float(sum(ways[observed:]) / 2 ** len(known))


def rank_sum_p(a: Sequence[float], b: Sequence[float]) -> float:
    """One-sided Wilcoxon–Mann–Whitney test: how often sets without a difference have B this far above A."""
    if not a or not b:
        return 1.0
    ranks = doubled_ranks([*a, *b])
    observed = sum(ranks[len(a) :])
    count, chosen = len(ranks), len(b)
    if count > _MOST_EXACT:
        mean = sum(ranks) / count
        spread = sum((rank - mean) ** 2 for rank in ranks)
        variance = len(a) * chosen / (count * (count - 1)) * spread
        return _normal_tail((observed - chosen * mean - 1) / math.sqrt(variance)) if variance else 1.0
    # ways[k][s]: subsets of k ranks with sum s
    ways: list[dict[int, int]] = [{0: 1}, *({} for _ in range(chosen))]
    for rank in ranks:
        for size in range(chosen, 0, -1):
            target = ways[size]
            for total, many in ways[size - 1].items():
                target[total + rank] = target.get(total + rank, 0) + many
    return sum(many for total, many in ways[chosen].items() if total >= observed) / math.comb(count, chosen)


def _normal_tail(z: float) -> float:
    return 0.5 * math.erfc(z / math.sqrt(2))


def smallest_paired_p(n: int) -> float:
    """Smallest one-sided p that ``n`` pairs can give."""
    return 0.5**n


def smallest_shift_p(n_a: int, n_b: int) -> float:
    """Smallest one-sided p that two sets of these sizes can give."""
    return 1 / math.comb(n_a + n_b, n_a) if n_a and n_b else 1.0
