"""Why a capture takes longer or shorter than another: at equal work, part by part, kernel by kernel, device by device.

The parts of the budget add up to the span, so their changes add up to its change. Compute is taken apart further into
what changed about the kernels; what these leave, because kernels overlap, has a row of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from llm_perf_opt.analysis.compare.conclusion.devices import compare_devices, find_moved
from llm_perf_opt.analysis.compare.conclusion.kernel_causes import kernel_causes, kernel_effects
from llm_perf_opt.analysis.compare.conclusion.part_causes import part_causes
from llm_perf_opt.analysis.compare.conclusion.scopes import Scope, find_scopes
from llm_perf_opt.analysis.compare.conclusion.sentences import captured_sentence, verdict_of
from llm_perf_opt.analysis.compare.conclusion.work import Scaling
from llm_perf_opt.model.comparison import KernelChange
from llm_perf_opt.model.conclusion import Cause, Conclusion, Work
from llm_perf_opt.model.summary import Summary

COMMUNICATION = "communication"
"""Family of the kernels and name of the budget's part."""
_LEAST_OF_COMPUTE, _MOST_OF_COMPUTE = 0.5, 3.0
"""Kernel time ÷ compute time of captures whose kernels miss a little, or overlap a lot."""
_ROUNDING = 1e-6
"""Of the whole: changes below this are left to the remainder."""
_OVERLAP_SHARE = 0.001
"""Of the whole: less overlap than this is rounding, and goes to the remainder."""


def conclude_captures(
    a: Summary, b: Summary, kernels: Sequence[KernelChange], work: Work
) -> Conclusion | None:
    """Conclude from the captures of both sides; ``None`` where a side has none."""
    if not (a.kernels and b.kernels):
        return None
    scaling = Scaling(work)
    scopes = find_scopes(a, b, scaling, kernels)
    if scopes:
        found = _from_budgets(a, b, scopes, work)
    elif work.basis is not None and not (a.budget and b.budget):
        found = _from_kernels(kernels, scaling, work)
    else:
        return Conclusion(
            "captured_time", "undecided", f"No conclusion from the captures. {work.text}.", work
        )
    found.verdict = verdict_of(found)
    _rank(found)
    _add_devices(found, a, b, scaling)
    found.sentence = captured_sentence(found)
    return found


def _from_budgets(a: Summary, b: Summary, scopes: Sequence[Scope], work: Work) -> Conclusion:
    devices = (max(1, len(a.devices)), max(1, len(b.devices)))
    phases = len(scopes) > 1
    causes: list[Cause] = []
    for scope in scopes:
        causes += part_causes(scope, a, b, phases=phases)
        causes += _compute_causes(scope, devices, phases=phases)
    before, after = math.fsum(s.a_s for s in scopes), math.fsum(s.b_s for s in scopes)
    measured = math.fsum(scope.b.span_s for scope in scopes)
    return Conclusion(
        "captured_time",
        "undecided",
        "",
        work,
        a_s=before,
        b_s=after,
        b_measured_s=measured,
        change_s=after - before,
        ratio=after / before if before else None,
        causes=causes,
    )


def _compute_causes(scope: Scope, devices: tuple[int, int], *, phases: bool) -> list[Cause]:
    """Split the change of the time in which kernels run; without kernels in the table it stays one cause."""
    a_s, b_s = (
        math.fsum(part.seconds for part in budget.parts if part.name == "compute")
        for budget in (scope.a, scope.b)
    )
    b_s *= scope.factor
    apart = any(part.name == COMMUNICATION for budget in (scope.a, scope.b) for part in budget.parts)
    rows = [row for row in scope.kernels if not (apart and row.family == COMMUNICATION)]
    where = f" in {scope.phase}" if phases and scope.phase else ""
    sum_a = math.fsum(row.a_s or 0.0 for row in rows) / devices[0]
    sum_b = math.fsum(row.b_s or 0.0 for row in rows) * scope.factor / devices[1]
    if not _explains(sum_a, a_s) or not _explains(sum_b, b_s):
        longer = "longer" if b_s > a_s else "shorter"
        cause = Cause(f"compute{where}", a_s, b_s, b_s - a_s, kind="device", phase=scope.phase)
        cause.text = f"kernels{where} run {longer}"
        return [cause]
    effects = kernel_effects(rows, lambda _: scope.factor, devices=devices)
    causes = kernel_causes(effects, phases=phases)
    saved_a, saved_b = a_s - sum_a, b_s - sum_b
    if abs(saved_b - saved_a) > _OVERLAP_SHARE * max(scope.a_s, scope.b_s):
        causes.append(
            Cause(
                f"overlap of kernels{where}",
                saved_a,
                saved_b,
                saved_b - saved_a,
                kind="overlap",
                phase=scope.phase,
                text=f"kernels{where} overlap {'less' if saved_b > saved_a else 'more'}",
            )
        )
    return causes


def _explains(kernels_s: float, compute_s: float) -> bool:
    """Whether a table of kernels can be that of the time in which kernels ran: it may come from another capture."""
    return _LEAST_OF_COMPUTE * compute_s <= kernels_s <= _MOST_OF_COMPUTE * compute_s


def _from_kernels(kernels: Sequence[KernelChange], scaling: Scaling, work: Work) -> Conclusion:
    """Tables of kernels without a time axis: their time is the whole."""
    known = [row for row in kernels if scaling.factor(row.phase) is not None]
    before = math.fsum(row.a_s or 0.0 for row in known)
    after = math.fsum((row.b_s or 0.0) * (scaling.factor(row.phase) or 1.0) for row in known)
    phases = len({row.phase for row in known}) > 1
    return Conclusion(
        "kernel_time",
        "undecided",
        "",
        work,
        a_s=before,
        b_s=after,
        b_measured_s=math.fsum(row.b_s or 0.0 for row in known),
        change_s=after - before,
        ratio=after / before if before else None,
        causes=kernel_causes(kernel_effects(known, scaling.factor), phases=phases),
    )


def _rank(found: Conclusion) -> None:
    """Put the largest change first, give each its share, and say what is left."""
    change = found.change_s or 0.0
    found.causes = sorted(
        (cause for cause in found.causes if abs(cause.change_s) > _ROUNDING * (found.a_s or 0.0)),
        key=lambda cause: (-abs(cause.change_s), cause.name),
    )
    for cause in found.causes:
        cause.share_ratio = cause.change_s / change if found.verdict != "no change" else None
    found.remainder_s = change - math.fsum(cause.change_s for cause in found.causes)


def _add_devices(found: Conclusion, a: Summary, b: Summary, scaling: Scaling) -> None:
    factor = scaling.factor(None)
    if factor is None or found.whole != "captured_time":
        return
    found.devices = compare_devices(a, b, factor)
    found.moved = find_moved(found.devices, max(found.a_s or 0.0, found.b_s or 0.0))
    one, two = (side.communication.straggler if side.communication else None for side in (a, b))
    if one is not None and two is not None and one != two:
        found.details.append(f"The ranks now wait most for rank {two}; in A they waited for rank {one}.")
