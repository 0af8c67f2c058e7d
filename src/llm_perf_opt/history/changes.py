"""Changes of level in a series of runs: binary segmentation with a permutation test.

Of all places where a series could be cut, the one whose sides differ most (difference of means of log values, over its
standard error) is taken, and the same is done to random orders of the same values. A change is shown when at most
``alpha`` of the orders are cut as clearly. Then both parts are tested in the same way. Where neighbours are correlated (the
machine warms up, others come and go) what a value takes over from the one before is kept in the random orders, so that a
slow drift is not taken for a step; the correlation is taken from the upper end of its confidence range. Where a
straight line describes a stretch better than steps do, it is a drift and not cut at all. The test uses how much runs differ
from run to run, which a run's own repeats do not show. Values far from their neighbours are pulled in, in the random orders
too, so that one disturbed run neither makes a change nor hides one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.analysis import statistics

Array = NDArray[np.float64]
NAME = "binary segmentation, permutation test of the largest standardised difference of means of log values"
ALPHA = 0.01
UNSTEADY_ALPHA = 0.05
"""False alarms where neighbouring runs are alike or the level drifts, at most: measured (``benchmarks/history_changes.py``)."""
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
_LIKENESS_ERRORS = 2.0
"""Standard errors by which neighbours are taken for more alike than they look: too little of it and drifts become steps."""
_WANDERS = 0.35
"""Correlation of neighbours around the levels from which on a level is a random walk: cuts then follow its path, not a change."""
_WAYS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Variances of the steps of a wandering level that are tried, as shares of the noise's."""
_ABRUPT = 3.5
"""Times the usual difference of neighbouring triples that a jump must be, where the level is a random walk."""
_MAD_TO_SIGMA = 1.4826
_DRIFT_ERRORS = 4.0
"""Standard errors by which a line must rise to be called a drift; neighbours that are alike make it look surer than it is."""
_FIRST_LOOK = 50
"""Random orders of the first look: most series without a change are known for it after so many."""
_DRIFT = 2.0
"""Standard errors of the correlation of neighbours beyond which a level does not stand still."""


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A step change before the value at ``place``; ratios are after ÷ before."""

    place: int
    earliest: int
    latest: int
    ratio: float
    low_ratio: float
    high_ratio: float
    p_value: float
    drifting: bool
    """Whether neighbours around the levels are alike: a slow drift can look like a step."""


@dataclass(frozen=True, slots=True)
class Levels:
    """The result for a series."""

    changes: list[LevelChange]
    drift_ratio: float | None = None
    """Last ÷ first by a straight line, where that describes the whole series better than any step; else ``None``."""
    is_random_walk: bool = False
    """Whether the level is a random walk: only abrupt changes are shown then."""


def find_levels(values: Sequence[float], *, seed: int = SEED, alpha: float = ALPHA) -> Levels:
    """Return the step changes of a series of positive values, or its drift.

    There are none for fewer than ``LEAST_RUNS``.
    """
    if len(values) < LEAST_RUNS:
        return Levels([])
    logs = np.log(np.asarray(values, dtype=np.float64))
    cuts = sorted(_segment(logs, 0, np.random.default_rng(seed), alpha))
    is_random_walk = bool(cuts) and _is_random_walk(logs, [0, *(place for place, _ in cuts), len(logs)])
    if is_random_walk:
        cuts = _abrupt(logs, cuts)
    found = [change for change in _describe(logs, cuts, seed) if _matters(change)]
    drift = None if cuts else _drift(logs)
    return Levels(found, math.exp(drift) if drift is not None else None, is_random_walk)


def _pulled_in(rows: Array) -> Array:
    """Clip values far from their neighbours: one or two outliers, never three similar ones."""
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
    calm = _pulled_in(logs[None, :])[0]
    p = _permutation_p(logs, float(scores[best]), _log_likelihood(calm, cut), generator, alpha)
    if p > alpha or _line_fits_better(calm):
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


def _log_likelihood(logs: Array, cut: int) -> float:
    """Return the log likelihood of neighbour correlations around the levels on both sides of a cut, corrected for small-sample bias."""
    rest = np.concatenate([part - part.mean() for part in (logs[:cut], logs[cut:])])
    power = float((rest**2).sum())
    if power <= 0:
        return 0.0
    n = len(logs)
    seen = min(float((rest[1:] * rest[:-1]).sum()) / power, _log_likelihood_of_differences(logs))
    unbiased = min(max(seen + (2 + 4 * seen) / n, 0.0), 1.0)
    error = math.sqrt((1 - unbiased**2) / n)
    return min(unbiased + _LIKENESS_ERRORS * error, _MOST_LIKENESS)


def _log_likelihood_of_differences(logs: Array) -> float:
    """Return the same from differences to the next and the next but one value: further steps touch only a few of them."""
    near, far = (np.sort((logs[lag:] - logs[:-lag]) ** 2) for lag in (1, 2))
    kept = [float(squares[: len(squares) - 2 * lag].mean()) for lag, squares in ((1, near), (2, far))]
    return kept[1] / kept[0] - 1 if kept[0] > 0 else 0.0


def _line_fits_better(logs: Array) -> bool:
    """Whether a straight line describes values better than one or two steps, by the Bayesian information criterion."""
    n = len(logs)
    line = _cost(_rest_of_line(logs), n, 2)
    return line < min(_cost(rest, n, parameters) for rest, parameters in _rests_of_steps(logs))


def _cost(rest: float, n: int, parameters: int) -> float:
    return n * math.log(max(rest, 1e-300)) + parameters * math.log(n)


def _rest_of_line(logs: Array) -> float:
    places = np.arange(len(logs)) - (len(logs) - 1) / 2
    centred = logs - logs.mean()
    slope = float((places * centred).sum() / (places**2).sum())
    return float(((centred - slope * places) ** 2).sum())


def _rests_of_steps(logs: Array) -> list[tuple[float, int]]:
    """Return the residuals of the best one and two steps, and their number of parameters.

    The place of a step is chosen among many, so each of two steps counts as two more parameters.
    """
    n = len(logs)
    centred = logs - logs.mean()
    sums = np.concatenate([[0.0], np.cumsum(centred)])
    whole = float((centred**2).sum())
    ones = np.arange(LEAST_SIDE, n - LEAST_SIDE + 1)
    explained = sums[ones] ** 2 * n / (ones * (n - ones))
    found = [(whole - float(explained.max()), 3)]
    first, second = np.meshgrid(ones, ones, indexing="ij")
    apart = second - first >= LEAST_SIDE
    if apart.any():
        i, j = first[apart], second[apart]
        two = sums[i] ** 2 / i + (sums[j] - sums[i]) ** 2 / (j - i) + sums[j] ** 2 / (n - j)
        found.append((whole - float(two.max()), 7))
    return found


def _drift(logs: Array) -> float | None:
    """Return the rise of a straight line over the whole series (of logarithms), if it is a relevant drift."""
    n = len(logs)
    calm = _pulled_in(logs[None, :])[0]
    places = np.arange(n) - (n - 1) / 2
    slope = float((places * (calm - calm.mean())).sum() / (places**2).sum())
    rest = math.sqrt(_rest_of_line(calm) / max(n - 2, 1))
    error = rest / math.sqrt(float((places**2).sum()))
    rise = slope * (n - 1)
    sure = abs(slope) > _DRIFT_ERRORS * error and abs(rise) >= math.log1p(LEAST_CHANGE_RATIO)
    return rise if sure and _line_fits_better(calm) else None


def _permutation_p(
    logs: Array, observed: float, correlation: float, generator: np.random.Generator, alpha: float
) -> float:
    """Return how often random orders are cut as clearly; the dependence on the previous value is kept in order.

    Stops early and returns 1 once more than ``alpha`` of all orders are.
    """
    centred = logs - logs.mean()
    fresh = centred.copy()
    fresh[1:] -= correlation * centred[:-1]
    fresh[0] *= math.sqrt(1 - correlation**2)
    step = max(1, min(PERMUTATIONS, _CHUNK_ELEMENTS // len(logs)))
    as_clear, done = 0, 0
    while done < PERMUTATIONS:
        many = min(step if done else min(step, _FIRST_LOOK), PERMUTATIONS - done)
        orders = generator.permuted(np.tile(fresh, (many, 1)), axis=1)
        if correlation > 0:
            orders[:, 0] /= math.sqrt(1 - correlation**2)
            for place in range(1, orders.shape[1]):
                orders[:, place] += correlation * orders[:, place - 1]
        # Equal values in another order may differ in the last digit.
        as_clear += int((_scores(_pulled_in(orders)).max(axis=1) >= observed * (1 - 1e-9)).sum())
        done += many
        if (as_clear + 1) / (PERMUTATIONS + 1) > alpha:
            return 1.0
    return (as_clear + 1) / (PERMUTATIONS + 1)


def _describe(logs: Array, cuts: Sequence[tuple[int, float]], seed: int) -> list[LevelChange]:
    edges = [0, *(place for place, _ in cuts), len(logs)]
    drifting = _drifts(logs, edges)
    found = []
    for index, (place, p) in enumerate(cuts):
        low, high = edges[index], edges[index + 2]
        before, after = logs[low:place], logs[place:high]
        shift = statistics.shift_interval(
            before, after, confidence=_CONFIDENCE, resamples=_RESAMPLES, seed=seed
        )
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
    left = 1 / (1 + scores)  # share of the variance that remains after a cut
    near = np.flatnonzero(n * np.log(left / left.min()) <= _LIKELY)
    return int(near[0]) + LEAST_SIDE, int(near[-1]) + LEAST_SIDE


def _is_random_walk(logs: Array, edges: Sequence[int]) -> bool:
    """Whether a level that takes a small step at every run describes values better than a few large ones do."""
    if _log_likelihood_around(logs, edges) > _WANDERS:
        return True
    calm = _pulled_in(logs[None, :])[0]
    n = len(calm)
    rest = sum(float(((part - part.mean()) ** 2).sum()) for part in np.split(calm, edges[1:-1]))
    steps = _cost(rest / n, n, 2 * (len(edges) - 1))
    return min(_random_walk_misfit(calm, share) for share in _WAYS) + 3 * math.log(n) < steps


def _random_walk_misfit(logs: Array, share: float) -> float:
    """Return −2 log likelihood of a random walk seen through noise; ``share``: variance of its steps ÷ that of the noise."""
    level, variance, power, scale = float(logs[0]), 1.0, 0.0, 0.0
    for value in logs[1:].tolist():
        variance += share
        spread = variance + 1.0
        missed = value - level
        power += missed * missed / spread
        scale += math.log(spread)
        level += variance / spread * missed
        variance /= spread
    n = len(logs)
    return n * math.log(max(power / (n - 1), 1e-300)) + scale


def _abrupt(logs: Array, cuts: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Keep cuts where the level jumps by much more than between other neighbours: a random walk has none."""
    calm = _pulled_in(logs[None, :])[0]
    sums = np.concatenate([[0.0], np.cumsum(calm)])
    places = np.arange(LEAST_SIDE, len(calm) - LEAST_SIDE + 1)
    jumps = (sums[places + LEAST_SIDE] - 2 * sums[places] + sums[places - LEAST_SIDE]) / LEAST_SIDE
    away = np.ones(len(places), dtype=bool)
    for place, _ in cuts:
        away &= np.abs(places - place) >= LEAST_SIDE
    if away.sum() < LEAST_SIDE:
        return []
    spread = float(np.median(np.abs(jumps[away]))) * _MAD_TO_SIGMA
    return [cut for cut in cuts if abs(float(jumps[cut[0] - LEAST_SIDE])) > _ABRUPT * spread]


def _drifts(logs: Array, edges: Sequence[int]) -> bool:
    return _log_likelihood_around(logs, edges) > _DRIFT / math.sqrt(len(logs))


def _log_likelihood_around(logs: Array, edges: Sequence[int]) -> float:
    """Return the correlation of neighbours around the levels between cuts."""
    rest = np.concatenate([logs[a:b] - np.median(logs[a:b]) for a, b in itertools.pairwise(edges)])
    power = float((rest**2).sum())
    return float((rest[1:] * rest[:-1]).sum()) / power if power > 0 else 0.0


def _matters(change: LevelChange) -> bool:
    outside = not change.low_ratio <= 1 <= change.high_ratio
    return outside and abs(math.log(change.ratio)) >= math.log1p(LEAST_CHANGE_RATIO)
