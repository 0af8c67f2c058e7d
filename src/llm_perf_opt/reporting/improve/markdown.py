"""``improve.md``."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.core import units
from llm_perf_opt.core.escape import md_cell, md_code, md_text
from llm_perf_opt.model.improve import Improvement, Trial
from llm_perf_opt.reporting.improve import words
from llm_perf_opt.reporting.markdown.writer import bullets, section, table

_HEADER = ["decision", "settings", "change", "prediction", "answers", "why", "cost to adopt"]


def improve_markdown(result: Improvement) -> str:
    """Render the search."""
    facts = [
        f"**baseline**: {md_text(', '.join(words.baseline_words(result)) or units.MISSING)}",
        f"**settings**: {md_text(' '.join(result.baseline.overrides) or 'the default')}",
        f"**model, device**: {md_text(result.baseline.model or units.MISSING)}, {md_text(result.baseline.device or units.MISSING)}",
        f"**samples**: {md_text(', '.join(result.baseline.samples) or units.MISSING)}",
        f"**search**: {result.status}, {units.seconds(result.seconds)}, {len(result.tried)} experiments",
    ]
    return "".join(
        (
            f"# What to change: {words.METRIC_NAMES[result.metric]}\n\n",
            f"**{md_text(words.headline(result))}**\n\n",
            f"Run it: {md_code(result.best.command)}\n\n" if result.best.command else "",
            f"{bullets(facts)}\n\n",
            f"{bullets(f'Note: {md_text(note)}' for note in result.notes)}\n\n" if result.notes else "",
            section("From baseline to best", _ladder(result)),
            section("Tried alone", _trials([t for t in result.tried if t.role == "single"])),
            section("Tried together", _trials([t for t in result.tried if t.role == "combination"])),
            section("Measured again", _trials([t for t in result.tried if t.role == "confirmation"])),
            section("Findings, graded", _grades(result)),
            section("Not tried", _not_tried(result)),
            section("How this was made", md_text(words.method_words(result))),
        )
    )


def _ladder(result: Improvement) -> str:
    if not result.ladder:
        return ""
    rows = [["baseline", words.value_words(result.baseline.metric_value, result.metric), ""]]
    rows += [
        [
            md_code(" ".join(step.overrides), cell=True),
            words.value_words(step.value, result.metric),
            words.change_words(step.change_ratio),
        ]
        for step in result.ladder
    ]
    return table(["step", result.metric, "change"], rows, numbers=[1, 2])


def _trials(trials: Sequence[Trial]) -> str:
    rows = [
        [
            f"**{words.DECISIONS[trial.decision]}**",
            md_code(" ".join(trial.overrides), cell=True),
            words.measured_words(trial.measured),
            md_cell(words.prediction_words(trial)),
            md_cell(words.trial_output(trial)),
            md_cell(trial.reason),
            md_cell(trial.cost),
        ]
        for trial in trials
    ]
    return table(_HEADER, rows) if rows else ""


def _grades(result: Improvement) -> str:
    rows = [
        [
            md_cell(grade.finding),
            md_cell(grade.phase or ""),
            units.seconds(grade.predicted_gain_s),
            _gain(grade.measured_gain_s),
            f"{grade.helped} of {grade.tried}",
            grade.grade,
        ]
        for grade in result.grades
    ]
    header = ["finding", "phase", "predicted, at most", "measured", "helped", "grade"]
    return table(header, rows, numbers=[2, 3]) if rows else ""


def _gain(value: float | None) -> str:
    if value is None:
        return units.MISSING
    return units.seconds(value) if value >= 0 else f"{units.seconds(-value)} more"


def _not_tried(result: Improvement) -> str:
    rows = [[md_cell(item.remedy), md_cell(item.title), md_cell(item.reason)] for item in result.not_tried]
    return table(["remedy", "what", "why not"], rows) if rows else ""
