"""Two runs that differ in data type, batch size, ranks or device: what the tables predict, beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llm_perf_opt.analysis.compare.origin import Side as ComparedSide
from llm_perf_opt.analysis.compare.origin import overrides_of
from llm_perf_opt.analysis.expected.estimate import Tables
from llm_perf_opt.analysis.expected.gains import ExpectedGain, expected_gain
from llm_perf_opt.analysis.predicted.side import Limits, device_name, side_of
from llm_perf_opt.model.comparison import Difference, ExpectedChange, ExpectedMetric, MetricChange
from llm_perf_opt.model.summary import Summary

_QUANTISED = "model.quantise_weights="


def expected_change(
    a: ComparedSide,
    b: ComparedSide,
    metrics: Sequence[MetricChange],
    tables: Tables | None,
    limits: Limits | None = None,
) -> ExpectedChange | None:
    """Return the predicted change with its reason where there is none; ``None``: nothing that tables know of differs."""
    stored = [_quantised(side) for side in (a, b)]
    changed = _changed(a.first, b.first, stored)
    if not changed:
        return None
    sides = []
    for letter, side, dtype in (("A", a, stored[0]), ("B", b, stored[1])):
        found, reason = side_of(side.first, tables, stored_dtype=dtype, limits=limits)
        if found is None:
            about = reason or ""
            return ExpectedChange(changed, reason=about if tables is None else f"{letter}: {about}")
        sides.append(found)
    assert tables is not None
    gain = expected_gain(sides[0], sides[1], tables)
    if gain is None:
        reason = "neither tables nor limits reach the operators of both sides"
        return ExpectedChange(changed, reason=reason)
    return ExpectedChange(
        changed,
        _metrics(gain, {metric.name: metric for metric in metrics}),
        gain.basis,
        gain.measured_share_ratio,
        gain.source,
        gain.launched,
        gain.host_bound,
    )


def _quantised(side: ComparedSide) -> str | None:
    """Return what a side's weights were quantised to when they were loaded."""
    found = [word[len(_QUANTISED) :] for word in overrides_of(side) if word.startswith(_QUANTISED)]
    return found[-1] if found and found[-1] not in ("null", "None", "") else None


def _changed(a: Summary, b: Summary, stored: Sequence[str | None]) -> list[Difference]:
    pairs = (
        ("dtype", stored[0] or a.workload.dtype, stored[1] or b.workload.dtype),
        ("batch size", a.workload.batch_size, b.workload.batch_size),
        ("ranks", a.workload.ranks or 1, b.workload.ranks or 1),
        ("device", device_name(a), device_name(b)),
    )
    # What one side does not tell is no difference.
    return [Difference(what, _text(x), _text(y)) for what, x, y in pairs if None not in (x, y) and x != y]


def _text(value: str | float | None) -> str | None:
    return None if value is None else f"{value:g}" if isinstance(value, int | float) else value


def _metrics(gain: ExpectedGain, measured: Mapping[str, MetricChange]) -> list[ExpectedMetric]:
    a, b = gain.before, gain.after
    rows = (
        ("ttft", "s", a.ttft_s, b.ttft_s),
        ("tpot", "s", a.tpot_s, b.tpot_s),
        ("tokens_per_s", "1/s", a.tokens_per_s, b.tokens_per_s),
    )
    return [_metric(name, unit, x, y, measured.get(name)) for name, unit, x, y in rows if x]


def _metric(name: str, unit: str, a: float, b: float, found: MetricChange | None) -> ExpectedMetric:
    if found is None:
        return ExpectedMetric(name, unit, a, b, b / a)
    return ExpectedMetric(name, unit, a, b, b / a, found.ratio, found.low_ratio, found.high_ratio)
