"""A comparison as tables: built once, shown as Markdown, HTML and on the console."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llm_perf_opt.analysis.origin import SideInfo
from llm_perf_opt.compare.data import (
    Comparison,
    Conclusion,
    ExpectedChange,
    ExpectedMetric,
    FamilyChange,
    GateResult,
    KernelChange,
    MetricChange,
    ModuleChange,
    PhaseChange,
    SampleChange,
    Split,
)
from llm_perf_opt.core import units
from llm_perf_opt.reporting.tables import (
    Cell,
    Column,
    Row,
    Table,
    code,
    columns,
    format_change,
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
_OUTCOME_NAMES = {"no difference shown": "no significant difference"}
"""Outcomes whose key is not what a reader should read."""
_MOST_HEADING = 40
"""Characters of settings in a title; all of them are in the list of sides."""
_UNNAMED = ("A", "B")
"""Sides of ``--run``: only their settings tell them apart."""
_GATE_LABELS = {
    "passed": "passed",
    "regression": "REGRESSION",
    "undecided": "undecided",
    "not enough data": "not enough data",
    "not comparable": "not comparable",
    "side failed": "SIDE FAILED",
}


def _change_cell(ratio: float | None, *, strong: bool = False) -> Cell:
    return Cell(format_change(ratio), ratio, strong=strong)


def format_interval(low: float | None, high: float | None) -> str:
    """The interval of a change."""
    return units.MISSING if low is None or high is None else f"{format_change(low)} … {format_change(high)}"


def _format_p_value(value: float | None) -> str:
    return "< 0.001" if value is not None and value < 0.001 else units.number(value)


def metric_table(rows: Sequence[MetricChange]) -> Table:
    """Return every metric with its interval and verdict."""
    header = columns(
        "metric",
        "A#",
        "B#",
        Column("change", True, "B against A; estimated pair by pair where there are pairs"),
        Column("interval", False, "bootstrap interval of the change"),
        Column("p", True, "exact two-sided rank test of no change"),
        Column("blocks", False, "what was paired or ranked, and how many"),
        "result",
    )
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
                text(format_interval(row.low_ratio, row.high_ratio)),
                num(row.p_value, _format_p_value),
                text(f"{row.n} {row.blocks}" if row.blocks else None),
                text(_OUTCOME_NAMES.get(row.outcome, row.outcome), strong=shown),
            ]
        )
    return simple(header, cells)


def gate_table(rows: Sequence[GateResult]) -> Table:
    """Return the result of every gate."""
    header = columns("gate", "allowed#", "result", "why")
    return simple(
        header,
        [
            [
                text(row.metric),
                text(format_change(row.limit_ratio)),
                text(_GATE_LABELS[row.status], strong=row.status in ("regression", "side failed")),
                text(row.reason),
            ]
            for row in rows
        ],
    )


def phase_table(rows: Sequence[PhaseChange]) -> Table:
    """Return verdicts, utilisation and budget parts of the phases."""
    header = columns("phase", "what", "A#", "B#", "change#")

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
    header = columns(
        "module",
        "phase",
        "A#",
        "B#",
        "change#",
        Column("source", help="where the times come from"),
        "launches A#",
        "launches B#",
        "FLOPs A#",
        "FLOPs B#",
    )
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
    header = columns(
        "family",
        "phase",
        "A#",
        "B#",
        Column("change", True, "at equal work"),
        Column("share A", True, "of all kernel time"),
        Column("share B", True, "of all kernel time"),
        "launches A#",
        "launches B#",
    )
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
    header = columns(
        "kernel",
        Column("matched", help="how the two sides were recognised as the same work"),
        "family",
        "phase",
        "A#",
        "B#",
        Column("change", True, "at equal work"),
        Column("per launch", True, "change of the mean time of a launch"),
        "launches A#",
        "launches B#",
    )
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
    """Return other differences between the sides."""
    return simple(
        columns("what", "A", "B"),
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
    """Name both sides; with ``--run`` they are only called A and B, distinguished by their settings."""

    def named(side: SideInfo, other: SideInfo) -> str:
        own = " ".join(word for word in side.overrides if word not in other.overrides)
        if side.name not in _UNNAMED or not own:
            return side.name
        return f"{side.name} ({own if len(own) <= _MOST_HEADING else own[:_MOST_HEADING] + '…'})"

    return f"{named(comparison.b, comparison.a)} against {named(comparison.a, comparison.b)}"


def format_common_settings(comparison: Comparison) -> str:
    """Return the settings of both sides in one line; empty where there are none."""
    return " ".join(comparison.common_overrides)


def describe_method(comparison: Comparison) -> str:
    """Describe how changes, intervals and gates are computed."""
    method = comparison.method
    return (
        "A and B are means over the samples both sides share, of each sample's median. "
        "A change is B ÷ A − 1 of these two values. Its interval is a bootstrap interval of the Hodges–Lehmann estimate "
        "over blocks, extended to contain the change "
        f"({units.percent(method.confidence_ratio)}, {method.resamples} resamples of whole blocks, seed "
        f"{method.seed}); "
        f"p is an exact rank test. A difference counts as shown when the interval leaves out zero and "
        f"p ≤ {method.alpha}. A gate reports a regression only when the whole interval lies beyond its limit and the "
        "one-sided rank test against the limit agrees. Kernel time, copies and launches of B, decode and total, and the "
        "changes of captured times are at A's work; seconds and launches in the tables of families and kernels are as "
        "captured."
    )


# Causes of a change and samples in pairs, as tables.


SPLITS_TEXT = "The parts of a whole add up to its change. Kernel time of B is at A's work."
_WHOLES = {"wall_clock": "wall-clock of a sample", "kernel_time": "kernel time"}
_METRICS = {"total": "whole answer", "ttft": "time to first token", "tpot": "time per output token"}


def cause_table(splits: Sequence[Split]) -> Table:
    """Return what each part adds or saves."""
    header = columns("cause", "of", "A#", "B#", "adds#")
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
    header = columns(
        "sample",
        "metric",
        Column("A", True, "median of its repeats"),
        Column("B", True, "median of its repeats"),
        "change#",
    )
    return Table(
        header,
        [
            Row(
                [
                    code(row.sample),
                    text(_METRICS.get(row.metric, row.metric)),
                    num(row.a_s, units.seconds),
                    num(row.b_s, units.seconds),
                    Cell(format_change(row.ratio), row.ratio),
                ],
                group=_METRICS.get(row.metric, row.metric),
            )
            for row in rows
        ],
        grouped_by="Metric",
    )


# Conclusions as tables: the causes of a change with their share of it, and devices side by side.


_SCOPE_NAMES = {
    "wall_clock": "wall-clock of an answer",
    "captured_time": "captured time",
    "kernel_time": "kernel time",
}
EQUAL_WORK_TEXT = (
    "Times of B are at A's work; the rows add up to the change. Where medians are taken, the median of a sum is not the sum "
    "of the medians: the row “medians of sums” is the difference."
)


def scope_name(conclusion: Conclusion) -> str:
    """Name the whole that a conclusion is about."""
    return _SCOPE_NAMES[conclusion.whole]


def facts(conclusion: Conclusion) -> list[str]:
    """Return the sentences after the first: how the work was counted, what moved, other notes."""
    moved = [
        f"{move.text[0].upper()}{move.text[1:]}."
        for move in conclusion.moved
        if move.text.casefold() not in conclusion.sentence.casefold()
    ]
    return [f"{conclusion.work.text}.", *moved, *conclusion.details]


def conclusion_table(conclusion: Conclusion, most: int | None = None) -> Table:
    """Return the causes, the largest first, the remainder, and the whole."""
    header = columns(
        "cause",
        "A#",
        Column("B", True, "at A's work"),
        "adds#",
        Column("share", True, "of the change; below zero: works against it"),
    )
    if conclusion.a_s is None or conclusion.b_s is None or not conclusion.causes:
        return simple(header, [])
    shown = conclusion.causes[:most]
    rows = [
        [
            text(cause.name),
            num(cause.a_s, units.seconds),
            num(cause.b_s, units.seconds),
            adds(cause.change_s),
            num(cause.share_ratio, units.percent),
        ]
        for cause in shown
    ]
    change = conclusion.b_s - conclusion.a_s
    left = change - sum(cause.change_s for cause in conclusion.causes)
    if abs(left) > 1e-6 * conclusion.a_s:
        rest = "medians of sums" if conclusion.whole == "wall_clock" else "not explained"
        rows.append([text(rest), text(None), text(None), adds(left), _share(left, change)])
    whole = [num(conclusion.a_s, units.seconds), num(conclusion.b_s, units.seconds), adds(change)]
    rows.append([text("together", strong=True), *whole, text("")])
    return Table(header, [Row(cells) for cells in rows], left_out=len(conclusion.causes) - len(shown))


def _share(part: float, change: float) -> Cell:
    return num(part / change if change else None, units.percent)


def device_table(conclusions: Sequence[Conclusion]) -> Table:
    """Return what each device and rank did with its time."""
    header = columns("device", "time", "A#", Column("B", True, "at A's work"), "adds#")
    return Table(
        header,
        [
            Row(
                [
                    text(row.where),
                    text(row.what),
                    num(row.a_s, units.seconds),
                    num(row.b_s, units.seconds),
                    adds(row.change_s),
                ],
                group=row.where,
            )
            for conclusion in conclusions
            for row in conclusion.devices
        ],
        grouped_by="Device",
    )


# Predictions from tables of measured operators next to measurements: as text and as a table.


_LAUNCHED = {
    "one by one": "kernels launched one by one",
    "steps as graphs": "decode steps launched as graphs, kernels before them one by one",
    "as graphs": "kernels launched as graphs",
}
_EXPECTED_FORMATS = {"s": units.seconds, "1/s": units.number}


def describe_expected(found: ExpectedChange) -> str:
    """Describe what differs and the basis of the prediction, or why there is none."""
    what = ", ".join(
        f"{one.what} {one.a or units.MISSING} → {one.b or units.MISSING}" for one in found.changed
    )
    if found.reason is not None:
        return f"{what}: no prediction ({found.reason})."
    share = units.percent(found.measured_share_ratio)
    line = f"{what}: predicted by expected times, {_LAUNCHED[found.launched or 'one by one']}. "
    if found.by == "measured operators":
        line += f"{share} of a step's work rests on measured operators ({found.source})."
    else:
        line += f"Only {share} of a step's work rests on measured operators ({found.source or 'no table'}), the rest on a roofline."
    if found.host_bound:
        line += " Launching takes longer than the work on both sides, so that the change hardly shows."
    return line


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
    show = _EXPECTED_FORMATS[one.unit]
    return Row(
        [
            text(METRIC_NAMES[one.name]),
            Cell(show(one.a), one.a),
            Cell(show(one.b), one.b),
            Cell(format_change(one.ratio), one.ratio, strong=True),
            Cell(format_change(one.measured_ratio), one.measured_ratio),
            text(format_interval(one.measured_low_ratio, one.measured_high_ratio)),
        ]
    )
