"""Speculative decoding: tokens per verification, the cost of one more verified position, and the break-even batch size.

A decode step of n requests takes a + c × positions, with a and c from a fit over decode steps. Without drafts it has n positions;
with k draft tokens per request n × (1 + k), and gives L tokens per request instead of one. So drafts pay while
L × (a + c n) > a + c n (1 + k), that is below n = (L − 1) a ÷ (c (1 + k − L)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.captures.serving.records import Samples, Steps
from llm_perf_opt.summary.serving import Speculation

_LEAST_STEPS = 20
_LEAST_SPREAD = 1.5
"""Most ÷ fewest positions of a step, below which a fit says nothing about one more."""
_T = 2.0
"""Standard errors on either side of a fitted cost (95 %)."""


@dataclass(frozen=True, slots=True)
class _Fit:
    step_s: float
    position_s: float
    error_s: float


def describe_speculation(steps: Steps | None, samples: Sequence[Samples]) -> Speculation | None:
    """Return the account of drafts; ``None``: none were reported."""
    found = _of_steps(steps) if steps is not None else None
    found = found or _of_samples(samples)
    if found is None:
        return None
    _add_costs(found, steps)
    return found


def _account(source: str, drafts: int, drafted: int, accepted: int) -> Speculation:
    return Speculation(
        source="steps" if source == "steps" else "metrics",
        drafts=drafts,
        draft_tokens=drafted,
        accepted_tokens=accepted,
        accepted_length=1 + accepted / drafts,
        acceptance_ratio=accepted / drafted if drafted else None,
        draft_length=drafted / drafts,
    )


def _of_steps(steps: Steps) -> Speculation | None:
    drafts, drafted, accepted = (int(value) for value in steps.spec_counts.sum(axis=0))
    return _account("steps", drafts, drafted, accepted) if drafts else None


def _of_samples(samples: Sequence[Samples]) -> Speculation | None:
    """Return the account by counters; several servers are added up."""
    total = np.zeros(3)
    for one in samples:
        table = np.stack([one.drafts, one.draft_tokens, one.accepted_tokens])
        known = np.flatnonzero(~np.isnan(table).any(axis=0))
        if len(known):
            first = table[:, known[0]] if len(known) > 1 else np.zeros(3)
            total += np.maximum(table[:, known[-1]] - first, 0.0)
    drafts, drafted, accepted = (int(value) for value in total)
    return _account("metrics", drafts, drafted, accepted) if drafts and accepted <= drafted else None


def _add_costs(found: Speculation, steps: Steps | None) -> None:
    if steps is None or not len(steps):
        found.notes.append("Without step records the cost of a verified position is not known.")
        return
    decoding = (steps.decode_requests > 0) & (steps.prefill_tokens <= 0)
    requests, positions = steps.decode_requests[decoding], steps.decode_tokens[decoding]
    if not decoding.any():
        return
    found.batch = float(requests.mean())
    if positions.sum() < 1.02 * requests.sum():
        found.notes.append("The step records count requests, not verified positions: no cost of a position.")
        return
    fit, reason = _fit(positions.astype(np.float64), steps.duration_s[decoding])
    if fit is None:
        found.notes.append(reason)
        return
    found.step_s, found.position_s = fit.step_s, fit.position_s
    found.position_low_s = fit.position_s - _T * fit.error_s
    found.position_high_s = fit.position_s + _T * fit.error_s
    length, drafted = found.accepted_length, found.draft_length or 0.0
    plain = fit.step_s + fit.position_s * found.batch
    verified = fit.step_s + fit.position_s * found.batch * (1 + drafted)
    found.speedup_ratio = length * plain / verified
    wasted = fit.position_s * (1 + drafted - length)
    if wasted > 0 and length > 1:
        found.break_even_batch = (length - 1) * fit.step_s / wasted
    elif length <= 1:
        found.break_even_batch = 0.0


def _fit(positions: np.ndarray, seconds: np.ndarray) -> tuple[_Fit | None, str]:
    """Fit seconds = a + c × positions by least squares; abstain where the steps do not tell."""
    if len(positions) < _LEAST_STEPS:
        return None, f"{len(positions)} decode steps are too few for the cost of a position."
    # Medians per number of positions: single steps stall.
    sizes = np.unique(positions)
    if len(sizes) < 3 or sizes[-1] < _LEAST_SPREAD * sizes[0]:
        return (
            None,
            "All decode steps verify about the same number of positions: the cost of one more is not known.",
        )
    usual = np.array([np.median(seconds[positions == size]) for size in sizes])
    weights = np.sqrt(np.array([(positions == size).sum() for size in sizes], np.float64))
    design = np.stack([np.ones(len(sizes)), sizes], axis=1) * weights[:, None]
    solution, *_ = np.linalg.lstsq(design, usual * weights, rcond=None)
    rest = usual * weights - design @ solution
    variance = float(rest @ rest) / max(len(sizes) - 2, 1) * np.linalg.inv(design.T @ design)[1, 1]
    step_s, position_s = float(solution[0]), float(solution[1])
    if step_s <= 0 or not math.isfinite(variance) or position_s <= _T * math.sqrt(max(variance, 0.0)):
        return None, "Steps with more positions do not take longer: the cost of one more is below the noise."
    return _Fit(step_s, position_s, math.sqrt(max(variance, 0.0))), ""
