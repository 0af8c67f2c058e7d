"""Changes of level in a series of runs: binary segmentation with a permutation test.

Of all places where a series could be cut, the one whose sides differ most (difference of means of log values, over its
standard error) is taken, and the same is done to random orders of the same values. A change is shown when at most
``alpha`` of the orders are cut as clearly. Then both parts are looked at in the same way. Where neighbours are alike (the
machine warms up, others come and go) what a value takes over from the one before is kept in the random orders, so that a
slow drift is not taken for a step. The test uses how much runs differ from run to run, which a run's own repeats do not
show. Values far from their neighbours are pulled in, in the random orders too, so that one disturbed run neither makes a change nor
hides one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.analysis.compare import stats

Array = NDArray[np.float64]

NAME = "binary segmentation, permutation test of the largest standardised difference of means of log values"
ALPHA = 0.01
PERMUTATIONS = 999
LEAST_SIDE = 3
"""Runs on either side of a change: fewer say nothing of a level."""
LEAST_RUNS = 8
"""Of fewer, even a perfect cut in the middle is within what chance gives once in a hundred series."""
LEAST_CHANGE_RATIO = 0.01
SEED = 20240229

_FAR = 8.0
"""Median absolute deviations from the neighbours beyond which a value is pulled in."""
_NEIGHBOURS = 2
"""On either side; with these, three runs at a new level are a majority of their neighbourhood."""
_LIKELY = 3.84
"""95 % quantile of chi-squared with one degree of freedom: places that fit the series nearly as well."""
_CHUNK_ELEMENTS = 400_000
_CONFIDENCE, _RESAMPLES = 0.95, 1000
_MOST_LIKENESS = 0.9
_DRIFT = 2.0
"""Standard errors of the correlation of neighbours beyond which a level does not stand still."""


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A change of level before the value at ``place``; ratios are after ÷ before."""

    place: int
    earliest: int
    latest: int
    ratio: float
    low_ratio: float
    high_ratio: float
    p_value: float
    drifting: bool
    """Whether neighbours around the levels are alike: a slow drift can look like a step."""


def find_changes(values: Sequence[float], *, seed: int = SEED, alpha: float = ALPHA) -> list[LevelChange]:
    """Return the changes of level of positive values in their order; none for fewer than ``LEAST_RUNS``."""
    if len(values) < LEAST_RUNS:
        return []
    logs = np.log(np.asarray(values, dtype=np.float64))
    cuts = sorted(_segment(logs, 0, np.random.default_rng(seed), alpha))
    return [change for change in _describe(logs, cuts, seed) if _matters(change)]


def _pulled_in(rows: Array) -> Array:
    """Pull values in that are far from their neighbours: one or two disturbed runs, never three that are alike."""
    padded = np.pad(rows, ((0, 0), (_NEIGHBOURS, _NEIGHBOURS)), mode="reflect")
    local = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * _NEIGHBOURS + 1, axis=1), axis=2)
    reach = _FAR * np.median(np.abs(rows - local), axis=1, keepdims=True)
    pulled: Array = np.where(reach > 0, np.clip(rows, local - reach, local + reach), rows)
    return pulled


def _segment(
    logs: Array, start: int, generator: np.random.Generator, alpha: float
) -> list[tuple[int, float]]:
    if len(logs) < LEAST_RUNS:
        return []
    scores = _scores(_pulled_in(logs[None, :]))[0]
    best = int(np.argmax(scores))
    if not scores[best] > 0:
        return []
    cut = best + LEAST_SIDE
    p = _permutation_p(logs, float(scores[best]), _likeness(_pulled_in(logs[None, :])[0], cut), generator)
    if p > alpha:
        return []
    left = _segment(logs[:cut], start, generator, alpha)
    return [*left, (start + cut, p), *_segment(logs[cut:], start + cut, generator, alpha)]


def _scores(rows: Array) -> Array:
    """Return, per row and possible cut, the squared difference of means over its variance within the parts."""
    n = rows.shape[1]
    sizes = np.arange(LEAST_SIDE, n - LEAST_SIDE + 1)
    centred = rows - rows.mean(axis=1, keepdims=True)
    sums = np.cumsum(centred, axis=1)[:, sizes - 1]
    between = sums**2 * n / (sizes * (n - sizes))
    whole = (centred**2).sum(axis=1, keepdims=True)
    within = np.maximum(whole - between, 1e-12 * whole + 1e-300)
    scores: Array = between / within
    return scores


def _likeness(logs: Array, cut: int) -> float:
    """Return how alike neighbours are around the levels on both sides of a cut; the bias of few values is taken out."""
    rest = np.concatenate([part - part.mean() for part in (logs[:cut], logs[cut:])])
    power = float((rest**2).sum())
    if power <= 0:
        return 0.0
    seen = min(float((rest[1:] * rest[:-1]).sum()) / power, _likeness_of_differences(logs))
    return min(max(seen + (2 + 4 * seen) / len(logs), 0.0), _MOST_LIKENESS)


def _likeness_of_differences(logs: Array) -> float:
    """Return the same from differences to the next and the next but one value: further steps touch only a few of them."""
    near, far = (np.sort((logs[lag:] - logs[:-lag]) ** 2) for lag in (1, 2))
    kept = [float(squares[: len(squares) - 2 * lag].mean()) for lag, squares in ((1, near), (2, far))]
    return kept[1] / kept[0] - 1 if kept[0] > 0 else 0.0


def _permutation_p(logs: Array, observed: float, likeness: float, generator: np.random.Generator) -> float:
    """Return how often random orders are cut as clearly; what a value takes over from the one before stays in order."""
    centred = logs - logs.mean()
    fresh = centred.copy()
    fresh[1:] -= likeness * centred[:-1]
    fresh[0] *= math.sqrt(1 - likeness**2)
    step = max(1, min(PERMUTATIONS, _CHUNK_ELEMENTS // len(logs)))
    as_clear, done = 0, 0
    while done < PERMUTATIONS:
        many = min(step, PERMUTATIONS - done)
        orders = generator.permuted(np.tile(fresh, (many, 1)), axis=1)
        if likeness > 0:
            orders[:, 0] /= math.sqrt(1 - likeness**2)
            for place in range(1, orders.shape[1]):
                orders[:, place] += likeness * orders[:, place - 1]
        # Equal values in another order may differ in the last digit.
        as_clear += int((_scores(_pulled_in(orders)).max(axis=1) >= observed * (1 - 1e-9)).sum())
        done += many
    return (as_clear + 1) / (PERMUTATIONS + 1)


def _describe(logs: Array, cuts: Sequence[tuple[int, float]], seed: int) -> list[LevelChange]:
    edges = [0, *(place for place, _ in cuts), len(logs)]
    drifting = _drifts(logs, edges)
    found = []
    for index, (place, p) in enumerate(cuts):
        low, high = edges[index], edges[index + 2]
        before, after = logs[low:place], logs[place:high]
        shift = stats.shift_interval(before, after, confidence=_CONFIDENCE, resamples=_RESAMPLES, seed=seed)
        earliest, latest = _likely_places(logs[low:high])
        found.append(
            LevelChange(
                place,
                min(low + earliest, place),
                max(low + latest, place),
                math.exp(shift.estimate),
                math.exp(shift.low),
                math.exp(shift.high),
                p,
                drifting,
            )
        )
    return found


def _likely_places(logs: Array) -> tuple[int, int]:
    """Return the first and last cut whose fit is not significantly worse than the best."""
    n = len(logs)
    scores = _scores(_pulled_in(logs[None, :]))[0]
    left = 1 / (1 + scores)  # share of the variance that a cut leaves
    near = np.flatnonzero(n * np.log(left / left.min()) <= _LIKELY)
    return int(near[0]) + LEAST_SIDE, int(near[-1]) + LEAST_SIDE


def _drifts(logs: Array, edges: Sequence[int]) -> bool:
    rest = np.concatenate([logs[a:b] - np.median(logs[a:b]) for a, b in itertools.pairwise(edges)])
    power = float((rest**2).sum())
    return power > 0 and float((rest[1:] * rest[:-1]).sum()) / power > _DRIFT / math.sqrt(len(rest))


def _matters(change: LevelChange) -> bool:
    outside = not change.low_ratio <= 1 <= change.high_ratio
    return outside and abs(math.log(change.ratio)) >= math.log1p(LEAST_CHANGE_RATIO)
