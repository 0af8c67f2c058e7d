"""The pages of a history: ``history.html`` and the console."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby, pairwise

from llm_perf_opt.core import units
from llm_perf_opt.core.units import format_p_value, format_signed_percent
from llm_perf_opt.history.changes import UNSTEADY_ALPHA
from llm_perf_opt.history.data import SHARED, Change, FindingRecord, History, HistoryMethod, LeftOut, Trend
from llm_perf_opt.remedies.track_record import describe_record
from llm_perf_opt.reporting.charts import svg
from llm_perf_opt.reporting.charts.axes import Plot, Scale, axes, line_path
from llm_perf_opt.reporting.console import WIDTH, write_console
from llm_perf_opt.reporting.document import Block, Document, Heading, Note, Points, Section, Text, chart
from llm_perf_opt.reporting.html.page import write_html
from llm_perf_opt.reporting.tables import Table, columns, format_change, num, simple, text
from llm_perf_opt.reporting.wording import sentence
from llm_perf_opt.summary.statistics import percentile

# The sentences of a history, the same on the page and on the console.


_MOST_CAME = 6
_MOST_NAMED = 5
_FORMATS: dict[str, Callable[[float | None], str]] = {
    "s": units.seconds,
    "bytes": units.size,
    "ratio": units.percent,
    "count": units.count,
}


def formatter(unit: str) -> Callable[[float | None], str]:
    """Return the formatter of a unit."""
    return _FORMATS.get(unit, lambda value: units.number(value, unit))


def level(trend: Trend, value: float) -> str:
    """Write a value of a trend."""
    return formatter(trend.unit)(value)


def _trend_name(trend: Trend) -> str:
    """Name a trend within its configuration and machine."""
    return (
        trend.metric
        if trend.phase in (None, trend.metric) or trend.metric == "tpot"
        else f"{trend.metric} ({trend.phase})"
    )


def _describe_change(trend: Trend, change: Change) -> str:
    """Describe size, place and confidence of a step change."""
    first = trend.points[change.place]
    span = f"{format_signed_percent(change.low_ratio)} to {format_signed_percent(change.high_ratio)}"
    where = f"from run {first.run} ({first.started})"
    if (change.earliest, change.latest) != (change.place, change.place):
        runs = (trend.points[change.earliest].run, trend.points[change.latest].run)
        where += f", at the earliest {runs[0]}, at the latest {runs[1]}"
    caveat = f"; {change.doubt}" if change.doubt else ""
    return f"{change.outcome}: {format_signed_percent(change.ratio)} ({span}, {format_p_value(change.p_value)}) {where}{caveat}"


def _describe_drift(trend: Trend) -> str | None:
    """Describe a drift or random walk of a trend; ``None``: neither."""
    if trend.drift_ratio is None:
        if trend.wanders:
            return "the level drifts randomly from run to run, so only abrupt changes are shown"
        return None
    return f"a drift of {format_signed_percent(trend.drift_ratio)} from the first run to the last, which no step describes better"


def _describe_coincident_change(change: Change) -> str:
    """Describe what changed at the same time."""
    if not change.came_with:
        return "nothing that is recorded (commit and versions are the same)"
    shown = [f"{c.what} {_short(c.before)} → {_short(c.after)}" for c in change.came_with[:_MOST_CAME]]
    more = len(change.came_with) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _short(value: str | None) -> str:
    if value is None:
        return units.MISSING
    is_hash = len(value) == 40 and all(letter in "0123456789abcdef" for letter in value)
    return value[:12] if is_hash else value


def _describe_track_record(record: FindingRecord) -> str:
    """Describe the track record of a rule on a machine."""
    described = describe_record(record.helped, record.trials, where="here") or "no trial was conclusive"
    more = f"; {record.not_shown} were inconclusive" if record.not_shown and record.trials else ""
    return f"{described}{more}"


def skipped_lines(left_out: Sequence[LeftOut]) -> list[str]:
    """Count what was left out by its reason, and name some of each."""
    by_reason: Counter[str] = Counter(entry.reason.partition(":")[0] for entry in left_out)
    lines = []
    for reason, many in by_reason.most_common():
        names = [entry.path for entry in left_out if entry.reason.partition(":")[0] == reason][:_MOST_NAMED]
        option = "; --include-shared includes them" if reason == SHARED else ""
        more = " …" if many > len(names) else ""
        lines.append(f"left out: {many} ({reason}{option}): {', '.join(names)}{more}")
    return lines


def describe_empty(history: History) -> str:
    """Explain why there are no trends."""
    if history.left_out:
        return "every run with this metric was left out; the reasons are below"
    return "no run has this metric"


def describe_method(method: HistoryMethod) -> str:
    """Describe how changes were found, and the error rate."""
    found = (
        f"Changes: {method.name}, {method.permutations} permutations, alpha {method.alpha:g}; at least {method.least_runs} "
        f"runs, {method.least_side} on either side, and a change of {method.least_change_ratio:.0%}. "
    )
    if not method.tested:
        return f"{found}No trend has enough runs to be tested."
    tested = "1 trend was tested" if method.tested == 1 else f"{method.tested} trends were tested"
    return (
        f"{found}{tested}: with nothing changed about {method.tested * method.alpha:.2g} of them would show a change, and up to "
        f"{method.tested * UNSTEADY_ALPHA:.2g} where neighbouring runs are alike."
    )


# A trend as a chart: a mark per run with its interval, the levels between changes, and where they are.


_HEIGHT = 330.0
_COLOURS = {"worse": 2, "better": 3, "changed": 1}


def _trend_chart(trend: Trend) -> str:
    """Draw the runs in their order; runs, not days, are evenly spaced, because the test uses only their order."""
    show = formatter(trend.unit)
    title = f"{_trend_name(trend)}, {len(trend.points)} runs"
    width = svg.chart_width()
    plot = Plot(84.0, width - 24, 76.0, _HEIGHT - 50)
    edges = [value for p in trend.points for value in (p.value, p.low, p.high) if value is not None]
    x = Scale(0.5, len(trend.points) + 0.5, plot.left, plot.right)
    y = _close_scale(edges, plot)
    body = [svg.heading(title)]
    body.append(
        axes(
            plot,
            x,
            y,
            x_label="Run, in the order they began",
            y_label="Value of the run; the axis does not begin at zero",
            x_format=units.count,
            y_format=show,
            x_ticks=[value for value in x.ticks() if float(value).is_integer()],
        )
    )
    for change in trend.changes:
        at = x(change.place + 0.5)
        label = f"{change.outcome}: {(change.ratio - 1) * 100:+.1f} %"
        line = line_path([(at, plot.top), (at, plot.bottom)])
        body.append(
            svg.element(
                "path",
                svg.hover(label),
                d=line,
                class_=f"lpo-line-{_COLOURS[change.outcome]} lpo-dash",
                stroke_width=2,
            )
        )
        room = plot.right - at > svg.text_width(label) + 8
        body.append(
            svg.text(
                at + (5 if room else -5),
                plot.bottom - 6 if change.ratio > 1 else plot.top + 12,
                label,
                anchor="start" if room else "end",
                role="halo",
            )
        )
    body.extend(_levels(trend, x, y))
    for number, point in enumerate(trend.points, 1):
        at, commit = x(number), f", commit {point.commit[:12]}" if point.commit else ""
        text = f"{point.run}: {show(point.value)} ({point.started}{commit})"
        if point.low is not None and point.high is not None:
            body.append(
                svg.element("path", d=line_path([(at, y(point.low)), (at, y(point.high))]), class_="lpo-axis")
            )
        body.append(
            svg.element("circle", svg.hover(text), cx=at, cy=y(point.value), r=3.0, class_="lpo-fill-1")
        )
    return svg.document(title, _description(trend), width, _HEIGHT, body, kind="trend")


def _close_scale(values: Sequence[float], plot: Plot) -> Scale:
    """Return a scale around the values, so that a change of a few percent is visible."""
    low, high = min(values), max(values)
    room = max((high - low) * 0.15, abs(high) * 0.01) or 1.0
    return Scale(max(0.0, low - room) if low >= 0 else low - room, high + room, plot.bottom, plot.top)


def _levels(trend: Trend, x: Scale, y: Scale) -> list[str]:
    """Draw the median between changes."""
    edges = [0, *(change.place for change in trend.changes), len(trend.points)]
    parts = []
    for start, end in pairwise(edges):
        middle = percentile(sorted(point.value for point in trend.points[start:end]), 0.5)
        path = line_path([(x(start + 0.5), y(middle)), (x(end + 0.5), y(middle))])
        parts.append(svg.element("path", d=path, class_="lpo-roof"))
    return parts


def _description(trend: Trend) -> str:
    show = formatter(trend.unit)
    first, last = trend.points[0], trend.points[-1]
    steps = "; ".join(
        f"{c.outcome} by {(c.ratio - 1) * 100:+.1f} % at run {c.place + 1}" for c in trend.changes
    )
    return (
        f"{show(first.value)} in the first run, {show(last.value)} in the last; {steps or 'no change shown'}"
    )


MOST_SERIES, MOST_ROWS = 100, 800


def history_html(history: History) -> str:
    """Render ``history.html``."""
    return write_html(_history_document(history))


def _history_document(history: History) -> Document:
    """Return the history; configurations with a step change come first, and of many the first hundred."""
    groups = [
        list(items) for _, items in groupby(history.trends, key=lambda t: (t.label, t.machine, t.config_hash))
    ]
    groups.sort(key=lambda group: not any(trend.changes for trend in group))
    shown = groups[:MOST_SERIES]
    notes = []
    if len(groups) > len(shown):
        notes.append(f"{len(groups) - len(shown)} more configurations are in history.json.")
    if not groups:
        notes.append(sentence(describe_empty(history)))
    many = sum(len(trend.changes) for trend in history.trends)
    answer = (
        f"{history.runs} runs; configurations and machines: {len(groups)}; step changes: {many}; "
        f"left out: {len(history.left_out)}."
    )
    left_out = simple(
        columns("Directory", "Reason"), [[text(e.path), text(e.reason)] for e in history.left_out[:MOST_ROWS]]
    )
    sections = [
        Section("changes", "Step changes", [_changes(history).named("changes", filter=True)], "Changes"),
        Section(
            "findings", "Advice that was tried", [_findings(history).named("findings", filter=True)], "Advice"
        ),
        *(_section(number, group) for number, group in enumerate(shown)),
        Section(
            "left-out",
            "Left out",
            [
                Points([("", line) for line in skipped_lines(history.left_out)]),
                left_out.named("left-out", filter=True),
            ]
            if history.left_out
            else [],
        ),
        Section("method", "How this was made", [Text(describe_method(history.method))], "Method"),
    ]
    opening: list[Block] = [Text(answer, "answer"), Text(history.directory), *(Note(note) for note in notes)]
    files = ["history.json", "runs.parquet", "metrics.parquet", "findings.parquet"]
    return Document("History of runs", "History of runs", opening, sections, files)


def _section(number: int, group: list[Trend]) -> Section:
    first = group[0]
    blocks: list[Block] = [Text(f"{first.machine} · configuration {first.config_hash}", "quiet")]
    for trend in group:
        if len(trend.points) > 1:
            blocks.append(chart(partial(_trend_chart, trend)))
        else:
            blocks.append(
                Text(f"{_trend_name(trend)}: {level(trend, trend.points[0].value)} in the only run.")
            )
        if trend.reason:
            blocks.append(Text(f"No step change was searched for: {trend.reason}.", "quiet"))
        if (drift := _describe_drift(trend)) is not None:
            blocks.append(Text(f"{_trend_name(trend)}: {drift}."))
        blocks += [Text(f"{line}.") for line in _changed(trend)]
    return Section(f"series-{number}", first.label, blocks, " · ".join(first.label.split(" · ")[:2]))


def _changes(history: History) -> Table:
    rows = [
        [
            text(trend.label),
            text(trend.machine),
            text(_trend_name(trend)),
            num(found.before, formatter(trend.unit)),
            num(found.after, formatter(trend.unit)),
            num(found.ratio, format_change),
            text(found.outcome, strong=found.outcome == "worse"),
            text(trend.points[found.place].run),
            text(_describe_coincident_change(found)),
        ]
        for trend in history.trends
        for found in trend.changes
    ]
    header = columns(
        "Configuration",
        "Machine",
        "Metric",
        "Before#",
        "After#",
        "Change#",
        "Outcome",
        "First run",
        "Came with",
    )
    return simple(header, rows[:MOST_ROWS])


def _findings(history: History) -> Table:
    """One row per rule and machine: what ``improve`` found when it tried the advice."""
    rows = [
        [
            text(record.finding),
            text(record.phase),
            text(record.device),
            text(_describe_track_record(record), strong=record.trials > 0 and record.helped == 0),
            num(record.predicted_gain_s, units.seconds),
            num(record.measured_gain_s, units.seconds),
            text(record.last),
        ]
        for record in history.findings
    ]
    header = columns(
        "Finding",
        "Phase",
        "Machine",
        "Record",
        "Named at most#",
        "Measured#",
        "Last tried",
    )
    return simple(header, rows[:MOST_ROWS])


# The history as text.


def history_console(history: History, *, width: int = WIDTH) -> str:
    """Lay out every trend with its changes, and what was left out."""
    blocks: list[Block] = [Text(f"{history.runs} runs in {history.directory}")]
    for _, group in groupby(history.trends, key=lambda t: (t.label, t.machine, t.config_hash)):
        trends = list(group)
        first = trends[0]
        blocks.append(Heading(f"{first.label} on {first.machine} (configuration {first.config_hash})"))
        blocks.append(Points([("", line) for trend in trends for line in (_trend(trend), *_changed(trend))]))
    if not history.trends:
        blocks.append(Text(describe_empty(history)))
    if history.findings:
        advice = [("", _record(record)) for record in history.findings]
        blocks += [Heading("Advice that was tried (improve)"), Points(advice)]
    skipped = [Text(line) for line in skipped_lines(history.left_out)]
    blocks += [Heading("How this was made"), *skipped, Text(describe_method(history.method))]
    return "\n".join(write_console(blocks, width))


def _record(record: FindingRecord) -> str:
    name = f"{record.finding} ({record.phase})" if record.phase else record.finding
    return f"{name} on {record.device or 'an unnamed device'}: {_describe_track_record(record)}"


def _trend(trend: Trend) -> str:
    last = trend.points[-1]
    reported = trend.reason or (
        _many(trend.changes) if trend.changes else _describe_drift(trend) or "no change shown"
    )
    where = "only run" if len(trend.points) == 1 else f"last of {len(trend.points)} runs"
    return f"{_trend_name(trend)}: {level(trend, last.value)} in the {where}; {reported}"


def _many(changes: list[Change]) -> str:
    return "1 change" if len(changes) == 1 else f"{len(changes)} changes"


def _changed(trend: Trend) -> list[str]:
    return [
        f"{_describe_change(trend, found)}; came with {_describe_coincident_change(found)}"
        for found in trend.changes
    ]
