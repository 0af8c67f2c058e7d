"""The sentences and lines that all forms of an improvement share."""

from __future__ import annotations

from llm_perf_opt.analysis.improve.best import confirmation_of
from llm_perf_opt.analysis.improve.judge import answered
from llm_perf_opt.analysis.improve.outputs import output_words
from llm_perf_opt.core import units
from llm_perf_opt.model.improve import Improvement, Measured, Metric, PredictedBy, Trial

METRIC_NAMES: dict[Metric, str] = {
    "total": "time per answer",
    "ttft": "time to the first token",
    "tpot": "time per output token",
    "tokens_per_s": "tokens per second",
    "energy": "energy per answer",
}
DECISIONS = {"keep": "keep", "drop": "drop", "ask": "keep?", "failed": "failed"}


def value_words(value: float | None, metric: Metric) -> str:
    """Return a value of the metric with its unit."""
    if metric == "tokens_per_s":
        return units.number(value, "tokens/s")
    return units.number(value, "J") if metric == "energy" else units.seconds(value)


def change_words(ratio: float | None) -> str:
    """``-0.31`` → ``−31.0 %``."""
    if ratio is None:
        return units.MISSING
    return f"{'−' if ratio < 0 else '+'}{units.percent(abs(ratio))}"


def interval_words(low: float | None, high: float | None) -> str:
    """Return both ends; an end that is not known yet is a dash."""
    if low is None or high is None:
        return ""
    return f"[{_end(low)} … {_end(high)}]"


def _end(ratio: float) -> str:
    if ratio <= -0.99 or ratio >= 50:
        return units.MISSING
    return f"{'−' if ratio < 0 else '+'}{units.number(abs(ratio) * 100)}"


def measured_words(measured: Measured | None) -> str:
    """Return a change with its interval."""
    if measured is None:
        return units.MISSING
    return f"{change_words(measured.change_ratio)} {interval_words(measured.low, measured.high)}"


def moved_words(trial: Trial) -> str:
    """Name the phases' metrics that moved for certain: where the change happens."""
    moved = [
        f"{name} {change_words(trial.metrics[name])} {interval_words(*ends)}"
        for name, ends in trial.intervals.items()
        if name in ("ttft", "tpot") and name in trial.metrics and not ends[0] <= 0 <= ends[1]
    ]
    return ", ".join(moved)


def metric_words(trial: Trial, name: str) -> str:
    """Return another metric's change, with its interval where there is one."""
    said = f"{name} {change_words(trial.metrics[name])}"
    return f"{said} {interval_words(*trial.intervals[name])}" if name in trial.intervals else said


def predicted_gain_words(gain_s: float | None, by: PredictedBy | None) -> str:
    """Return a prediction: a bound is "at most", what should cost says "more"."""
    if gain_s is None:
        return units.MISSING
    if by in (None, "bound"):
        return f"at most {units.seconds(gain_s)}"
    return units.seconds(gain_s) if gain_s >= 0 else f"{units.seconds(-gain_s)} more"


def basis_words(by: PredictedBy | None, share: float | None, source: str | None) -> str:
    """Say what a prediction rests on: ``measured operators (93.0 %, vllm 0.24.0)``, ``bound (why no table predicts it)``."""
    inside = ", ".join(part for part in (units.percent(share) if share is not None else "", source) if part)
    return f"{by} ({inside})" if by and inside else by or inside


def expected_words(
    gain_s: float | None, by: PredictedBy | None, share: float | None, source: str | None
) -> str:
    """Return a prediction and what it rests on; empty: nothing predicts."""
    if gain_s is None:
        return f"no prediction ({source})" if source else ""
    said = predicted_gain_words(gain_s, by)
    return said if by in (None, "bound") and not source else f"{said} by {basis_words(by, share, source)}"


def prediction_words(trial: Trial) -> str:
    """Say what was predicted, by what, and what came of it."""
    predicted = expected_words(
        trial.predicted_gain_s,
        trial.predicted_by,
        trial.predicted_measured_share_ratio,
        trial.predicted_source,
    )
    if trial.finding is None:
        said = "no finding asked for it"
        if trial.predicted_gain_s is None:
            return said
        said = f"predicted {predicted}"
    else:
        said = f"{trial.finding}{f' ({trial.phase})' if trial.phase else ''}: predicted {predicted or 'no bound'}"
    if trial.measured_gain_s is None:
        return said
    if trial.measured_gain_s < 0:
        return f"{said}, measured {units.seconds(-trial.measured_gain_s)} more"
    return f"{said}, measured {units.seconds(trial.measured_gain_s)}"


def name_of(trial: Trial) -> str:
    """Return the overrides; a combination names what it stands on."""
    return " ".join(trial.overrides) + (" (on top of the kept ones)" if trial.on_top_of else "")


def unconfirmed(result: Improvement) -> str:
    """Say why the best is not confirmed."""
    again = confirmation_of(result, result.best.overrides)
    if again is None:
        return "not measured a second time"
    undecided = again.decision == "drop" and again.measured is not None
    why = "the gain was not shown" if undecided and again.output == "equal" else again.reason
    return f"not confirmed: measured again, {why}"


def measured_again(result: Improvement) -> float | None:
    """Return the metric of the best as it was measured against the baseline as a whole; ``None``: only its steps were."""
    start, change = result.baseline.metric_value, result.best.change_ratio
    known = confirmation_of(result, result.best.overrides) if result.best.overrides else None
    return None if known is None or start is None or change is None else start * (1 + change)


def headline(result: Improvement) -> str:
    """Say in one sentence what the search came to."""
    what = METRIC_NAMES[result.metric]
    if not result.best.overrides:
        asked = sum(trial.decision == "ask" and trial.role != "confirmation" for trial in result.tried)
        more = f"; {asked} that change the answers are yours to decide" if asked else ""
        if any(trial.role == "confirmation" for trial in result.tried):
            return f"Nothing to keep: what showed a gain did not stand when it was measured again{more}."
        return f"Nothing to keep: none of {len(singles(result))} settings showed a gain with the same answers{more}."
    sure = "measured again" if result.best.confirmed else unconfirmed(result)
    return (
        f"{what.capitalize()} {change_words(result.best.change_ratio)} "
        f"{interval_words(result.best.low, result.best.high)} with {' '.join(result.best.overrides)} ({sure}, tokens "
        f"{'equal' if result.best.output == 'equal' else 'not equal'})."
    )


def first_finding_words(result: Improvement) -> str | None:
    """Say of the run's first finding, whose advice comes first, whether its remedy was kept; ``None``: there is no finding."""
    first = result.baseline.first_finding
    if first is None:
        return None
    name = f"{first.finding}{f' ({first.phase})' if first.phase else ''}"
    tried = [
        trial
        for trial in singles(result)
        if any((each.finding, each.phase) == (first.finding, first.phase) for each in answered(trial))
    ]
    if not tried:
        return f"{name}: none of its remedies was tried"
    kept = [trial for trial in tried if set(trial.overrides) <= set(result.best.overrides)]
    if kept:
        return f"{name}: its remedy {' '.join(kept[0].overrides)} is kept"
    helped = [trial for trial in tried if trial.decision == "keep"]
    if helped:
        return (
            f"{name}: its remedy {' '.join(helped[0].overrides)} showed a gain alone, but is not in the best"
        )
    decided = "; ".join(
        f"{' '.join(trial.overrides)}: {DECISIONS[trial.decision]}, {trial.reason}" for trial in tried
    )
    return f"{name}: no remedy of it is kept ({decided})"


def singles(result: Improvement) -> list[Trial]:
    """Return the experiments on one remedy alone."""
    return [trial for trial in result.tried if trial.role == "single"]


def baseline_words(result: Improvement) -> list[str]:
    """Return the baseline's times."""
    base = result.baseline
    known = [
        ("", base.total_s and f"{units.seconds(base.total_s)} per sample"),
        ("ttft ", base.ttft_s and units.seconds(base.ttft_s)),
        ("tpot ", base.tpot_s and units.seconds(base.tpot_s)),
        ("", base.tokens_per_s and f"{units.number(base.tokens_per_s)} tokens/s"),
    ]
    return [f"{name}{value}" for name, value in known if value]


def method_words(result: Improvement) -> str:
    """Say how it was decided."""
    method = result.method
    return (
        f"{method.bound}. Family error {units.percent(method.family_error_ratio)} over {method.tests} tests; a gain counts from "
        f"{units.percent(method.least_gain_ratio)}; at most {method.most_blocks} pairs of passes each; seed {method.seed}. A remedy "
        "that changes a token is never kept by itself."
    )


def trial_output(trial: Trial) -> str:
    """Say what happened to the answers, with quality where it was measured."""
    words = [output_words(trial.check)]
    check = trial.check
    if check is not None and check.tokens_equal is False:
        if check.edit_distance_before_ratio is not None and check.edit_distance_after_ratio is not None:
            before, after = check.edit_distance_before_ratio, check.edit_distance_after_ratio
            words.append(f"edit distance {units.number(before)} → {units.number(after)}")
        if check.perplexity_before is not None and check.perplexity_after is not None:
            words.append(
                f"perplexity {units.number(check.perplexity_before)} → {units.number(check.perplexity_after)}"
            )
    return ", ".join(words)


def facts(result: Improvement) -> list[tuple[str, str]]:
    """Return what a reader wants to know of the search beside its result."""
    base = result.baseline
    first = first_finding_words(result)
    return [
        *([("first finding", first)] if first is not None else []),
        ("baseline", ", ".join(baseline_words(result)) or units.MISSING),
        ("settings", " ".join(base.overrides) or "the default"),
        ("model, device", f"{base.model or units.MISSING}, {base.device or units.MISSING}"),
        ("samples measured and compared", ", ".join(base.samples) or units.MISSING),
        ("search", f"{result.status}, {units.seconds(result.seconds)}, {len(result.tried)} experiments"),
    ]
