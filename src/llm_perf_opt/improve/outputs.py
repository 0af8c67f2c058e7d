"""Compare the answers of two sides: tokens, logits, distance to references, perplexity."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from llm_perf_opt.remedies.data import Effect, OutputCheck, OutputResult


@dataclass(slots=True)
class Answers:
    """The answers of one side in one pass over the samples."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    """Sample → generated tokens."""
    prompt_tokens: dict[str, int] = field(default_factory=dict)
    distances: dict[str, float] = field(default_factory=dict)
    """Sample → distance of the answer to its reference."""
    log_likelihoods: dict[str, list[float]] = field(default_factory=dict)
    """Sample → [sum of the log-likelihood of its prompt's tokens, their number]."""
    reason: str | None = None
    """Why distance or perplexity are not known."""


_LogitDifference = Mapping[str, Sequence[float]]
"""Sample → largest difference of the logits at every position both sides recorded."""


def check_outputs(a: Answers, b: Answers, differences: _LogitDifference) -> OutputCheck:
    """Compare the answers: whether they are equal, the first difference, and the change of quality."""
    common = [name for name in a.tokens if name in b.tokens]
    places = {name: first_difference(a.tokens[name], b.tokens[name]) for name in common}
    differing = {name: place for name, place in places.items() if place is not None}
    first = min(differing, key=lambda name: (differing[name], name)) if differing else None
    missing = len(a.tokens) != len(b.tokens)
    return OutputCheck(
        tokens_equal=None if not common else not differing and not missing,
        samples=len(common),
        differing_samples=len(differing),
        first_difference=None if first is None else differing[first],
        first_sample=first,
        largest_logit_difference=_largest(differences, differing),
        edit_distance_before_ratio=_mean(a.distances),
        edit_distance_after_ratio=_mean(b.distances),
        perplexity_before=_perplexity(a.log_likelihoods),
        perplexity_after=_perplexity(b.log_likelihoods),
        reason=b.reason or a.reason,
    )


def first_difference(a: Sequence[object], b: Sequence[object]) -> int | None:
    """Return the position, from 1, of the first token (or word) that differs; an answer that ends earlier differs there."""
    for place, (one, two) in enumerate(zip(a, b, strict=False), 1):
        if one != two:
            return place
    return None if len(a) == len(b) else min(len(a), len(b)) + 1


def earliest(one: int | None, other: int | None) -> int | None:
    """Return the smaller of two positions; ``None``: there is none."""
    return min((place for place in (one, other) if place is not None), default=None)


def in_later_passes(check: OutputCheck, first_others: Mapping[str, int | None]) -> OutputCheck:
    """Return a check including later passes: side → the first position that differs from the compared pass."""
    if first_others.get("a") is not None:
        return replace(
            check, tokens_equal=None, reason="the baseline does not give the same answers every time"
        )
    if check.tokens_equal and (place := first_others.get("b")) is not None:
        return replace(
            check,
            tokens_equal=False,
            differing_samples=max(1, check.differing_samples),
            first_difference=place,
            reason="the first answers were the baseline's; those of later passes were not",
        )
    return check


def _largest(differences: _LogitDifference, differing: Mapping[str, int]) -> float | None:
    """Return the largest difference at positions with the same preceding text: up to and including the first different token."""
    known = [
        value
        for name, values in differences.items()
        for value in values[: differing.get(name, len(values))]
        if math.isfinite(value)
    ]
    return max(known) if known else None


def _mean(values: Mapping[str, float]) -> float | None:
    return math.fsum(values.values()) / len(values) if values else None


def _perplexity(values: Mapping[str, Sequence[float]]) -> float | None:
    total, count = (math.fsum(each[place] for each in values.values()) for place in (0, 1))
    return math.exp(-total / count) if count and -total / count < 700 else None


def changed_workload(a: Answers, b: Answers, effect: Effect) -> str | None:
    """Return how B's work differs from A's (samples, prompts); ``None``: it is the same.

    A remedy of quality (fewer pixels) changes prompts intentionally and declares it.
    """
    if set(a.tokens) != set(b.tokens):
        lost = sorted({*a.tokens} ^ {*b.tokens})[:3]
        return f"other samples were run ({', '.join(lost)})"
    if effect == "quality":
        return None
    for name, count in a.prompt_tokens.items():
        if b.prompt_tokens.get(name) != count:
            return f"the prompt of {name} has {b.prompt_tokens.get(name)} instead of {count} tokens"
    return None


def output_result(check: OutputCheck | None) -> OutputResult:
    """Return the result code for ``improve.json``."""
    if check is None or check.tokens_equal is None:
        return "failed"
    return "equal" if check.tokens_equal else "differs"


def describe_outputs(check: OutputCheck | None) -> str:
    """Describe the change of the answers briefly."""
    if check is None or check.tokens_equal is None:
        return "answers not compared"
    parts = ["tokens equal"]
    if not check.tokens_equal:
        parts = [f"tokens differ at position {check.first_difference}"]
        if check.samples > 1:
            parts.append(f"in {check.differing_samples} of {check.samples} samples")
    if check.largest_logit_difference:
        parts.append(f"(logits by at most {check.largest_logit_difference:.2g})")
    return " ".join(parts)
