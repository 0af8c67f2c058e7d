"""Valid ranges of values read from files.

A number that is typed is not yet a number that can be: −2 tokens per second, a kernel of a million seconds, a share
of 1.4. The limits are here once, as types for what msgspec reads (``Seconds``, ``Share``, …) and as plain numbers
for readers that check whole columns. They are far beyond what anybody measures: what is outside is damage.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

LEAST_SECONDS = 1e-9
"""No clock resolves less."""
MOST_SECONDS = 7 * 86_400.0
"""One event, one capture, one measurement: a week."""
MOST_SUMMED_SECONDS = 1e10
"""Seconds added up over threads, devices or launches, and floors on slow devices."""
MOST_BYTES = 1e18
_MOST_FLOPS = 1e30
MOST_PER_S = 1e24
MOST_COUNT = 1_000_000_000_000_000
"""Launches, calls, tokens, parameters; exact in a float64."""
MOST_NUMBER = 1e30
_NUMBERS = (int, float)
_MOST_DEPTH = 256
"""Levels of a module tree."""
_ROUNDING = 1e-6
"""How far rounding may carry a share beyond 1."""
MOST_NS = int(MOST_SECONDS * 1e9)
LATEST_NS = 4_102_444_800 * 10**9
"""Time stamps count from a boot or from 1970; none is later than the year 2100."""
Number = Annotated[float, Meta(ge=-MOST_NUMBER, le=MOST_NUMBER)]
Seconds = Annotated[float, Meta(ge=0, le=MOST_SECONDS)]
SummedSeconds = Annotated[float, Meta(ge=0, le=MOST_SUMMED_SECONDS)]
Bytes = Annotated[float, Meta(ge=0, le=MOST_BYTES)]
ChangedBytes = Annotated[float, Meta(ge=-MOST_BYTES, le=MOST_BYTES)]
Flops = Annotated[float, Meta(ge=0, le=_MOST_FLOPS)]
PerSecond = Annotated[float, Meta(ge=0, le=MOST_PER_S)]
Rate = Annotated[float, Meta(gt=0, le=MOST_PER_S)]
"""A limit of hardware: a device that computes nothing is none."""
Share = Annotated[float, Meta(ge=0, le=1 + _ROUNDING)]
Ratio = Annotated[float, Meta(ge=0, le=MOST_NUMBER)]
Amount = Annotated[float, Meta(ge=0, le=float(MOST_COUNT))]
"""A mean of counts."""
Count = Annotated[int, Meta(ge=0, le=MOST_COUNT)]
Depth = Annotated[int, Meta(ge=0, le=_MOST_DEPTH)]


def is_duration(value: object) -> bool:
    """Return whether a value is a valid duration: finite, a nanosecond at least, at most a week."""
    return is_number(value) and LEAST_SECONDS <= value <= MOST_SECONDS  # type: ignore[operator]


def is_count(value: object) -> bool:
    """Return whether a value counts something, or is a mean of counts: above zero, not absurd."""
    return is_number(value) and 0 < value <= MOST_COUNT  # type: ignore[operator]


def is_number(value: object) -> bool:
    """Return whether a value is a finite number of a size that can be computed with."""
    # A tuple: the union of two types is made anew at each call, and logs have millions of numbers.
    if type(value) is bool or not isinstance(value, _NUMBERS):
        return False
    return abs(value) <= MOST_NUMBER  # neither NaN nor infinity is
