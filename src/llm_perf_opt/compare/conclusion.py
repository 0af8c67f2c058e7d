"""Conclusions of a comparison: from the wall-clock first, then from captures, each at equal work."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llm_perf_opt.analysis.metrics import SHOWN_CHANGE
from llm_perf_opt.compare.captures import conclude_captures
from llm_perf_opt.compare.data import Cause, Comparison, Conclusion, MetricChange, Split, Verdict, Work
from llm_perf_opt.compare.sentences import because, speed
from llm_perf_opt.core import units
from llm_perf_opt.core.units import format_signed_percent
from llm_perf_opt.summary import Summary

# The conclusion from the wall-clock: time of an answer at equal work, phase by phase, as far as the repeats show it.


_WHOLES = {
    "total": "per answer",
    "decode": "in decode",
    "ttft": "to the first token",
    "program": "in the whole program",
}
"""Metrics that can stand for the whole, the best first."""
_OTHER_BATCH = "tokens_per_s"


def _conclude_wall_clock(
    a: Summary,
    b: Summary,
    metrics: Sequence[MetricChange],
    answer: Split | None,
    b_measured_s: float | None = None,
) -> Conclusion | None:
    """Conclude from the timings of both sides; ``None`` where a side was not timed.

    ``answer``: the time of an answer by phase, at A's work; ``b_measured_s``: B's with its own work.
    """
    batches = (a.workload.batch_size, b.workload.batch_size)
    other_batch = None not in batches and batches[0] != batches[1]
    names = (_OTHER_BATCH,) if other_batch else tuple(_WHOLES)
    known = {row.name: row for row in metrics if row.ratio is not None and row.a and row.b}
    metric = next((known[name] for name in names if name in known), None)
    if metric is None or metric.ratio is None:
        return None
    work = _work(a, b, other_batch=other_batch)
    if metric.name == _OTHER_BATCH:
        return _per_token(metric, work)
    found = Conclusion("wall_clock", _verdict(metric, metric.ratio), "", work, ratio=metric.ratio)
    _fill(found, metric, answer if metric.name == "total" else None, b_measured_s)
    found.sentence = _sentence(found, metric)
    found.details = _prompts(a, b)
    return found


def _work(a: Summary, b: Summary, *, other_batch: bool) -> Work:
    one, two = a.workload.new_tokens, b.workload.new_tokens
    if other_batch:
        sizes = (a.workload.batch_size, b.workload.batch_size)
        text = f"Counted in generated tokens: batches of {units.count(sizes[1])} in B, {units.count(sizes[0])} in A"
        return Work("tokens", "generated token", None, None, None, text)
    if not one or not two:
        return Work(None, "answer", None, None, None, "Time of a sample; the tokens generated are not known")
    ratio = (two - 1) / (one - 1) if one > 1 and two > 1 else two / one
    text = (
        f"Time of a sample with {units.number(one)} generated tokens"
        if ratio == 1
        else f"Time of a sample, B's decode taken at A's {units.number(one)} generated tokens (B generated "
        f"{units.number(two)})"
    )
    return Work("tokens", "answer", one, two, ratio, text)


def _per_token(metric: MetricChange, work: Work) -> Conclusion:
    """Compare the cost per generated token, for batches of different size."""
    a_s, b_s = 1 / (metric.a or math.nan), 1 / (metric.b or math.nan)
    ratio = 1 / (metric.ratio or math.nan)
    found = Conclusion("wall_clock", _verdict(metric, ratio), "", work, a_s, b_s, b_s, b_s - a_s, ratio)
    found.remainder_s = found.change_s
    lengths = f"{units.seconds(b_s)} instead of {units.seconds(a_s)}"
    if found.verdict in ("faster", "slower"):
        found.sentence = f"B is {speed(ratio)} per generated token: {lengths}. {work.text}."
    else:
        found.sentence = f"B takes {lengths} per generated token; tokens per second {_describe_significance(metric)}. {work.text}."
    return found


def _verdict(metric: MetricChange, ratio: float) -> Verdict:
    if metric.outcome in ("better", "worse"):
        return "faster" if ratio < 1 else "slower"
    return "not shown" if metric.outcome == "no difference shown" else "undecided"


def _fill(
    found: Conclusion, metric: MetricChange, answer: Split | None, b_measured_s: float | None = None
) -> None:
    """Take the parts of an answer as causes; both ends are the values of the metric."""
    found.a_s, found.b_s = metric.a, metric.b
    found.b_measured_s = metric.b if b_measured_s is None else b_measured_s
    change = found.change_s = found.remainder_s = (metric.b or 0.0) - (metric.a or 0.0)
    if answer is None:
        return
    kept = [cause for cause in answer.causes if cause.change_s]
    found.causes = [
        Cause(
            cause.name,
            cause.a_s,
            cause.b_s,
            cause.change_s,
            cause.change_s / change if change else None,
            "phase",
            text=f"{cause.name} takes {'longer' if cause.change_s > 0 else 'less time'}",
        )
        for cause in sorted(kept, key=lambda cause: -abs(cause.change_s))
    ]
    found.remainder_s = change - math.fsum(cause.change_s for cause in found.causes)


def _sentence(found: Conclusion, metric: MetricChange) -> str:
    where = _WHOLES[metric.name]
    lengths = f"{units.seconds(found.b_s)} instead of {units.seconds(found.a_s)}"
    text = _less_work(found.work)
    who = "it" if text else "B"
    if found.verdict in ("not shown", "undecided"):
        takes = f"{text}{who} takes {lengths} {where}"
        return f"{takes}: {_describe_significance(metric)}."
    interval = _describe_interval(metric)
    sure = f" ({interval}{_describe_p(metric)})" if interval else ""
    return f"{text}{who} is {speed(metric.ratio)} {where}{sure}: {lengths}{because(found)}."


def _describe_interval(metric: MetricChange) -> str:
    """``95 % interval −80 % to +30 %``; empty without one."""
    if metric.low_ratio is None or metric.high_ratio is None:
        return ""
    return f"95 % interval {format_signed_percent(metric.low_ratio)} to {format_signed_percent(metric.high_ratio)}"


def _describe_p(metric: MetricChange) -> str:
    """``, p = 0.008``; empty without a test."""
    return "" if metric.p_value is None else f", {units.format_p_value(metric.p_value)}"


def _describe_significance(metric: MetricChange) -> str:
    """``−31 % (95 % interval −80 % to +30 %): not significant after 4 repeats; 12 would show a 20 % change``."""
    interval = _describe_interval(metric)
    change = f"{format_signed_percent(metric.ratio or 1.0)}{f' ({interval}{_describe_p(metric)})' if interval else ''}"
    kind = metric.blocks or "repeats"
    after = (
        f"not significant after {metric.n} {kind}"
        if metric.p_value is not None
        else f"{metric.n} {kind} are too few for a test"
        if metric.n > 1
        else "measured once, too few for a test"
    )
    needed = metric.n_to_show
    more = (
        f"; about {needed} {kind} would show a change of {round(SHOWN_CHANGE * 100)} %"
        if needed is not None and needed > metric.n
        else ""
    )
    return f"{change}, {after}{more}"


def _less_work(work: Work) -> str:
    if work.ratio is None or abs(work.ratio - 1) < 0.0005:
        return ""
    share = units.percent(abs(work.ratio - 1))
    return f"B makes {share} {'more' if work.ratio > 1 else 'fewer'} decode steps; at equal work "


def _prompts(a: Summary, b: Summary) -> list[str]:
    one, two = a.workload.prompt_tokens, b.workload.prompt_tokens
    if not one or not two or one == two:
        return []
    return [
        f"Prompts have {units.number(two)} positions in B and {units.number(one)} in A "
        f"({format_signed_percent(two / one)}): vision and prefill are those of each side's own prompts."
    ]


_UNLIKE = ("hardware", "ranks", "model", "architecture")
"""Differences that come before any conclusion: the sides are not the same program on the same machine."""
_OTHER = ("model", "architecture", "hardware", "ranks", "captured steps", "graphs", "weights", "dtype")
"""Differences that are a cause of their own."""


def conclude(
    result: Comparison,
    a: Summary,
    b: Summary,
    work: Work,
    *,
    failed: list[str],
    answer: Split | None = None,
    b_measured_s: float | None = None,
) -> None:
    """Add conclusions and the first sentence to a comparison that holds metrics, splits and kernels already."""
    if failed:
        result.sentence = f"No conclusion: {failed[0]}"
        return
    found = (
        _conclude_wall_clock(a, b, result.metrics, answer, b_measured_s),
        conclude_captures(a, b, result.kernels, work),
    )
    result.conclusions = [each for each in found if each is not None]
    if not result.conclusions:
        result.sentence = "No conclusion: no time was measured on both sides."
        return
    _warn(result.conclusions[0], result)
    unlike = ", ".join(
        f"{row.what} {row.a} → {row.b}"
        for row in result.differences
        if row.what in _UNLIKE and row.a and row.b
    )
    if unlike:
        first = result.conclusions[0]
        first.sentence = f"Not like for like ({unlike}): {first.sentence}"
    result.sentence = result.conclusions[0].sentence


def _warn(first: Conclusion, result: Comparison) -> None:
    other = [row for row in result.differences if row.what in _OTHER and row.a and row.b]
    if other:
        differences = ", ".join(f"{row.what} ({row.a} → {row.b})" for row in other)
        first.details.append(
            f"The sides differ in {differences}: not all of the change need be one of speed."
        )
