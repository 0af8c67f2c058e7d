"""Statistics that hold on noisy machines: robust location, bootstrap interval, exact rank tests.

Times on shared machines have heavy tails to one side and drift. So locations are Hodges–Lehmann estimates (Hodges
and Lehmann 1963), intervals come from resampling whole blocks, and tests use ranks with their exact distribution,
ties included. All values here are logarithms of times: a difference is the logarithm of a ratio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.summary.statistics import StoppingRule, TrialVerdict, student_quantile

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
    """Smallest possible one-sided p of ``n`` pairs."""
    return 0.5**n


def smallest_shift_p(n_a: int, n_b: int) -> float:
    """Smallest possible one-sided p of two sets of these sizes."""
    return 1 / math.comb(n_a + n_b, n_a) if n_a and n_b else 1.0


_STAKES: Array = np.array([0.07, 0.18, 0.4, 0.7, 0.97])
_FIRST_SCALE = 0.15
"""Scale of the first bets, before the noise is known: fifteen per cent."""
_SCALE_BLOCKS = 4
_CUT = 2.0
"""Where ψ is cut off, in standard deviations of the blocks: a stall of the machine counts as one loss, not as many."""
_LEAST_SCALE = 0.002
_TO_DEVIATION = 1.4826
"""Median absolute deviation → standard deviation, of normal noise."""
_HALVINGS = 40
_MOST_WEALTH_LOG = 600.0
_MOST_LOG = 5.0
"""Ratios beyond e⁵ are not distinguished."""
_LEAST_BLOCKS = 6
"""Fewer decide nothing, whatever they say: the first passes after a warm-up are not like the others."""
_FUTILITY = 0.1
"""Chance of giving up a real gain too early; that costs a gain, not the truth, so it has no share of the family error."""
DROP_ERROR = 0.05
"""Probability of calling a remedy slower although it is not. The remedy is dropped either way, so its interval uses this
error at each end: few pairs suffice for it, and they would decide nothing at the error of a keep."""
_SIGN_OF_SLOWER = 3.0
_IN_SIGHT = 0.4
"""Share of the way to a shown gain, in the logarithm of the wealth, from which measuring on is worth more time."""


@dataclass(frozen=True, slots=True)
class Change:
    """A log ratio with the interval that is valid at every look."""

    estimate: float
    """The median of the blocks."""
    low: float
    high: float


class SequentialTest:
    """An anytime-valid sequential test over blocks."""

    def __init__(self, rule: StoppingRule) -> None:
        self.rule = rule
        self._blocks: list[float] = []
        self._scales: list[float] = []

    @property
    def count(self) -> int:
        """Blocks so far."""
        return len(self._blocks)

    @property
    def _whole(self) -> int:
        """Return the number of complete blocks (both halves measured)."""
        return self.count - self.count % 2

    def add(self, block: float) -> TrialVerdict | None:
        """Take one more log ratio; return the verdict, or ``None`` to continue measuring."""
        self._scales.append(self._scales[-1] if self.count % 2 else _scale(self._blocks))
        self._blocks.append(min(max(block, -_MOST_LOG), _MOST_LOG))
        return self.verdict()

    def verdict(self) -> TrialVerdict | None:
        """Return the current verdict; ``None`` between the two blocks of one draw."""
        over = self.count + 2 > self.rule.most_blocks
        enough = over if self.rule.fixed else self.count >= _LEAST_BLOCKS
        if self.count % 2 or not enough:
            return None
        least = math.log1p(-self.rule.least_gain_ratio)
        if self.wealth(least, below=True) >= 1 / self.rule.alpha:
            return "gain" if self._is_narrow() or over else None
        if self.wealth(least, below=False) >= 1 / _FUTILITY:
            slower = self.wealth(0.0, below=False)
            if slower >= 1 / DROP_ERROR:
                return "slower"
            # A few more pairs separate a slowdown from no change, once there is a sign of one.
            if slower < _SIGN_OF_SLOWER:
                return "no gain"
        return "not shown" if over else None

    def verdict_at_the_end(self) -> TrialVerdict:
        """Return the final verdict: a gain counts, however wide its interval."""
        found = SequentialTest(replace(self.rule, widest_ratio=None))
        found._blocks, found._scales = self._blocks[: self._whole], self._scales[: self._whole]
        return found.verdict() or "not shown"

    def in_sight(self) -> bool:
        """Return whether more pairs are likely to show a gain; the test stays valid when it is continued."""
        if self.count < _LEAST_BLOCKS:
            return False
        least = math.log1p(-self.rule.least_gain_ratio)
        return math.log(self.wealth(least, below=True)) >= _IN_SIGHT * -math.log(self.rule.alpha)

    def loss_in_sight(self) -> bool:
        """Return whether more pairs are likely to show that it is slower."""
        return self.count >= _LEAST_BLOCKS and self.wealth(0.0, below=False) >= 1 / _FUTILITY

    def change(self, alpha: float | None = None) -> Change | None:
        """Return estimate and interval, with the error of the rule or another one at each end; ``None`` without a block."""
        if not self._blocks:
            return None
        error = self.rule.alpha if alpha is None else alpha
        low, high = self._end(error, below=False), self._end(error, below=True)
        return Change(min(max(float(np.median(self._blocks)), low), high), low, high)

    def _is_narrow(self) -> bool:
        change = self.change()
        if self.rule.widest_ratio is None or change is None:
            return True
        return change.high - change.low <= self.rule.widest_ratio * abs(change.estimate)

    def wealth(self, centre: float, *, below: bool) -> float:
        """Return the betting wealth (start: 1) of bets that blocks fall below (above) ``centre``.

        With ``below`` it is the e-value against "the log ratio is at least ``centre``". A block whose
        pair is incomplete does not count yet.
        """
        blocks, scales = np.array(self._blocks[: self._whole]), np.array(self._scales[: self._whole])
        moves = np.clip((blocks - centre) / scales, -1.0, 1.0)
        logs = np.log1p(np.outer(_STAKES, -moves if below else moves)).sum(axis=1)
        top = float(logs.max())
        return math.exp(min(top, _MOST_WEALTH_LOG)) * float(np.exp(logs - top).mean())

    def _end(self, alpha: float, *, below: bool) -> float:
        """Return an end of the interval by bisection: wealth is monotonic in the centre.

        Each end has all of α: a keep looks at the upper end alone.
        """
        needed = 1 / alpha
        inside, outside = (-_MOST_LOG, _MOST_LOG) if below else (_MOST_LOG, -_MOST_LOG)
        if self.wealth(outside, below=below) < needed:
            return outside
        for _ in range(_HALVINGS):
            middle = (inside + outside) / 2
            if self.wealth(middle, below=below) >= needed:
                outside = middle
            else:
                inside = middle
        return outside


def fewest_blocks(alpha: float) -> int:
    """Return the minimum number of blocks for a verdict, each with the largest possible win."""
    count = _LEAST_BLOCKS
    while float(np.exp(count * np.log1p(_STAKES)).mean()) < 1 / alpha:
        count += 2
    return count


def _scale(before: Sequence[float]) -> float:
    """Return the scale of the next bet, from the spread of the blocks before it."""
    if len(before) < _SCALE_BLOCKS:
        return _FIRST_SCALE
    values = np.array(before)
    spread = _TO_DEVIATION * float(np.median(np.abs(values - np.median(values))))
    return max(_CUT * spread, _LEAST_SCALE)


# Process-to-process variation: memory layout and choice of algorithms make processes of one configuration differ.


PROCESS_SPREAD_RATIO = 0.005
"""Deviation between processes of one configuration that is assumed before any were compared."""
_PRIOR_DEGREES = 4
"""How many degrees of freedom the assumption counts: a few processes of an experiment say little about their spread."""


_CLOSE_PROCESSES_RATIO = 0.01
"""Deviation of log ratios up to which the planned processes are enough."""
_MORE_PROCESSES = 2


def processes_needed(levels: Sequence[float], planned: int) -> int:
    """Return in how many processes to measure a gain, given the log ratios of those that ran: the planned number, and twice as many
    if the planned ones differ by more than 1 %: a few processes say little about their spread (``benchmarks/process_spread.py``)."""
    if (
        planned < 2
        or len(levels) < planned
        or float(np.std(levels[:planned], ddof=1)) <= _CLOSE_PROCESSES_RATIO
    ):
        return planned
    return _MORE_PROCESSES * planned


def over_processes(first: Change, levels: Sequence[float], alpha: float) -> Change:
    """Return the change over processes, given the log ratio of each; ``first`` has the interval of the first process.

    A random-effects interval: the mean of the processes, their spread shrunk towards :data:`PROCESS_SPREAD_RATIO` (a
    moderated t-test), and what the noise inside the first process adds.
    """
    count = len(levels)
    centre = math.fsum(levels) / count
    degrees = _PRIOR_DEGREES + count - 1
    squares = math.fsum((level - centre) ** 2 for level in levels)
    # The log ratio of a process contains the levels of two sides.
    variance = (_PRIOR_DEGREES * 2 * PROCESS_SPREAD_RATIO**2 + squares) / degrees
    half = student_quantile(1 - alpha, degrees) * math.sqrt(variance / count)
    low = centre - math.hypot(half, (first.estimate - first.low) / count)
    high = centre + math.hypot(half, (first.high - first.estimate) / count)
    return Change(centre, max(low, -_MOST_LOG), min(high, _MOST_LOG))
