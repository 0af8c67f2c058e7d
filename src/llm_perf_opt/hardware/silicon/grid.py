"""Times on a grid of shapes, and what lies between them: multilinear in the logarithms of sizes and times.

A power law (time ∝ size) is met exactly, and inside a cell the time is never outside those of its corners: where the
measurements grow with a size, so does the answer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

MOST_CELLS = 4_000_000
"""A table that spans more cells than this is no table of a grid."""


@dataclass(frozen=True, slots=True)
class Found:
    """A time on the grid."""

    seconds: float
    how: Literal["measured", "interpolated"]
    kernel: str
    """Of the nearest measured shape."""


class Grid:
    """Measured times by shape; cells without a measurement are holes."""

    def __init__(
        self, points: npt.NDArray[np.int64], seconds: npt.NDArray[np.float64], kernels: Sequence[str]
    ):
        """Take one row of ``points`` per time; of several times of one shape the shortest is kept."""
        self.axes = [np.unique(points[:, axis]) for axis in range(points.shape[1])]
        shape = tuple(len(axis) for axis in self.axes)
        if math.prod(shape) > MOST_CELLS:
            raise ValueError(f"{math.prod(shape):,} cells are too many for a grid")
        index = [np.searchsorted(axis, points[:, place]) for place, axis in enumerate(self.axes)]
        flat = np.ravel_multi_index(tuple(index), shape)
        order = np.argsort(-seconds, kind="stable")  # the shortest is written last
        log_seconds = np.full(math.prod(shape), np.nan)
        log_seconds[flat[order]] = np.log(seconds[order])
        names = sorted(set(kernels))
        codes = np.array([names.index(name) for name in kernels], dtype=np.int16)
        kernel = np.zeros(math.prod(shape), dtype=np.int16)
        kernel[flat[order]] = codes[order]
        self._log_seconds = log_seconds.reshape(shape)
        self._kernel = kernel.reshape(shape)
        self._kernel_names = names
        self.size = int(np.isfinite(log_seconds).sum())

    def at(self, point: Sequence[int]) -> Found | None:
        """Return the time of a shape; ``None`` outside the grid or where a corner around it was not measured."""
        brackets = []
        for axis, value in zip(self.axes, point, strict=True):
            found = _bracket(axis, value)
            if found is None:
                return None
            brackets.append(found)
        total = 0.0
        nearest, most = None, -1.0
        for corner in itertools.product(*brackets):
            place = tuple(index for index, _ in corner)
            weight = math.prod((share for _, share in corner), start=1.0)
            log_time = float(self._log_seconds[place])
            if math.isnan(log_time):
                return None
            total += weight * log_time
            if weight > most:
                nearest, most = place, weight
        assert nearest is not None
        exact = all(len(bracket) == 1 for bracket in brackets)
        return Found(
            math.exp(total),
            "measured" if exact else "interpolated",
            self._kernel_names[int(self._kernel[nearest])],
        )

    def nearest_inside(self, point: Sequence[int]) -> tuple[int, ...] | None:
        """Return the measured shape nearest to one that cannot be answered: the least sum of factors over the axes."""
        if not self.size:
            return None
        distance = np.zeros(self._log_seconds.shape)
        for place, (axis, value) in enumerate(zip(self.axes, point, strict=True)):
            away = np.abs(np.log(axis / max(value, 1)))
            distance = distance + away.reshape([-1 if i == place else 1 for i in range(len(self.axes))])
        distance[np.isnan(self._log_seconds)] = np.inf
        where = np.unravel_index(int(np.argmin(distance)), distance.shape)
        return tuple(int(axis[i]) for axis, i in zip(self.axes, where, strict=True))

    def points(self) -> npt.NDArray[np.int64]:
        """Return every measured shape, one per row."""
        where = np.argwhere(np.isfinite(self._log_seconds))
        return np.stack([axis[where[:, place]] for place, axis in enumerate(self.axes)], axis=1)

    def seconds(self) -> npt.NDArray[np.float64]:
        """Return the times of the measured points, in the order of ``points``."""
        known: npt.NDArray[np.float64] = self._log_seconds[np.isfinite(self._log_seconds)]
        return np.exp(known)

    def without(self, axis: int, value: int) -> Grid:
        """Return the grid as it would be had one value of one axis not been measured: for errors of interpolation."""
        keep = np.flatnonzero(self.axes[axis] != value)
        other = object.__new__(Grid)
        other.axes = [part[keep] if place == axis else part for place, part in enumerate(self.axes)]
        other._log_seconds = np.take(self._log_seconds, keep, axis=axis)
        other._kernel = np.take(self._kernel, keep, axis=axis)
        other._kernel_names = self._kernel_names
        other.size = int(np.isfinite(other._log_seconds).sum())
        return other


def _bracket(axis: npt.NDArray[np.int64], value: int) -> list[tuple[int, float]] | None:
    """Return the places around a value with their shares: one when it was measured itself, ``None`` outside."""
    right = int(np.searchsorted(axis, value))
    if right < len(axis) and axis[right] == value:
        return [(right, 1.0)]
    if right == 0 or right == len(axis):
        return None
    low, high = math.log(axis[right - 1]), math.log(axis[right])
    share = (math.log(value) - low) / (high - low)
    return [(right - 1, 1.0 - share), (right, share)]
