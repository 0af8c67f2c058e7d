"""Roofline arithmetic: how fast a device could do a given amount of computing and moving, and the limit.

A floor counts only what cannot be avoided (each weight read once, the KV cache read and written once), so
that no program on a machine with these limits can be faster. Activations may stay on
the chip and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from llm_perf_opt.analysis.roofline.launches import GRAPH_NODE_S, Launches
from llm_perf_opt.core import units
from llm_perf_opt.core.units import canonical_dtype
from llm_perf_opt.summary import Hardware, StaticPhase

FloorBound = Literal["compute", "memory", "launch", "communication"]


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One limit of a device."""

    name: str
    """``bfloat16 peak``, ``memory bandwidth``."""
    value: float
    """FLOP/s or B/s."""
    source: str
    """Where the number comes from."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The two limits of a classic roofline, for one data type."""

    dtype: str
    peak: Ceiling | None
    """FLOP/s, dense."""
    bandwidth: Ceiling | None
    """B/s of main memory."""
    missing: tuple[str, ...] = ()
    """Why a limit is absent, one sentence each."""
    reached_peak: Ceiling | None = None
    """The best measured rate of such a device; given next to ``peak``, never in its place."""
    reached_bandwidth: Ceiling | None = None


@dataclass(frozen=True, slots=True)
class Floor:
    """The least time some work can take."""

    seconds: float
    bound: FloorBound
    """The limit that sets it."""
    compute_s: float
    memory_s: float
    arithmetic: str
    """The times, spelled out."""
    flops: float
    moved_bytes: float
    launch_s: float = 0.0


def limits_for(hardware: Hardware, dtype: str | None) -> Limits:
    """Pick the limits of ``hardware`` for one data type, and report what is absent and why."""
    key = canonical_dtype(dtype) if dtype else "unknown"
    device = hardware.name or "this device"
    missing: list[str] = []
    found = hardware.peak_flops_per_s.get(key)
    peak = (
        Ceiling(f"{key} peak", found.dense, found.source) if found is not None and found.dense > 0 else None
    )
    if peak is None:
        known = ", ".join(sorted(hardware.peak_flops_per_s))
        because = hardware.reason or (f"peaks are known for {known} only" if known else "no limits are known")
        missing.append(f"no {key} peak for {device}: {because}")
    bandwidth = None
    if hardware.bandwidth_bytes_per_s is not None and hardware.bandwidth_bytes_per_s > 0:
        bandwidth = Ceiling(
            "memory bandwidth", hardware.bandwidth_bytes_per_s, hardware.bandwidth_source or hardware.source
        )
    else:
        missing.append(f"no memory bandwidth for {device}: {hardware.reason or 'not known'}")
    return Limits(
        key, peak, bandwidth, tuple(missing), reached_peak(hardware, key), _reached_bandwidth(hardware)
    )


def reached_peak(hardware: Hardware, dtype: str) -> Ceiling | None:
    """Return the best rate measured in a data type, on this machine or on another of its kind; ``None`` without any.

    Where the peak itself was measured here, it is what was reached: no second number is given.
    """
    if hardware.source == "probe":
        return None
    known = (hardware.reached_flops_per_s, hardware.measured_peak_flops_per_s)
    found = [peaks[dtype] for peaks in known if dtype in peaks]
    best = max(found, key=lambda peak: peak.dense, default=None)
    return None if best is None else Ceiling(f"{dtype} reached", best.dense, best.source)


def _reached_bandwidth(hardware: Hardware) -> Ceiling | None:
    if hardware.source == "probe":
        return None
    known = (
        (hardware.reached_bandwidth_bytes_per_s, hardware.reached_bandwidth_source),
        (hardware.measured_bandwidth_bytes_per_s, "measured on this machine"),
    )
    found = [Ceiling("bandwidth reached", rate, source or hardware.source) for rate, source in known if rate]
    return max(found, key=lambda ceiling: ceiling.value, default=None)


def fastest_dtype(hardware: Hardware, dtypes: Sequence[str]) -> str:
    """Return which of several types the device computes fastest in; the last if no peak is known."""
    known = [name for name in dtypes if name in hardware.peak_flops_per_s]
    return max(known, key=lambda name: hardware.peak_flops_per_s[name].dense, default=dtypes[-1])


def must_move_bytes(phase: StaticPhase) -> float | None:
    """Return the bytes a phase cannot avoid: weights and KV cache; ``None`` if the weights are unknown."""
    weights = phase.least_weight_bytes
    return None if weights is None else weights + (phase.least_kv_bytes or 0.0)


def intensity(flops: float, moved_bytes: float) -> float | None:
    """Return FLOP per byte; ``None`` when nothing is moved."""
    return flops / moved_bytes if moved_bytes > 0 else None


def binding_term(
    compute_s: float, memory_s: float, launch_s: float, communication_s: float = 0.0
) -> FloorBound:
    """Return the longest of the terms; of equal ones memory, then compute, then launching."""
    if communication_s > max(compute_s, memory_s, launch_s):
        return "communication"
    if launch_s > max(compute_s, memory_s):
        return "launch"
    return "compute" if compute_s > memory_s else "memory"


def floor_time(
    flops: float, moved_bytes: float, peak: Ceiling, bandwidth: Ceiling, launches: Launches | None = None
) -> Floor:
    """Return the least time ``flops`` and ``moved_bytes`` can take, perfectly overlapped, started by a graph."""
    compute_s = flops / peak.value
    memory_s = moved_bytes / bandwidth.value
    launch_s = launches.graph_s if launches is not None else 0.0
    terms = [
        f"{units.flops(flops)} ÷ {units.flops_per_s(peak.value)} = {units.seconds(compute_s)}",
        f"{units.size(moved_bytes)} ÷ {units.bytes_per_s(bandwidth.value)} = {units.seconds(memory_s)}",
    ]
    if launches is not None and launches.least:
        started = f"{units.count(launches.least)} kernels × {units.seconds(GRAPH_NODE_S)} in a graph"
        terms.append(f"{started} = {units.seconds(launch_s)}")
    return Floor(
        max(compute_s, memory_s, launch_s),
        binding_term(compute_s, memory_s, launch_s),
        compute_s,
        memory_s,
        f"max({', '.join(terms)})",
        flops,
        moved_bytes,
        launch_s,
    )


def phase_floor(phase: StaticPhase, limits: Limits, launches: Launches | None = None) -> Floor | None:
    """Return the floor of one phase; ``None`` when its work or a limit is not known."""
    moved = must_move_bytes(phase)
    flops = phase.least_flops
    if flops is None or moved is None or limits.peak is None or limits.bandwidth is None:
        return None
    return floor_time(flops, moved, limits.peak, limits.bandwidth, launches)
