"""Which devices a reader chooses between: this run's own, and the dozen people ask for, at this run's own point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.model.summary import Stat, Summary, WhatIf

_MOST = 12
_WANTED = (
    "RTX 5090",
    "RTX 4090",
    "RTX 3090",
    "L4",
    "L40S",
    "A100 SXM4 80GB",
    "H100 SXM5 80GB",
    "H200 SXM",
    "B200",
    "MI300X",
    "A10",
    "T4",
)
"""Ends of device names, in the order of how often they are asked for."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """One device with its floors; this run's own also with what was measured on it."""

    device: str
    ttft_floor_s: float | None
    tpot_floor_s: float | None
    fits: bool | None
    is_own: bool = False
    ttft_measured_s: float | None = None
    tpot_measured_s: float | None = None
    row: int | None = None
    """Place in ``what_if``; ``None`` for a device that is not in the catalogue."""
    floor_term: str | None = None
    """``compute``, ``memory`` or ``launch``: what sets the floor of a step."""
    launch_eager_s: float | None = None
    """What launching the kernels of a step one by one takes."""
    ttft_expected_s: float | None = None
    tpot_expected_s: float | None = None
    """As measured operators add up to it; ``None`` without tables."""
    measured_share_ratio: float | None = None
    """How much of the expected step rests on measurements."""
    ttft_ends_s: tuple[float, float] | None = None
    """Where the expected time may lie, by measured errors."""
    tpot_ends_s: tuple[float, float] | None = None
    tpot_eager_s: float | None = None
    """Expected step with kernels launched one by one."""
    eager_is_bound: bool = False
    """Whether that is a lower bound."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Where the model fits."""

    needed_bytes: float
    fitting: Sequence[WhatIf]
    """Devices with enough memory, the smallest first."""
    known: int
    """Devices whose memory size is known."""


def own_rows(summary: Summary) -> list[tuple[int, WhatIf]]:
    """Return the rows of ``what_if`` at the point of this run, with their places."""
    if not summary.what_if:
        return []
    first = summary.what_if[0]
    point = (first.dtype, first.batch_size, first.context_tokens)
    return [
        (place, row)
        for place, row in enumerate(summary.what_if)
        if (row.dtype, row.batch_size, row.context_tokens) == point and row.tensor_parallel == 1
    ]


def elsewhere(summary: Summary, most: int = _MOST) -> list[Elsewhere]:
    """Return the devices to show, the fastest first; this run's own always is among them where its limits are known."""
    rows = [(place, row) for place, row in own_rows(summary) if row.tpot_floor_s is not None]
    own = [(place, row) for place, row in rows if row.device == summary.hardware.name]
    wanted = [
        found
        for name in _WANTED
        for found in rows
        if found[1].device.endswith(f" {name}") and found[1].device != summary.hardware.name
    ]
    rest = [found for found in rows if found not in wanted and found not in own]
    chosen = [_of_row(summary, place, row) for place, row in [*own, *wanted, *rest]]
    if not own and (here := _here(summary)) is not None:
        chosen.insert(0, here)
    return sorted(
        chosen[:most], key=lambda each: (each.tpot_expected_s or each.tpot_floor_s or 0.0, each.device)
    )


def where_it_fits(summary: Summary) -> Fit | None:
    """Return the devices whose memory holds the model at this run's point; ``None`` when its size is not known."""
    needed = summary.static.resident_bytes.get("total") if summary.static is not None else None
    rows = [row for _, row in own_rows(summary) if row.memory_bytes is not None and row.fits is not None]
    if not needed or not rows:
        return None
    fitting = sorted((row for row in rows if row.fits), key=lambda row: (row.memory_bytes or 0.0, row.device))
    return Fit(needed, fitting, len(rows))


def is_static_only(summary: Summary) -> bool:
    """Whether the model was counted and nothing was run."""
    ran = summary.wall_clock is not None or summary.kernels or summary.operators or summary.budget
    return summary.static is not None and not ran


def _of_row(summary: Summary, place: int, row: WhatIf) -> Elsewhere:
    own = row.device == summary.hardware.name
    return Elsewhere(
        row.device,
        row.ttft_floor_s,
        row.tpot_floor_s,
        row.fits,
        own,
        _median(summary.timings.ttft_s) if own else None,
        _median(summary.timings.tpot_s) if own else None,
        place,
        row.floor_term,
        row.launch_eager_s,
        row.ttft_expected_s,
        row.tpot_expected_s,
        row.measured_share_ratio,
        _ends(row.ttft_expected_low_s, row.ttft_expected_high_s),
        _ends(row.tpot_expected_low_s, row.tpot_expected_high_s),
        row.tpot_expected_eager_s,
        bool(row.eager_is_bound),
    )


def _ends(low: float | None, high: float | None) -> tuple[float, float] | None:
    return None if low is None or high is None else (low, high)


def _here(summary: Summary) -> Elsewhere | None:
    """This run's device by its own floors: the catalogue does not have it (a CPU that was probed)."""
    tpot, ttft = summary.predictions.get("tpot"), summary.predictions.get("ttft")
    if tpot is None:
        return None
    there = summary.hardware.memory_bytes
    needed = summary.static.resident_bytes.get("total") if summary.static is not None else None
    return Elsewhere(
        summary.hardware.name or "this device",
        ttft.floor_s if ttft is not None else None,
        tpot.floor_s,
        needed <= there if needed and there else None,
        True,
        _median(summary.timings.ttft_s),
        _median(summary.timings.tpot_s),
        floor_term=tpot.bound,
    )


def _median(stat: Stat | None) -> float | None:
    return stat.median if stat is not None else None
