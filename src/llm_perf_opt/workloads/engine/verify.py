"""Check the first tokens of a run, and their logits, against the model's own ``generate()``.

Random weights can give equal tokens for unequal reasons (a model that repeats one token for any input), so the
logits the tokens are chosen from are compared as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llm_perf_opt.core.errors import LlmPerfError
from llm_perf_opt.workloads.base import Reference, Sample

if TYPE_CHECKING:
    import torch

    from llm_perf_opt.workloads.engine.engine import Engine

_CHECKED_TOKENS = 4
"""Enough to see a step that lost its past; two prefills and a few steps are what the check costs."""
_TOLERANCES = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""Largest difference of logits that is rounding, as a share of the spread of a step's logits (largest minus smallest).

Other kernels (a compiled step, another cache) add in another order: a few units of the type's last place per layer."""
_COARSEST = 5e-2
# What a model's own code raises when generate() cannot run it; our own defects would raise while measuring.
_GENERATE_ERRORS = (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError, LookupError)


@dataclass(frozen=True, slots=True)
class TokenCheck:
    """Result of the check."""

    verified: bool | None
    """``None``: it could not be made, or was not asked for."""
    note: str
    """What was compared, or why nothing was, or what differs."""


SWITCHED_OFF = TokenCheck(None, "tokens were not checked against generate(): infer.verify_tokens=false")


def verify_tokens(engine: Engine, samples: Sequence[Sample], answers: Sequence[Sequence[int]]) -> TokenCheck:
    """Compare the first tokens of a measured batch (its samples and their answers) with those of ``generate()``."""
    count = min(_CHECKED_TOKENS, max((len(answer) for answer in answers), default=0))
    if count == 0:
        return TokenCheck(None, "tokens were not checked against generate(): nothing was generated")
    try:
        expected = engine.reference(samples, count)
    except LlmPerfError as error:
        return TokenCheck(None, f"tokens were not checked against generate(): {error.message}")
    except _GENERATE_ERRORS as error:
        line = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
        return TokenCheck(
            None, f"tokens were not checked: generate() fails: {type(error).__name__}: {line[:200]}"
        )
    if expected is None:
        return TokenCheck(
            None, f"tokens were not checked: adapter {engine.adapter.name} has no generate() to compare with"
        )
    tolerance = _TOLERANCES.get(str(engine.dtype).removeprefix("torch."), _COARSEST)
    differing = _first_difference(samples, answers, expected, tolerance)
    if differing is not None:
        return differing
    if expected.logits is None:
        return TokenCheck(True, f"the first {count} tokens match generate(); it gave no logits to compare")
    return _compare_logits(engine, samples, expected, count, tolerance)


def _first_difference(
    samples: Sequence[Sample], answers: Sequence[Sequence[int]], expected: Reference, tolerance: float
) -> TokenCheck | None:
    """Describe the first token that differs; a tie within rounding is not a difference."""
    for row, (sample, ours, theirs) in enumerate(zip(samples, answers, expected.token_ids, strict=True)):
        # generate() pads a sequence that ended; the engine's answer stops at its end.
        place = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
        if place is None:
            continue
        where = f"token {place + 1} of sample {sample.id} is {ours[place]} here and {theirs[place]} there"
        if expected.logits is not None and place < len(expected.logits):
            logits = expected.logits[place][row].float()
            gap = float((logits[theirs[place]] - logits[ours[place]]).abs() / _spread(logits))
            if place > 0 and gap <= tolerance:
                return TokenCheck(
                    True,
                    f"the tokens match generate() up to a tie: {where}, whose logits differ by {gap:.2g} of their "
                    f"spread (rounding: up to {tolerance:g})",
                )
        return TokenCheck(
            False,
            f"TOKENS DIFFER from generate(): {where}; timings are of a model that may not be run as it should",
        )
    return None


def _compare_logits(
    engine: Engine, samples: Sequence[Sample], expected: Reference, count: int, tolerance: float
) -> TokenCheck:
    """Run the first steps again, at the shapes of the measured pass, and compare the logits."""
    ours: list[torch.Tensor] = []
    engine.run_prepared(
        engine.prepare(samples),
        components=False,
        stop_after=count,
        observe=lambda logits: ours.append(
            logits.clone()
        ),  # a captured step overwrites its output at the next step
    )
    worst, where = 0.0, ""
    for step, (here, there) in enumerate(zip(ours, expected.logits or (), strict=False)):
        for row, sample in enumerate(samples):
            if step >= len(expected.token_ids[row]):
                continue
            found = float((here[row].float() - there[row].float()).abs().max() / _spread(there[row].float()))
            if not found <= worst:  # NaN counts as the largest difference
                worst, where = found, f"step {step + 1} of sample {sample.id}"
    what = f"largest difference {worst:.2g} of their spread, rounding is up to {tolerance:g}"
    steps = min(len(ours), len(expected.logits or ()))
    if worst <= tolerance:
        return TokenCheck(True, f"the first {steps} tokens and their logits match generate() ({what})")
    return TokenCheck(
        False,
        f"LOGITS DIFFER from generate() although the first {steps} tokens are equal: {what}, in {where}; timings are of a "
        "model that may not be run as it should",
    )


def _spread(logits: torch.Tensor) -> torch.Tensor:
    """Return largest minus smallest; banned tokens (minus infinity) are excluded."""
    finite = logits[logits.isfinite()]
    if not finite.numel():
        return logits.new_ones(())
    return (finite.max() - finite.min()).clamp(min=1e-30)
