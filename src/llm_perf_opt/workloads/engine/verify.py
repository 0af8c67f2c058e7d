"""Check the first tokens of a run against the model's own ``generate()``: the loop is ours, the answer must be theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llm_perf_opt.core.errors import LlmPerfError
from llm_perf_opt.workloads.base import Sample

if TYPE_CHECKING:
    from llm_perf_opt.workloads.engine.engine import Engine

_CHECKED_TOKENS = 4
"""Enough to see a step that lost its past; a few decode steps and one prefill are what the check costs."""
# What a model's own code raises when generate() cannot run it; a defect of ours would raise while measuring.
_GENERATE_ERRORS = (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError, LookupError)


@dataclass(frozen=True, slots=True)
class TokenCheck:
    """What the check found."""

    verified: bool | None
    """``None``: it could not be made, or was not asked for."""
    note: str | None
    """Why it is not ``True``."""


SWITCHED_OFF = TokenCheck(None, "tokens were not checked against generate(): infer.verify_tokens=false")


def verify_tokens(engine: Engine, samples: Sequence[Sample], answers: Sequence[Sequence[int]]) -> TokenCheck:
    """Compare the first tokens of a measured batch (its samples and their answers) with those of ``generate()``."""
    count = min(_CHECKED_TOKENS, max((len(answer) for answer in answers), default=0))
    if count == 0:
        return TokenCheck(None, "tokens were not checked against generate(): nothing was generated")
    try:
        expected = engine.reference_tokens(samples, count)
    except LlmPerfError as error:
        return TokenCheck(None, f"tokens were not checked against generate(): {error.message}")
    except _GENERATE_ERRORS as error:
        line = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
        return TokenCheck(
            None, f"tokens were not checked: generate() fails: {type(error).__name__}: {line[:200]}"
        )
    if expected is None:
        return TokenCheck(
            None, f"tokens were not checked: adapter {engine.adapter.name} has no generate() to ask"
        )
    for sample, ours, theirs in zip(samples, answers, expected, strict=True):
        # A sequence that ended is filled up by generate(); the engine's answer stops at its end.
        place = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
        if place is not None:
            return TokenCheck(
                False,
                f"TOKENS DIFFER from generate(): token {place + 1} of sample {sample.id} is {ours[place]} here and "
                f"{theirs[place]} there; timings are of a model that may not be run as it should",
            )
    return TokenCheck(True, None)
