"""The conclusion from the wall-clock: time of an answer at equal work, phase by phase, as far as the repeats show it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llm_perf_opt.analysis.compare.conclusion.causes import MORE_STEPS, WALL_CLOCK
from llm_perf_opt.analysis.compare.conclusion.sentences import because, speed
from llm_perf_opt.analysis.compare.gate import signed_percent
from llm_perf_opt.core import units
from llm_perf_opt.model.comparison import MetricChange, Split
from llm_perf_opt.model.conclusion import Cause, Conclusion, Verdict, Work
from llm_perf_opt.model.summary import Summary

_WHOLES = {
    "total": "per answer",
    "decode": "in decode",
    "ttft": "to the first token",
    "program": "in the whole program",
}
"""Metrics that can stand for the whole, the best first."""
_OTHER_BATCH = "tokens_per_s"


def conclude_wall_clock(
    a: Summary, b: Summary, metrics: Sequence[MetricChange], splits: Sequence[Split]
) -> Conclusion | None:
    """Conclude from the timings of both sides; ``None`` where a side was not timed."""
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
    split = next((s for s in splits if s.whole == WALL_CLOCK), None) if metric.name == "total" else None
    found = Conclusion("wall_clock", _verdict(metric, metric.ratio), "", work, ratio=metric.ratio)
    _fill(found, metric, split)
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
    """Batches of different size: only what a generated token costs can be held against each other."""
    a_s, b_s = 1 / (metric.a or math.nan), 1 / (metric.b or math.nan)
    ratio = 1 / (metric.ratio or math.nan)
    found = Conclusion("wall_clock", _verdict(metric, ratio), "", work, a_s, b_s, b_s, b_s - a_s, ratio)
    found.remainder_s = found.change_s
    said = {
        "faster": f"B is {speed(ratio)} per generated token",
        "slower": f"B is {speed(ratio)} per generated token",
        "not shown": "No difference per generated token is shown",
    }.get(found.verdict, f"B takes {signed_percent(ratio)} per generated token, {_UNSURE}")
    found.sentence = f"{said}: {units.seconds(b_s)} instead of {units.seconds(a_s)}. {work.text}."
    return found


_UNSURE = "which too few repeats tell from noise"


def _verdict(metric: MetricChange, ratio: float) -> Verdict:
    if metric.outcome in ("better", "worse"):
        return "faster" if ratio < 1 else "slower"
    return "not shown" if metric.outcome == "no difference shown" else "undecided"


def _fill(found: Conclusion, metric: MetricChange, split: Split | None) -> None:
    """Take the parts of an answer as causes, the steps that B made more or fewer left out."""
    if split is None:
        found.a_s, found.b_s = metric.a, metric.b
        found.b_measured_s = metric.b
        found.change_s = found.remainder_s = (metric.b or 0.0) - (metric.a or 0.0)
        return
    more = math.fsum(cause.change_s for cause in split.causes if cause.kind == MORE_STEPS)
    found.a_s, found.b_s, found.b_measured_s = split.a_s, split.b_s - more, split.b_s
    change = found.change_s = found.b_s - found.a_s
    kept = [cause for cause in split.causes if cause.kind != MORE_STEPS and cause.change_s]
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
    interval = (
        f" ({signed_percent(metric.low_ratio)} to {signed_percent(metric.high_ratio)})"
        if metric.low_ratio is not None and metric.high_ratio is not None
        else ""
    )
    said = _less_work(found.work)
    if found.verdict == "not shown":
        ratio = signed_percent(metric.ratio or 1.0)
        return f"{said}{'no' if said else 'No'} difference {where} is shown: {ratio}{interval}."
    reasons = because(found)
    if found.verdict == "undecided":
        change = signed_percent(metric.ratio or 1.0)
        return f"{said}B takes {change} {where}, {_UNSURE}: {lengths}{reasons}."
    return f"{said}{'it' if said else 'B'} is {speed(metric.ratio)} {where}{interval}: {lengths}{reasons}."


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
        f"({signed_percent(two / one)}): vision and prefill are those of each side's own prompts."
    ]
