"""Balance of a mixture of experts: load of experts and of ranks, and whether placing the experts differently is worth it.

A placement is made from the first half of the load and judged on the second: choices that differ by chance, or that drift,
give no gain there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llm_perf_opt.captures.serving.records import Float64, Int64
from llm_perf_opt.core import units
from llm_perf_opt.summary.serving import RankBalance, Routing

_RANKS = (2, 4, 8, 16, 32)
_LEAST_CHOICES = 50
"""Per expert and layer, over the load: fewer say little about an expert."""
_WORTH = 0.05
"""Share of the busiest rank's expert time from which moving experts is worth it."""


def describe_routing(windows: Sequence[Int64]) -> Routing | None:
    """Return the balance of choices, each window layers × experts; ``None`` without any choice."""
    if not windows:
        return None
    total = np.sum(windows, axis=0)
    layers, experts = total.shape
    if not total.sum():
        return None
    mean = np.maximum(total.mean(axis=1), 1e-9)
    found = Routing(layers, experts, int(total.sum()), len(windows))
    found.busiest_ratio = [float(value) for value in total.max(axis=1) / mean]
    found.unused = [int(value) for value in (total == 0).sum(axis=1)]
    halves = _halves(windows)
    if halves is not None:
        first, second = (half / np.maximum(half.sum(axis=1, keepdims=True), 1) for half in halves)
        found.drift_ratio = float(np.abs(first - second).sum(axis=1).mean() / 2)
    found.ranks = [
        _balance(total, halves, ranks) for ranks in _RANKS if experts % ranks == 0 and ranks < experts
    ]
    found.verdict = _verdict(found)
    return found


def _halves(windows: Sequence[Int64]) -> tuple[Int64, Int64] | None:
    """Split the load into halves of about as many choices; ``None``: one window."""
    if len(windows) < 2:
        return None
    done = np.cumsum([window.sum() for window in windows])
    cut = min(int(np.searchsorted(done, done[-1] / 2)) + 1, len(windows) - 1)
    return np.sum(windows[:cut], axis=0), np.sum(windows[cut:], axis=0)


def _balance(total: Int64, halves: tuple[Int64, Int64] | None, ranks: int) -> RankBalance:
    experts = total.shape[1]
    usual = np.repeat(np.arange(ranks), experts // ranks)
    found = RankBalance(ranks, float(np.mean([_busiest(layer, usual, ranks) for layer in total])))
    if halves is None or not halves[0].sum() or not halves[1].sum():
        return found
    first, second = halves
    placed = [_place(layer, ranks) for layer in first]
    now = np.array([_busiest(layer, usual, ranks) for layer in second])
    then = np.array([_busiest(layer, where, ranks) for layer, where in zip(second, placed, strict=True)])
    found.rebalanced_ratio = float(then.mean())
    found.gain_ratio = float(1 - then.sum() / now.sum())
    return found


def _busiest(layer: Int64, ranks_of: Int64, ranks: int) -> float:
    load: Float64 = np.bincount(ranks_of, weights=layer, minlength=ranks).astype(np.float64)
    return float(load.max() / max(float(load.mean()), 1e-9))


def _place(layer: Int64, ranks: int) -> Int64:
    """Place experts, the busiest first, on the least loaded rank that has room; each rank holds as many."""
    room, load = np.full(ranks, len(layer) // ranks), np.zeros(ranks)
    where = np.zeros(len(layer), np.int64)
    for expert in np.argsort(-layer, kind="stable").tolist():
        rank = int(np.argmin(np.where(room > 0, load, np.inf)))
        where[expert], room[rank], load[rank] = rank, room[rank] - 1, load[rank] + layer[expert]
    return where


def _verdict(found: Routing) -> str:
    if found.choices < _LEAST_CHOICES * found.experts * found.layers:
        return (
            f"{found.choices} choices of {found.experts} experts in {found.layers} layers are too few for a verdict "
            f"({_LEAST_CHOICES} per expert and layer)."
        )
    if not found.ranks:
        return "The experts of a layer cannot be spread evenly over 2, 4, 8, 16 or 32 ranks."
    judged = [one for one in found.ranks if one.gain_ratio is not None]
    if not judged:
        return "The load was recorded in one window: whether the imbalance persists is not known."
    best = max(judged, key=lambda one: one.gain_ratio or 0.0)
    if (best.gain_ratio or 0.0) < _WORTH:
        return (
            f"Moving experts is not worth it: a placement from the first half of the load saves at most "
            f"{units.percent(max(best.gain_ratio or 0.0, 0.0))} of the busiest rank's expert time in the second half."
        )
    return (
        f"Moving experts is worth it with {best.ranks} ranks: the busiest rank has {best.busiest_ratio:.2f} × the mean load, and a "
        f"placement from the first half of the load saves {units.percent(best.gain_ratio)} of its expert time in the second half "
        f"(bound: {units.percent(1 - 1 / best.busiest_ratio)})."
    )
