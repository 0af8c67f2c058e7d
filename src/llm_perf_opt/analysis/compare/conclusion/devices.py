"""Devices and ranks beside one another: time that moved from one to another is not gained."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llm_perf_opt.core import units
from llm_perf_opt.model.conclusion import DeviceChange, MovedTime
from llm_perf_opt.model.summary import Summary
from llm_perf_opt.model.summary.parallel import DeviceUse, RankUse

_LEAST_SHARE = 0.01
"""Of the longest span: less is not worth a sentence."""
_MOVED_RATIO = 0.5
"""What the smaller of loss and gain must be of the larger to be called a move."""
_NAMES = {
    "communication": "communication (NCCL) time",
    "exposed communication": "exposed communication time",
    "waiting for other ranks": "waiting for other ranks",
    "copy": "copy time",
    "compute": "compute time",
    "idle": "idle time",
}
"""The most telling first."""
_HIDDEN_BY = {
    "exposed communication": ("communication",),
    "idle": ("communication", "exposed communication", "compute", "copy", "waiting for other ranks"),
}
"""Quantity → those that tell the same move better: a device idles because something left it."""
_SAME_SIZE = 0.9

Place = tuple[int | None, int | None]
"""(Rank, device)."""
Figures = dict[Place, dict[str, float]]


def compare_devices(a: Summary, b: Summary, factor: float) -> list[DeviceChange]:
    """Return the time of each device and rank by what it did, B at A's work; empty where they cannot be paired."""
    pairs = ((_device_figures(a.devices), _device_figures(b.devices)), (_waiting(a.ranks), _waiting(b.ranks)))
    rows = [row for one, two in pairs for row in _paired(one, two, factor)]
    if not a.devices and not b.devices:
        rows = [*_paired(_rank_figures(a.ranks), _rank_figures(b.ranks), factor), *rows]
    return rows


def find_moved(rows: Sequence[DeviceChange], span_s: float) -> list[MovedTime]:
    """Return what left one device and came up on another, the largest first."""
    found = []
    for what in dict.fromkeys(row.what for row in rows):
        same = [row for row in rows if row.what == what]
        source, target = (
            min(same, key=lambda row: row.change_s),
            max(same, key=lambda row: row.change_s),
        )
        left, came = -source.change_s, target.change_s
        if min(left, came) < max(_LEAST_SHARE * span_s, _MOVED_RATIO * max(left, came)):
            continue
        net = math.fsum(row.change_s for row in same)
        found.append(_moved(what, source, target, left, came, net))
    told = {move.what for move in found}
    found = [move for move in found if not told.intersection(_HIDDEN_BY.get(move.what, ()))]
    largest = max((move.came_s for move in found), default=0.0)
    # What one device does less of, it does something else instead: of moves of one size the more telling comes first.
    order = list(_NAMES)
    return sorted(
        found, key=lambda move: (move.came_s < _SAME_SIZE * largest, order.index(move.what), -move.came_s)
    )


def _moved(
    what: str, source: DeviceChange, target: DeviceChange, left: float, came: float, net: float
) -> MovedTime:
    small = abs(net) <= 0.1 * max(left, came)
    result = (
        "in sum nothing gained"
        if small
        else f"in sum {units.seconds(abs(net))} {'more' if net > 0 else 'less'}"
    )
    text = (
        f"{_NAMES.get(what, what)} moved from {source.where} to {target.where}: +{units.seconds(came)} there, "
        f"−{units.seconds(left)} here; {result}"
    )
    return MovedTime(what, source.where, target.where, left, came, net, text)


def _paired(a: Figures, b: Figures, factor: float) -> list[DeviceChange]:
    """Pair places by rank and number; where the numbers differ but not how many there are, by their order."""
    if len(a) != len(b) or not a:
        return []
    places = list(zip(a, a, strict=True)) if a.keys() == b.keys() else list(zip(a, b, strict=True))
    rows = []
    for first, second in places:
        for what, before in a[first].items():
            if (measured := b[second].get(what)) is not None and (before or measured):
                after = measured * factor
                rows.append(DeviceChange(_where(first), what, before, after, after - before))
    return rows


def _device_figures(devices: Sequence[DeviceUse]) -> Figures:
    found: Figures = {}
    for use in sorted(devices, key=lambda use: (use.rank is not None, use.rank or 0, use.device)):
        compute = (
            use.busy_s - (use.exposed_communication_s or 0.0) - (use.copy_s or 0.0)
            if use.busy_s is not None
            else None
        )
        found[use.rank, use.device] = _known(
            {
                "compute": compute,
                "communication": use.communication_s,
                "exposed communication": use.exposed_communication_s,
                "copy": use.copy_s,
                "idle": use.idle_s,
            }
        )
    return found


def _rank_figures(ranks: Sequence[RankUse]) -> Figures:
    return {
        (use.rank, None): _known(
            {
                "compute": use.compute_s,
                "communication": use.communication_s,
                "exposed communication": use.exposed_communication_s,
                "idle": use.idle_s,
            }
        )
        for use in sorted(ranks, key=lambda use: use.rank)
    }


def _waiting(ranks: Sequence[RankUse]) -> Figures:
    return {
        (use.rank, None): _known({"waiting for other ranks": use.waits_s})
        for use in sorted(ranks, key=lambda use: use.rank)
    }


def _known(values: dict[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def _where(place: Place) -> str:
    rank, device = place
    parts = [f"rank {rank}" if rank is not None else "", f"GPU {device}" if device is not None else ""]
    return " ".join(part for part in parts if part)
