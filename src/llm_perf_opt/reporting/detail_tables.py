"""Tables about parts: modules, operators, other devices, stages, the environment, how numbers were computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_perf_opt.analysis.roofline.what_if import OtherDevices
from llm_perf_opt.core import units
from llm_perf_opt.hardware.silicon.installation import describe_tables
from llm_perf_opt.reporting.tables import Cell, Column, Row, Table, code, columns, num, simple, text
from llm_perf_opt.reporting.wording import THEIR_CLOCK, describe_clock, phase_name, phase_rank, shorten_files
from llm_perf_opt.summary import LedgerRow, Operator, Summary, WhatIf

# Method and source of each number of a report.


@dataclass(frozen=True, slots=True)
class _Method:
    """A number of the report: condition, method and source."""

    name: str
    is_there: Callable[[Summary], bool]
    how: str | Callable[[Summary], str]
    source: str | Callable[[Summary], str | None] = ""
    """A kind of source file, or what names it."""


def _timings_source(summary: Summary) -> str | None:
    return summary.sources.get("timings") or summary.timings.source


def _timeline_source(summary: Summary) -> str | None:
    return summary.sources.get("nsys") or summary.sources.get("trace")


def _peak_source(summary: Summary) -> str:
    peak = summary.hardware.peak_flops_per_s.get(summary.workload.dtype or "")
    return peak.source if peak is not None else summary.hardware.source


_METHODS = (
    _Method(
        "times",
        lambda s: s.wall_clock is not None,
        lambda s: describe_clock(s.timings) if s.stages else THEIR_CLOCK,
        _timings_source,
    ),
    _Method(
        "wall-clock of the program",
        lambda s: s.timings.program_s is not None,
        "from the start of its process to its end, no tool attached; median of the runs",
        _timings_source,
    ),
    _Method(
        "FLOPs and bytes",
        lambda s: s.static is not None,
        lambda s: (
            "counted from the model's operators"
            + (" at the shapes of this run" if s.wall_clock is not None and s.stages else "")
            + "; a multiply-add is two FLOPs"
        ),
        "static",
    ),
    _Method(
        "MFU (model FLOPs utilisation)",
        lambda s: any(use.mfu_ratio is not None for use in s.utilisation.values()),
        "counted FLOPs ÷ (mean wall-clock × dense peak of the data type)",
        _peak_source,
    ),
    _Method(
        "MBU (memory bandwidth utilisation)",
        lambda s: any(use.mbu_ratio is not None for use in s.utilisation.values()),
        "weights read once and KV cache ÷ (mean wall-clock × memory bandwidth)",
        lambda s: s.hardware.bandwidth_source or s.hardware.source,
    ),
    _Method(
        "floors",
        lambda s: bool(s.predictions),
        "the longer of FLOPs ÷ peak and bytes ÷ bandwidth: perfect overlap, no launch cost, so no run can be faster",
        "static",
    ),
    _Method(
        "wall-clock budget",
        lambda s: bool(s.budget),
        "every instant of the span counted once, device by device: a kernel that computes, else a copy, else communication; "
        "an idle gap goes to what the thread that launches the next operation was doing, or to the queue when it had been "
        "launched; against the unprofiled wall-clock where there is one",
        _timeline_source,
    ),
    _Method(
        "device busy",
        lambda s: any(use.device_busy_ratio is not None for use in s.utilisation.values()),
        lambda s: (
            "union of all device activity ÷ wall-clock"
            if s.budget
            else "sum of all kernel and copy times ÷ wall-clock: streams that overlap count twice, so an upper bound"
        ),
        _timeline_source,
    ),
    _Method(
        "kernel times",
        lambda s: any(kernel.total_s is not None for kernel in s.kernels),
        "device time of every launch, summed by full name; the family follows from the name",
        _timeline_source,
    ),
    _Method(
        "what bounds a kernel",
        lambda s: any(kernel.bound for kernel in s.kernels),
        "our class from its counters, next to the verdict of NVIDIA's own rules",
        "ncu",
    ),
    _Method(
        "operator times",
        lambda s: bool(s.operators),
        "one profiled pass; the profiler adds time, so compare shares, not seconds",
        "trace",
    ),
    _Method(
        "module ledger",
        lambda s: bool(s.ledger),
        "static work joined with the most direct measurement; other sources are listed and a disagreement is shown",
    ),
    _Method(
        "gains",
        lambda s: bool(s.findings),
        "upper bounds: the whole of the time that the problem touches; they overlap and do not add up",
    ),
    _Method(
        "what-if",
        lambda s: bool(s.what_if),
        "the same floors with another device's limits",
        lambda s: "device catalogue",
    ),
    _Method(
        "expected times",
        lambda s: any(row.tpot_expected_s is not None for row in s.what_if),
        "operators of the static model, each by the nearest measured shapes on that device, added up; shared among "
        "devices by outputs and inputs of weights, with measured all-reduces",
        lambda s: _silicon_source(s),
    ),
)


def _silicon_source(summary: Summary) -> str:
    used = summary.silicon
    return (
        describe_tables(used.package, used.version, used.collected)
        if used is not None and used.version
        else ""
    )


DECODE_ROWS = (
    "Rows of decode are one step: one new token per sequence. Floors of modules count their weights;"
    " the floor of a phase also counts the KV cache."
)


def ledger_table(rows: Sequence[LedgerRow], *, tree: bool = False) -> Table:
    """Return modules with work, floor and measurement; in a ``tree`` each phase has its own branches."""
    header = columns(
        "module",
        "phase",
        "parameters#",
        "FLOPs#",
        Column("bytes", True, "weights it must read"),
        Column("floor", True, "roofline floor: no machine with these limits can be faster"),
        "measured#",
        Column(
            "source",
            help="hooks: wall-clock without a profiler; timeline: device time of a capture; profiler: the "
            "phase's wall-clock split by the profiler's shares",
        ),
        Column("MFU", True, "model FLOPs utilisation"),
        Column("MBU", True, "memory bandwidth utilisation"),
        Column("launches", True, "kernel launches attributed to it"),
    )
    ordered = sorted(rows, key=lambda row: phase_rank(row.phase)) if tree else list(rows)
    known = {_row_key(row) for row in ordered}
    table = Table(header, [_ledger_row(row, known if tree else set()) for row in ordered])
    return table.without_empty_columns()


def _row_key(row: LedgerRow) -> str:
    return f"{row.phase}:{row.module}"


def _ledger_row(row: LedgerRow, known: set[str]) -> Row:
    parent, path = "", row.module
    while known and "." in path and not parent:
        path = path.rpartition(".")[0]
        parent = f"{row.phase}:{path}" if f"{row.phase}:{path}" in known else ""
    details = [(f"time by {source}", units.seconds(value)) for source, value in row.others_s.items()]
    if row.device_s is not None:
        details.append(("device time", units.seconds(row.device_s)))
    if row.disagreement:
        details.append(("sources disagree", row.disagreement))
    cells = [
        code(
            row.module.removeprefix(f"{path}.") if parent else row.module or "(whole model)",
            indent=max(0, row.depth - 1) if known else 0,
            full=row.module,
        ),
        text(phase_name(row.phase)),
        num(row.params, units.count),
        num(row.flops, units.flops),
        num(row.bytes, units.size),
        num(row.floor_s, units.seconds),
        num(row.measured_s, units.seconds),
        text(f"{row.measured_source} (disagrees)" if row.disagreement else row.measured_source),
        num(row.mfu_ratio, units.percent),
        num(row.mbu_ratio, units.percent),
        num(row.launches, units.count),
    ]
    return Row(cells, _row_key(row), parent, row.depth, row.phase, details)


def operator_table(operators: Sequence[Operator], *, left_out: int = 0, phased: bool = True) -> Table:
    """Return operators with self and total time; device columns only where there is a device."""
    device = any(op.self_device_s is not None for op in operators)
    of_phase = "of the self time of its phase: device time where there is any, else host"
    of_run = "share of its phase × the phase's share of the run's time"
    header = columns("operator")
    header += columns("phase", Column("of the run", True, of_run)) if phased else []
    header += columns(Column("of its phase" if phased else "share", True, of_phase))
    header += columns("calls#", "self host#", "total host#")
    header += columns("self device#", "total device#") if device else []
    rows = []
    for op in operators:
        cells = [code(op.name), *([text(phase_name(op.phase))] if phased else [])]
        cells += [num(op.run_share_ratio, units.percent)] if phased else []
        cells += [
            num(op.share_ratio, units.percent),
            num(op.calls, units.count),
            num(op.self_cpu_s, units.seconds),
            num(op.total_cpu_s, units.seconds),
        ]
        if device:
            cells += [num(op.self_device_s, units.seconds), num(op.total_device_s, units.seconds)]
        rows.append(Row(cells, group=phase_name(op.phase) if op.phase else ""))
    return Table(header, rows, left_out)


def other_device_table(devices: Sequence[OtherDevices], what_if: Sequence[WhatIf]) -> Table:
    """Return common devices at this run's own point; its own device with the measurement."""
    rows = []
    expects = any(each.tpot_expected_s is not None for each in devices)
    for each in devices:
        known = what_if[each.row] if each.row is not None else None
        cells = [
            text(f"{each.device} (this run)" if each.is_own else each.device, strong=each.is_own),
            *_expected_cells(known),
            num(each.ttft_measured_s, units.seconds),
            num(each.tpot_measured_s, units.seconds),
            # Next to expected times there is no room for all columns; they are in the full table.
            num(each.ttft_floor_s if not expects else None, units.seconds),
            num(each.tpot_floor_s, units.seconds),
            text(each.floor_term if not expects else None),
            num(known.tokens_per_s if known is not None and not expects else None, units.count),
            text(_FITS[each.fits]),
            text(known.note if known is not None and not expects else None),
        ]
        rows.append(Row(cells))
    header = columns(
        "device",
        *_EXPECTED_COLUMNS,
        "TTFT measured#",
        "TPOT measured#",
        Column("TTFT floor", True, "least time to first token"),
        Column("TPOT floor", True, "least time per output token"),
        Column(
            "term that binds", help="compute, memory, launch or communication: which sets the floor of a step"
        ),
        "tokens/s at most#",
        Column("fits", help="whether weights and KV cache fit its memory"),
        "what bounds a step, and memory",
    )
    return Table(header, rows).without_empty_columns()


_FITS = {True: "yes", False: "no", None: None}
_RANGE_COLUMN = Column(
    "TPOT range",
    True,
    "where the expected TPOT may lie by the measured errors of interpolation and rooflines; scheduling is not in it",
)
_EXPECTED_COLUMNS = (
    Column(
        "TTFT expected", True, "time to first token as measured operators add up to it, launched as graphs"
    ),
    Column("TPOT expected", True, "time per output token, the same way"),
    Column(
        "TPOT eager",
        True,
        "with every kernel launched by itself: the longer of launches and work; ≥ where only the cost of a bare launch is known",
    ),
    Column(
        "measured", True, "share of the expected step that rests on measured shapes and those between them"
    ),
    Column("tokens/s expected", True, "over the batch"),
    Column("tokens/s/W", True, "÷ the devices' power limit"),
)


def _expected_cells(row: WhatIf | None) -> list[Cell]:
    """Return the cells of ``_EXPECTED_COLUMNS``; empty without expected times."""
    if row is None:
        return [num(None, units.seconds)] * len(_EXPECTED_COLUMNS)
    return [
        num(row.ttft_expected_s, units.seconds),
        num(row.tpot_expected_s, units.seconds),
        _eager_cell(row),
        num(row.measured_share_ratio, units.percent),
        num(row.tokens_per_s_expected, units.count),
        num(row.tokens_per_s_per_w, units.number),
    ]


def _band_cell(row: WhatIf) -> Cell:
    low, high = row.tpot_expected_low_s, row.tpot_expected_high_s
    if low is None or high is None:
        return num(None, units.seconds)
    return Cell(f"{units.seconds(low)} … {units.seconds(high)}", high)


def _eager_cell(row: WhatIf) -> Cell:
    seconds = row.tpot_expected_eager_s
    if seconds is None:
        return num(None, units.seconds)
    return Cell(f"{'≥ ' if row.eager_is_bound else ''}{units.seconds(seconds)}", seconds)


def what_if_table(summary: Summary, *, most: int | None = None) -> Table:
    """Return expected times and floors of the same model on other devices."""
    return priced_table(summary.what_if[:most], len(summary.what_if) - len(summary.what_if[:most]))


def priced_table(priced: Sequence[WhatIf], left_out: int = 0) -> Table:
    """Return expected times and floors, one row per device and point."""
    rows = [
        Row(
            [
                text(w.device if w.tensor_parallel == 1 else f"{w.tensor_parallel} × {w.device}"),
                text(w.dtype),
                num(w.batch_size, units.count),
                num(w.context_tokens, units.count),
                *_expected_cells(w),
                _band_cell(w),
                num(w.ttft_floor_s, units.seconds),
                num(w.tpot_floor_s, units.seconds),
                text(w.floor_term),
                num(w.tokens_per_s, units.count),
                text(_FITS[w.fits]),
                text(w.note),
            ],
            group=w.dtype,
        )
        for w in priced
    ]
    header = columns(
        "device",
        "data type",
        "batch#",
        "context#",
        *_EXPECTED_COLUMNS,
        _RANGE_COLUMN,
        Column("TTFT floor", True, "least time to first token"),
        Column("TPOT floor", True, "least time per output token"),
        Column("term", help="compute, memory or launch: which sets the floor of a step"),
        "tokens/s at most#",
        Column("fits", help="whether weights and KV cache fit its memory"),
        "note",
    )
    table = Table(header, rows, left_out, grouped_by="Data type")
    return table.without_empty_columns()


def stages_table(summary: Summary) -> Table:
    """Return the outcome of each stage, with reason and fix."""
    rows = [
        Row(
            [
                code(name),
                text(stage.status, strong=stage.status != "ok"),
                num(stage.seconds, units.seconds),
                text(stage.reason),
                num(len(stage.artifacts), units.count),
            ],
            details=[("file", path) for path in stage.artifacts],
        )
        for name, stage in summary.stages.items()
    ]
    return Table(columns("stage", "status", "time#", "reason and fix", "files#"), rows)


def environment_table(summary: Summary) -> Table:
    """Return versions, machine and command line."""
    rows = [("command", " ".join(summary.run.command)), ("started", summary.run.started)]
    rows += [("duration", units.seconds(summary.run.seconds))] if summary.run.seconds is not None else []
    rows += [
        (key.replace("_", "-" if key == "llm_perf_opt" else " "), _format_value(value))
        for key, value in summary.environment.items()
    ]
    return simple(columns("what", "value"), [[text(name), text(value)] for name, value in rows if value])


def _format_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(_format_entry(str(key), item) for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(units.number(item) if isinstance(item, float) else str(item) for item in value)
    return "" if value is None else str(value)


def _format_entry(key: str, value: Any) -> str:
    if key.endswith("_bytes") and isinstance(value, int | float):
        return f"{key.removesuffix('_bytes')} {units.size(value)}"
    return f"{key} {value}"


def methods_table(summary: Summary) -> Table:
    """Return method and source of each number of this summary."""
    rows = []
    for method in _METHODS:
        if method.is_there(summary):
            how = method.how if isinstance(method.how, str) else method.how(summary)
            source = method.source
            found = summary.sources.get(source) if isinstance(source, str) else source(summary)
            rows.append([text(method.name, strong=True), text(how), text(found and shorten_files(found))])
    return simple(columns("number", "how it was made", "from"), rows)
