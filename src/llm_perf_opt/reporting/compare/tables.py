"""A comparison as tables: built once, shown as Markdown, HTML and on the console."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llm_perf_opt.core import units
from llm_perf_opt.model.comparison import (
    Comparison,
    FamilyChange,
    GateResult,
    KernelChange,
    MetricChange,
    ModuleChange,
    PhaseChange,
    SideInfo,
)
from llm_perf_opt.reporting.content.tables import (
    Cell,
    Column,
    Row,
    Table,
    code,
    num,
    simple,
    text,
)
from llm_perf_opt.reporting.wording import BOUND_NAMES, phase_name

METRIC_NAMES = {
    "program": "wall-clock of the program (program)",
    "ttft": "time to first token (ttft)",
    "tpot": "time per output token (tpot)",
    "tokens_per_s": "tokens per second (tokens_per_s)",
    "total": "whole answer (total)",
    "kernel_time": "kernel time (kernel_time)",
    "copy_time": "copies (copy_time)",
    "device_busy": "device busy (device_busy)",
    "launches_per_token": "launches per token (launches_per_token)",
}
_FORMATS: dict[str, Callable[[float | None], str]] = {
    "s": units.seconds,
    "1/s": units.number,
    "ratio": units.percent,
    "count": units.count,
}
_MOST_HEADING = 120
"""Characters of settings in a title; all of them are in the list of sides."""
_GATE_WORDS = {
    "passed": "passed",
    "regression": "REGRESSION",
    "undecided": "undecided",
    "not enough data": "not enough data",
    "not comparable": "not comparable",
    "side failed": "SIDE FAILED",
}


def change(ratio: float | None) -> str:
    """``1.031`` → ``+3.1 %``; far changes as a factor."""
    if ratio is None:
        return units.MISSING
    if ratio >= 10 or (0 < ratio <= 0.1):
        return f"× {units.number(ratio)}"
    return f"{round((ratio - 1) * 100, 1) + 0.0:+.1f} %"  # + 0.0: no minus before a zero


def _change_cell(ratio: float | None, *, strong: bool = False) -> Cell:
    return Cell(change(ratio), ratio, strong=strong)


def interval_text(low: float | None, high: float | None) -> str:
    """The interval of a change."""
    return units.MISSING if low is None or high is None else f"{change(low)} … {change(high)}"


def _p_text(value: float | None) -> str:
    return "< 0.001" if value is not None and value < 0.001 else units.number(value)


def metric_table(rows: Sequence[MetricChange]) -> Table:
    """Return every metric with its interval and what it shows."""
    header = [
        Column("metric"),
        Column("A", True),
        Column("B", True),
        Column("change", True, "B against A; estimated pair by pair where there are pairs"),
        Column("interval", False, "bootstrap interval of the change"),
        Column("p", True, "exact two-sided rank test of no change"),
        Column("blocks", False, "what was paired or ranked, and how many"),
        Column("result"),
    ]
    cells = []
    for row in rows:
        show = _FORMATS[row.unit]
        shown = row.outcome in ("better", "worse")
        cells.append(
            [
                text(METRIC_NAMES.get(row.name, row.name)),
                num(row.a, show),
                num(row.b, show),
                _change_cell(row.ratio, strong=shown),
                text(interval_text(row.low_ratio, row.high_ratio)),
                num(row.p_value, _p_text),
                text(f"{row.n} {row.blocks}" if row.blocks else None),
                text(row.outcome, strong=shown),
            ]
        )
    return simple(header, cells)


def gate_table(rows: Sequence[GateResult]) -> Table:
    """Return what every gate decided."""
    header = [Column("gate"), Column("allowed", True), Column("result"), Column("why")]
    return simple(
        header,
        [
            [
                text(row.metric),
                text(change(row.limit_ratio)),
                text(_GATE_WORDS[row.status], strong=row.status in ("regression", "side failed")),
                text(row.reason),
            ]
            for row in rows
        ],
    )


def phase_table(rows: Sequence[PhaseChange]) -> Table:
    """Return verdicts, utilisation and budget parts of the phases."""
    header = [Column("phase"), Column("what"), Column("A", True), Column("B", True), Column("change", True)]

    def shown(value: float | str | None, unit: str) -> Cell:
        if isinstance(value, str) or value is None:
            return text(BOUND_NAMES.get(value, value) if value else None)
        return num(value, _FORMATS[unit])

    return Table(
        header,
        [
            Row(
                [
                    text(phase_name(row.phase)),
                    text(row.what),
                    shown(row.a, row.unit),
                    shown(row.b, row.unit),
                    _change_cell(row.ratio),
                ],
                group=row.phase,
            )
            for row in rows
        ],
    )


def module_table(rows: Sequence[ModuleChange], most: int) -> Table:
    """Return the ledgers side by side."""
    header = [
        Column("module"),
        Column("phase"),
        Column("A", True),
        Column("B", True),
        Column("change", True),
        Column("source", help="where the times come from"),
        Column("launches A", True),
        Column("launches B", True),
        Column("FLOPs A", True),
        Column("FLOPs B", True),
    ]
    return Table(
        header,
        [
            Row(
                [
                    code(row.module),
                    text(phase_name(row.phase)),
                    num(row.a_s, units.seconds),
                    num(row.b_s, units.seconds),
                    _change_cell(row.ratio),
                    text(row.source),
                    num(row.a_launches, units.count),
                    num(row.b_launches, units.count),
                    num(row.a_flops, units.flops),
                    num(row.b_flops, units.flops),
                ],
                group=row.phase,
            )
            for row in rows[:most]
        ],
        left_out=max(0, len(rows) - most),
    )


def family_table(rows: Sequence[FamilyChange]) -> Table:
    """Return kernel families side by side."""
    header = [
        Column("family"),
        Column("phase"),
        Column("A", True),
        Column("B", True),
        Column("change", True, "at equal work"),
        Column("share A", True, "of all kernel time"),
        Column("share B", True, "of all kernel time"),
        Column("launches A", True),
        Column("launches B", True),
    ]
    return Table(
        header,
        [
            Row(
                [
                    text(row.family),
                    text(phase_name(row.phase)),
                    num(row.a_s, units.seconds),
                    num(row.b_s, units.seconds),
                    _change_cell(row.ratio),
                    num(row.a_share_ratio, units.percent),
                    num(row.b_share_ratio, units.percent),
                    num(row.a_launches, units.count),
                    num(row.b_launches, units.count),
                ],
                group=row.phase or "",
            )
            for row in rows
        ],
    )


def kernel_table(rows: Sequence[KernelChange], most: int) -> Table:
    """Return paired kernels; full names can be unfolded."""
    header = [
        Column("kernel"),
        Column("matched", help="how the two sides were recognised as the same work"),
        Column("family"),
        Column("phase"),
        Column("A", True),
        Column("B", True),
        Column("change", True, "at equal work"),
        Column("per launch", True, "change of the mean time of a launch"),
        Column("launches A", True),
        Column("launches B", True),
    ]
    return Table(
        header,
        [_kernel_row(row) for row in rows[:most]],
        left_out=max(0, len(rows) - most),
        grouped_by="Matched",
    )


def _kernel_row(row: KernelChange) -> Row:
    cells = [
        code(row.label),
        text(row.matched),
        text(row.family),
        text(phase_name(row.phase)),
        num(row.a_s, units.seconds),
        num(row.b_s, units.seconds),
        _change_cell(row.ratio),
        _change_cell(row.per_launch_ratio),
        num(row.a_launches, units.count),
        num(row.b_launches, units.count),
    ]
    details = [("in A", name) for name in row.a_names] + [("in B", name) for name in row.b_names]
    return Row(cells, group=row.matched, details=details)


def difference_table(comparison: Comparison) -> Table:
    """Return what else differs between the sides."""
    return simple(
        [Column("what"), Column("A"), Column("B")],
        [[text(row.what), text(row.a), text(row.b)] for row in comparison.differences],
    )


def side_facts(comparison: Comparison) -> list[tuple[str, str]]:
    """Name the sides in one line each."""
    lines = []
    for letter, side in (("A", comparison.a), ("B", comparison.b)):
        parts = [
            side.name,
            side.model,
            side.device,
            side.dtype,
            f"{side.samples} samples" if side.samples else None,
            f"{side.runs} runs" if side.runs > 1 else None,
            *(f"status {status}" for status in sorted({*side.statuses} - {"ok"})),
            f"settings {' '.join(side.overrides)}" if side.overrides else None,
        ]
        lines.append((letter, ", ".join(part for part in parts if part)))
    return lines


def heading(comparison: Comparison) -> str:
    """Name both sides and what tells them apart: with ``--run`` they are only called A and B."""

    def named(side: SideInfo, other: SideInfo) -> str:
        own = [word for word in side.overrides if word not in other.overrides]
        shown = " ".join(own)
        return (
            f"{side.name} ({shown if len(shown) <= _MOST_HEADING else shown[:_MOST_HEADING] + '…'})"
            if own
            else side.name
        )

    return f"{named(comparison.b, comparison.a)} against {named(comparison.a, comparison.b)}"


def common_text(comparison: Comparison) -> str:
    """Return the settings of both sides in one line; empty where there are none."""
    return " ".join(comparison.common_overrides)


def method_text(comparison: Comparison) -> str:
    """Say how changes, intervals and gates are made."""
    method = comparison.method
    return (
        "A and B are means over the samples both sides share, of each sample's median. "
        "Changes are Hodges–Lehmann estimates of the log ratio B ÷ A over blocks, so not the quotient of "
        "the two; intervals are bootstrap intervals "
        f"({units.percent(method.confidence_ratio)}, {method.resamples} resamples of whole blocks, seed "
        f"{method.seed}); "
        f"p is an exact rank test. A difference counts as shown when the interval leaves out zero and "
        f"p ≤ {method.alpha}. A gate reports a regression only when the whole interval lies beyond its limit and the "
        "one-sided rank test against the limit agrees. Kernel time, copies and launches of B, decode and total, and the "
        "changes of captured times are at A's work; seconds and launches in the tables of families and kernels are as "
        "captured."
    )
