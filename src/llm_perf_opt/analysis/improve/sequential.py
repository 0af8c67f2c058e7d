"""Decide while measuring: confidence sequences by betting, valid however often one looks.

A block is the logarithm of a ratio, B ÷ A, of two neighbouring passes in random order. If B is no faster than A by more
than ``exp(t)``, then ``block − t`` falls below zero no more often, and no further, than above it. So somebody who bets before
each block, at even odds, that it will fall below, cannot expect to win. What such a player owns is an e-value: it
exceeds ``1 / α`` with probability at most ``α``, at any time, however often one looks (Ville's inequality). The values of
``t`` whose player has not won that much are the confidence sequence (Waudby-Smith and Ramdas 2024; here for the centre of
a symmetric distribution, so that heavy tails, which times have, need no bound).

Blocks come in twos: the first has an order by chance, the second the other one. So the second is not free given the first, and
it is their two bets together that nobody can expect to win. The scale is that of before both, and what they show is looked at
after both.

A bet is ``1 + λ ψ((block − t) / s)`` with ``ψ`` cut off at ±1 and the scale ``s`` taken from the blocks before this one. Capital is
shared among several ``λ``: some are right for a gain as large as the noise, others for one that is a tenth of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.model.improve import Verdict

Array = NDArray[np.float64]

BOUND = (
    "confidence sequence by betting on the logarithm of neighbouring passes' ratio (Ville's inequality: valid at every look); "
    "the family error is shared equally among all planned tests"
)
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
"""Ratios beyond e⁵ are not told apart."""
_LEAST_BLOCKS = 6
"""Fewer decide nothing, whatever they say: the first passes after a warm-up are not like the others."""
_FUTILITY = 0.1
"""Chance of giving up a real gain too early; that costs a gain, not the truth, so it has no share of the family error."""
DROP_ERROR = 0.05
"""Chance of calling a remedy slower that is not; without consequence, either way it is dropped. So what is dropped is told
with an interval of this error at each end: few pairs decide it, and they tell nothing at the error of a keep."""
_SIGN_OF_SLOWER = 3.0
_IN_SIGHT = 0.4
"""Share of the way to a shown gain, in the logarithm of the wealth, from which measuring on is worth more time."""


@dataclass(frozen=True, slots=True)
class Rule:
    """When an experiment ends."""

    alpha: float
    """Share of the family error that this test has."""
    least_gain_ratio: float
    """A gain below this is not worth keeping."""
    most_blocks: int
    widest_ratio: float | None = None
    """Go on after a gain is shown until its interval is this narrow, in shares of the gain; ``None``: the gain is enough."""
    fixed: bool = False
    """Whether all blocks are measured whatever the first ones show, as a plain search would."""


@dataclass(frozen=True, slots=True)
class Change:
    """A log ratio with the interval that holds at every look."""

    estimate: float
    """The median of the blocks."""
    low: float
    high: float


class SequentialTest:
    """Blocks as they come, and what they show so far."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._blocks: list[float] = []
        self._scales: list[float] = []

    @property
    def count(self) -> int:
        """Blocks so far."""
        return len(self._blocks)

    @property
    def _whole(self) -> int:
        """Blocks whose other one is there too."""
        return self.count - self.count % 2

    def add(self, block: float) -> Verdict | None:
        """Take one more log ratio; return what is shown, or ``None``: measure on."""
        self._scales.append(self._scales[-1] if self.count % 2 else _scale(self._blocks))
        self._blocks.append(min(max(block, -_MOST_LOG), _MOST_LOG))
        return self.verdict()

    def verdict(self) -> Verdict | None:
        """Say what the blocks show; between the two blocks of one draw, nothing."""
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
            # A few more pairs tell a slowdown from no change, once there is a sign of one.
            if slower < _SIGN_OF_SLOWER:
                return "no gain"
        return "not shown" if over else None

    def verdict_at_the_end(self) -> Verdict:
        """Say what the blocks show when no more will come: a gain counts, however wide its interval."""
        found = SequentialTest(replace(self.rule, widest_ratio=None))
        found._blocks, found._scales = self._blocks[: self._whole], self._scales[: self._whole]
        return found.verdict() or "not shown"

    def in_sight(self) -> bool:
        """Return whether a gain is likely to be shown by some more pairs; looking costs nothing, so one may go on."""
        if self.count < _LEAST_BLOCKS:
            return False
        least = math.log1p(-self.rule.least_gain_ratio)
        return math.log(self.wealth(least, below=True)) >= _IN_SIGHT * -math.log(self.rule.alpha)

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
        """Return what a player owns who started with 1 and bets that blocks fall below (above) ``centre``.

        With ``below`` it is the e-value against "the log ratio is at least ``centre``". A block whose other one is not there
        counts for nothing yet.
        """
        blocks, scales = np.array(self._blocks[: self._whole]), np.array(self._scales[: self._whole])
        moves = np.clip((blocks - centre) / scales, -1.0, 1.0)
        logs = np.log1p(np.outer(_STAKES, -moves if below else moves)).sum(axis=1)
        top = float(logs.max())
        return math.exp(min(top, _MOST_WEALTH_LOG)) * float(np.exp(logs - top).mean())

    def _end(self, alpha: float, *, below: bool) -> float:
        """Return an end of the interval: wealth falls (rises) with the centre, so halving finds it.

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
    """Return how many blocks it takes to show anything: every one of them as large a win as one can be."""
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
