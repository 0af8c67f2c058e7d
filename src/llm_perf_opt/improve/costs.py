"""One number per pass: the metric as a cost, so that less is better for every metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from llm_perf_opt.improve.outputs import earliest
from llm_perf_opt.remedies.data import METRICS, Metric

HIGHER_IS_BETTER: tuple[Metric, ...] = ("tokens_per_s", "goodput")


@dataclass(slots=True)
class BatchPass:
    """One batch, run once."""

    samples: int
    ttft_s: float
    decode_s: float
    """0 when nothing was decoded."""
    steps: int
    """Decode steps that ran."""
    tokens: int
    """Generated for all sequences together."""
    tpot_s: float | None
    """Median step."""
    energy_j: float | None = None
    sample_ids: list[str] = field(default_factory=list)


@dataclass(slots=True)
class UnitPass:
    """The work of one turn of a side: the batches of one unit of work."""

    side: str
    round: int
    unit: int
    batches: list[BatchPass] = field(default_factory=list)
    compiled: int = 0
    """Programs that were compiled during this turn."""
    first_other: int | None = None
    """Position (from 1) of the first token that is not the one this side answered before; ``None``: all are."""


def cost(
    batches: Sequence[BatchPass], metric: Metric, work: Sequence[BatchPass] | None = None
) -> float | None:
    """Return the metric as a cost per sample (or token); ``None``: it was not measured.

    ``work``: the other side's batches, to whose token counts these are scaled; fewer tokens are not a gain.
    """
    known = list(batches)
    if not known:
        return None
    if metric == "tpot":
        values = [each.tpot_s for each in known if each.tpot_s is not None]
        return math.fsum(values) / len(values) if values else None
    if metric == "energy":
        joules = [each.energy_j for each in known]
        return None if None in joules else math.fsum(j for j in joules if j is not None) / _samples(known)
    if metric == "ttft":
        return math.fsum(each.ttft_s * each.samples for each in known) / _samples(known)
    wanted = _work_of(known, known if work is None else work)
    times = [each.ttft_s + _decode_s(each, at.steps) for each, at in zip(known, wanted, strict=True)]
    if metric == "tokens_per_s":
        tokens = sum(at.tokens for at in wanted)
        return math.fsum(times) / tokens if tokens else None
    return math.fsum(time * each.samples for time, each in zip(times, known, strict=True)) / _samples(known)


def _work_of(own: Sequence[BatchPass], other: Sequence[BatchPass]) -> Sequence[BatchPass]:
    """Return the other side's batches where they hold the same samples with other tokens, else one's own.

    Batches of other samples are not scaled; equal tokens in fewer steps are a gain.
    """
    if [each.sample_ids for each in own] != [each.sample_ids for each in other]:
        return own
    return [one if one.tokens == two.tokens else two for one, two in zip(own, other, strict=True)]


def _samples(batches: Sequence[BatchPass]) -> int:
    return sum(each.samples for each in batches) or 1


def _decode_s(one: BatchPass, steps: int) -> float:
    return one.decode_s if steps == one.steps or not one.steps else one.decode_s / one.steps * steps


def _as_value(cost_value: float, metric: Metric) -> float:
    """Return the metric itself: a rate is the inverse of its cost."""
    return 1 / cost_value if metric in HIGHER_IS_BETTER and cost_value > 0 else cost_value


def as_change(log_ratio: float, metric: Metric) -> float:
    """Return B ÷ A − 1 of the metric, from the log ratio of its cost."""
    return math.expm1(-log_ratio if metric in HIGHER_IS_BETTER else log_ratio)


def as_log_ratio(change_ratio: float, metric: Metric) -> float:
    """Return the log ratio of the cost, from B ÷ A − 1 of the metric."""
    found = math.log1p(change_ratio)
    return -found if metric in HIGHER_IS_BETTER else found


Pair = tuple[UnitPass, UnitPass]
"""The same unit on both sides, A first, run next to each other."""


def pairs(passes: Sequence[UnitPass]) -> list[Pair]:
    """Pair passes of the same round and unit, in the order of measuring."""
    found: dict[tuple[int, int], dict[str, UnitPass]] = {}
    for each in passes:
        found.setdefault((each.round, each.unit), {})[each.side] = each
    return [(both["a"], both["b"]) for both in found.values() if "a" in both and "b" in both]


def log_ratio(pair: Pair, metric: Metric) -> float | None:
    """Return the block of a pair; ``None`` where either side did not measure the metric."""
    a, b = pair
    first, second = cost(a.batches, metric), cost(b.batches, metric, a.batches)
    if first is None or second is None or first <= 0 or second <= 0:
        return None
    return math.log(second / first)


def median_log_ratio(passes: Sequence[UnitPass], metric: Metric) -> float | None:
    """Return the median block of an experiment; ``None`` without one."""
    found = [block for pair in pairs(passes) if (block := log_ratio(pair, metric)) is not None]
    return median(found) if found else None


def medians(passes: Sequence[UnitPass], side: str, metric: Metric) -> float | None:
    """Return the metric of one side: per unit the median of its passes, then the mean over units."""
    by_unit: dict[int, list[float]] = {}
    for each in passes:
        value = cost(each.batches, metric) if each.side == side else None
        if value is not None:
            by_unit.setdefault(each.unit, []).append(value)
    if not by_unit:
        return None
    return _as_value(math.fsum(median(values) for values in by_unit.values()) / len(by_unit), metric)


def other_changes(passes: Sequence[UnitPass], metric: Metric) -> dict[str, float]:
    """Return the changes of the other metrics, without intervals."""
    changes: dict[str, float] = {}
    for name in METRICS:
        values = [r for pair in pairs(passes) if (r := log_ratio(pair, name)) is not None]
        if name != metric and values:
            changes[name] = as_change(median(values), name)
    return changes


def total_change(passes: Sequence[UnitPass], metric: Metric) -> float | None:
    """Return the change over all units: a gain on most samples may be an overall loss."""
    a, b = medians(passes, "a", metric), medians(passes, "b", metric)
    return b / a - 1 if a and b else None


def first_others(passes: Sequence[UnitPass]) -> dict[str, int | None]:
    """Return for each side the first position at which a pass differs from earlier ones."""
    found: dict[str, int | None] = {}
    for each in passes:
        found[each.side] = earliest(found.get(each.side), each.first_other)
    return found


def recompiles(passes: Sequence[UnitPass], side: str, last: int = 4) -> str | None:
    """Return a message if a side still compiles in each of its last turns; ``None``: it does not."""
    mine = [each.compiled for each in passes if each.side == side][-last:]
    if len(mine) < last or 0 in mine:
        return None
    return f"side {side.upper()} compiles again in every pass ({sum(mine)} times in its last {last})"
