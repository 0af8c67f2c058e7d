"""Whole columns of times against the limits of :mod:`llm_perf_opt.model.limits`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llm_perf_opt.model.limits import LATEST_NS, MOST_NS


def plausible_times(
    start_ns: npt.NDArray[np.int64], end_ns: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_] | None:
    """Tell which intervals can be: after their clock began, of no or positive length, at most a week; ``None``: all."""
    if not len(start_ns):
        return None
    first, last = int(start_ns.min()), int(end_ns.max())
    length_min, length_max = _extremes(start_ns, end_ns)
    if first >= 0 and last <= LATEST_NS and length_min >= 0 and length_max <= MOST_NS:
        return None
    inside = (start_ns >= 0) & (start_ns <= LATEST_NS) & (end_ns >= start_ns) & (end_ns <= LATEST_NS)
    good: npt.NDArray[np.bool_] = inside & (np.where(inside, end_ns - start_ns, 0) <= MOST_NS)
    return good


def _extremes(start_ns: npt.NDArray[np.int64], end_ns: npt.NDArray[np.int64]) -> tuple[int, int]:
    length = end_ns - start_ns
    return int(length.min()), int(length.max())
