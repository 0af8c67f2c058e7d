"""The pages of a search: ``improve.html``, ``improve.md`` and the console."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from llm_perf_opt.core import units
from llm_perf_opt.core.escape import one_line
from llm_perf_opt.improve.judge import answered, confirmation_of
from llm_perf_opt.improve.outputs import describe_outputs
from llm_perf_opt.remedies.data import (
    TIME_IS_OVER,
    Decision,
    FindingGrade,
    Improvement,
    Measured,
    Metric,
    NotTried,
    PredictedBy,
    Role,
    Trial,
)
from llm_perf_opt.reporting.charts.axes import Kind
from llm_perf_opt.reporting.charts.dots import Dot, DotRow, dot_chart
from llm_perf_opt.reporting.charts.waterfall import Step, waterfall
from llm_perf_opt.reporting.document import (
    Block,
    Details,
    Document,
    Links,
    Note,
    Points,
    Section,
    Text,
    chart,
)
from llm_perf_opt.reporting.html.page import write_html
from llm_perf_opt.reporting.markdown import write_markdown
from llm_perf_opt.reporting.tables import Cell, Column, Row, Table, code, columns, simple, text

# Sentences and lines shared by all output formats.


METRIC_NAMES: dict[Metric, str] = {
    "total": "time per answer",
    "ttft": "time to the first token",
    "tpot": "time per output token",
    "tokens_per_s": "tokens per second",
    "energy": "energy per answer",
    "goodput": "goodput",
    "ttft_p50": "median time to the first token",
    "ttft_p90": "90th percentile of the time to the first token",
    "ttft_p99": "99th percentile of the time to the first token",
    "tpot_p50": "median time per output token",
    "tpot_p90": "90th percentile of the time per output token",
    "tpot_p99": "99th percentile of the time per output token",
    "e2e_p50": "median request latency",
    "e2e_p90": "90th percentile of the request latency",
    "e2e_p99": "99th percentile of the request latency",
}
_DECISION_LABELS = {"keep": "keep", "drop": "drop", "ask": "keep?", "failed": "failed"}


def format_value(value: float | None, metric: Metric) -> str:
    """Return a value of the metric with its unit."""
    if metric == "tokens_per_s":
        return units.number(value, "tokens/s")
    if metric == "goodput":
        return units.number(value, "requests/s")
    return units.number(value, "J") if metric == "energy" else units.seconds(value)


def format_change(ratio: float | None) -> str:
    """``-0.31`` → ``−31.0 %``."""
    if ratio is None:
        return units.MISSING
    return f"{'−' if ratio < 0 else '+'}{units.percent(abs(ratio))}"


def format_interval(low: float | None, high: float | None) -> str:
    """Return both ends; an end that is not known yet is a dash."""
    if low is None or high is None:
        return ""
    return f"[{_end(low)} … {_end(high)}]"


def _end(ratio: float) -> str:
    if ratio <= -0.99 or ratio >= 50:
        return units.MISSING
    return f"{'−' if ratio < 0 else '+'}{units.number(abs(ratio) * 100)}"


def _describe_measurement(measured: Measured | None) -> str:
    if measured is None:
        return units.MISSING
    return f"{format_change(measured.change_ratio)} {format_interval(measured.low, measured.high)}"


def _describe_moved_metrics(trial: Trial) -> str:
    """Name the phases' metrics with a significant change."""
    moved = [
        f"{name} {format_change(trial.metrics[name])} {format_interval(*ends)}"
        for name, ends in trial.intervals.items()
        if name in ("ttft", "tpot", "ttft_p90", "tpot_p90")
        and name in trial.metrics
        and not ends[0] <= 0 <= ends[1]
    ]
    return ", ".join(moved)


def _describe_metric(trial: Trial, name: str) -> str:
    """Return another metric's change, with its interval where there is one."""
    change = f"{name} {format_change(trial.metrics[name])}"
    return f"{change} {format_interval(*trial.intervals[name])}" if name in trial.intervals else change


def _format_predicted_gain(gain_s: float | None, by: PredictedBy | None) -> str:
    """Return a prediction: "at most" for a bound, "more" for an expected cost."""
    if gain_s is None:
        return units.MISSING
    if by in (None, "bound"):
        return f"at most {units.seconds(gain_s)}"
    return units.seconds(gain_s) if gain_s >= 0 else f"{units.seconds(-gain_s)} more"


def _describe_basis(by: PredictedBy | None, share: float | None, source: str | None) -> str:
    """Describe the basis of a prediction: ``measured operators (93.0 %, vllm 0.24.0)``, ``bound (why no table predicts it)``."""
    inside = ", ".join(part for part in (units.percent(share) if share is not None else "", source) if part)
    return f"{by} ({inside})" if by and inside else by or inside


def describe_expected(
    gain_s: float | None, by: PredictedBy | None, share: float | None, source: str | None
) -> str:
    """Return a prediction and its basis; empty: no prediction."""
    if gain_s is None:
        return f"no prediction ({source})" if source else ""
    gain = _format_predicted_gain(gain_s, by)
    return gain if by in (None, "bound") and not source else f"{gain} by {_describe_basis(by, share, source)}"


def _describe_prediction(trial: Trial) -> str:
    """Describe the prediction, its source and the measured result."""
    predicted = describe_expected(
        trial.predicted_gain_s,
        trial.predicted_by,
        trial.predicted_measured_share_ratio,
        trial.predicted_source,
    )
    if trial.finding is None:
        prediction = "no finding suggests it"
        if trial.predicted_gain_s is None:
            return prediction
        prediction = f"predicted {predicted}"
    else:
        prediction = f"{trial.finding}{f' ({trial.phase})' if trial.phase else ''}: predicted {predicted or 'no bound'}"
    if trial.measured_gain_s is None:
        return prediction
    if trial.measured_gain_s < 0:
        return f"{prediction}, measured {units.seconds(-trial.measured_gain_s)} more"
    return f"{prediction}, measured {units.seconds(trial.measured_gain_s)}"


def _name_of(trial: Trial) -> str:
    """Return the overrides; a combination includes the settings it builds on."""
    return " ".join(trial.overrides) + (" (on top of the kept ones)" if trial.on_top_of else "")


def unconfirmed(result: Improvement) -> str:
    """Explain why the best is not confirmed."""
    again = confirmation_of(result, result.best.overrides)
    if again is None:
        return "not measured a second time"
    undecided = again.decision == "drop" and again.measured is not None
    why = "the gain was inconclusive" if undecided and again.output == "equal" else again.reason
    return f"not confirmed: measured again, {why}"


def _measured_again(result: Improvement) -> float | None:
    """Return the metric of the best as it was measured against the baseline as a whole; ``None``: only its steps were."""
    start, change = result.baseline.metric_value, result.best.change_ratio
    known = confirmation_of(result, result.best.overrides) if result.best.overrides else None
    return None if known is None or start is None or change is None else start * (1 + change)


def headline(result: Improvement) -> str:
    """Return the result of the search in one sentence."""
    what = METRIC_NAMES[result.metric]
    if not result.best.overrides:
        undecided = sum(trial.decision == "ask" and trial.role != "confirmation" for trial in result.tried)
        more = f"; {undecided} that change the answers are yours to decide" if undecided else ""
        if any(trial.role == "confirmation" for trial in result.tried):
            return f"Nothing to keep: no gain was confirmed when it was measured again{more}."
        count = len(singles(result))
        if not count:
            return f"Nothing was tried: {TIME_IS_OVER if cut_by_budget(result) else 'no remedy could be measured'}."
        tried = "the one setting tried" if count == 1 else f"none of the {count} settings tried"
        return (
            f"Nothing to keep: {tried} showed {'no' if count == 1 else 'a'} gain with unchanged output{more}."
        )
    sure = "measured again" if result.best.confirmed else unconfirmed(result)
    return (
        f"{what.capitalize()} {format_change(result.best.change_ratio)} "
        f"{format_interval(result.best.low, result.best.high)} with {' '.join(result.best.overrides)} ({sure}, tokens "
        f"{'equal' if result.best.output == 'equal' else 'not equal'})."
    )


def describe_first_finding(result: Improvement) -> str | None:
    """Describe whether the remedy of the run's first finding was kept; ``None``: there is no finding."""
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
        f"{' '.join(trial.overrides)}: {_DECISION_LABELS[trial.decision]}, {trial.reason}" for trial in tried
    )
    return f"{name}: no remedy of it is kept ({decided})"


def singles(result: Improvement) -> list[Trial]:
    """Return the experiments on one remedy alone."""
    return [trial for trial in result.tried if trial.role == "single"]


def _describe_baseline(result: Improvement) -> list[str]:
    base = result.baseline
    known = [
        ("", base.total_s and f"{units.seconds(base.total_s)} per {'request' if base.engine else 'sample'}"),
        ("ttft ", base.ttft_s and units.seconds(base.ttft_s)),
        ("tpot ", base.tpot_s and units.seconds(base.tpot_s)),
        ("", base.tokens_per_s and f"{units.number(base.tokens_per_s)} tokens/s"),
    ]
    return [f"{name}{value}" for name, value in known if value]


def describe_method(result: Improvement) -> str:
    """Describe the decision rule."""
    method = result.method
    return (
        f"{method.bound}. Family error {units.percent(method.family_error_ratio)} over {method.tests} tests; a gain counts from "
        f"{units.percent(method.least_gain_ratio)}; at most {method.most_blocks} pairs of {_unit_name(result)} each; seed {method.seed}. "
        "A remedy that changes a token is never kept by itself."
        + (_SERVER_METHOD if result.baseline.engine else "")
    )


_SERVER_METHOD = (
    " Both sides are servers, started at least twice each; a gain must also hold over the starts (one-sided t-test at 5 %), "
    "because a server may be faster or slower for as long as it runs. Answers are compared at temperature 0, requests sent one at a time."
)


def _unit_name(result: Improvement) -> str:
    return "load blocks" if result.baseline.engine else "passes"


def _trial_output(trial: Trial) -> str:
    """Describe the change of the answers, with quality where it was measured."""
    parts = [describe_outputs(trial.check)]
    check = trial.check
    if check is not None and check.tokens_equal is False:
        if check.edit_distance_before_ratio is not None and check.edit_distance_after_ratio is not None:
            before, after = check.edit_distance_before_ratio, check.edit_distance_after_ratio
            parts.append(f"edit distance {units.number(before)} → {units.number(after)}")
        if check.perplexity_before is not None and check.perplexity_after is not None:
            parts.append(
                f"perplexity {units.number(check.perplexity_before)} → {units.number(check.perplexity_after)}"
            )
    return ", ".join(parts)


def _shown_settings(result: Improvement) -> list[str]:
    """Return the settings; those of a server without the switches of other stages."""
    kept = result.baseline.overrides
    return (
        [item for item in kept if not item.partition("=")[0].endswith(".enable")]
        if result.baseline.engine
        else kept
    )


def facts(result: Improvement) -> list[tuple[str, str]]:
    """Return the facts shown next to the result."""
    base = result.baseline
    first = describe_first_finding(result)
    return [
        *([("first finding", first)] if first is not None else []),
        ("baseline", ", ".join(_describe_baseline(result)) or units.MISSING),
        ("settings", " ".join(_shown_settings(result)) or "the default"),
        *([("server, load", f"{base.engine}, {base.load}")] if base.engine else []),
        ("model, device", f"{base.model or units.MISSING}, {base.device or units.MISSING}"),
        ("samples measured and compared", ", ".join(base.samples) or units.MISSING),
        ("search", f"{result.status}, {units.seconds(result.seconds)}, {len(result.tried)} experiments"),
    ]


# The charts of a search: the ladder from baseline to best, and every experiment with its interval.


_DECISIONS: dict[Decision, Kind] = {
    "keep": Kind("keep", "circle", 2),
    "ask": Kind("keep? (answers may change)", "diamond", 0),
    "drop": Kind("drop", "hollow"),
}
_PREDICTED = Kind("predicted by expected times", "triangle", 5)
_WIDEST = 4.0
"""Ratios beyond this, either way, are drawn at it: a few pairs say next to nothing about an end."""


def _ladder_chart(result: Improvement) -> str | None:
    """Draw what each kept remedy saves, on top of those before it."""
    start = result.baseline.metric_value
    if not result.ladder or start is None:
        return None
    steps, value = [], start
    for step in result.ladder:
        steps.append(Step(" ".join(step.overrides), step.value - value))
        value = step.value
    again = _measured_again(result)
    if again is not None and again != value:
        # Gains that were measured one by one are not exactly additive.
        steps.append(Step("measured again", again - value))
        value = again
    return waterfall(
        f"{METRIC_NAMES[result.metric].capitalize()}, from baseline to best",
        ("baseline", start),
        steps,
        ("best", value),
        formatter=lambda number: format_value(number, result.metric),
    )


def _predicted(trial: Trial) -> list[Dot]:
    """Return the mark of a change that expected times predict."""
    change = trial.predicted_change_ratio
    if change is None or not 1 / _WIDEST < 1 + change < _WIDEST:
        return []
    return [Dot(1 + change, _PREDICTED)]


def _trial_chart(result: Improvement) -> str | None:
    """Draw the change of every experiment with its interval; the dashed line is zero."""
    rows = [
        DotRow(
            _name_of(trial),
            [
                Dot(
                    1 + found.change_ratio,
                    _DECISIONS[trial.decision],
                    max(1 + found.low, 1 / _WIDEST),
                    min(1 + found.high, _WIDEST),
                ),
                *_predicted(trial),
            ],
            format_change(found.change_ratio),
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
        formatter=lambda ratio: units.MISSING if ratio is None else format_change(ratio - 1),
        log=True,
        reference=1.0,
    )


# Console output of a search.


def improve_console(result: Improvement) -> str:
    """Lay out baseline, trials and the best in plain text."""
    lines = [f"baseline   {'   '.join(_describe_baseline(result)) or units.MISSING}"]
    named = {trial.remedy for trial in singles(result)}
    missing = len({item.remedy for item in result.not_tried} - named)
    lines.append(
        f"tried {len(named)} of {len(named) + missing} remedies in {len(result.tried)} experiments "
        f"({missing} not tried: reasons in the report), {units.seconds(result.seconds)}"
        + (f", {result.status}" if result.status != "complete" else "")
    )
    rows = [_row(trial) for trial in result.tried if trial.role != "confirmation"]
    widths = [max((len(row[place]) for row in rows), default=0) for place in range(3)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append(f"  {one_line('   '.join([*cells, *row[3:]])).rstrip()}")
    first = describe_first_finding(result)
    if first is not None:
        lines.append(one_line(f"first finding: {first}"))
    if result.best.overrides:
        best = result.best
        lines.append(
            one_line(
                f"best together: {' '.join(best.overrides)}   {result.metric} {format_change(best.change_ratio)} "
                f"{format_interval(best.low, best.high)}   tokens {best.output}"
                + ("" if best.confirmed else f"   {unconfirmed(result)}")
            )
        )
        if best.command:
            lines.append(f"  {one_line(best.command)}")
    else:
        lines.append(one_line(headline(result)))
    lines.extend(one_line(f"note: {note}") for note in result.notes)
    return "\n".join(lines)


def _row(trial: Trial) -> list[str]:
    measured = [_describe_measurement(trial.measured), _describe_moved_metrics(trial)]
    row = [_DECISION_LABELS[trial.decision], _name_of(trial), "; ".join(filter(None, measured))]
    if trial.decision == "failed":
        return [*row, trial.reason]
    return [
        *row,
        _describe_prediction(trial),
        _trial_output(trial),
        *([trial.reason] if trial.decision == "drop" else []),
    ]


# The tables of a search as data, for Markdown and HTML.


def trial_table(result: Improvement, role: Role) -> Table:
    """Return the experiments of one kind, in the order they were made."""
    header = columns(
        "Decision",
        "Settings",
        "Change#",
        "Interval",
        Column("Predicted change", True, "by expected times of both sides, where measured operators reach"),
        "Finding",
        Column("Predicted", True, "seconds per answer that it should save"),
        Column("Predicted by", help="the finding's upper bound, or expected times of measured operators"),
        Column("Measured", True, "seconds per answer that it saved"),
        "Answers",
        "Why",
    )
    trials = [trial for trial in result.tried if trial.role == role]
    return Table(header, [_trial_row(trial, result) for trial in trials]).without_empty_columns()


def _trial_row(trial: Trial, result: Improvement) -> Row:
    found = trial.measured
    cells = [
        text(_DECISION_LABELS[trial.decision], strong=trial.decision == "keep"),
        code(" ".join(trial.overrides)),
        Cell(format_change(found.change_ratio), found.change_ratio) if found is not None else text(None),
        text(format_interval(found.low, found.high) if found is not None else None),
        Cell(format_change(trial.predicted_change_ratio), trial.predicted_change_ratio),
        text(trial.finding and f"{trial.finding}{f' ({trial.phase})' if trial.phase else ''}"),
        _predicted_cell(trial.predicted_gain_s, trial.predicted_by),
        text(trial.predicted_by),
        Cell(describe_gain(trial.measured_gain_s), trial.measured_gain_s),
        text(_trial_output(trial)),
        text(trial.reason),
    ]
    return Row(cells, key=" ".join(trial.overrides), details=_details(trial, result))


def _predicted_cell(gain_s: float | None, by: PredictedBy | None) -> Cell:
    """Return a prediction; files of older releases have bounds only."""
    return Cell(_format_predicted_gain(gain_s, by), gain_s)


def _details(trial: Trial, result: Improvement) -> list[tuple[str, str]]:
    found = trial.measured
    rows = [
        ("remedy", f"{trial.remedy}: {trial.title}"),
        ("may change", trial.effect),
        ("cost to adopt", trial.cost),
    ]
    if trial.on_top_of:
        rows.append(("on top of", " ".join(trial.on_top_of)))
    if trial.predicted_source is not None:
        basis = _describe_basis(
            trial.predicted_by, trial.predicted_measured_share_ratio, trial.predicted_source
        )
        rows.append(("predicted by", basis))
    if trial.predicted_change_ratio is not None and trial.bound_gain_s is not None:
        rows.append(("bound of the finding", f"at most {units.seconds(trial.bound_gain_s)}"))
    if found is not None:
        a, b = (format_value(value, result.metric) for value in (found.a, found.b))
        rows.append(("medians", f"{a} → {b}"))
        rows.append(
            (f"pairs of {_unit_name(result)}", f"{found.blocks}, {trial.how}, {units.seconds(trial.seconds)}")
        )
    others = ", ".join(_describe_metric(trial, name) for name in trial.metrics)
    return [*rows, *([("other metrics", others)] if others else [])]


def describe_gain(value: float | None) -> str:
    """Return a gain; negative gains are described as slower."""
    if value is None:
        return units.MISSING
    return units.seconds(value) if value >= 0 else f"{units.seconds(-value)} more"


def ladder_table(result: Improvement) -> Table:
    """Return the value of the metric after each step."""
    if not result.ladder:
        return simple([], [])
    rows = [[text("baseline"), text(format_value(result.baseline.metric_value, result.metric)), text("")]]
    rows += [
        [
            code(" ".join(step.overrides)),
            text(format_value(step.value, result.metric)),
            text(format_change(step.change_ratio)),
        ]
        for step in result.ladder
    ]
    again = _measured_again(result)
    if again is not None:
        rows.append(
            [
                text("all of it, measured again"),
                text(format_value(again, result.metric)),
                text(f"{format_change(result.best.change_ratio)} of the baseline"),
            ]
        )
    return simple(columns("Step", f"{METRIC_NAMES[result.metric].capitalize()}#", "Change#"), rows)


def _grade_table(grades: Sequence[FindingGrade]) -> Table:
    """Return the predicted and measured gain of each finding."""
    rows = [
        [
            text(grade.finding),
            text(grade.phase),
            _predicted_cell(grade.predicted_gain_s, grade.predicted_by),
            text(grade.predicted_by),
            Cell(describe_gain(grade.measured_gain_s), grade.measured_gain_s),
            text(f"{grade.helped} of {grade.tried}"),
            text(grade.grade),
        ]
        for grade in grades
    ]
    return simple(
        columns(
            "Finding",
            "Phase",
            "Predicted#",
            "Predicted by",
            "Best measured#",
            "Remedies that helped",
            "Grade",
        ),
        rows,
    ).without_empty_columns()


def cut_by_budget(result: Improvement) -> list[NotTried]:
    """Return the remedies that there was no time for."""
    return [item for item in result.not_tried if TIME_IS_OVER in item.reason]


def _describe_cut(result: Improvement, directory: str | None) -> str:
    """Describe what the budget left out, and how to resume; empty: nothing."""
    cut = cut_by_budget(result)
    if not cut and result.status != "out of time":
        return ""
    names = list(dict.fromkeys(item.remedy for item in cut))
    left = f"{', '.join(names)} {'was' if len(names) == 1 else 'were'} not tried" if names else ""
    resume = shlex.join(["llm-perf-opt", "improve", "--resume", directory or "DIR"])
    used = f"The budget of {units.seconds(result.budget_s)} was used up"
    return f"{used}{f': {left}' if left else ' before everything was measured again'}. Go on with `{resume} --budget TIME`."


def _not_tried_table(items: Sequence[NotTried]) -> Table:
    """Return the remedies that were left out."""
    rows = [
        [
            text(item.remedy),
            text(item.title),
            code(" ".join(item.overrides)) if item.overrides else text(""),
            text(item.reason),
        ]
        for item in items
    ]
    return simple(columns("Remedy", "What it does", "Settings", "Why not"), rows).without_empty_columns()


_GRADES_TEXT = (
    "The prediction for each finding's remedies against the best of them, each measured alone. A bound is the most a "
    "remedy could save; times of measured operators are the expected value."
)


def improve_html(result: Improvement, directory: str | None = None) -> str:
    """Render ``improve.html``; ``directory``: the search directory, for the resume command."""
    return write_html(_improve_document(result, directory))


def improve_markdown(result: Improvement, directory: str | None = None) -> str:
    """Render ``improve.md``."""
    return write_markdown(_improve_document(result, directory))


def _improve_document(result: Improvement, directory: str | None = None) -> Document:
    """Return the search: its result, what the budget cut, its basis, then every experiment."""
    cut = _describe_cut(result, directory)
    title = f"What to change: {METRIC_NAMES[result.metric]}"
    trust: list[Block] = [Note(note, level="info") for note in result.notes]
    opening: list[Block] = [
        Text(headline(result), "answer"),
        *([Note(cut, "Not everything was tried")] if cut else []),
        Text(f"Run it: `{result.best.command}`" if result.best.command else ""),
        Points(facts(result)),
        Details("How far to trust this", trust, "trust"),
    ]
    return Document(title, title, opening, _sections(result), ["improve.json"])


def _sections(result: Improvement) -> list[Section]:
    ladder = [chart(lambda: _ladder_chart(result) or "")] if _ladder_chart(result) else []
    trials = [chart(lambda: _trial_chart(result) or "")] if _trial_chart(result) else []
    grades = _grade_table(result.grades)
    return [
        Section("ladder", "From baseline to best", [*ladder, ladder_table(result).named("ladder")]),
        Section("alone", "Tried alone", [*trials, trial_table(result, "single").named("alone")]),
        Section("together", "Tried together", [trial_table(result, "combination").named("together")]),
        Section("again", "Measured again", [trial_table(result, "confirmation").named("again")]),
        Section("grades", "Findings, graded", [Text(_GRADES_TEXT), grades.named("grades")] if grades else []),
        Section("not-tried", "Not tried", _not_tried(result)),
        Section("comparisons", "Comparisons", [Links(_links(result))]),
        Section("method", "How this was made", [Text(describe_method(result))], "Method"),
    ]


def _not_tried(result: Improvement) -> list[Block]:
    """List remedies cut by the budget; inapplicable ones are folded."""
    cut = cut_by_budget(result)
    rest = [item for item in result.not_tried if item not in cut]
    folded = f"{len(rest)} {'remedy that does' if len(rest) == 1 else 'remedies that do'} not apply here"
    return [
        *([_not_tried_table(cut).named("not-tried")] if cut else []),
        *([Details(folded, [_not_tried_table(rest).named("inapplicable", filter=True)])] if rest else []),
    ]


def _links(result: Improvement) -> list[tuple[str, str]]:
    found = [(_name_of(trial), trial.comparison) for trial in result.tried if trial.comparison]
    run = result.baseline.run
    return [("the baseline's report", f"{run}/report.html"), *found] if run else found
