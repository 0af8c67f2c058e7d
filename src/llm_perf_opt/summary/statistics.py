"""Statistics of repeated measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from llm_perf_opt.summary import Stat, Timings

# Decide while measuring: confidence sequences by betting, valid however often one looks.
#
# A block is the logarithm of a ratio, B ÷ A, of two neighbouring passes in random order. If B is no faster than A by more
# than ``exp(t)``, then ``block − t`` falls below zero no more often, and no further, than above it. So somebody who bets before
# each block, at even odds, that it will fall below, cannot expect to win. What such a player owns is an e-value: it
# exceeds ``1 / α`` with probability at most ``α``, at any time, however often one looks (Ville's inequality). The values of
# ``t`` whose player has not won that much are the confidence sequence (Waudby-Smith and Ramdas 2024; here for the centre of
# a symmetric distribution, so that heavy tails, which times have, need no bound).
#
# Blocks come in twos: the first has an order by chance, the second the other one. So the second is not free given the first, and
# it is their two bets together that nobody can expect to win. The scale is that of before both, and what they show is looked at
# after both.
#
# A bet is ``1 + λ ψ((block − t) / s)`` with ``ψ`` cut off at ±1 and the scale ``s`` taken from the blocks before this one. Capital is
# shared among several ``λ``: some are right for a gain as large as the noise, others for one that is a tenth of it.


SEQUENTIAL_TEST = (
    "confidence sequence by betting on the logarithm of neighbouring passes' ratio (Ville's inequality: valid at every look); "
    "the family error is shared equally among all planned tests"
)


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """When an experiment ends."""

    alpha: float
    """Share of the family error that this test has."""
    least_gain_ratio: float
    """A gain below this is not worth keeping."""
    most_blocks: int
    widest_ratio: float | None = None
    """Go on after a gain is shown until its interval is this narrow, in shares of the gain; ``None``: the gain is enough."""
    fixed: bool = False
    """Whether all blocks are measured whatever the first ones show, as a plain search would."""


TrialVerdict = Literal["gain", "no gain", "slower", "not shown"]
Better = Literal["lower", "higher"]


def percentile(ordered: Sequence[float], q: float) -> float:
    """Return the ``q`` quantile (0 to 1) of sorted values, interpolating between neighbours."""
    if not ordered:
        raise ValueError("no values")
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def describe(values: Sequence[float | None]) -> Stat | None:
    """Summarise values, missing ones left out; ``None`` when nothing was measured."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    mean = math.fsum(known) / len(known)
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in known) / (len(known) - 1)) if len(known) > 1 else None
    return Stat(
        median=percentile(known, 0.5),
        p5=percentile(known, 0.05),
        p95=percentile(known, 0.95),
        mean=mean,
        std=std,
        n=len(known),
    )


def mean_of(values: Sequence[float | int | None]) -> float | None:
    """Return the mean of the known values; ``None`` when there is none."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def interval_ratio(log_values: Sequence[float], confidence: float = 0.95) -> float | None:
    """Return how wide the interval of the mean of log values is, as (high − low) ÷ low of the values themselves.

    Student's interval; ``None`` for fewer than three values, which say next to nothing.
    """
    count = len(log_values)
    if count < 3:
        return None
    mean = math.fsum(log_values) / count
    variance = math.fsum((value - mean) ** 2 for value in log_values) / (count - 1)
    half = student_quantile((1 + confidence) / 2, count - 1) * math.sqrt(variance / count)
    return math.expm1(2 * half)


def student_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t: exact at one and two degrees, its expansion around the normal one (within 1 %) from three on."""
    if degrees == 1:
        return math.tan(math.pi * (probability - 0.5))
    if degrees == 2:
        return (2 * probability - 1) / math.sqrt(2 * probability * (1 - probability))
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / degrees**power for power, term in enumerate(terms, 1))


def decode_steps(timings: Timings) -> float | None:
    """Return how many steps one sample's decode holds; ``None`` where that is not known."""
    decode, token = timings.decode_s, timings.tpot_s
    return (
        decode.shown / token.shown if decode is not None and token is not None and token.shown > 0 else None
    )
