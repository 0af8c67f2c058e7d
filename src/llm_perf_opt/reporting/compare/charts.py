"""The charts of a comparison: intervals of all metrics, causes of the change, samples in pairs."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.core import units
from llm_perf_opt.model.comparison import Comparison, MetricChange, Outcome, Split
from llm_perf_opt.model.conclusion import Conclusion
from llm_perf_opt.reporting.charts.dots import Dot, DotRow, dot_chart
from llm_perf_opt.reporting.charts.markers import Kind
from llm_perf_opt.reporting.charts.waterfall import Step, change_waterfall, waterfall
from llm_perf_opt.reporting.compare.conclusion_tables import whole_name
from llm_perf_opt.reporting.compare.tables import METRIC_NAMES, change

_OUTCOMES: dict[Outcome, Kind] = {
    "better": Kind("shown to be better", "circle", 2),
    "worse": Kind("shown to be worse", "circle", 5),
    "no difference shown": Kind("no difference shown", "hollow"),
    "not enough data": Kind("not enough data for a test", "square", 6),
}
_SIDE_A, _SIDE_B = Kind("A", "circle", 6), Kind("B", "diamond", 0)
_TITLES = {"wall_clock": "Wall-clock of a sample, from A to B", "kernel_time": "Kernel time, from A to B"}
_MOST_PAIRS = 40
_MOST_STEPS = 9
_LEAST_STEP = 0.01
"""Of the largest step: smaller ones cannot be seen."""


def forest_chart(metrics: Sequence[MetricChange]) -> str | None:
    """Draw the change of every metric with its interval; the broken line is no change."""
    rows = [
        DotRow(
            METRIC_NAMES.get(row.name, row.name).partition(" (")[0],
            [Dot(row.ratio, _OUTCOMES[row.outcome], row.low_ratio, row.high_ratio)],
            change(row.ratio),
        )
        for row in metrics
        if row.ratio is not None and row.ratio > 0 and row.outcome in _OUTCOMES
    ]
    if not rows:
        return None
    return dot_chart(
        "Change of every metric, with its interval",
        rows,
        x_label="B ÷ A (the broken line: no change)",
        formatter=change,
        log=True,
        reference=1.0,
    )


def split_charts(splits: Sequence[Split]) -> list[str]:
    """Draw a waterfall per whole: what each part adds or saves."""
    return [
        waterfall(
            _TITLES.get(split.whole, split.whole),
            ("A", split.a_s),
            [Step(cause.name, cause.change_s) for cause in split.causes],
            ("B", split.b_s),
        )
        for split in splits
    ]


def conclusion_chart(conclusion: Conclusion) -> str | None:
    """Draw what each cause adds or saves at equal work; small ones and what is not explained are one step."""
    if not conclusion.causes or not conclusion.change_s:
        return None
    largest = max(abs(cause.change_s) for cause in conclusion.causes)
    shown = [c for c in conclusion.causes if abs(c.change_s) >= _LEAST_STEP * largest][:_MOST_STEPS]
    steps = [Step(cause.name, cause.change_s) for cause in shown]
    left = conclusion.change_s - sum(step.change for step in steps)
    if abs(left) >= _LEAST_STEP * largest:
        steps.append(Step("everything else", left))
    return change_waterfall(f"Change of the {whole_name(conclusion)} at equal work", steps, "together")


def pair_charts(comparison: Comparison) -> list[str]:
    """Draw each sample's median on both sides, one chart per metric."""
    charts = []
    names = {"total": "Whole answer", "ttft": "Time to first token", "tpot": "Time per output token"}
    for metric, title in names.items():
        pairs = [row for row in comparison.samples if row.metric == metric]
        rows = [
            DotRow(row.sample, [Dot(row.a_s, _SIDE_A), Dot(row.b_s, _SIDE_B)], change(row.ratio))
            for row in pairs[:_MOST_PAIRS]
        ]
        if len(rows) > 1:
            more = f" (the first {len(rows)} of {len(pairs)})" if len(pairs) > len(rows) else ""
            charts.append(
                dot_chart(
                    f"{title}, sample by sample{more}",
                    rows,
                    x_label="Median of the repeats",
                    formatter=units.seconds,
                )
            )
    return charts
