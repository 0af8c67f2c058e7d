"""How often the samples are measured: a number, or until the time of a pass is known well enough.

Two runs can only be told apart when each has blocks enough (a rank test of three against three cannot say anything at
the usual level) and when its times are narrow. So by default passes are repeated until the interval is narrow, within
a time limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.model.statistics import interval_ratio
from llm_perf_opt.model.summary import Stopped

LEAST_REPEATS = 4
"""Fewer cannot show a difference between two runs, however large (two-sided rank test at 5 %)."""
MOST_REPEATS = 30
"""More of a very short pass only makes files larger: by then it is the machine's drift that limits a comparison."""


@dataclass(frozen=True, slots=True)
class UntilNarrow:
    """When repeating ends, once the least number of repeats is done."""

    target_interval_ratio: float
    """Width of the 95 % interval of a pass's time ÷ that time."""
    max_measure_s: float
    """No repeat is begun that would probably end after this time."""
    most: int = MOST_REPEATS


@dataclass(frozen=True, slots=True)
class Measuring:
    """How often the samples were measured, and why not more often."""

    repeats: int
    stopped: Stopped
    interval_ratio: float | None
    """Width of the 95 % interval of a pass's time ÷ that time; ``None`` with too few repeats."""
    seconds: float
    """All repeats together, with what lies between them."""


def stop_reason(
    levels: Sequence[float], passed_s: float, *, least: int, until: UntilNarrow | None
) -> Stopped | None:
    """Say why to stop after these repeats (``levels``: see :func:`pass_level`); ``None``: measure once more."""
    count = len(levels)
    if count < least:
        return None
    if until is None:
        return "asked"
    width = interval_ratio(levels)
    if width is not None and width <= until.target_interval_ratio:
        return "narrow"
    if count >= until.most:
        return "most"
    return "time" if passed_s * (count + 1) / count > until.max_measure_s else None


def pass_level(totals_s: Sequence[float]) -> float:
    """Return one number for a repeat over all samples: the mean of their times' logarithms, as ``compare`` uses it."""
    known = [total for total in totals_s if total > 0]
    return math.fsum(math.log(total) for total in known) / len(known) if known else 0.0
