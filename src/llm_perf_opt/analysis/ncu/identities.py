"""Checks that the data itself offers: bytes ÷ time is bandwidth, time × clock is cycles, no share over one.

A capture whose units were lost, or that was put together from different launches, fails them; numbers that
depend on the failed side are then withheld.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llm_perf_opt.core import units
from llm_perf_opt.ingest.ncu.vendor_units import parse_unit, significant_step

if TYPE_CHECKING:
    from llm_perf_opt.model.counters import Quantity

_PASS_NOISE = 0.03
"""Counters of one launch come from several replays; a few percent between them are normal."""
_REFUSED = 1.5
"""Beyond this factor it is no noise: a unit, or the launch, is wrong."""
_MOST_OF_PEAK = 1.10
"""Shares of a sustained peak can exceed one a little: peaks are rounded, clocks drift."""

_SHARES = (
    "compute_ratio",
    "memory_ratio",
    "dram_ratio",
    "l2_ratio",
    "l1_ratio",
    "occupancy_ratio",
    "theoretical_occupancy_ratio",
    "l1_hit_ratio",
    "l2_hit_ratio",
)


@dataclass(frozen=True, slots=True)
class Violation:
    """An identity that does not hold."""

    text: str
    refused: frozenset[str]
    """Quantities that must not be used; empty when the deviation is only remarkable."""


def rounding_of(quantity: Quantity) -> float:
    """Return how far printing may have moved a value, relative to it (0 for exact and missing values)."""
    if not quantity.value:
        return 0.0
    return significant_step(quantity.raw) * parse_unit(quantity.raw_unit).factor / abs(quantity.value)


def check(values: Mapping[str, float], rounding: Mapping[str, float]) -> list[Violation]:
    """Return every identity that one launch violates; ``rounding`` is the relative print error by quantity."""
    found = [_bandwidth(values, rounding), _clock(values, rounding), _dram_share(values, rounding)]
    found += [
        Violation(f"{name} is {units.percent(values[name])}", frozenset({name}))
        for name in _SHARES
        if name in values and not 0 <= values[name] <= _MOST_OF_PEAK
    ]
    found.append(_occupancy(values, rounding))
    return [violation for violation in found if violation is not None]


def _compare(
    what: str, left: float, right: float, tolerance: float, refused: frozenset[str]
) -> Violation | None:
    """Compare two ways to the same number; small deviations are said, large ones refuse the inputs."""
    if left == right:
        return None
    ratio = max(left, right) / min(left, right) if min(left, right) > 0 else float("inf")
    if ratio <= 1 + tolerance + _PASS_NOISE:
        return None
    return Violation(what, refused if ratio > _REFUSED + tolerance else frozenset())


def _bandwidth(values: Mapping[str, float], rounding: Mapping[str, float]) -> Violation | None:
    if not {"dram_bytes", "duration_s", "dram_bytes_per_s"} <= values.keys() or not values["duration_s"]:
        return None
    by_time = values["dram_bytes"] / values["duration_s"]
    reported = values["dram_bytes_per_s"]
    text = (
        f"DRAM bytes ÷ duration is {units.bytes_per_s(by_time)}, "
        f"the reported throughput {units.bytes_per_s(reported)}"
    )
    tolerance = sum(rounding.get(name, 0.0) for name in ("dram_bytes", "duration_s", "dram_bytes_per_s"))
    if max(by_time, reported) < 1e6:
        return None  # a few sectors in a launch of microseconds: nothing to compare
    return _compare(
        text, by_time, reported, tolerance, frozenset({"dram_bytes", "duration_s", "dram_bytes_per_s"})
    )


def _clock(values: Mapping[str, float], rounding: Mapping[str, float]) -> Violation | None:
    names = ("duration_s", "sm_frequency_hz", "elapsed_cycles")
    if not set(names) <= values.keys():
        return None
    cycles = values["duration_s"] * values["sm_frequency_hz"]
    reported = values["elapsed_cycles"]
    text = f"duration × SM clock is {units.count(cycles)} cycles, reported are {units.count(reported)}"
    # The clock ramps while a short kernel runs, so its average is only roughly cycles ÷ time.
    tolerance = 0.1 + sum(rounding.get(name, 0.0) for name in names)
    return _compare(text, cycles, reported, tolerance, frozenset({"duration_s"}))


def _dram_share(values: Mapping[str, float], rounding: Mapping[str, float]) -> Violation | None:
    """Bandwidth ÷ (bytes per cycle × clock) cannot exceed the reported share of peak.

    The share counts busy cycles, so it may well be higher (row changes, refresh).
    """
    names = ("dram_bytes_per_s", "dram_peak_bytes_per_cycle", "dram_frequency_hz", "dram_ratio")
    if not set(names) <= values.keys():
        return None
    peak = values["dram_peak_bytes_per_cycle"] * values["dram_frequency_hz"]
    if not peak:
        return None
    share = values["dram_bytes_per_s"] / peak
    if (
        share
        <= values["dram_ratio"] * (1 + _PASS_NOISE + sum(rounding.get(name, 0.0) for name in names)) + 0.01
    ):
        return None
    reported = units.percent(values["dram_ratio"])
    text = f"DRAM bandwidth is {units.percent(share)} of its peak, reported are {reported}"
    wrong = share > _REFUSED * values["dram_ratio"] + 0.01
    return Violation(text, frozenset({"dram_ratio", "dram_bytes_per_s"}) if wrong else frozenset())


def _occupancy(values: Mapping[str, float], rounding: Mapping[str, float]) -> Violation | None:
    if not {"occupancy_ratio", "theoretical_occupancy_ratio"} <= values.keys():
        return None
    achieved, possible = values["occupancy_ratio"], values["theoretical_occupancy_ratio"]
    if achieved <= possible * (1.02 + rounding.get("occupancy_ratio", 0.0)) + 0.002:
        return None
    text = f"achieved occupancy {units.percent(achieved)} exceeds the theoretical {units.percent(possible)}"
    return Violation(text, frozenset())
