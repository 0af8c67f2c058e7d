"""Where a change comes from: sample by sample, and part by part of the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llm_perf_opt.analysis.compare.conclusion.work import Scaling
from llm_perf_opt.analysis.compare.metrics import WHOLE_RUN
from llm_perf_opt.analysis.compare.series import Samples, Series
from llm_perf_opt.model.comparison import SampleChange, Split
from llm_perf_opt.model.conclusion import Cause, CauseKind
from llm_perf_opt.model.statistics import percentile
from llm_perf_opt.model.summary import Kernel, Summary

_PAIRED = ("total", "ttft", "tpot")
_PARTS = ("preprocess", "vision", "encode", "prefill", "decode")
_MOST_FAMILIES = 8
WALL_CLOCK, KERNELS = "wall_clock", "kernel_time"
MORE_STEPS: CauseKind = "steps"
"""Kind of the cause that is another amount of work."""


def pair_samples(a: Mapping[str, Series], b: Mapping[str, Series]) -> list[SampleChange]:
    """Return each sample that both sides measured, with the medians of its repeats."""
    found = []
    for metric in _PAIRED:
        one, two = _medians(a.get(metric)), _medians(b.get(metric))
        found += [
            SampleChange(sample, metric, one[sample], two[sample], two[sample] / one[sample])
            for sample in one
            if sample in two and sample != WHOLE_RUN
        ]
    return found


def find_causes(
    a: Mapping[str, Series], b: Mapping[str, Series], first: Summary, second: Summary, scaling: Scaling
) -> list[Split]:
    """Split the change of a sample's wall-clock by phase, and that of the kernel time at equal work by family."""
    steps = (_steps(first), _steps(second))
    found = (_by_phase(a, b, steps), _by_family(first.kernels, second.kernels, scaling))
    return [split for split in found if split is not None]


def _split(whole: str, before: float, causes: list[Cause]) -> Split | None:
    """Put causes together; the end of the whole is where they lead."""
    return Split(whole, before, before + sum(cause.change_s for cause in causes), causes) if causes else None


def _by_phase(
    a: Mapping[str, Series], b: Mapping[str, Series], steps: tuple[float | None, float | None]
) -> Split | None:
    """Means over the common samples of their medians; decode is split into how many steps and how long each is."""
    causes: list[Cause] = []
    whole = 0.0
    for name in _PARTS:
        one, two = _medians(a.get(name)), _medians(b.get(name))
        common = [sample for sample in one if sample in two]
        if not common:
            continue
        before, after = _mean(one, common), _mean(two, common)
        whole += before
        if name == "decode":
            causes += _decode(before, after, *steps)
        else:
            causes.append(Cause(name, before, after, after - before))
    return _split(WALL_CLOCK, whole, causes)


def _steps(summary: Summary) -> float | None:
    """Mean decode steps of a sample; none where one token, or nothing, was generated."""
    tokens = summary.workload.new_tokens
    return tokens - 1 if tokens and tokens > 1 else None


def _decode(before: float, after: float, steps_a: float | None, steps_b: float | None) -> list[Cause]:
    if not steps_a or not steps_b or round(steps_a) == round(steps_b):
        return [Cause("decode", before, after, after - before)]
    # Steps of B at the speed of A come first; what is left is the speed.
    between = before / steps_a * steps_b
    more = "more" if steps_b > steps_a else "fewer"
    return [
        Cause(
            f"decode: {abs(steps_b - steps_a):.0f} {more} steps",
            before,
            between,
            between - before,
            kind=MORE_STEPS,
        ),
        Cause("decode: time of a step", between, after, after - between),
    ]


def _by_family(a: Sequence[Kernel], b: Sequence[Kernel], scaling: Scaling) -> Split | None:
    factors = {kernel.phase: scaling.factor(kernel.phase) for kernel in b}
    if any(factor is None for factor in factors.values()):
        return None  # the work of the captures is not known: a difference of their times says nothing
    one, two = _families(a, {}), _families(b, factors)
    if not one or not two:
        return None
    changes = sorted(
        ((two.get(name, 0.0) - one.get(name, 0.0), name) for name in dict.fromkeys((*one, *two))),
        key=lambda each: (-abs(each[0]), each[1]),
    )
    shown = [name for _, name in changes[:_MOST_FAMILIES]]
    causes = [
        Cause(name, one.get(name, 0.0), two.get(name, 0.0), two.get(name, 0.0) - one.get(name, 0.0))
        for name in shown
    ]
    rest = [name for _, name in changes[_MOST_FAMILIES:]]
    if rest:
        before, after = sum(one.get(n, 0.0) for n in rest), sum(two.get(n, 0.0) for n in rest)
        causes.append(Cause(f"{len(rest)} other families", before, after, after - before))
    return _split(KERNELS, sum(one.values()), causes)


def _families(kernels: Sequence[Kernel], factors: Mapping[str | None, float | None]) -> dict[str, float]:
    found: dict[str, float] = {}
    for kernel in kernels:
        if kernel.total_s is not None:
            seconds = kernel.total_s * (factors.get(kernel.phase) or 1.0)
            found[kernel.family] = found.get(kernel.family, 0.0) + seconds
    return found


def _medians(series: Series | None) -> dict[str, float]:
    """Sample → median over all repeats of all runs, for samples that every run measured."""
    runs: Sequence[Samples] = [run for run in series.runs if run] if series is not None else []
    if not runs:
        return {}
    found = {}
    for sample in runs[0]:
        if all(sample in run for run in runs):
            values = sorted(value for run in runs for value in run[sample] if value > 0)
            if values:
                found[sample] = percentile(values, 0.5)
    return found


def _mean(values: Mapping[str, float], samples: Sequence[str]) -> float:
    return sum(values[sample] for sample in samples) / len(samples)
