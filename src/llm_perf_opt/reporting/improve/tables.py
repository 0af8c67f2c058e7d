"""The tables of a search as data, for Markdown and HTML alike."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.core import units
from llm_perf_opt.model.improve import FindingGrade, Improvement, PredictedBy, Role, Trial
from llm_perf_opt.reporting.content.tables import Cell, Column, Row, Table, code, columns, simple, text
from llm_perf_opt.reporting.improve import words


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
        text(words.DECISIONS[trial.decision], strong=trial.decision == "keep"),
        code(" ".join(trial.overrides)),
        Cell(words.change_words(found.change_ratio), found.change_ratio) if found is not None else text(None),
        text(words.interval_words(found.low, found.high) if found is not None else None),
        Cell(words.change_words(trial.predicted_change_ratio), trial.predicted_change_ratio),
        text(trial.finding and f"{trial.finding}{f' ({trial.phase})' if trial.phase else ''}"),
        _predicted_cell(trial.predicted_gain_s, trial.predicted_by),
        text(trial.predicted_by),
        Cell(gain_words(trial.measured_gain_s), trial.measured_gain_s),
        text(words.trial_output(trial)),
        text(trial.reason),
    ]
    return Row(cells, key=" ".join(trial.overrides), details=_details(trial, result))


def _predicted_cell(gain_s: float | None, by: PredictedBy | None) -> Cell:
    """Return a prediction; files of older releases have bounds only."""
    return Cell(words.predicted_gain_words(gain_s, by), gain_s)


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
        basis = words.basis_words(
            trial.predicted_by, trial.predicted_measured_share_ratio, trial.predicted_source
        )
        rows.append(("predicted by", basis))
    if trial.predicted_change_ratio is not None and trial.bound_gain_s is not None:
        rows.append(("bound of the finding", f"at most {units.seconds(trial.bound_gain_s)}"))
    if found is not None:
        a, b = (words.value_words(value, result.metric) for value in (found.a, found.b))
        rows.append(("medians", f"{a} → {b}"))
        rows.append(("pairs of passes", f"{found.blocks}, {trial.how}, {units.seconds(trial.seconds)}"))
    others = ", ".join(words.metric_words(trial, name) for name in trial.metrics)
    return [*rows, *([("other metrics", others)] if others else [])]


def gain_words(value: float | None) -> str:
    """Return a gain; what is slower says so."""
    if value is None:
        return units.MISSING
    return units.seconds(value) if value >= 0 else f"{units.seconds(-value)} more"


def ladder_table(result: Improvement) -> Table:
    """Return the value of the metric after each step."""
    if not result.ladder:
        return simple([], [])
    rows = [
        [text("baseline"), text(words.value_words(result.baseline.metric_value, result.metric)), text("")]
    ]
    rows += [
        [
            code(" ".join(step.overrides)),
            text(words.value_words(step.value, result.metric)),
            text(words.change_words(step.change_ratio)),
        ]
        for step in result.ladder
    ]
    again = words.measured_again(result)
    if again is not None:
        rows.append(
            [
                text("all of it, measured again"),
                text(words.value_words(again, result.metric)),
                text(f"{words.change_words(result.best.change_ratio)} of the baseline"),
            ]
        )
    return simple(columns("Step", f"{words.METRIC_NAMES[result.metric].capitalize()}#", "Change#"), rows)


def grade_table(grades: Sequence[FindingGrade]) -> Table:
    """Return what each finding promised and what came of it."""
    rows = [
        [
            text(grade.finding),
            text(grade.phase),
            _predicted_cell(grade.predicted_gain_s, grade.predicted_by),
            text(grade.predicted_by),
            Cell(gain_words(grade.measured_gain_s), grade.measured_gain_s),
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


def not_tried_table(result: Improvement) -> Table:
    """Return the remedies that were left out."""
    rows = [
        [
            text(item.remedy),
            text(item.title),
            code(" ".join(item.overrides)) if item.overrides else text(""),
            text(item.reason),
        ]
        for item in result.not_tried
    ]
    return simple(columns("Remedy", "What it does", "Settings", "Why not"), rows).without_empty_columns()
