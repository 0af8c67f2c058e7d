"""Sets of time intervals in integer nanoseconds: union, intersection, difference and measure, all exact.

An :class:`IntervalSet` is a sorted list of disjoint, non-touching, non-empty half-open intervals, so that two
sets are equal exactly when their arrays are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
_FEW = 8


@dataclass(frozen=True, slots=True, eq=False)
class IntervalSet:
    """Disjoint half-open intervals ``[start, end)``, in order."""

    start: Int64
    end: Int64
    _sums: list[Int64] = field(default_factory=list, repr=False)
    """Length of all intervals left of each, once it was asked for: large sets are measured many times."""

    def __len__(self) -> int:
        return len(self.start)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IntervalSet):
            return NotImplemented
        return np.array_equal(self.start, other.start) and np.array_equal(self.end, other.end)

    @property
    def length_ns(self) -> int:
        """Total length."""
        return int((self.end - self.start).sum())

    def length_before(self, at: Int64) -> Int64:
        """Length of the set left of each time in ``at``."""
        if not len(self):
            return np.zeros(len(at), np.int64)
        if not self._sums:
            lengths = self.end - self.start
            self._sums.append(np.cumsum(lengths) - lengths)
        last = self._last_started(at)
        row = np.maximum(last, 0)
        inside = np.minimum(at, self.end[row]) - self.start[row]
        return np.where(last >= 0, self._sums[0][row] + inside, 0)

    def _last_started(self, at: Int64) -> Int64:
        """Row of the last interval that starts at or before each time; -1 for none."""
        return _at_or_before(self.start, at) - 1

    def overlaps(self, start: Int64, end: Int64) -> npt.NDArray[np.bool_]:
        """Whether the set has a part of each time ``[start, end)``."""
        ended, started = _at_or_before(self.end, start), _at_or_before(self.start, end - 1)
        return (started > ended) & (end > start)

    def length_within(self, window: IntervalSet) -> int:
        """Length of the intersection with ``window``."""
        ends = self.length_before(np.concatenate((window.start, window.end)))
        return int(ends[len(window) :].sum() - ends[: len(window)].sum())


EMPTY = IntervalSet(np.empty(0, np.int64), np.empty(0, np.int64))


def _at_or_before(bounds: Int64, at: Int64) -> Int64:
    """Return how many of the bounds, which are in order, lie at or before each time."""
    if len(at) > _FEW * len(bounds) and (at[1:] >= at[:-1]).all():
        # Few bounds and many sorted times: it is cheaper to look the bounds up among the times.
        changes = np.concatenate(([0], np.searchsorted(at, bounds, side="left"), [len(at)]))
        return np.repeat(np.arange(len(bounds) + 1), np.diff(changes))
    return np.searchsorted(bounds, at, side="right")


def from_disjoint(start: Int64, end: Int64) -> IntervalSet:
    """Make a set of intervals that are known to be sorted and separate; empty and negative ones are ignored."""
    real = end > start
    return IntervalSet(start, end) if real.all() else IntervalSet(start[real], end[real])


def union(start: Int64, end: Int64) -> IntervalSet:
    """Merge any intervals, in any order, overlapping or not; empty and negative ones are ignored."""
    start, end = np.asarray(start, np.int64), np.asarray(end, np.int64)
    real = end > start
    if not real.all():
        start, end = start[real], end[real]
    if not len(start):
        return EMPTY
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    if (start[1:] > end[:-1]).all():
        return IntervalSet(start, end)  # fast path: one stream runs one operation after the other
    reach = np.maximum.accumulate(end)
    first = np.concatenate((np.ones(1, bool), start[1:] > reach[:-1]))
    opens = np.flatnonzero(first)
    closes = np.append(opens[1:] - 1, len(start) - 1)
    return IntervalSet(start[opens], reach[closes])


def unite(*sets: IntervalSet) -> IntervalSet:
    """Return the union of several sets."""
    full = [one for one in sets if len(one)]
    if len(full) == 1:
        return full[0]
    if not full:
        return EMPTY
    if len(full) == 2 and max(map(len, full)) > _FEW * min(map(len, full)):
        small, large = sorted(full, key=len)
        rows = np.searchsorted(large.start, small.start)
        return union(np.insert(large.start, rows, small.start), np.insert(large.end, rows, small.end))
    return union(np.concatenate([one.start for one in full]), np.concatenate([one.end for one in full]))


def complement(of: IntervalSet, within: IntervalSet) -> IntervalSet:
    """Return the part of ``within`` outside ``of``."""
    if len(of) > _FEW * len(within):
        of = _touching(of, within)
    return intersect(within, _outside(of, within))


def _touching(large: IntervalSet, small: IntervalSet) -> IntervalSet:
    """Return the intervals of a large set that overlap one of a small set."""
    first = np.searchsorted(large.end, small.start, side="right")
    count = np.maximum(np.searchsorted(large.start, small.end, side="left") - first, 0)
    rows = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count - first, count)
    # An interval that overlaps two neighbours is found twice, one after the other.
    rows = rows[np.concatenate((np.ones(min(1, len(rows)), bool), rows[1:] != rows[:-1]))]
    return IntervalSet(large.start[rows], large.end[rows])


def _outside(of: IntervalSet, within: IntervalSet) -> IntervalSet:
    """Return the gaps of a set, including everything left and right of it within ``within``."""
    if not len(within):
        return EMPTY
    low, high = int(within.start[0]), int(within.end[-1])
    if not len(of):
        return IntervalSet(np.array([low]), np.array([high]))
    start = np.append(min(low, int(of.start[0])), of.end)
    end = np.append(of.start, max(high, int(of.end[-1])))
    real = end > start
    return IntervalSet(start[real], end[real])


def intersect(left: IntervalSet, right: IntervalSet) -> IntervalSet:
    """Return the intersection of two sets."""
    if len(left) > len(right):
        left, right = right, left  # the smaller set is looked up in the larger
    first = np.searchsorted(right.end, left.start, side="right")
    last = np.searchsorted(right.start, left.end, side="left")
    count = np.maximum(last - first, 0)
    mine = np.repeat(np.arange(len(left)), count)
    other = np.arange(len(mine)) - np.repeat(np.cumsum(count) - count - first, count)
    return IntervalSet(
        np.maximum(left.start[mine], right.start[other]), np.minimum(left.end[mine], right.end[other])
    )


def time_at(within: IntervalSet, length: Int64) -> Int64:
    """Return the earliest time left of which the set has each length: the inverse of ``length_before``."""
    if not len(within):
        return np.zeros(len(length), np.int64)
    reached = np.cumsum(within.end - within.start)
    row = np.minimum(np.searchsorted(reached, length, side="left"), len(within) - 1)
    found: Int64 = np.asarray(within.end[row] - (reached[row] - length), np.int64)
    return found


def growing(layers: Sequence[IntervalSet]) -> list[IntervalSet]:
    """Return the union of the first layer, of the first two, and so on."""
    return list(accumulate(layers, unite))


def steps(window: IntervalSet, unions: Sequence[IntervalSet]) -> list[int]:
    """Split a window by a growing list of sets: what each adds to the one before; the rest comes last.

    The result sums to the window's length by construction.
    """
    reach = [0, *(one.length_within(window) for one in unions), window.length_ns]
    return [after - before for before, after in pairwise(reach)]
