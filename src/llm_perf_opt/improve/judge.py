"""From a measured experiment to a decision, and from all of them to the steps of the result and the grades of the findings."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.core import units
from llm_perf_opt.improve.costs import HIGHER_IS_BETTER
from llm_perf_opt.improve.experiment import Outcome
from llm_perf_opt.improve.outputs import changed_workload, describe_outputs, output_result
from llm_perf_opt.remedies.data import (
    EFFECTS,
    Answered,
    Decision,
    Effect,
    FindingGrade,
    Improvement,
    Measured,
    Metric,
    OutputCheck,
    PredictedBy,
    SearchSettings,
    Step,
    Trial,
    holds_phase,
)

_PARTLY = 0.25
"""A gain below this share of what was predicted confirms it in part only."""
HELPED: tuple[Decision, ...] = ("keep", "ask")


def judge(
    measured: Measured,
    check: OutputCheck | None,
    *,
    metric: Metric,
    effect: Effect,
    total_change: float | None,
    settings: SearchSettings,
) -> tuple[Decision, str]:
    """Return the decision on a measured remedy and the reason."""
    if measured.verdict != "gain":
        return "drop", _dropped(measured, settings)
    if total_change is None or not exceeds_threshold(total_change, metric, settings):
        return "drop", "faster on most samples, but not in total"
    if check is None or check.tokens_equal is None:
        return "ask", "significant gain, but the outputs could not be compared: your decision"
    if not check.tokens_equal:
        where = f"tokens differ at position {check.first_difference}"
        if is_allowed(effect, settings):
            return "keep", f"significant gain; {where} (--allow {settings.allow})"
        return "ask", f"significant gain, but {where}: your decision"
    if effect == "quality":
        same = "the outputs of these samples are unchanged, others may change"
        if is_allowed(effect, settings):
            return "keep", f"significant gain; {same} (--allow quality)"
        return "ask", f"significant gain; {same}: your decision"
    return "keep", "significant gain, outputs unchanged"


def is_allowed(effect: Effect, settings: SearchSettings) -> bool:
    """Return whether the user allows other tokens of a remedy with this effect (``--allow``).

    A remedy that should not change the answers is never kept with other tokens.
    """
    return effect != "nothing" and EFFECTS.index(effect) <= EFFECTS.index(settings.allow)


def _dropped(measured: Measured, settings: SearchSettings) -> str:
    least = units.percent(settings.least_gain_ratio)
    if measured.verdict == "slower":
        return "slower"
    if measured.verdict == "no gain":
        return f"no gain of {least} or more"
    if measured.processes > 1 or measured.process_changes:
        shown = ", ".join(units.percent(each) for each in measured.process_changes)
        return f"inconclusive: a gain in one process, but it varies between processes ({shown}) and may be below {least}"
    return f"inconclusive after {measured.blocks} pairs (threshold {least})"


def gain_of(change_ratio: float, metric: Metric) -> float:
    """Return a change as a gain: above zero is better."""
    return change_ratio if metric in HIGHER_IS_BETTER else -change_ratio


def exceeds_threshold(change_ratio: float, metric: Metric, settings: SearchSettings) -> bool:
    """Return whether a change exceeds the threshold for a gain."""
    return gain_of(change_ratio, metric) >= settings.least_gain_ratio


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


def grade_findings(trials: Sequence[Trial], metric: Metric) -> list[FindingGrade]:
    """Compare the predicted gain of every finding's remedies with their gain measured alone.

    Failed trials are ignored, as are metrics that do not include the phase of the finding.
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
    """Return the largest gain that was predicted: the finding's own bound, or the prediction of tables."""
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
    # Based on the baseline's own times, from which the bounds of the findings were derived: during the experiment the
    # machine may have been busier.
    if result.metric in ("total", "ttft"):
        return -trial.measured.change_ratio * (result.baseline.metric_value or trial.measured.a)
    total = trial.metrics.get("total")
    if result.metric in HIGHER_IS_BETTER:
        # At this rate the baseline's answers would finish earlier by this amount.
        total = 1 / (1 + trial.measured.change_ratio) - 1
    return None if total is None or result.baseline.total_s is None else -total * result.baseline.total_s


# The result of a search: which trials are kept together, the total gain, and what reverts it.


def overrides_of(kept: Sequence[Trial]) -> list[str]:
    """Return the settings of all trials together, each once."""
    return list(dict.fromkeys(item for trial in kept for item in trial.overrides))


def confirmation_of(result: Improvement, overrides: Sequence[str]) -> Trial | None:
    """Return the experiment that measured these settings once more against the baseline; ``None``: there is none."""
    return next(
        (t for t in result.tried if t.role == "confirmation" and t.overrides == list(overrides)), None
    )


def reason_reverted(again: Trial, settings: SearchSettings) -> str | None:
    """Return why a kept result is reverted after it was measured again; ``None``: it is kept.

    A gain that is not shown a second time is kept, marked as unconfirmed.
    """
    if again.decision == "keep":
        return None
    if again.decision == "drop" and again.measured is not None:
        if again.measured.verdict in ("slower", "no gain"):
            return f"it showed {again.measured.verdict}"
        if again.measured.verdict == "not shown":
            same = again.output == "equal" or is_allowed(again.effect, settings)
            return None if same else describe_outputs(again.check)
    return again.reason


def is_reverted(result: Improvement, overrides: Sequence[str]) -> bool:
    """Return whether these settings were measured again and lost their gain."""
    again = confirmation_of(result, overrides)
    return again is not None and reason_reverted(again, result.method) is not None


def set_best(result: Improvement, kept: Sequence[Trial]) -> None:
    """Set the best result: the confirmed total, else the product of the steps and of their interval ends.

    The command line is added when its configuration is written.
    """
    best = result.best
    best.overrides = overrides_of(kept)
    best.change_ratio = best.low = best.high = best.output = best.command = None
    best.confirmed = False
    again = confirmation_of(result, best.overrides)
    if again is not None and again.measured is not None and again.decision != "failed":
        found = again.measured
        best.change_ratio, best.low, best.high = found.change_ratio, found.low, found.high
        best.output, best.confirmed = again.output, again.decision == "keep"
        return
    known = [trial.measured for trial in kept if trial.measured is not None]
    if not known:
        return
    best.change_ratio = best.low = best.high = 1.0
    for found in known:
        best.change_ratio *= 1 + found.change_ratio
        best.low *= 1 + found.low
        best.high *= 1 + found.high
    best.change_ratio, best.low, best.high = best.change_ratio - 1, best.low - 1, best.high - 1
    best.output = "equal" if all(trial.output == "equal" for trial in kept) else "differs"


# From the outcome of an experiment to the decision on its trial.


def conclude(trial: Trial, outcome: Outcome, metric: Metric, settings: SearchSettings) -> Trial:
    """Store the outcome of an experiment in its trial, and decide."""
    trial.measured, trial.check, trial.metrics = outcome.measured, outcome.check, outcome.metrics
    trial.intervals = outcome.intervals
    trial.how, trial.seconds = outcome.how, outcome.seconds
    trial.output = output_result(outcome.check)
    if outcome.failure is not None:
        trial.reason = outcome.failure
        return trial
    if len(outcome.answers) == 2:
        other = changed_workload(outcome.answers["a"], outcome.answers["b"], trial.effect)
        if other is not None:
            trial.reason = f"refused: it changes the workload: {other}"
            return trial
    if trial.measured is None:
        trial.reason = "nothing was measured before the time was over"
        return trial
    trial.decision, trial.reason = judge(
        trial.measured,
        trial.check,
        metric=metric,
        effect=trial.effect,
        total_change=outcome.total_change,
        settings=settings,
    )
    return trial
