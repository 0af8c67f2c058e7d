"""Raw measurements of one metric, side by side, and what they say about the ratio B ÷ A.

Blocks, in order of preference:

- **rounds**: several runs of each side, made in turn (``compare --run``). Each round is one pair, so whatever changes
  slowly on the machine meets both sides.
- **repeats**: one run of each side with three or more repeats. A repeat over all samples is one block (what disturbs
  one sample of a repeat often disturbs the next one too), the sides are independent.
- **samples**: one or two repeats but five or more samples in common: each sample is one pair.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from llm_perf_opt.analysis.compare import stats
from llm_perf_opt.model.statistics import percentile

Samples = Mapping[str, Sequence[float]]
"""Sample → value of every repeat, in the order they were measured."""
BlockKind = Literal["rounds", "repeats", "samples"]

ALPHA = 0.05
"""Most false alarms a rank test may give when nothing changed."""
TOGETHER = "all samples"


@dataclass(slots=True)
class Series:
    """One metric of one side: a mapping per run."""

    runs: list[dict[str, list[float]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Both sides' values and the blocks that statistics may use."""

    a: float
    b: float
    kind: BlockKind | None
    differences: tuple[float, ...] = ()
    """Log ratios of paired blocks (rounds, samples)."""
    blocks_a: tuple[float, ...] = ()
    """Log values of unpaired blocks (repeats)."""
    blocks_b: tuple[float, ...] = ()
    note: str | None = None

    @property
    def n(self) -> int:
        """Blocks: pairs, or those of the smaller side."""
        return len(self.differences) or min(len(self.blocks_a), len(self.blocks_b))

    def decidable(self, *, two_sided: bool) -> bool:
        """Whether the blocks are enough for a rank test to speak at all."""
        limit = ALPHA / 2 if two_sided else ALPHA
        if self.kind is None:
            return False
        if self.kind == "repeats":
            return stats.smallest_shift_p(len(self.blocks_a), len(self.blocks_b)) <= limit
        return stats.smallest_paired_p(len(self.differences)) <= limit

    def p_above(self, log_limit: float) -> float:
        """One-sided p of "the ratio is at most ``exp(log_limit)``"."""
        if self.kind == "repeats":
            return stats.rank_sum_p(self.blocks_a, [value - log_limit for value in self.blocks_b])
        return stats.signed_rank_p([value - log_limit for value in self.differences])

    def p_below(self, log_limit: float) -> float:
        """One-sided p of "the ratio is at least ``exp(log_limit)``"."""
        if self.kind == "repeats":
            return stats.rank_sum_p([value - log_limit for value in self.blocks_b], self.blocks_a)
        return stats.signed_rank_p([log_limit - value for value in self.differences])

    def interval(self, *, confidence: float, resamples: int, seed: int) -> stats.Interval | None:
        """Bootstrap interval of the log ratio; ``None`` without two blocks."""
        if self.kind is None or self.n < 2:
            return None
        if self.kind == "repeats":
            plain = stats.shift_interval(
                self.blocks_a, self.blocks_b, confidence=confidence, resamples=resamples, seed=seed
            )
            drift = max(_drift(self.blocks_a), _drift(self.blocks_b))
            return stats.Interval(plain.estimate, plain.low - drift, plain.high + drift)
        return stats.paired_interval(self.differences, confidence=confidence, resamples=resamples, seed=seed)


def weigh(a: Series, b: Series) -> Evidence | None:
    """Pair what belongs together; ``None`` when a side has no positive value."""
    runs_a, runs_b = [_positive(run) for run in a.runs], [_positive(run) for run in b.runs]
    runs_a, runs_b = [run for run in runs_a if run], [run for run in runs_b if run]
    if not runs_a or not runs_b:
        return None
    common = _common(runs_a, runs_b)
    note = None
    if not common:
        runs_a, runs_b = [_together(run) for run in runs_a], [_together(run) for run in runs_b]
        common = [TOGETHER]
        note = "no sample is in both sides: compared over all samples, not pair by pair"
    a_value, b_value = _value(runs_a, common), _value(runs_b, common)
    rounds = min(len(runs_a), len(runs_b))
    if rounds > 1:
        pairs = zip(runs_a[:rounds], runs_b[:rounds], strict=True)
        differences = tuple(_log_level(two, common) - _log_level(one, common) for one, two in pairs)
        return Evidence(a_value, b_value, "rounds", differences, note=note)
    blocks_a, blocks_b = _slots(runs_a[0], common), _slots(runs_b[0], common)
    if stats.smallest_shift_p(len(blocks_a), len(blocks_b)) <= ALPHA or len(common) < 2:
        kind: BlockKind | None = "repeats" if min(len(blocks_a), len(blocks_b)) > 1 else None
        return Evidence(a_value, b_value, kind, blocks_a=blocks_a, blocks_b=blocks_b, note=note)
    by_sample = tuple(math.log(_median(runs_b[0][sample]) / _median(runs_a[0][sample])) for sample in common)
    return Evidence(a_value, b_value, "samples", by_sample, note=note)


def _drift(blocks: Sequence[float]) -> float:
    """How far the level wandered within one run: the largest shift between its consecutive thirds or halves.

    Two runs made one after the other can differ by as much without any change of the program, and nothing in either
    of them shows how much it was; so the interval of their ratio is widened by what was seen inside a run.
    """
    parts = 3 if len(blocks) >= 9 else 2
    size = len(blocks) // parts
    if size < 1:
        return 0.0
    pieces = [blocks[k * size : (k + 1) * size] for k in range(parts)]
    pairs = [(one, two) for i, one in enumerate(pieces) for two in pieces[i + 1 :]]
    return max(abs(stats.shift_location(one, two)) for one, two in pairs)


def _positive(run: Samples) -> dict[str, list[float]]:
    kept = {sample: [v for v in values if v > 0] for sample, values in run.items()}
    return {sample: values for sample, values in kept.items() if values}


def _common(runs_a: Sequence[Samples], runs_b: Sequence[Samples]) -> list[str]:
    everywhere = [set(run) for run in (*runs_a, *runs_b)]
    return sorted(set.intersection(*everywhere))


def _together(run: Samples) -> dict[str, list[float]]:
    """Take the samples of each repeat as one: their mean."""
    repeats = min(len(values) for values in run.values())
    return {TOGETHER: [math.fsum(v[k] for v in run.values()) / len(run) for k in range(repeats)]}


def _median(values: Sequence[float]) -> float:
    return percentile(sorted(values), 0.5)


def _value(runs: Sequence[Samples], common: Sequence[str]) -> float:
    medians = [_median([v for run in runs for v in run[sample]]) for sample in common]
    return math.fsum(medians) / len(medians)


def _log_level(run: Samples, common: Sequence[str]) -> float:
    return math.fsum(math.log(_median(run[sample])) for sample in common) / len(common)


def _slots(run: Samples, common: Sequence[str]) -> tuple[float, ...]:
    """Mean log value of each repeat over the samples, so that every block holds the same work."""
    repeats = min(len(run[sample]) for sample in common)
    return tuple(
        math.fsum(math.log(run[sample][k]) for sample in common) / len(common) for k in range(repeats)
    )
