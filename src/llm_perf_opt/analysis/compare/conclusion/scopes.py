"""The stretches of a capture that are held against each other: its phases and what lies outside them, or all of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.analysis.compare.conclusion.work import Scaling
from llm_perf_opt.core.phases import WHOLE
from llm_perf_opt.model.comparison import KernelChange
from llm_perf_opt.model.summary import Budget, BudgetPart, Summary

_OVERLAP_RATIO = 0.001
"""Of the span: phases that overlap by more are not taken apart."""


@dataclass(frozen=True, slots=True)
class Scope:
    """One stretch on both sides."""

    phase: str | None
    """``None``: outside the phases, or all of the capture."""
    a: Budget
    b: Budget
    factor: float
    """Puts B's times at A's work."""
    kernels: list[KernelChange]

    @property
    def a_s(self) -> float:
        """Length on A."""
        return self.a.span_s

    @property
    def b_s(self) -> float:
        """Length on B, at A's work."""
        return self.b.span_s * self.factor


def find_scopes(a: Summary, b: Summary, scaling: Scaling, kernels: Sequence[KernelChange]) -> list[Scope]:
    """Return what to compare; empty where no budget is on both sides or the work of none is known."""
    phases = [name for name in a.budget if name in b.budget and name != WHOLE]
    told_apart = any(row.phase for row in kernels)
    scopes = [
        Scope(name, a.budget[name], b.budget[name], factor, [row for row in kernels if row.phase == name])
        for name in phases
        if (factor := scaling.factor(name)) is not None and told_apart
    ]
    whole = scaling.factor(None)
    if WHOLE not in a.budget or WHOLE not in b.budget or whole is None:
        return scopes if len(scopes) == len(phases) else []
    if scopes and len(scopes) == len(phases):
        outside = [_outside(side, phases) for side in (a, b)]
        if outside[0] is not None and outside[1] is not None:
            rest = [row for row in kernels if row.phase not in phases]
            return [*scopes, Scope(None, outside[0], outside[1], whole, rest)]
    return [Scope(None, a.budget[WHOLE], b.budget[WHOLE], whole, list(kernels))]


def _outside(side: Summary, phases: Sequence[str]) -> Budget | None:
    """Return what a capture's budget leaves to none of the phases; ``None`` where phases overlap."""
    whole = side.budget[WHOLE]
    parts = []
    for name in dict.fromkeys(part.name for part in whole.parts):
        inside = math.fsum(p.seconds for phase in phases for p in side.budget[phase].parts if p.name == name)
        same = [part for part in whole.parts if part.name == name]
        left = math.fsum(part.seconds for part in same) - inside
        if left < -_OVERLAP_RATIO * whole.span_s:
            return None
        parts.append(BudgetPart(name, left, 0.0, same[0].owner))
    return Budget(whole.span_s - math.fsum(side.budget[phase].span_s for phase in phases), parts)
