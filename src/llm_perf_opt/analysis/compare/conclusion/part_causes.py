"""What changed besides kernels: communication that nothing overlaps, copies, and the time in which the device idles."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llm_perf_opt.analysis.compare.conclusion.kernel_causes import more_or_less_time
from llm_perf_opt.analysis.compare.conclusion.scopes import Scope
from llm_perf_opt.core import units
from llm_perf_opt.model.conclusion import Cause, CauseKind
from llm_perf_opt.model.summary import Budget, BudgetPart, Summary
from llm_perf_opt.model.summary.parallel import Communication, IdleOwner

_COMPUTE = "compute"
_LABELS = {
    "communication": "exposed communication",
    "copy": "exposed copies",
    "sync": "waiting in synchronisation",
    "launch": "waiting for launch calls",
    "host": "waiting for the host",
    "data": "waiting for input",
    "allocation": "waiting for memory to be allocated",
    "queue": "waiting in the queue",
}
_WAITS = {
    "sync": "in synchronisation",
    "launch": "for launch calls",
    "host": "for the host",
    "data": "for its input",
    "allocation": "for memory to be allocated",
    "queue": "in the queue",
}
_DISPATCH = ("launch", "host")
"""Two names for one wait: a gap that grows beyond dispatch changes from the one to the other."""
_SAME_LENGTH = 0.2
"""Of the change of exposed communication: collectives whose length changed by less are as long as before."""


def part_causes(scope: Scope, a: Summary, b: Summary, *, phases: bool) -> list[Cause]:
    """Return the change of every part of a budget but compute; idle parts name their owner."""
    where = f" in {scope.phase}" if phases and scope.phase else ""
    left, right = _by_name(scope.a), _by_name(scope.b)
    _joined_dispatch(left, right, scope.factor)
    causes = []
    for name in dict.fromkeys((*left, *right)):
        if name == _COMPUTE:
            continue
        for key, one, two in _by_owner(left.get(name, []), right.get(name, [])):
            before = math.fsum(part.seconds for part in one)
            after = math.fsum(part.seconds for part in two) * scope.factor
            owner = _owner(two if after >= before else one) or _owner(one if after >= before else two)
            text = _text(name, before, after, owner, scope, a, b, where)
            label = f"{_LABELS.get(name, name)}{f' ({key})' if key else ''}{where}"
            cause = Cause(label, before, after, after - before, kind=_kind(name), phase=scope.phase)
            cause.text = text
            causes.append(cause)
    return causes


def _by_name(budget: Budget) -> dict[str, list[BudgetPart]]:
    found: dict[str, list[BudgetPart]] = {}
    for part in budget.parts:
        found.setdefault(part.name, []).append(part)
    return found


def _joined_dispatch(a: dict[str, list[BudgetPart]], b: dict[str, list[BudgetPart]], factor: float) -> None:
    """Where launching and other host work change in opposite directions, take them together."""
    change = {
        name: math.fsum(part.seconds for part in b.get(name, [])) * factor
        - math.fsum(part.seconds for part in a.get(name, []))
        for name in _DISPATCH
    }
    if change["launch"] * change["host"] >= 0:
        return
    for side in (a, b):
        parts = [part for name in _DISPATCH for part in side.pop(name, [])]
        if parts:
            seconds = math.fsum(part.seconds for part in parts)
            share = math.fsum(part.share_ratio for part in parts)
            side["host"] = [BudgetPart("host", seconds, share, max(parts, key=lambda one: one.seconds).owner)]


def _by_owner(
    a: Sequence[BudgetPart], b: Sequence[BudgetPart]
) -> list[tuple[str | None, list[BudgetPart], list[BudgetPart]]]:
    """Tell parts of one name apart by their owners where a side does."""
    if max(len(a), len(b)) < 2:
        return [(None, list(a), list(b))]
    kinds = dict.fromkeys(part.owner.what if part.owner else None for part in (*a, *b))

    def of(parts: Sequence[BudgetPart], what: str | None) -> list[BudgetPart]:
        return [part for part in parts if (part.owner.what if part.owner else None) == what]

    return [(what, of(a, what), of(b, what)) for what in kinds]


def _owner(parts: Sequence[BudgetPart]) -> IdleOwner | None:
    owned = [part for part in parts if part.owner is not None]
    return max(owned, key=lambda part: part.seconds).owner if owned else None


def _kind(name: str) -> CauseKind:
    return "communication" if name == "communication" else "copy" if name == "copy" else "idle"


def _text(
    name: str,
    before: float,
    after: float,
    owner: IdleOwner | None,
    scope: Scope,
    a: Summary,
    b: Summary,
    where: str,
) -> str:
    longer = "longer" if after > before else "less"
    if name == "communication":
        said = _communication(a.communication, b.communication, scope.factor)
        return f"communication that nothing overlaps{where} takes {'longer' if after > before else 'less time'}{said}"
    if name == "copy":
        return f"copies that nothing overlaps{where} take {'longer' if after > before else 'less time'}{_copies(a, b, scope.factor)}"
    return f"the device{where} waits {longer} {_WAITS.get(name, f'({name})')}{_owned(owner)}"


def _owned(owner: IdleOwner | None) -> str:
    if owner is None:
        return ""
    inside = f" in `{owner.range}`" if owner.range else ""
    return f" ({owner.what}{inside})"


def _communication(a: Communication | None, b: Communication | None, factor: float) -> str:
    """Say whether the collectives became longer or are merely overlapped less, and which of them it is."""
    if a is None or b is None:
        return "" if a is b else f": only {'B' if a is None else 'A'} has collectives"
    left = {row.name: row for row in a.collectives}
    right = {row.name: row for row in b.collectives}
    changes = {
        name: (right[name].exposed_s * factor if name in right else 0.0)
        - (left[name].exposed_s if name in left else 0.0)
        for name in dict.fromkeys((*left, *right))
    }
    named = f"`{max(changes, key=lambda name: abs(changes[name]))}`" if changes else "the collectives"
    exposed, total = b.exposed_s * factor - a.exposed_s, b.total_s * factor - a.total_s
    if abs(total) <= _SAME_LENGTH * abs(exposed):
        return f" ({named}; the collectives are as long as before, but overlap {'less' if exposed > 0 else 'more'})"
    ratio = b.total_s * factor / a.total_s if a.total_s else None
    return f" ({named}; the collectives take {more_or_less_time(ratio)} in all)"


def _copies(a: Summary, b: Summary, factor: float) -> str:
    """Say how many bytes were copied, where both captures know."""
    one, two = a.metrics.get("copy_bytes"), b.metrics.get("copy_bytes")
    if not one or not two:
        return ""
    ratio = two * factor / one
    if abs(ratio - 1) < 0.01:
        return " (as many bytes)"
    return f" ({units.size(two * factor)} instead of {units.size(one)})"
