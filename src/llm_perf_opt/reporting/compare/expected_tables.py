"""What tables of measured operators predict of a change, beside what was measured: as text and as a table."""

from __future__ import annotations

from llm_perf_opt.core import units
from llm_perf_opt.model.comparison import ExpectedChange, ExpectedMetric
from llm_perf_opt.reporting.compare.tables import METRIC_NAMES, change, interval_text
from llm_perf_opt.reporting.content.tables import Cell, Column, Row, Table, columns, text

_LAUNCHED = {
    "one by one": "kernels launched one by one",
    "steps as graphs": "decode steps launched as graphs, kernels before them one by one",
    "as graphs": "kernels launched as graphs",
}
_FORMATS = {"s": units.seconds, "1/s": units.number}


def expected_text(found: ExpectedChange) -> str:
    """Say what differs and what the prediction rests on, or why there is none."""
    what = ", ".join(
        f"{one.what} {one.a or units.MISSING} → {one.b or units.MISSING}" for one in found.changed
    )
    if found.reason is not None:
        return f"{what}: no prediction ({found.reason})."
    share = units.percent(found.measured_share_ratio)
    words = f"{what}: predicted by expected times, {_LAUNCHED[found.launched or 'one by one']}. "
    if found.by == "measured operators":
        words += f"{share} of a step's work rests on measured operators ({found.source})."
    else:
        words += f"Only {share} of a step's work rests on measured operators ({found.source or 'no table'}), the rest on a roofline."
    if found.host_bound:
        words += " Launching takes longer than the work on both sides, so that the change hardly shows."
    return words


def expected_table(found: ExpectedChange) -> Table:
    """Return expected times and both changes, metric by metric."""
    header = columns(
        "metric",
        Column("A expected", True, "expected time or rate of A, at its own sizes"),
        "B expected#",
        Column("predicted change", True, "B ÷ A by expected times"),
        Column("measured change", True, "B ÷ A as it was measured"),
        "interval",
    )
    return Table(header, [_row(one) for one in found.metrics]).without_empty_columns()


def _row(one: ExpectedMetric) -> Row:
    show = _FORMATS[one.unit]
    return Row(
        [
            text(METRIC_NAMES[one.name]),
            Cell(show(one.a), one.a),
            Cell(show(one.b), one.b),
            Cell(change(one.ratio), one.ratio, strong=True),
            Cell(change(one.measured_ratio), one.measured_ratio),
            text(interval_text(one.measured_low_ratio, one.measured_high_ratio)),
        ]
    )
