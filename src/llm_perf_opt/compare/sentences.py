"""A conclusion in one sentence: how much faster at equal work, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llm_perf_opt.analysis.metrics import WHOLE_RUN, Samples, Series
from llm_perf_opt.compare.data import Cause, CauseKind, Conclusion, SampleChange, Split, Verdict, Work
from llm_perf_opt.compare.work import Scaling
from llm_perf_opt.core import units
from llm_perf_opt.summary import Kernel, Summary
from llm_perf_opt.summary.statistics import percentile

_NO_CHANGE = 0.01
"""Changes of a capture below this are not distinguished from those between two captures of the same program."""
_LEAST_SHARE = 0.1
"""Of the change: further causes that are worth their place in the sentence."""
_AGAINST_SHARE = 0.25
_MOST_NAMED = 3
_LEAST_OF_WHOLE = 0.01
"""Of the whole: causes that cancel each other are reported from here on."""


def verdict_of(found: Conclusion) -> Verdict:
    """Return the direction of the change at equal work."""
    if found.ratio is None:
        return "undecided"
    if abs(found.ratio - 1) < _NO_CHANGE:
        return "no change"
    if abs(found.ratio - 1) < found.work.uncertainty_ratio:
        return "not shown"
    return "faster" if found.ratio < 1 else "slower"


def captured_sentence(found: Conclusion) -> str:
    """Return the first sentence of a conclusion from captures."""
    work, unit = found.work, found.work.unit or "unit of work"
    less = _work_difference(work)
    if found.verdict == "not shown":
        known = f"the work is known to {units.percent(work.uncertainty_ratio)} only"
        head = f"{less}; per" if less else "Per"
        return (
            f"{head} {unit} no change is shown ({_instead(found, 'against')}; {known}){_moved(found, '; ')}."
        )
    if found.verdict == "no change":
        opposed = _cancelled(found)
        head = f"{less}; per" if less else "Per"
        same = f"{head} {unit} nothing changed{' in sum' if opposed else ''} ({_instead(found, 'against')})"
        return f"{same}{opposed}{_moved(found, '; ')}."
    caveat = (
        ""
        if work.confirmed
        else f" (if a {unit} is the same work on both sides, which the kernels do not show)"
    )
    change = f"{speed(found.ratio)} per {unit}{caveat}: {_instead(found, 'instead of')}"
    head = f"{less} and is {change}" if less else f"B is {change}"
    return f"{head}{because(found)}.{_moved(found, ' ')}{'.' if found.moved else ''}"


def speed(ratio: float | None) -> str:
    """``0.88`` → ``12.0 % faster``; beyond a factor of two as one."""
    if ratio is None or ratio <= 0:
        return "not comparable"
    if ratio >= 2:
        return f"{units.number(ratio)} times slower"
    if ratio <= 0.5:
        return f"{units.number(1 / ratio)} times faster"
    return f"{units.percent(abs(ratio - 1))} {'faster' if ratio < 1 else 'slower'}"


def _work_difference(work: Work) -> str:
    """``B holds 12.5 % less work (7 steps instead of 8)``; empty where the work is the same."""
    if work.ratio is None:
        return "B does a different mix of work" if work.phases else ""
    if abs(work.ratio - 1) < 0.0005:
        return ""
    counted = (
        f"{units.count(work.b)} instead of {units.count(work.a)} {work.unit}s"
        if work.a is not None and work.b is not None
        else "launches of the same kernels"
        if work.basis == "launches"
        else ""
    )
    share = units.percent(abs(work.ratio - 1))
    text = f"B does {share} {'more' if work.ratio > 1 else 'less'} work"
    return f"{text} ({counted})" if counted else text


def because(found: Conclusion) -> str:
    """``, because … (+6.00 ms, 98 % of the change)``; empty if no cause has the direction of the change."""
    change_s = found.change_s or 0.0
    along = [cause for cause in found.causes if cause.change_s * change_s > 0]
    named = [
        cause
        for place, cause in enumerate(along[:_MOST_NAMED])
        if place == 0 or abs(cause.change_s) >= _LEAST_SHARE * abs(change_s)
    ]
    if not named:
        return ""
    against = [
        cause
        for cause in found.causes
        if cause.change_s * change_s < 0 and abs(cause.change_s) >= _AGAINST_SHARE * abs(change_s)
    ]
    text = ", because " + " and ".join(_reported(cause, found, shares=True) for cause in named)
    if against:
        text += f"; against it, {_reported(against[0], found)}"
    return text


def signed_seconds(value: float) -> str:
    """``-0.002`` → ``−2.00 ms``."""
    return f"{'+' if value >= 0 else '−'}{units.seconds(abs(value))}"


def _reported(cause: Cause, found: Conclusion, *, shares: bool = False) -> str:
    """Describe a cause with its size; for several units, per unit and in total. A wall-clock already covers one answer."""
    size, work = signed_seconds(cause.change_s), found.work
    if work.a is not None and work.a > 1 and found.whole != "wall_clock":
        size = f"{signed_seconds(cause.change_s / work.a)} per {work.unit}, {size} in all"
    if shares and cause.share_ratio is not None and cause.share_ratio < 0.9995:
        size += f", {units.percent(cause.share_ratio)} of the change"
    return f"{cause.text or cause.name} ({size})"


def _instead(found: Conclusion, word: str) -> str:
    """Both lengths, per unit where units were counted."""
    per = found.work.a or 1.0
    if found.a_s is None or found.b_s is None:
        return ""
    return f"{units.seconds(found.b_s / per)} {word} {units.seconds(found.a_s / per)}"


def _cancelled(found: Conclusion) -> str:
    """Name the largest causes of either direction where they cancel each other."""
    least = _LEAST_OF_WHOLE * (found.a_s or 0.0)
    up = next((cause for cause in found.causes if cause.change_s >= least > 0), None)
    down = next((cause for cause in found.causes if -cause.change_s >= least > 0), None)
    if up is None or down is None:
        return ""
    return f": {_reported(down, found)}, but {_reported(up, found)}"


def _moved(found: Conclusion, joint: str) -> str:
    if not found.moved:
        return ""
    first = found.moved[0]
    also = [move.text for move in found.moved[1:] if move.came_s >= 0.5 * first.came_s]
    text = "; ".join([first.text, *also])
    return f"{joint}{text if joint.startswith(';') else text[0].upper() + text[1:]}"


# Sources of a change: by sample, and by part of the whole.


_PAIRED = ("total", "ttft", "tpot")
_ANSWER_PARTS = ("vision", "encode", "prefill", "decode")
_PARTS = ("preprocess", *_ANSWER_PARTS)
_MOST_FAMILIES = 8
WALL_CLOCK, KERNELS = "wall_clock", "kernel_time"
_MORE_STEPS: CauseKind = "steps"
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
    """Build a split from causes; the end value is the start plus all causes."""
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


def answer_at_equal_work(a: Mapping[str, Series], b: Mapping[str, Series]) -> Split | None:
    """Split the time of an answer by phase; ``b`` holds B's times at A's number of decode steps.

    Its ends are those of the metric ``total``. A median of sums is not the sum of medians, and the remainder is not listed as a part.
    """
    one, two = _medians(a.get("total")), _medians(b.get("total"))
    common = [sample for sample in one if sample in two]
    if not common:
        return None
    causes = []
    for name in _ANSWER_PARTS:
        before, after = _medians(a.get(name)), _medians(b.get(name))
        if all(sample in before and sample in after for sample in common):
            start, end = _mean(before, common), _mean(after, common)
            causes.append(Cause(name, start, end, end - start))
    return Split(WALL_CLOCK, _mean(one, common), _mean(two, common), causes)


def _steps(summary: Summary) -> float | None:
    """Mean decode steps of a sample; none where one token, or nothing, was generated."""
    tokens = summary.workload.new_tokens
    return tokens - 1 if tokens and tokens > 1 else None


def _decode(before: float, after: float, steps_a: float | None, steps_b: float | None) -> list[Cause]:
    if not steps_a or not steps_b or round(steps_a) == round(steps_b):
        return [Cause("decode", before, after, after - before)]
    # B's steps at A's speed come first; the remainder is due to speed.
    between = before / steps_a * steps_b
    more = "more" if steps_b > steps_a else "fewer"
    return [
        Cause(
            f"decode: {abs(steps_b - steps_a):.0f} {more} steps",
            before,
            between,
            between - before,
            kind=_MORE_STEPS,
        ),
        Cause("decode: time of a step", between, after, after - between),
    ]


def _by_family(a: Sequence[Kernel], b: Sequence[Kernel], scaling: Scaling) -> Split | None:
    factors = {kernel.phase: scaling.factor(kernel.phase) for kernel in b}
    if any(factor is None for factor in factors.values()):
        return None  # the work of the captures is unknown, so a difference of their times is meaningless
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
