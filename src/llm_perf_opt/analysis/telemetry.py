"""Samples of a device → what they mean for the measured passes. Pure functions."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from llm_perf_opt.ingest.telemetry import TelemetryColumns, TelemetryDocument
from llm_perf_opt.model.statistics import describe
from llm_perf_opt.model.summary import EnergyUse, MemoryUse, Stat, Telemetry, TelemetrySeries

MOST_POINTS = 240
LEAST_SPAN_S = 0.5
"""Meters of power and energy move some ten times a second: of less time than this they tell nothing."""
_DRAWN = ("clock_hz", "power_w", "temperature_c", "memory_bytes")
_WORDS = {
    "clock_hz": "clock",
    "power_w": "power",
    "temperature_c": "temperature",
    "energy_j": "energy",
    "memory_bytes": "memory in use",
    "throttled": "throttle reasons",
    "all": "values of the device",
}


def telemetry_of(document: TelemetryDocument) -> Telemetry:
    """Return statistics, energy and throttling of the samples inside the measured passes."""
    rows = _measured_rows(document)
    columns = document.columns
    shares = _throttle_shares([columns.throttled[row] for row in rows])
    return Telemetry(
        clock_hz=_stat(columns.clock_hz, rows),
        power_w=_stat(columns.power_w, rows),
        temperature_c=_stat(columns.temperature_c, rows),
        energy_j=_energy(document, rows),
        throttled=sorted(shares, key=lambda reason: (-shares[reason], reason)) if shares else [],
        throttled_ratio=shares,
        memory_bytes=_stat(columns.memory_bytes, rows),
        clock_max_hz=document.clock_max_hz,
        power_limit_w=document.power_limit_w,
        device=document.device_name,
        reader=document.reader,
        samples=len(rows),
        interval_s=document.interval_s,
        span_s=document.span_s,
        cost_ratio=_ratio(document.cost_s, document.elapsed_s),
        series=_series(columns, rows),
    )


def memory_of(document: TelemetryDocument) -> dict[str, MemoryUse]:
    """Return the peaks of every phase."""
    return {
        phase: MemoryUse(
            peak_bytes=peak.peak_bytes, reserved_bytes=peak.reserved_bytes, counts=document.memory_counts
        )
        for phase, peak in document.memory.items()
    }


def absent_notes(document: TelemetryDocument, found: Telemetry) -> list[str]:
    """Say what the device did not tell, and why."""
    reasons: dict[str, list[str]] = {}
    for quantity, reason in document.absent.items():
        reasons.setdefault(reason, []).append(_WORDS.get(quantity, quantity))
    silent = "; ".join(f"no {', '.join(names)} ({reason})" for reason, names in reasons.items())
    notes = [f"Telemetry has {silent}."] if silent else []
    told = any(value is not None for value in (*document.columns.power_w, *document.columns.energy_j))
    if told and found.energy_j.total is None:
        notes.append(
            f"Telemetry has no energy: the measured passes are shorter than {LEAST_SPAN_S} s, or the meter fell silent; "
            "raise run.repeats or infer.max_new_tokens."
        )
    return notes


def _measured_rows(document: TelemetryDocument) -> list[int]:
    return [row for row, at in enumerate(document.columns.time_s) if 0.0 <= at <= document.span_s]


def _stat(column: Sequence[float | None], rows: Sequence[int]) -> Stat | None:
    return describe([column[row] for row in rows])


def _throttle_shares(reasons: Sequence[Sequence[str] | None]) -> dict[str, float] | None:
    told = [each for each in reasons if each is not None]
    if not told:
        return None
    counts = Counter(reason for each in told for reason in set(each))
    return {reason: count / len(told) for reason, count in sorted(counts.items())}


def _energy(document: TelemetryDocument, rows: Sequence[int]) -> EnergyUse:
    """Return the energy between the first and the last sample: the meter's own, else power over time.

    Both ends of the measured passes are sampled, so that the samples span them.
    """
    if document.span_s < LEAST_SPAN_S or len(rows) < 2:
        return EnergyUse()
    columns = document.columns
    first, last = columns.energy_j[rows[0]], columns.energy_j[rows[-1]]
    if first is not None and last is not None and last > first:
        total, source = last - first, "counter"
    else:
        summed = _power_over_time(columns, rows)
        if summed is None:
            return EnergyUse()
        total, source = summed, "power"
    return EnergyUse(
        per_token=_ratio(total, document.new_tokens),
        per_sample=_ratio(total, document.samples),
        total=total,
        source=source,
    )


def _power_over_time(columns: TelemetryColumns, rows: Sequence[int]) -> float | None:
    """Sum trapezoids; ``None`` where a power is missing, because a gap would be a guess."""
    points = [(columns.time_s[row], columns.power_w[row]) for row in rows]
    total = 0.0
    for (at, power), (then, next_power) in itertools.pairwise(points):
        if power is None or next_power is None:
            return None
        total += (then - at) * (power + next_power) / 2
    return total


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _series(columns: TelemetryColumns, rows: Sequence[int]) -> list[TelemetrySeries]:
    step = max(1, -(-len(rows) // MOST_POINTS))
    shown = rows[::step]
    found = []
    for name in _DRAWN:
        column: Sequence[float | None] = getattr(columns, name)
        points = [(columns.time_s[row], column[row]) for row in shown]
        if any(value is not None for _, value in points):
            found.append(TelemetrySeries(name, points))
    return found
