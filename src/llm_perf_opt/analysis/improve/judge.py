"""From a measured experiment to a decision, and from all of them to the ladder and the grades of the findings."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.analysis.improve.costs import HIGHER_IS_BETTER
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import BEFORE_PREFILL, DECODE, MIXED, PREFILL
from llm_perf_opt.model.improve import (
    Answered,
    Decision,
    Effect,
    FindingGrade,
    Improvement,
    Measured,
    Metric,
    OutputCheck,
    PredictedBy,
    Step,
    Trial,
)

_PARTLY = 0.25
"""A gain below this share of what was predicted confirms it in part only."""
HELPED: tuple[Decision, ...] = ("keep", "ask")
_PHASES: dict[str, tuple[str, ...]] = {
    "ttft": (*BEFORE_PREFILL, PREFILL, MIXED),
    "tpot": (DECODE, MIXED),
}
"""What a metric of a part of the answer contains; all others contain everything."""


def judge(
    measured: Measured,
    check: OutputCheck | None,
    *,
    metric: Metric,
    effect: Effect,
    total_change: float | None,
    least_gain_ratio: float,
) -> tuple[Decision, str]:
    """Decide what to do with a remedy that was measured, and say why."""
    if measured.verdict != "gain":
        return "drop", _dropped(measured, least_gain_ratio)
    if total_change is None or gain_of(total_change, metric) < least_gain_ratio:
        return "drop", "faster on most samples, but not on all of them together"
    if check is None or check.tokens_equal is None:
        return "ask", "a gain is shown, but the answers could not be compared: decide yourself"
    if not check.tokens_equal:
        return "ask", f"tokens differ at position {check.first_difference}: decide yourself"
    if effect == "quality":
        return "ask", "the answers of these samples are the same, but it may change others: decide yourself"
    return "keep", "a gain is shown and the answers are the same"


def _dropped(measured: Measured, least_gain_ratio: float) -> str:
    if measured.verdict == "slower":
        return "slower"
    if measured.verdict == "no gain":
        return f"no gain of {units.percent(least_gain_ratio)} or more"
    return f"not shown: {measured.blocks} pairs of passes neither show nor exclude a gain of {units.percent(least_gain_ratio)} here"


def gain_of(change_ratio: float, metric: Metric) -> float:
    """Return a change as a gain: above zero is better."""
    return change_ratio if metric in HIGHER_IS_BETTER else -change_ratio


def ladder(baseline: float | None, steps: Sequence[Trial]) -> list[Step]:
    """Return the value of the metric after each kept step; each change was measured on top of the one before."""
    found: list[Step] = []
    value = baseline
    for trial in steps:
        if value is None or trial.measured is None:
            break
        value *= 1 + trial.measured.change_ratio
        found.append(Step(trial.remedy, list(trial.overrides), value, trial.measured.change_ratio))
    return found


def holds_phase(metric: str, phase: str | None) -> bool:
    """Return whether a change in a phase changes the metric; ``None``: the finding is about all of the run."""
    return phase is None or phase in _PHASES.get(metric, (phase,))


def grade_findings(trials: Sequence[Trial], metric: Metric) -> list[FindingGrade]:
    """Hold what was predicted of every finding's remedies against what they gave, measured alone.

    A trial that failed says nothing of a finding, nor does a metric of a finding whose phase it does not contain.
    """
    by_finding: dict[tuple[str, str | None], list[Trial]] = {}
    for trial in trials:
        if trial.role == "single" and trial.measured is not None and trial.decision != "failed":
            for each in answered(trial):
                if holds_phase(metric, each.phase):
                    by_finding.setdefault((each.finding, each.phase), []).append(trial)
    return [_grade(name, phase, tried) for (name, phase), tried in by_finding.items()]


def answered(trial: Trial) -> list[Answered]:
    """Return the findings a trial answers; files of earlier releases name one only."""
    if trial.answers or trial.finding is None:
        return trial.answers
    return [Answered(trial.finding, trial.phase, trial.predicted_gain_s)]


def _promise(name: str, phase: str | None, tried: Sequence[Trial]) -> tuple[float | None, PredictedBy | None]:
    """Return the largest gain that was predicted: the finding's own bound, or what tables said of a remedy."""
    promised: list[tuple[float, PredictedBy | None]] = []
    for trial in tried:
        if trial.predicted_by not in (None, "bound") and trial.predicted_gain_s is not None:
            promised.append((trial.predicted_gain_s, trial.predicted_by))
            continue
        bounds = [each for each in answered(trial) if (each.finding, each.phase) == (name, phase)]
        promised += [
            (each.predicted_gain_s, trial.predicted_by)
            for each in bounds
            if each.predicted_gain_s is not None
        ]
    return max(promised, key=lambda each: each[0], default=(None, None))


def _grade(name: str, phase: str | None, tried: Sequence[Trial]) -> FindingGrade:
    helped = [trial for trial in tried if trial.decision in HELPED]
    gains = [trial.measured_gain_s for trial in helped or tried if trial.measured_gain_s is not None]
    best = max(gains, default=None)
    predicted, by = _promise(name, phase, tried)
    verdicts = [trial.measured.verdict for trial in tried if trial.measured is not None]
    result = FindingGrade(name, phase, predicted, best, len(helped), len(tried), "wrong")
    result.predicted_by = by
    if helped:
        small = predicted and best is not None and best < _PARTLY * predicted
        result.grade = "partly" if small else "confirmed"
    elif "not shown" in verdicts:
        result.grade = "not shown"
    return result


def measured_gain_s(trial: Trial, result: Improvement) -> float | None:
    """Return the seconds per sample that a remedy saved; ``None`` where no time was measured."""
    if trial.measured is None:
        return None
    # At the baseline's own times, which the bounds of the findings were made of: during the experiment the machine may have
    # been busier.
    if result.metric in ("total", "ttft"):
        return -trial.measured.change_ratio * (result.baseline.metric_value or trial.measured.a)
    total = trial.metrics.get("total")
    if result.metric in HIGHER_IS_BETTER:
        # At this rate the baseline's answers would all be there so much earlier.
        total = 1 / (1 + trial.measured.change_ratio) - 1
    return None if total is None or result.baseline.total_s is None else -total * result.baseline.total_s
