"""Shares that reports show: of a sample's wall-clock, of kernel time by family, of a phase's operators.

They are computed once, here, so that every report prints the same number and no renderer divides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from llm_perf_opt.core.phases import WHOLE
from llm_perf_opt.summary import (
    Budget,
    BudgetPart,
    Kernel,
    KernelFamily,
    Operator,
    SampleTimes,
    Summary,
    Timings,
)

OF_SAMPLE = "a sample's wall-clock"
_OF_PROGRAM = "the program's wall-clock"
OF_SPAN = "the captured time"
OF_KERNELS = "the captured kernel time"


def wall_clock_split(timings: Timings, *, prefill_includes_vision: bool = False) -> Budget | None:
    """Split a sample's wall-clock by phase (medians); ``None`` when no phase was timed.

    A vision time that is already inside prefill is left out to avoid counting it twice.
    """
    stats = {
        "preprocess": timings.preprocess_s,
        "vision": None if prefill_includes_vision and timings.prefill_s is not None else timings.vision_s,
        "encode": timings.encode_s,
        "prefill": timings.prefill_s,
        "decode": timings.decode_s,
    }
    known = {name: stat.shown for name, stat in stats.items() if stat is not None}
    span = sum(known.values())
    if not span > 0:
        return None
    parts = [BudgetPart(name, seconds, seconds / span) for name, seconds in known.items()]
    return Budget(span_s=span, parts=parts, source=timings.source)


def kernel_families(kernels: Sequence[Kernel]) -> list[KernelFamily]:
    """Sum kernels by family, the longest first; kernels without a time are included with unknown time."""
    total = sum(kernel.total_s or 0.0 for kernel in kernels)
    families = []
    for name in dict.fromkeys(kernel.family for kernel in kernels):
        inside = [kernel for kernel in kernels if kernel.family == name]
        times = [kernel.total_s for kernel in inside if kernel.total_s is not None]
        launches = [kernel.launches for kernel in inside if kernel.launches is not None]
        seconds = sum(times) if times else None
        families.append(
            KernelFamily(
                family=name,
                kernels=len({kernel.name for kernel in inside}),
                launches=sum(launches) if launches else None,
                total_s=seconds,
                share_ratio=seconds / total if seconds is not None and total > 0 else None,
            )
        )
    return sorted(families, key=lambda family: (-(family.total_s or 0.0), family.family))


OUTSIDE_PHASES = "outside_phases"
GRAPH_DEVICE_S = "_graph_device_s"
"""Metrics of this ending: device time of a phase that lies behind graph launches, so that no operator claims it."""


def _unclaimed_device_s(metrics: Mapping[str, float | None], phase: str | None) -> float:
    """Return the device time of a phase that no operator claims."""
    return metrics.get(f"{phase or OUTSIDE_PHASES}{GRAPH_DEVICE_S}") or 0.0


def add_operator_shares(
    operators: Sequence[Operator], metrics: Mapping[str, float | None] | None = None
) -> None:
    """Set each operator's share of its phase: of self device time where there is any, else of self host time.

    Device time behind graph launches belongs to the phase and to no operator: shares are of all of it.
    """
    for phase in {operator.phase for operator in operators}:
        inside = [operator for operator in operators if operator.phase == phase]
        on_device = any(operator.self_device_s for operator in inside)
        own = [(op.self_device_s or 0.0) if on_device else op.self_cpu_s for op in inside]
        whole = sum(own) + (_unclaimed_device_s(metrics or {}, phase) if on_device else 0.0)
        for operator, seconds in zip(inside, own, strict=True):
            operator.share_ratio = seconds / whole if whole > 0 else None
            operator.share_of = "device" if on_device else "host"


def add_run_shares(
    operators: Sequence[Operator],
    wall_clock: Budget | None,
    metrics: Mapping[str, float | None] | None = None,
) -> None:
    """Set each operator's share of the run; needs its share of its phase.

    The profiled pass may be cut short, so its phases are weighed by the wall-clock of whole samples where all were timed.
    """
    weights = {part.name: part.share_ratio for part in wall_clock.parts} if wall_clock is not None else {}
    named = {operator.phase for operator in operators if operator.phase}
    if named and named <= set(weights):
        for operator in operators:
            if operator.phase and operator.share_ratio is not None:
                operator.run_share_ratio = operator.share_ratio * weights[operator.phase]
        return
    on_device = any(operator.self_device_s for operator in operators)
    own = [(op.self_device_s or 0.0) if on_device else op.self_cpu_s for op in operators]
    whole = sum(own)
    if on_device and metrics:
        whole += sum(value or 0.0 for name, value in metrics.items() if name.endswith(GRAPH_DEVICE_S))
    for operator, seconds in zip(operators, own, strict=True):
        operator.run_share_ratio = seconds / whole if whole > 0 else None


def by_run_share(operators: Sequence[Operator]) -> list[Operator]:
    """Return operators with the largest share of the run first, whatever their phase."""
    return sorted(operators, key=lambda operator: -(operator.run_share_ratio or 0.0))


def add_gain_shares(summary: Summary) -> None:
    """Express each finding's bound as a share of its whole, at most 1."""
    whole, of = _whole(summary)
    for finding in summary.findings:
        if finding.gain_upper_s is None or whole is None:
            continue
        finding.gain_share_ratio = min(1.0, finding.gain_upper_s / whole)
        finding.gain_of = of


def _whole(summary: Summary) -> tuple[float | None, str | None]:
    if summary.wall_clock is not None:
        return summary.wall_clock.span_s, OF_SAMPLE
    if summary.timings.program_s is not None:
        return summary.timings.program_s.shown, _OF_PROGRAM
    captured = summary.budget.get(WHOLE)
    if captured is not None and captured.span_s > 0:
        return captured.span_s, OF_SPAN
    spans = sum(budget.span_s for budget in summary.budget.values())
    if spans > 0:
        return spans, OF_SPAN
    kernels = summary.metrics.get("kernel_time_s")
    return (kernels, OF_KERNELS) if kernels else (None, None)


def add_shares(summary: Summary, *, prefill_includes_vision: bool = False) -> None:
    """Fill every share of a summary whose timings, kernels, operators and findings are in place."""
    summary.wall_clock = wall_clock_split(summary.timings, prefill_includes_vision=prefill_includes_vision)
    summary.kernel_families = kernel_families(summary.kernels)
    add_operator_shares(summary.operators, summary.metrics)
    add_run_shares(summary.operators, summary.wall_clock, summary.metrics)
    add_gain_shares(summary)


# Comparison of samples: whether they have one size, and the spread of their medians.


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
    """Return how a time (``ttft_s``) differs from sample to sample; ``None`` if sizes are equal or it is unknown."""
    known = [value for sample in samples if (value := getattr(sample, name)) is not None]
    return Span(min(known), max(known)) if len(known) > 1 and sizes_differ(samples) else None
