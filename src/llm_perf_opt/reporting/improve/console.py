"""What the console says of a search."""

from __future__ import annotations

from llm_perf_opt.core import units
from llm_perf_opt.core.escape import one_line
from llm_perf_opt.model.improve import Improvement, Trial
from llm_perf_opt.reporting.improve import words


def improve_console(result: Improvement) -> str:
    """Lay out baseline, trials and the best in plain text."""
    lines = [f"baseline   {'   '.join(words.baseline_words(result)) or units.MISSING}"]
    named = {trial.remedy for trial in words.singles(result)}
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
    first = words.first_finding_words(result)
    if first is not None:
        lines.append(one_line(f"first finding: {first}"))
    if result.best.overrides:
        best = result.best
        lines.append(
            one_line(
                f"best together: {' '.join(best.overrides)}   {result.metric} {words.change_words(best.change_ratio)} "
                f"{words.interval_words(best.low, best.high)}   tokens {best.output}"
                + ("" if best.confirmed else f"   {words.unconfirmed(result)}")
            )
        )
        if best.command:
            lines.append(f"  {one_line(best.command)}")
    else:
        lines.append(one_line(words.headline(result)))
    lines.extend(one_line(f"note: {note}") for note in result.notes)
    return "\n".join(lines)


def _row(trial: Trial) -> list[str]:
    measured = [words.measured_words(trial.measured), words.moved_words(trial)]
    row = [words.DECISIONS[trial.decision], words.name_of(trial), "; ".join(filter(None, measured))]
    if trial.decision == "failed":
        return [*row, trial.reason]
    return [
        *row,
        words.prediction_words(trial),
        words.trial_output(trial),
        *([trial.reason] if trial.decision == "drop" else []),
    ]
