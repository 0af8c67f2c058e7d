"""Causes of a change and samples in pairs, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.core import units
from llm_perf_opt.model.comparison import SampleChange, Split
from llm_perf_opt.reporting.compare.tables import change
from llm_perf_opt.reporting.content.tables import Cell, Column, Row, Table, code, num, simple, text

SPLITS_TEXT = (
    "Means over the samples both sides share, of each sample's median; the parts of a whole add up to its change. "
    "Where the sides made different numbers of decode steps, the steps are counted at A's speed first. Kernel time of B is at "
    "A's work."
)
_WHOLES = {"wall_clock": "wall-clock of a sample", "kernel_time": "kernel time"}
_METRICS = {"total": "whole answer", "ttft": "time to first token", "tpot": "time per output token"}


def cause_table(splits: Sequence[Split]) -> Table:
    """Return what each part adds or saves."""
    header = [Column("cause"), Column("of"), Column("A", True), Column("B", True), Column("adds", True)]
    rows = []
    for split in splits:
        name = _WHOLES.get(split.whole, split.whole)
        rows += [
            [
                text(c.name),
                text(name),
                num(c.a_s, units.seconds),
                num(c.b_s, units.seconds),
                adds(c.change_s),
            ]
            for c in split.causes
        ]
        whole = [num(split.a_s, units.seconds), num(split.b_s, units.seconds), adds(split.b_s - split.a_s)]
        rows.append([text("together", strong=True), text(name), *whole])
    return simple(header, rows)


def adds(seconds: float) -> Cell:
    """Show what a part adds or saves."""
    return Cell(f"{'+' if seconds >= 0 else '−'}{units.seconds(abs(seconds))}", seconds)


def sample_table(rows: Sequence[SampleChange]) -> Table:
    """Return every sample on both sides."""
    header = [
        Column("sample"),
        Column("metric"),
        Column("A", True, "median of its repeats"),
        Column("B", True, "median of its repeats"),
        Column("change", True),
    ]
    return Table(
        header,
        [
            Row(
                [
                    code(row.sample),
                    text(_METRICS.get(row.metric, row.metric)),
                    num(row.a_s, units.seconds),
                    num(row.b_s, units.seconds),
                    Cell(change(row.ratio), row.ratio),
                ],
                group=_METRICS.get(row.metric, row.metric),
            )
            for row in rows
        ],
        grouped_by="Metric",
    )
