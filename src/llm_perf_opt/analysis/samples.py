"""Samples beside each other: whether they are of one size, and how far the middle of each reaches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from llm_perf_opt.model.summary import SampleTimes

_ALIKE = 0.05
"""Relative difference of sizes up to which samples count as alike."""


class Span(NamedTuple):
    """The medians of the fastest and of the slowest sample."""

    low: float
    high: float


def sizes_differ(samples: Sequence[SampleTimes]) -> bool:
    """Whether a spread over all samples mixes samples of different sizes."""
    for name in ("prompt_tokens", "new_tokens"):
        known = [value for sample in samples if (value := getattr(sample, name)) is not None]
        if known and max(known) > min(known) * (1 + _ALIKE):
            return True
    return False


def span_over_samples(samples: Sequence[SampleTimes], name: str) -> Span | None:
    """Return how a time (``ttft_s``) differs from sample to sample; ``None`` where sizes are alike or it is unknown."""
    known = [value for sample in samples if (value := getattr(sample, name)) is not None]
    return Span(min(known), max(known)) if len(known) > 1 and sizes_differ(samples) else None
