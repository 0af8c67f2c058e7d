"""The charts of a search: the ladder from baseline to best, and every experiment with its interval."""

from __future__ import annotations

from llm_perf_opt.core import units
from llm_perf_opt.model.improve import Decision, Improvement, Trial
from llm_perf_opt.reporting.charts.dots import Dot, DotRow, dot_chart
from llm_perf_opt.reporting.charts.markers import Kind
from llm_perf_opt.reporting.charts.waterfall import Step, waterfall
from llm_perf_opt.reporting.improve import words

_DECISIONS: dict[Decision, Kind] = {
    "keep": Kind("keep", "circle", 2),
    "ask": Kind("keep? (answers may change)", "diamond", 0),
    "drop": Kind("drop", "hollow"),
}
_PREDICTED = Kind("predicted by expected times", "triangle", 5)
_WIDEST = 4.0
"""Ratios beyond this, either way, are drawn at it: a few pairs say next to nothing about an end."""


def ladder_chart(result: Improvement) -> str | None:
    """Draw what each kept remedy saves, on top of those before it."""
    start = result.baseline.metric_value
    if not result.ladder or start is None:
        return None
    steps, value = [], start
    for step in result.ladder:
        steps.append(Step(" ".join(step.overrides), step.value - value))
        value = step.value
    again = words.measured_again(result)
    if again is not None and again != value:
        # Gains that were measured one by one do not quite add up.
        steps.append(Step("measured again", again - value))
        value = again
    return waterfall(
        f"{words.METRIC_NAMES[result.metric].capitalize()}, from baseline to best",
        ("baseline", start),
        steps,
        ("best", value),
        formatter=lambda number: words.value_words(number, result.metric),
    )


def _predicted(trial: Trial) -> list[Dot]:
    """Return the mark of a change that expected times predict."""
    change = trial.predicted_change_ratio
    if change is None or not 1 / _WIDEST < 1 + change < _WIDEST:
        return []
    return [Dot(1 + change, _PREDICTED)]


def trial_chart(result: Improvement) -> str | None:
    """Draw the change of every experiment with its interval; the broken line is no change."""
    rows = [
        DotRow(
            words.name_of(trial),
            [
                Dot(
                    1 + found.change_ratio,
                    _DECISIONS[trial.decision],
                    max(1 + found.low, 1 / _WIDEST),
                    min(1 + found.high, _WIDEST),
                ),
                *_predicted(trial),
            ],
            words.change_words(found.change_ratio),
        )
        for trial in result.tried
        if (found := trial.measured) is not None
        and trial.decision in _DECISIONS
        and 1 / _WIDEST < 1 + found.change_ratio < _WIDEST
    ]
    if not rows:
        return None
    return dot_chart(
        "Every experiment, with its interval",
        rows,
        x_label=f"{result.metric}, remedy ÷ baseline (the broken line: no change)",
        formatter=lambda ratio: units.MISSING if ratio is None else words.change_words(ratio - 1),
        log=True,
        reference=1.0,
    )
