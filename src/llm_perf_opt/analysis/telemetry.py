"""Evaluate device samples for the measured passes. Pure functions."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llm_perf_opt.analysis.timeline.attribution import Attribution
from llm_perf_opt.captures.documents import TelemetryColumns, TelemetryDocument
from llm_perf_opt.core.phases import BEFORE_PREFILL, PREFILL, REQUEST_PHASES, WHOLE
from llm_perf_opt.summary import EnergyUse, MemoryUse, Stat, Static, Telemetry, TelemetrySeries, Workload
from llm_perf_opt.summary.statistics import describe

if TYPE_CHECKING:
    from llm_perf_opt.captures.kineto.reader import KinetoCapture

MOST_POINTS = 240
LEAST_SPAN_S = 0.5
"""Meters of power and energy move some ten times a second: of less time than this they tell nothing."""
_DRAWN = ("clock_hz", "power_w", "temperature_c", "memory_bytes")
_LABELS = {
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
    """List what the device did not report, and why."""
    reasons: dict[str, list[str]] = {}
    for quantity, reason in document.absent.items():
        reasons.setdefault(reason, []).append(_LABELS.get(quantity, quantity))
    silent = "; ".join(f"no {', '.join(names)} ({reason})" for reason, names in reasons.items())
    notes = [f"Telemetry has {silent}."] if silent else []
    reported = any(value is not None for value in (*document.columns.power_w, *document.columns.energy_j))
    if reported and found.energy_j.total is None:
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
    reported = [each for each in reasons if each is not None]
    if not reported:
        return None
    counts = Counter(reason for each in reported for reason in set(each))
    return {reason: count / len(reported) for reason, count in sorted(counts.items())}


def _energy(document: TelemetryDocument, rows: Sequence[int]) -> EnergyUse:
    """Return the energy between the first and the last sample: the meter's own, else power over time.

    Both ends of the measured passes are sampled, so the samples span them.
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
    """Sum trapezoids; ``None`` where a power is missing, because gaps are not interpolated."""
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


# Memory in use over one pass: the peak, and the peak of every phase.


_HOST, _CUDA = 0, 1


def memory_document(capture: KinetoCapture, attribution: Attribution, device: str) -> dict[str, Any] | None:
    """Return ``memory.json``: what the device's allocator had in use; ``None`` when it reported nothing.

    CUDA's allocator reports everything it holds, weights included. The host's counts from the start of the
    profile, so a CPU run shows what the pass itself added.
    """
    on_cuda = device.startswith("cuda")
    number = int(device.partition(":")[2] or 0)
    samples = capture.memory
    mine = samples.device_type == (_CUDA if on_cuda else _HOST)
    if on_cuda:
        mine &= samples.device == number
    time, used = samples.time_ns[mine], samples.allocated_bytes[mine]
    if not len(time):
        return None
    return {
        "schema": 1,
        "device": device,
        "counts": "everything the allocator has allocated" if on_cuda else "allocated since the pass began",
        "peak_bytes": int(used.max()),
        "events": len(time),
        "phases": _by_phase(capture, attribution, time, used),
    }


def _by_phase(
    capture: KinetoCapture, attribution: Attribution, time: Any, used: Any
) -> dict[str, dict[str, int]]:
    ranges = capture.timeline.ranges
    found: dict[str, dict[str, int]] = {}
    for path, meaning in enumerate(attribution.meanings):
        if meaning.role != "phase" or meaning.phase is None:
            continue
        for row in np.flatnonzero(attribution.paths.of_range == path).tolist():
            first, last = np.searchsorted(time, (ranges.start_ns[row], ranges.end_ns[row]))
            before = int(used[first - 1]) if first else 0
            inside = used[first:last]
            peak = max(before, int(inside.max(initial=0)))
            after = int(inside[-1]) if len(inside) else before
            entry = found.setdefault(
                meaning.phase, {"peak_bytes": peak, "begin_bytes": before, "end_bytes": after}
            )
            entry["peak_bytes"] = max(entry["peak_bytes"], peak)
            entry["end_bytes"] = after
    return {phase: found[phase] for phase in attribution.phases if phase in found}


# Predicted memory of a phase from the static model, next to the measured one.


def predict_memory(memory: Mapping[str, MemoryUse], static: Static | None, workload: Workload) -> None:
    """Fill in the predictions. A profiler's count on a CPU excludes weights, so it gets no prediction."""
    for phase, use in memory.items():
        if use.counts is None and (workload.device or "cpu") == "cpu":
            continue
        use.predicted = _needs(phase, static, workload) if static is not None else {}
        use.predicted_bytes = sum(use.predicted.values()) if use.predicted else None


def _needs(phase: str, static: Static, workload: Workload) -> dict[str, float]:
    resident = static.resident_bytes
    prompt, new = workload.prompt_tokens, workload.new_tokens
    if "weights" not in resident or static.scaling is None or prompt is None or new is None:
        return {}
    found = {"weights": resident["weights"]}
    if phase not in BEFORE_PREFILL:  # the cache begins with the prompt; the last token is never fed back
        found["kv_cache"] = _cache(
            static, workload, prompt if phase == PREFILL else prompt + max(0.0, new - 1)
        )
    # The static model gives the largest operator of all phases: it is in the phase with the most positions.
    largest_in = next((name for name in BEFORE_PREFILL if name in static.phases), PREFILL)
    if phase in (largest_in, WHOLE) and "activations" in resident:
        found["activations"] = resident["activations"]
    return found if phase in (*REQUEST_PHASES, WHOLE) else {}


def _cache(static: Static, workload: Workload, positions: float) -> float:
    if static.scaling is None:
        return 0.0
    sequences = workload.batch_size or static.scaling.batch_size
    return sequences * sum(
        part.layers * part.bytes_per_token * min(positions, part.window or positions)
        for part in static.scaling.kv
    )
