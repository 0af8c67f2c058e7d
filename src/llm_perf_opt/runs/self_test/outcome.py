"""What a check found: passed, failed, or not possible here and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["passed", "failed", "not possible"]


@dataclass(slots=True)
class Outcome:
    """One check."""

    name: str
    status: Status
    said: str
    """What was compared and what came out, in a sentence."""
    fix: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """The numbers behind it."""
    claim: str = ""
    """What of a report rests on it."""


def passed(name: str, said: str, /, **facts: Any) -> Outcome:
    """Return a check that found what it expected."""
    return Outcome(name, "passed", said, facts=facts)


def failed(name: str, said: str, fix: str | None = None, /, **facts: Any) -> Outcome:
    """Return a check that found something else."""
    return Outcome(name, "failed", said, fix, facts)


def not_possible(name: str, why: str, fix: str | None = None, /, **facts: Any) -> Outcome:
    """Return a check that this machine does not allow."""
    return Outcome(name, "not possible", why, fix, facts)
