"""Totals over several captures of one run (one per range), which each know only their own part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from llm_perf_opt.analysis.kernels.chains import CHAIN_METRICS
from llm_perf_opt.analysis.kernels.families import OTHER
from llm_perf_opt.core.phases import DECODE, WHOLE
from llm_perf_opt.model.summary import Budget, BudgetPart, Kernel


def kernel_totals(kernels: Sequence[Kernel]) -> dict[str, float | None]:
    """Return the metrics that sum over all kernels."""
    total = sum(kernel.total_s or 0.0 for kernel in kernels)
    launches = sum(kernel.launches or 0 for kernel in kernels)
    unknown = sum(kernel.total_s or 0.0 for kernel in kernels if kernel.family == OTHER)
    return {
        "kernel_time_s": total,
        "kernel_launches": float(launches),
        "mean_kernel_s": total / launches if launches else None,
        "unclassified_kernel_time_ratio": unknown / total if total else None,
    }


def token_metrics(kernels: Sequence[Kernel], decode_steps: float | None) -> dict[str, float | None]:
    """Launches per token: the launches of decode ÷ its steps in the capture (``None``: not known).

    Launches that are not known to be decode's are not divided by tokens: the whole of a run holds prefill and vision too.
    """
    decode = [kernel.launches or 0 for kernel in kernels if kernel.phase == DECODE]
    launches = float(sum(decode)) if decode else None
    per_token = launches / decode_steps if launches is not None and decode_steps else None
    return {"decode_launches": launches, "launches_per_token": per_token}


def decode_steps_captured(counted: int | None, passes: int | None, new_tokens: float | None) -> float | None:
    """Return the decode steps in a capture: those it counts itself, else of the passes it holds.

    The first token of a pass comes from prefill.
    """
    if counted:
        return float(counted)
    return passes * (new_tokens - 1) if passes and new_tokens and new_tokens > 1 else None


_COPY_METRICS = (
    "copies",
    "copy_s",
    "copy_launches",
    "copy_bytes",
    "memset_s",
    "memset_launches",
    "memset_bytes",
)
Metrics = Mapping[str, float | None]


def joined_copies(*captures: Metrics) -> dict[str, float | None]:
    """Add up what captures of different ranges say of copies, memsets and chains; what none says stays unknown."""
    found: dict[str, float | None] = {}
    for name in (*_COPY_METRICS, *CHAIN_METRICS):
        known = [value for metrics in captures if (value := metrics.get(name)) is not None]
        if known:
            found[name] = sum(known)
    return found


def joined_attribution(*captures: tuple[float | None, Metrics]) -> float | None:
    """Weigh the attributed share of every capture by its device time."""
    known = [
        (ratio, sum(metrics.get(name) or 0.0 for name in ("kernel_time_s", "copy_s", "memset_s")))
        for ratio, metrics in captures
        if ratio is not None
    ]
    device_s = sum(seconds for _, seconds in known)
    return sum(ratio * seconds for ratio, seconds in known) / device_s if device_s > 0 else None


def set_kernel_shares(kernels: Iterable[Kernel], total_s: float) -> None:
    """Make every kernel's share one of the common total, so that they add up to one."""
    for kernel in kernels:
        kernel.share_ratio = kernel.total_s / total_s if kernel.total_s is not None and total_s > 0 else None


def joined_budget(budgets: Mapping[str, Budget]) -> Budget | None:
    """Add up the phases: phases never overlap, so their sum is the whole of what was captured."""
    phases = [budget for phase, budget in budgets.items() if phase != WHOLE]
    span_s = sum(budget.span_s for budget in phases)
    if span_s <= 0:
        return None
    seconds: dict[str, float] = {}
    for part in (part for budget in phases for part in budget.parts):
        seconds[part.name] = seconds.get(part.name, 0.0) + part.seconds
    sources = dict.fromkeys(budget.source for budget in phases if budget.source)
    return Budget(
        span_s=span_s,
        parts=[BudgetPart(name, value, value / span_s) for name, value in seconds.items()],
        source=", ".join(sources) or None,
    )


def joined_busy_ratio(ratios: Mapping[str, float], budgets: Mapping[str, Budget]) -> float | None:
    """Weigh the busy share of every phase by its span."""
    known = [
        (ratios[phase], budget.span_s)
        for phase, budget in budgets.items()
        if phase != WHOLE and phase in ratios
    ]
    span_s = sum(span for _, span in known)
    return sum(ratio * span for ratio, span in known) / span_s if span_s > 0 else None
