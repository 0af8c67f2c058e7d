"""The serving part of a report: latency over load, breakdown of a request's time, steps and the slowest requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llm_perf_opt.analysis.metrics import highest_load
from llm_perf_opt.core import units
from llm_perf_opt.reporting.charts.bars import Segment, StackedRow, stacked_bars
from llm_perf_opt.reporting.charts.figures import timeline_chart
from llm_perf_opt.reporting.charts.lines import Level, Line, line_chart
from llm_perf_opt.reporting.document import Block, Points, Text, chart, charts_for, source_line
from llm_perf_opt.reporting.tables import Cell, Column, Table, code, columns, num, simple, text
from llm_perf_opt.summary import ColdStart, LatencyStat, LoadPoint, Serving, Summary, TimeParts
from llm_perf_opt.summary.serving import (
    PART_NAMES,
    Disaggregation,
    ProfiledWindow,
    Routing,
    Speculation,
    StepGroup,
)

_PART_LABELS = {
    "client": "client",
    "network": "network",
    "queue": "queue",
    "own_prefill": "own prefill",
    "other_prefill": "other prefill",
    "decode": "decode",
    "other": "other",
}
_PARTS_TEXT = (
    "Means over completed requests; the parts of the TTFT sum to its mean. client: sent later than scheduled. network: to the "
    "engine and back, tokenising included. queue: in the scheduler's queue. own and other prefill: prompts of this and of other "
    "requests. decode: decode work. other: between steps, and what could not be decided."
)
_SHORT = 48


def serving_blocks(summary: Summary) -> list[Block]:
    """Return the section: key figures, then load, parts, slowest requests, steps."""
    serving = summary.serving
    if serving is None:
        return []
    parts = _parts_table(serving)
    timeline = serving.timeline
    title = f"Steps and requests around the slowest one, {units.seconds(timeline.get('span_s'))}"
    return [
        *(Text(line) for line in _describe_serving(serving)),
        *charts_for(lambda: _latency_charts(serving)),
        _load_table(serving).named("serving-load", "Latency by load"),
        Text(_describe_maxima(serving), "quiet"),
        *charts_for(lambda: _parts_charts(serving)),
        Text(_PARTS_TEXT if parts else "", "quiet"),
        parts.named("serving-parts", "Where the time of a request went"),
        _slowest_table(serving).named("serving-slowest", "The slowest requests"),
        _step_table(serving).named("serving-steps", "Steps by kind and batch size"),
        _floor_table(serving).named("serving-floors", "Steps of each load and their rooflines"),
        *([Text(describe_speculation(serving.speculation))] if serving.speculation is not None else []),
        *(
            [Text(describe_disaggregation(serving.disaggregation))]
            if serving.disaggregation is not None
            else []
        ),
        *_routing_blocks(serving.routing),
        *_profile_blocks(serving.profile),
        *([chart(lambda: timeline_chart(timeline, title))] if timeline.get("lanes") else []),
        *charts_for(lambda: _occupancy_charts(serving)),
        *charts_for(lambda: _start_charts(serving)),
        Points([("", note) for note in _point_notes(serving)]),
        Points(list(serving.definitions.items())),
        *source_line(summary.sources.get("serving")),
    ]


def describe_speculation(held: Speculation) -> str:
    """Describe speculative decoding: what is accepted, what a position costs, and where it stops to pay."""
    words = [
        f"Speculative decoding: {units.number(held.accepted_length)} tokens per verification"
        + (f" of {units.number(1 + held.draft_length)} positions" if held.draft_length else "")
    ]
    if held.acceptance_ratio is not None:
        words.append(f"{units.percent(held.acceptance_ratio)} of the draft tokens accepted")
    if held.position_s is not None:
        words.append(f"one more position costs {units.seconds(held.position_s)} of a step")
    if held.speedup_ratio is not None and held.batch is not None:
        words.append(
            f"{held.speedup_ratio:.2f} × the tokens per second of decoding without drafts at {units.number(held.batch)} requests per step"
        )
    if held.break_even_batch is not None:
        words.append(f"break-even at {units.number(held.break_even_batch)} requests per step")
    return ", ".join(words) + "." + "".join(f" {note}" for note in held.notes)


def describe_load(serving: Serving) -> str:
    """Describe briefly the server's performance at the highest load that the client sustained."""
    point = highest_load(serving)
    if point is None and any(one.client_bound for one in serving.load):
        return "the load client could not keep its schedule at any load, so nothing is concluded from this measurement"
    if point is None or point.ttft_s is None:
        return ""
    worst = f", p99 {units.seconds(point.ttft_s.p99)}" if point.ttft_s.p99 is not None else ""
    return f"at {_load_name(point)} the first token takes {units.seconds(point.ttft_s.p50)} (median{worst})"


def _describe_serving(serving: Serving) -> list[str]:
    """Describe what was measured and the confidence."""
    lines = []
    if serving.engine:
        lines.append(f"Engine: {serving.engine}{' ' + serving.version if serving.version else ''}.")
    if serving.knee is not None:
        at = f"{units.number(serving.knee.rate_per_s)} requests/s" if serving.knee.rate_per_s else None
        lines.append(f"Knee: {at}. {serving.knee.reason}" if at else serving.knee.reason)
    if serving.coverage_ratio is not None:
        clock = (
            f" The clocks of client and server are known to ±{units.seconds(serving.clock_uncertainty_s)}."
            if serving.clock_uncertainty_s is not None
            else ""
        )
        lines.append(
            f"{units.percent(serving.coverage_ratio)} of the completed requests are matched to steps.{clock}"
        )
    start = serving.cold_start
    if start is not None:
        parts = [f"{label} {units.seconds(value)}" for label, value in _start_parts(start)]
        lines.append(
            f"Healthy {units.seconds(start.total_s)} after its start"
            + (f" ({', '.join(parts)})." if parts else ".")
        )
    steps = serving.steps
    if steps is not None:
        gaps = (
            f"; {units.percent(steps.gap_ratio)} of the time with running requests lies between steps"
            if steps.gap_ratio is not None
            else ""
        )
        lines.append(
            f"{steps.count} steps ({steps.prefill} prefill, {steps.decode} decode, {steps.mixed} mixed), mean batch "
            f"{units.number(steps.batch)}{gaps}."
        )
    return lines


def serving_numbers(summary: Summary) -> list[tuple[str, str, str]]:
    """Return (label, value, note) of the few numbers at the top: those of the highest load that the client sustained."""
    serving = summary.serving
    point = highest_load(serving) if serving is not None else None
    if serving is None or point is None:
        return []
    at = f"at {_load_name(point)}"
    found = []
    for label, stat in (("TTFT, p99", point.ttft_s), ("TPOT, p99", point.tpot_s)):
        if stat is not None and stat.p99 is not None:
            found.append((label, units.seconds(stat.p99), f"{at}; median {units.seconds(stat.p50)}"))
    if point.completed_per_s is not None:
        found.append(("requests per second", units.number(point.completed_per_s), at))
    if point.goodput_per_s is not None:
        found.append(("goodput", f"{units.number(point.goodput_per_s)}/s", at))
    if serving.knee is not None and serving.knee.rate_per_s:
        found.append(("knee", f"{units.number(serving.knee.rate_per_s)}/s", "highest load sustained"))
    return found


def _load_name(point: LoadPoint) -> str:
    """Return a readable name of a load point."""
    if point.kind == "closed" and point.concurrency:
        return f"{units.number(point.concurrency)} in flight"
    if point.rate_per_s:
        return f"{units.number(point.rate_per_s)}/s"
    return point.label or "load"


def _places(*names: str) -> Callable[[LatencyStat | None], list[Cell]]:
    return lambda stat: [
        num(getattr(stat, name) if stat is not None else None, units.seconds) for name in names
    ]


def _load_table(serving: Serving) -> Table:
    """One row per load point."""
    header = columns(
        "load",
        "requests#",
        "failed#",
        Column("completed/s", True),
        Column("tokens/s", True, "output tokens"),
        Column("goodput/s", True, "completed requests that met the limits"),
        "TTFT p50#",
        "p90#",
        "p99#",
        Column("p99, 95 % interval", True, "by order statistics; ≥: too few requests for an upper end"),
        "TPOT p50#",
        "p99#",
        "ITL p99#",
        "E2E p50#",
        "p99#",
        "remark",
    )
    rows = [
        [
            text(_load_name(point), strong=True),
            num(point.requests, units.count),
            num(point.failed, units.count),
            num(point.completed_per_s, units.number),
            num(point.tokens_per_s, units.number),
            num(point.goodput_per_s, units.number),
            *_places("p50", "p90", "p99")(point.ttft_s),
            text(_interval(point.ttft_s)),
            *_places("p50", "p99")(_with_mean(point.tpot_s)),
            *_places("p99")(point.itl_s),
            *_places("p50", "p99")(point.e2e_s),
            text(_remark(point)),
        ]
        for point in serving.load
    ]
    return simple(header, rows).without_empty_columns()


def _with_mean(stat: LatencyStat | None) -> LatencyStat | None:
    """Show the mean where the record has no median."""
    if stat is not None and stat.p50 is None and stat.mean is not None:
        return LatencyStat(p50=stat.mean)
    return stat


def _interval(stat: LatencyStat | None) -> str:
    if stat is None or stat.p99_low is None:
        return ""
    if stat.p99_high is None:
        return f"≥ {units.seconds(stat.p99_low)}"
    return f"{units.seconds(stat.p99_low)} to {units.seconds(stat.p99_high)}"


def _remark(point: LoadPoint) -> str:
    if not point.client_bound:
        return ""
    return "server saturated" if point.server.get("mean_waiting", 0.0) >= 1 else "client-bound"


def _describe_maxima(serving: Serving) -> str:
    """Name the loads with too few requests for a p99."""
    few = [
        _load_name(each) for each in serving.load if each.ttft_s is not None and (each.ttft_s.n or 100) < 100
    ]
    if not few:
        return ""
    where = "" if len(few) == len(serving.load) else f" at {', '.join(few)}"
    return f"p99 is the maximum{where}: fewer than 100 requests."


def _parts_table(serving: Serving) -> Table:
    """Parts of TTFT and decode, one row each per load point."""
    rows = []
    for point in serving.load:
        for label, parts in (("TTFT", point.ttft_parts_s), ("first to last token", point.decode_parts_s)):
            if parts is not None:
                values = [getattr(parts, name) for name in PART_NAMES]
                total = sum(value for value in values if value is not None)
                rows.append(
                    [
                        text(_load_name(point), strong=True),
                        text(label),
                        num(total, units.seconds),
                        *(num(value, units.seconds) for value in values),
                    ]
                )
    return simple(columns("load", "of", "mean#", *(f"{_PART_LABELS[name]}#" for name in PART_NAMES)), rows)


def _slowest_table(serving: Serving) -> Table:
    """The slowest requests and what delayed them."""
    rows = [
        [
            code(slow.id[:_SHORT], full=slow.id),
            text(_load_name(serving.load[slow.load]) if slow.load < len(serving.load) else ""),
            num(slow.ttft_s, units.seconds),
            text("; ".join(slow.delayed_by)),
        ]
        for slow in serving.slowest
        if slow.delayed_by
    ]
    return simple(columns("request", "load", "TTFT#", "waited for"), rows)


def _step_table(serving: Serving) -> Table:
    """Steps by kind and batch size, with their rooflines."""
    groups = serving.steps.groups if serving.steps is not None else []
    return _group_table([("", group) for group in groups])


def _group_table(groups: Sequence[tuple[str, StepGroup]]) -> Table:
    has_floors = any(group.floor_s is not None for _, group in groups)
    named = any(name for name, _ in groups)
    rows = [
        [
            *([text(name)] if named else []),
            text(group.kind),
            Cell(
                f"{group.batch}" if group.batch == 1 else f"{group.batch} to {2 * group.batch - 1}",
                float(group.batch),
            ),
            num(group.count, units.count),
            num(group.duration_s, units.seconds),
            num(group.total_s, units.seconds),
            *(_floor_cells(group) if has_floors else []),
        ]
        for name, group in groups
    ]
    floors = ("context#", "roofline#", "limit", "mean ÷ roofline#") if has_floors else ()
    names = ("kind", "requests per step#", "steps#", "median#", "together#", *floors)
    return simple(columns(*(("load",) if named else ()), *names), rows)


def _floor_cells(group: StepGroup) -> list[Cell]:
    return [
        num(group.context_tokens, units.number),
        num(group.floor_s, units.seconds),
        text(group.floor_bound),
        num(group.floor_distance_ratio, units.number),
    ]


def _floor_table(serving: Serving) -> Table:
    """Steps of each load point and of the profiled window with their rooflines; empty without rooflines."""
    groups = [(_load_name(point), group) for point in serving.load for group in point.steps]
    window = serving.profile
    groups += [("profiled window", group) for group in window.groups] if window is not None else []
    known = [(name, group) for name, group in groups if group.floor_s is not None]
    return _group_table(known)


def describe_disaggregation(held: Disaggregation) -> str:
    """Describe transfers between prefill and decode workers."""
    words = [f"Prefill and decode on different workers ({held.source})"]
    if held.requests is not None:
        words.append(f"{units.count(held.requests)} requests")
    if held.transfer_s is not None:
        stated = held.transfer_s.p50 if held.transfer_s.p50 is not None else held.transfer_s.mean
        words.append(
            f"the KV cache is sent in {units.seconds(stated)}"
            + (" (median, estimated)" if held.transfer_s.p50 is not None else " (mean)")
        )
    if held.bytes_per_s is not None:
        words.append(f"at {units.number(held.bytes_per_s / 1e9)} GB/s")
    for name, value in (("waiting for room", held.alloc_s), ("connecting", held.bootstrap_s)):
        if value is not None:
            words.append(f"{name} {units.seconds(value)}")
    return ", ".join(words) + "."


def _times(value: float | None) -> str:
    return units.MISSING if value is None else f"{value:.2f} ×"


def _routing_blocks(held: Routing | None) -> list[Block]:
    """Return the balance of experts: the verdict, and the busiest rank by number of ranks."""
    if held is None:
        return []
    said = (
        f"Experts: {units.count(held.choices)} choices of {held.experts} experts in {units.count(held.layers)} layers; the busiest "
        f"expert of a layer has {min(held.busiest_ratio):.2f} to {max(held.busiest_ratio):.2f} × the mean, "
        f"{sum(held.unused)} were never chosen. "
    )
    rows = [
        [
            num(one.ranks, units.count),
            num(one.busiest_ratio, _times),
            num(one.rebalanced_ratio, _times),
            num(one.gain_ratio, units.percent),
        ]
        for one in held.ranks
    ]
    header = columns(
        "ranks#",
        Column("busiest rank", True, "load ÷ mean, experts in their order"),
        Column("with moved experts", True, "placement from the first half of the load, judged on the second"),
        Column("saved", True, "of the busiest rank's expert time"),
    )
    return [
        Text(said + held.verdict),
        simple(header, rows).named("serving-experts", "Experts spread over ranks"),
    ]


def _profile_blocks(window: ProfiledWindow | None) -> list[Block]:
    """Return the profiled window: kernels of its steps and of its requests."""
    if window is None:
        return []
    return [
        Text(describe_window(window)),
        _profile_table(window).named("serving-kernels", "Kernels in profiled steps"),
        _ranks_table(window).named("serving-ranks", "Ranks of the profiled window"),
        _profiled_requests_table(window).named("serving-request-kernels", "Kernels of profiled requests"),
        Points([("", note) for note in window.notes]),
    ]


def describe_window(window: ProfiledWindow) -> str:
    """Return one line: what was profiled, and what the profiler cost."""
    if not window.steps:
        return "Profiled window: no engine step could be read."
    parts = [f"Profiled window ({window.label or 'load'}): {units.count(window.steps)} steps"]
    parts.append(f"{units.count(window.matched_steps)} matched with step records")
    if window.ranks > 1:
        parts.append(f"{units.count(window.ranks)} ranks")
    if window.cost_ratio is not None and window.cost_ratio <= 1:
        parts.append("decode steps are not slower than without the profiler")
    elif window.cost_ratio is not None:
        parts.append(f"decode steps take {window.cost_ratio:.2f} × their time without the profiler")
    if window.host_gap_ratio is not None:
        parts.append(f"{units.percent(window.host_gap_ratio)} of the step time without kernels")
    if window.communication_ratio:
        parts.append(f"{units.percent(window.communication_ratio)} in communication")
    if window.is_salvaged:
        parts.append("the trace ends early")
    return ", ".join(parts) + "."


def _profile_table(window: ProfiledWindow) -> Table:
    """Kernel families by kind of step."""
    rows = [
        [
            text(kind),
            text(family.family),
            num(family.seconds, units.seconds),
            num(family.share_ratio, units.percent),
        ]
        for kind, families in window.families.items()
        for family in families
    ]
    return simple(columns("steps", "family", "time#", "share#"), rows)


def _ranks_table(window: ProfiledWindow) -> Table:
    rows = [
        [
            text(str(one.rank) if one.rank is not None else None),
            num(one.steps, units.count),
            num(one.seconds, units.seconds),
            num(one.communication_ratio, units.percent),
            num(one.host_gap_ratio, units.percent),
        ]
        for one in window.by_rank
    ]
    return simple(columns("rank", "steps#", "time of steps#", "communication#", "without kernels#"), rows)


def _profiled_requests_table(window: ProfiledWindow) -> Table:
    """Each request's share of the kernels by tokens."""
    rows = [
        [
            code(one.id[:_SHORT], full=one.id),
            text(f"{one.traced_steps} of {one.steps}"),
            num(one.step_seconds, units.seconds),
            num(one.own_seconds, units.seconds),
            text(
                ", ".join(f"{family.family} {units.seconds(family.seconds)}" for family in one.families[:4])
            ),
        ]
        for one in window.requests
    ]
    header = columns(
        "request",
        Column("steps in the trace"),
        Column("time of its steps", True, "shared with other requests"),
        Column("own share", True, "by tokens"),
        "largest families",
    )
    return simple(header, rows)


def _point_notes(serving: Serving) -> list[str]:
    """Return notes on load points; equal notes are merged."""
    found: dict[str, list[str]] = {}
    for point in serving.load:
        for note in point.notes:
            found.setdefault(note, []).append(_load_name(point))
    return [f"{', '.join(names)}: {note}" if len(serving.load) > 1 else note for note, names in found.items()]


# Charts.


def _over_load(serving: Serving) -> tuple[str, list[tuple[float, LoadPoint]]]:
    opened = [(one.rate_per_s, one) for one in serving.load if one.rate_per_s and one.kind != "closed"]
    closed = [(one.concurrency, one) for one in serving.load if one.concurrency and one.kind == "closed"]
    label, chosen = (
        ("requests per second", opened) if len(opened) >= len(closed) else ("requests in flight", closed)
    )
    return label, sorted(chosen, key=lambda one: one[0])


def _latency_charts(serving: Serving) -> list[str]:
    label, points = _over_load(serving)
    if len({x for x, _ in points}) < 2:
        return []
    charts = []
    for name, title in (
        ("ttft_s", "Time to first token over load"),
        ("tpot_s", "Time per output token over load"),
    ):
        lines = [
            Line(place, [(x, getattr(getattr(point, name), place, None)) for x, point in points])
            for place in ("p50", "p90", "p95", "p99", "mean")
        ]
        lines = [line for line in lines if any(y is not None for _, y in line.points)]
        limits = {point.slo[name[:-2]] for _, point in points if name[:-2] in point.slo}
        if lines:
            charts.append(
                line_chart(
                    title,
                    lines,
                    x_label=label,
                    y_label="time",
                    levels=[Level("limit", value) for value in sorted(limits)],
                    x_format=units.number,
                    y_format=units.seconds,
                )
            )
    rates = [
        Line("completed", [(x, point.completed_per_s) for x, point in points]),
        Line("goodput", [(x, point.goodput_per_s) for x, point in points]),
    ]
    rates = [line for line in rates if any(y is not None for _, y in line.points)]
    if rates:
        charts.append(
            line_chart(
                "Requests per second over load",
                rates,
                x_label=label,
                y_label="requests per second",
                x_format=units.number,
                y_format=units.number,
            )
        )
    return charts


def _parts_charts(serving: Serving) -> list[str]:
    colours = {_PART_LABELS[name]: place for place, name in enumerate(PART_NAMES)}
    charts = []
    for title, name in (
        ("Parts of the TTFT (mean)", "ttft_parts_s"),
        ("First to last token (mean)", "decode_parts_s"),
    ):
        rows = [
            StackedRow(_load_name(point), _segments(getattr(point, name)))
            for point in serving.load
            if getattr(point, name) is not None
        ]
        if rows:
            charts.append(stacked_bars(title, rows, as_share=False, colours=colours))
    return charts


def _segments(parts: TimeParts) -> list[Segment]:
    return [
        Segment(_PART_LABELS[name], value)
        for name in PART_NAMES
        if (value := getattr(parts, name)) is not None and value > 0
    ]


def _start_parts(start: ColdStart) -> list[tuple[str, float]]:
    named = {
        "imports": start.imports_s,
        "weights": start.weights_s,
        "compilation": start.compilation_s,
        "graph capture": start.graph_capture_s,
        "KV cache and warm-up": start.kv_cache_s,
        "other": start.other_s,
    }
    return [(label, value) for label, value in named.items() if value is not None]


def _start_charts(serving: Serving) -> list[str]:
    parts = _start_parts(serving.cold_start) if serving.cold_start is not None else []
    if not parts:
        return []
    row = StackedRow("start", [Segment(label, value) for label, value in parts])
    return [stacked_bars("From the start of the server until it was healthy", [row], as_share=False)]


def _occupancy_charts(serving: Serving) -> list[str]:
    if len(serving.occupancy) < 2:
        return []
    charts = [
        line_chart(
            "Requests in the engine",
            [
                Line("running", [(one[0], one[1]) for one in serving.occupancy]),
                Line("waiting", [(one[0], one[2]) for one in serving.occupancy]),
            ],
            x_label="seconds",
            y_label="requests",
            x_format=units.number,
            y_format=units.number,
        )
    ]
    if any(one[3] is not None for one in serving.occupancy):
        charts.append(
            line_chart(
                "KV cache in use",
                [Line("KV cache", [(one[0], one[3]) for one in serving.occupancy])],
                x_label="seconds",
                y_label="share",
                x_format=units.number,
                y_format=units.percent,
            )
        )
    return charts
