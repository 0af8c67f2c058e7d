"""The answers of ``what-if``: ``what_if.html``, the console and CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Sequence
from dataclasses import dataclass, field

from llm_perf_opt.core import units
from llm_perf_opt.hardware.silicon.installation import MISSING_TEXT
from llm_perf_opt.reporting.charts.axes import Kind
from llm_perf_opt.reporting.charts.dots import Dot, DotRow, dot_chart
from llm_perf_opt.reporting.console import write_console
from llm_perf_opt.reporting.detail_tables import priced_table
from llm_perf_opt.reporting.document import (
    Block,
    Details,
    Document,
    Heading,
    Note,
    Points,
    Section,
    Text,
    chart,
)
from llm_perf_opt.reporting.html.page import write_html
from llm_perf_opt.reporting.tables import Cell, Column, Row, Table, columns, num, simple, text
from llm_perf_opt.reporting.wording import describe_times, sentence, title_of
from llm_perf_opt.summary import SiliconUse, Summary, WhatIf
from llm_perf_opt.what_if.target import Met, Needed, Target, devices_that_meet, meets, nearest, needed_rates

CONSOLE_WIDTH = 100
_MOST_CHART_ROWS = 30
_MOST_CONSOLE_ROWS = 60
_EXPECTED = Kind("expected (90 % range)", "triangle", 2)
_FLOOR = Kind("floor: no run can be faster", "circle", 0)
_TOO_SMALL = Kind("floor, but the model does not fit", "hollow", 0)
_MEASURED = Kind("measured in this run", "diamond", 5)
_MAKERS = ("NVIDIA GeForce ", "NVIDIA ", "AMD Instinct ", "AMD ")


@dataclass(frozen=True, slots=True)
class Answer:
    """Estimated rows, their basis, and the target."""

    summary: Summary
    rows: Sequence[WhatIf]
    used: SiliconUse
    target: Target = field(default_factory=Target)

    @property
    def met(self) -> list[Met]:
        """Devices that meet the target."""
        return devices_that_meet(self.rows, self.target) if self.target else []

    @property
    def needed(self) -> list[Needed]:
        """Rates that a device needs for the target."""
        static = self.summary.static
        return needed_rates(static, self.rows, self.target) if self.target and static is not None else []


def what_if_html(answer: Answer) -> str:
    """Render ``what_if.html``."""
    return write_html(_what_if_document(answer))


def what_if_console(answer: Answer, width: int = CONSOLE_WIDTH) -> str:
    """Lay the answer out within ``width`` columns; ``--json`` and ``--csv`` have all columns."""
    width = min(width, CONSOLE_WIDTH)
    blocks: list[Block] = [Text(_describe_answer(answer))]
    if answer.target:
        blocks += (
            [Heading("Devices that meet the target"), _met_table(answer, short=True)] if answer.met else []
        )
        blocks += [Heading("What a device needs"), _needed_table(answer.needed)]
        blocks.append(Text(f"All {len(answer.rows)} rows: --csv, --json or --out DIR."))
    else:
        shown = answer.rows[:_MOST_CONSOLE_ROWS]
        expects = any(row.tpot_expected_s is not None for row in shown)
        blocks += [
            Heading("Expected times" if expects else "Floors"),
            _row_table(answer, shown, width=width),
        ]
        if len(answer.rows) > len(shown):
            blocks.append(Text(f"{len(answer.rows) - len(shown)} more rows: --csv, --json or --out DIR."))
    if answer.used.version is None:
        blocks.append(Note(sentence(answer.used.reason or MISSING_TEXT)))
    blocks += [Note(problem) for problem in answer.used.problems]
    return "\n".join(write_console(blocks, width))


def what_if_csv(rows: Sequence[WhatIf]) -> str:
    """Return all columns, one line per row; times in seconds."""
    names = [each.name for each in dataclasses.fields(WhatIf)]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        values = [getattr(row, name) for name in names]
        writer.writerow(["" if value is None else value for value in values])
    return stream.getvalue()


def _what_if_document(answer: Answer) -> Document:
    """Return the page: the answer, charts with the 90 % range, the columns that matter, and everything."""
    title = f"What if: {title_of(answer.summary)}"
    notes: list[Block] = [Note(problem, level="info") for problem in answer.used.problems]
    opening: list[Block] = [
        Text(_describe_answer(answer), "answer"),
        Points([("point", _describe_points(answer.rows)), *_measured_facts(answer.summary)]),
        *([Details("How far to trust this", notes, "trust")] if notes else []),
    ]
    sections = [
        Section("target", "Devices that meet the target", _target(answer), "Target"),
        Section("tpot", "Time per output token", _time_chart(answer, first_token=False), "TPOT"),
        Section("ttft", "Time to first token", _time_chart(answer, first_token=True), "TTFT"),
        Section(
            "rows",
            "Devices and points",
            [
                _row_table(answer, answer.rows).named("rows", filter=True),
                Details(
                    f"All columns of {len(answer.rows)} rows",
                    [priced_table(answer.rows).named("all", filter=True)],
                ),
            ],
        ),
        Section("method", "How this was made", [Text(describe_method(answer))], "Method"),
    ]
    return Document(title, title, opening, sections, ["what_if.json"])


# The sentences.


def _describe_answer(answer: Answer) -> str:
    """Describe which devices meet the target, or the fastest device that fits the model."""
    if answer.target:
        return _describe_target(answer)
    known = [row for row in answer.rows if row.fits is not False and _time(row) is not None]
    if not known:
        return "No time can be given: no limits of these devices are known for this data type."
    best = min(known, key=lambda row: (_time(row) or 0.0) / row.batch_size)
    word = "expect" if best.tpot_expected_s is not None else "at least"
    first = best.ttft_expected_s if best.tpot_expected_s is not None else best.ttft_floor_s
    return (
        f"Fastest per token of {len(answer.rows)} rows: {_name(best)}, batch {best.batch_size}, {best.dtype}: {word} "
        f"{units.seconds(first)} to the first token and {units.seconds(_time(best))} per output token{_range(best)}."
    )


def _describe_target(answer: Answer) -> str:
    target, met = answer.target, answer.met
    devices = len({row.device for row in answer.rows})
    if met:
        first = met[0]
        sizes = ", ".join(map(str, first.batch_sizes))
        return (
            f"{len({each.device for each in met})} of {devices} devices meet {target.describe()}; with the fewest devices: "
            f"{_name(first.largest)}, batch {sizes} ({first.certainty}), "
            f"{units.count(first.largest.tokens_per_s_expected)} tokens/s at batch {first.largest.batch_size}."
        )
    line = f"None of {len(answer.rows)} rows on {devices} devices is expected to meet {target.describe()}"
    best = nearest(answer.rows, target)
    if best is None:
        return f"{line}: no times are expected of these devices."
    return (
        f"{line}; the nearest is {_name(best)} at batch {best.batch_size}: {units.seconds(best.ttft_expected_s)} to the first "
        f"token and {units.seconds(best.tpot_expected_s)} per output token."
    )


def _describe_points(rows: Sequence[WhatIf]) -> str:
    """Describe the sizes of the rows."""
    prompts = sorted({row.prompt_tokens for row in rows if row.prompt_tokens})
    contexts = sorted({row.context_tokens for row in rows})
    parts = [
        ", ".join(dict.fromkeys(row.dtype for row in rows)),
        f"batch {_list(sorted({row.batch_size for row in rows}))}",
        f"prompt {_list(prompts)}" if prompts else "",
        f"context {_list(contexts)}",
    ]
    return "; ".join(part for part in parts if part)


def describe_method(answer: Answer) -> str:
    """Describe expected times, ranges and floors."""
    summary = answer.summary
    return describe_times(
        answer.used,
        expects=any(row.tpot_expected_s is not None for row in answer.rows),
        counted=summary.static is not None and summary.static.operators is not None,
        row=next((row for row in answer.rows if row.eager_host_s is not None), None),
    )


def _measured_facts(summary: Summary) -> list[tuple[str, str]]:
    timings = summary.timings
    if timings.tpot_s is None:
        return []
    first = (
        f"{units.seconds(timings.ttft_s.shown)} to the first token, " if timings.ttft_s is not None else ""
    )
    where = summary.hardware.name or summary.workload.device or "its device"
    return [
        ("this run", f"{first}{units.seconds(timings.tpot_s.shown)} per output token, measured on {where}")
    ]


def _list(values: Sequence[int]) -> str:
    return ", ".join(f"{value:,}" for value in values)


def _time(row: WhatIf) -> float | None:
    return row.tpot_expected_s if row.tpot_expected_s is not None else row.tpot_floor_s


def _name(row: WhatIf) -> str:
    short = row.device
    for maker in _MAKERS:
        short = short.removeprefix(maker)
    return short if row.tensor_parallel == 1 else f"{row.tensor_parallel} × {short}"


def _range(row: WhatIf) -> str:
    low, high = row.tpot_expected_low_s, row.tpot_expected_high_s
    return (
        "" if low is None or high is None else f" (90 % range {units.seconds(low)} to {units.seconds(high)})"
    )


# Tables.


def _row_table(answer: Answer, rows: Sequence[WhatIf], *, width: int | None = None) -> Table:
    """Return the columns that matter; sizes only where they differ. ``width``: fit a terminal of so many columns."""
    short = width is not None
    varied = {
        name: len({getattr(row, name) for row in rows}) > 1
        for name in ("dtype", "batch_size", "context_tokens")
    }
    body = [Row(_cells(row, answer.target, varied)) for row in rows]
    own = _own_row(answer.summary, varied, bool(answer.target))
    header = columns(
        "device",
        *(["type"] if varied["dtype"] else []),
        *(["batch#"] if varied["batch_size"] else []),
        *(["context#"] if varied["context_tokens"] else []),
        Column("TTFT", True, "time to first token, expected"),
        Column("TPOT", True, "time per output token, expected"),
        Column("90 % range", True, "where the expected TPOT may lie; scheduling is not in it"),
        Column("TPOT floor", True, "no run can be faster"),
        Column("tokens/s", True, "over the batch, expected"),
        Column("fits", help="whether weights and KV cache fit the memory"),
        *(
            [Column("meets", help="yes: the whole 90 % range does; likely: the expected time does")]
            if answer.target
            else []
        ),
    )
    table = Table(header, [*([own] if own is not None else []), *body]).without_empty_columns()
    return _fitted(table, width) if short and width is not None else table


def _cells(row: WhatIf, target: Target, varied: dict[str, bool]) -> list[Cell]:
    low, high = row.tpot_expected_low_s, row.tpot_expected_high_s
    span = None if low is None or high is None else f"{units.seconds(low)} to {units.seconds(high)}"
    return [
        text(row.device if row.tensor_parallel == 1 else f"{row.tensor_parallel} × {row.device}"),
        *([text(row.dtype)] if varied["dtype"] else []),
        *([num(row.batch_size, units.count)] if varied["batch_size"] else []),
        *([num(row.context_tokens, units.count)] if varied["context_tokens"] else []),
        num(row.ttft_expected_s, units.seconds),
        num(row.tpot_expected_s, units.seconds),
        Cell(span or units.MISSING, high),
        num(row.tpot_floor_s, units.seconds),
        num(row.tokens_per_s_expected, units.count),
        text({True: "yes", False: "no", None: None}[row.fits]),
        *([_meets_cell(row, target)] if target else []),
    ]


def _meets_cell(row: WhatIf, target: Target) -> Cell:
    found = meets(row, target)
    return text(found, strong=found == "yes")


def _own_row(summary: Summary, varied: dict[str, bool], with_target: bool) -> Row | None:
    """This run as it was measured: not a floor, not an expectation."""
    timings, workload = summary.timings, summary.workload
    if timings.tpot_s is None:
        return None
    cells = [
        text("this run, measured", strong=True),
        *([text(workload.dtype)] if varied["dtype"] else []),
        *([num(workload.batch_size, units.count)] if varied["batch_size"] else []),
        *([text(None)] if varied["context_tokens"] else []),
        num(timings.ttft_s.shown if timings.ttft_s is not None else None, units.seconds),
        num(timings.tpot_s.shown, units.seconds),
        text(None),
        num(summary.predictions["tpot"].floor_s if "tpot" in summary.predictions else None, units.seconds),
        num(timings.tokens_per_s.shown if timings.tokens_per_s is not None else None, units.count),
        text(None),
        *([text(None)] if with_target else []),
    ]
    return Row(cells)


def _fitted(table: Table, width: int) -> Table:
    """Shorten the names of devices, in their middle, until the table fits."""
    widths = [
        max([len(column.label), *(len(row.cells[place].text) for row in table.rows)])
        for place, column in enumerate(table.columns)
    ]
    room = max(width - 2 - sum(widths[1:]) - 2 * (len(widths) - 1), 12)
    rows = [
        dataclasses.replace(row, cells=[text(_shortened(row.cells[0].text, room)), *row.cells[1:]])
        for row in table.rows
    ]
    return dataclasses.replace(table, rows=rows)


def _shortened(name: str, room: int) -> str:
    """Leave out the vendor, then the middle, of a name that is too long."""
    for maker in _MAKERS if len(name) > room else ():
        name = name.replace(maker, "")
    if len(name) <= room:
        return name
    head = (room - 1) * 3 // 5
    return f"{name[:head]}…{name[len(name) - (room - 1 - head) :]}"


def _met_table(answer: Answer, *, short: bool = False) -> Table:
    """Return devices, their number and batch sizes that meet the target."""
    rows = []
    for each in answer.met:
        row = each.largest
        rows.append(
            [
                text(_shortened(row.device, 30) if short else row.device),
                num(each.tensor_parallel, units.count),
                text(", ".join(map(str, each.batch_sizes))),
                num(row.ttft_expected_s, units.seconds),
                num(row.tpot_expected_s, units.seconds),
                num(row.tokens_per_s_expected, units.count),
                text(each.certainty, strong=each.certainty == "yes"),
            ]
        )
    header = columns(
        "device",
        Column("ranks", True, "devices that share every layer"),
        Column("batch sizes", help="that meet the target"),
        Column("TTFT", True, "expected, at the largest of these batch sizes"),
        Column("TPOT", True, "expected, at the largest of these batch sizes"),
        Column("tokens/s", True, "over the batch, at the largest of these batch sizes"),
        Column("certainty", help="yes: the whole 90 % range meets it; likely: the expected time does"),
    )
    return simple(header, rows)


def _needed_table(needed: Sequence[Needed]) -> Table:
    """Return the rates that a device needs, independent of the device."""
    rows = [
        [
            text(each.dtype),
            num(each.batch_size, units.count),
            num(each.prompt_tokens, units.count),
            num(each.context_tokens, units.count),
            num(each.flops_per_s, units.flops_per_s),
            num(each.bytes_per_s, units.bytes_per_s),
            num(each.resident_bytes, units.size),
        ]
        for each in needed
    ]
    header = columns(
        "type",
        "batch#",
        "prompt#",
        "context#",
        Column("arithmetic", True, "rate that must be reached, not the peak of a data sheet"),
        Column("bandwidth", True, "rate that must be reached"),
        Column("memory", True, "weights and KV cache"),
    )
    return simple(header, rows)


def _target(answer: Answer) -> list[Block]:
    if not answer.target:
        return []
    met = _met_table(answer).named("met")
    return [
        *([met] if met.rows else [Text(sentence(_describe_answer(answer)))]),
        Text("What one device must reach for it; several devices share the work."),
        _needed_table(answer.needed).named("needed"),
    ]


# The chart.


def _time_chart(answer: Answer, *, first_token: bool) -> list[Block]:
    known = [
        row for row in answer.rows if (row.ttft_floor_s if first_token else row.tpot_floor_s) is not None
    ]
    if not known:
        return []
    if answer.target and answer.met:
        known = [each.largest for each in answer.met]
    shown = known[:_MOST_CHART_ROWS]
    limit = answer.target.ttft_s if first_token else answer.target.tpot_s
    more = f"The first {len(shown)} of {len(known)} rows." if len(known) > len(shown) else ""

    def draw() -> str:
        what = "time to first token" if first_token else "time per output token"
        broken = "; broken line: the target" if limit is not None else ""
        return dot_chart(
            f"Expected {what}",
            [
                *_own_dots(answer.summary, first_token),
                *(_dots(row, answer.rows, first_token) for row in shown),
            ],
            x_label=f"Time (logarithmic); line: 90 % range{broken}",
            log=True,
            reference=limit,
        )

    return [chart(draw), *([Text(more, "quiet")] if more else [])]


def _own_dots(summary: Summary, first_token: bool) -> list[DotRow]:
    stat = summary.timings.ttft_s if first_token else summary.timings.tpot_s
    if stat is None:
        return []
    return [DotRow("this run", [Dot(stat.shown, _MEASURED)], f"{units.seconds(stat.shown)}, measured", True)]


def _dots(row: WhatIf, rows: Sequence[WhatIf], first_token: bool) -> DotRow:
    names = ("ttft_floor_s", "ttft_expected_s", "ttft_expected_low_s", "ttft_expected_high_s")
    floor, expected, low, high = (
        getattr(row, name if first_token else name.replace("ttft", "tpot")) for name in names
    )
    dots = [Dot(floor, _FLOOR if row.fits is not False else _TOO_SMALL)] if floor is not None else []
    if expected is not None:
        dots.append(Dot(expected, _EXPECTED, low, high))
    sizes = [
        f"batch {row.batch_size}" if len({each.batch_size for each in rows}) > 1 else "",
        row.dtype if len({each.dtype for each in rows}) > 1 else "",
        f"context {row.context_tokens:,}" if len({each.context_tokens for each in rows}) > 1 else "",
    ]
    label = ", ".join(part for part in (_name(row), *sizes) if part)
    return DotRow(label, dots, units.seconds(floor if expected is None else expected))
