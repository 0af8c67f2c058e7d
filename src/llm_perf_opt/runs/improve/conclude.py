"""From what an experiment gave to the decision on its trial."""

from __future__ import annotations

from llm_perf_opt.analysis.improve import judge
from llm_perf_opt.analysis.improve.outputs import changed_workload, output_result
from llm_perf_opt.model.improve import Metric, Trial
from llm_perf_opt.runs.improve.experiment import Outcome


def conclude(trial: Trial, outcome: Outcome, metric: Metric, least_gain_ratio: float) -> Trial:
    """Put what an experiment gave into its trial, and decide."""
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
    trial.decision, trial.reason = judge.judge(
        trial.measured,
        trial.check,
        metric=metric,
        effect=trial.effect,
        total_change=outcome.total_change,
        least_gain_ratio=least_gain_ratio,
    )
    return trial
