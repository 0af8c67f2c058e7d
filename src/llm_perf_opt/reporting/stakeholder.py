"""``stakeholder_summary.md``: one page for decision makers, in plain language."""

from __future__ import annotations

from collections import Counter

from llm_perf_opt.analysis.roofline.what_if import (
    OtherDevices,
    devices_that_fit,
    is_static_only,
    on_other_devices,
)
from llm_perf_opt.analysis.shares import sizes_differ, span_over_samples
from llm_perf_opt.core import units
from llm_perf_opt.reporting.document import Block, Card, Cards, Document, Points, Section, Text
from llm_perf_opt.reporting.markdown import write_markdown
from llm_perf_opt.reporting.tables import Cell, Table, columns, simple
from llm_perf_opt.reporting.wording import (
    BOUNDS,
    MEASUREMENT,
    PHASES,
    STAGES,
    capitalised,
    describe_fit,
    explain_finding,
    format_share,
    phase_rank,
    sentence,
)
from llm_perf_opt.summary import Finding, Stat, Summary

_THREE = 3


def stakeholder_markdown(summary: Summary) -> str:
    """Render the one-page summary."""
    title = "Summary for stakeholders"
    sections = [
        Section("needs", "What it needs", [_list(_needs(summary))]),
        Section("speed", "How fast it is", [_speed(summary)]),
        Section("time", "Where the time goes", _time_split(summary)),
        Section("limits", "What limits it", [_list(_limits(summary))]),
        Section("advice", "What to do, and what each step is worth", _advice(summary)),
        Section("trust", "How far to trust this page", [_list(_reliability(summary))]),
    ]
    page = write_markdown(Document(title, title, _workload(summary), sections, ()))
    return page + _small_units(page)


def _list(lines: list[str]) -> Points:
    return Points([("", line) for line in lines])


def _small_units(page: str) -> str:
    """Explain the units of short times that the page uses."""
    known = {
        " ms": "ms: thousandths of a second",
        " µs": "µs: millionths of a second",
        " ns": "ns: billionths of a second",
    }
    used = [meaning for unit, meaning in known.items() if unit in page]
    return f"\n*{'; '.join(used)}.*\n" if used else ""


def _workload(summary: Summary) -> list[Block]:
    workload = summary.workload
    name = workload.model or "the model"
    place = summary.hardware.name or workload.device
    where = f" on {place}" if place else ""
    count = (
        f" It rests on {workload.samples} request{'s' if workload.samples != 1 else ''}."
        if workload.samples
        else ""
    )
    failed = (
        f"The run did not complete ({summary.run.status}); what follows is what was measured until then."
        if summary.run.status != "ok"
        else ""
    )
    if summary.wall_clock is not None:
        about = f"How fast {name} answers{where}, what limits it, and what would make it faster."
    elif summary.timings.program_s is not None:
        about = f"How long {name} takes{where}, and what a recording of it shows."
    elif summary.kernels or summary.operators:
        about = f"What a recording of {name}{where} shows: what limits it, and what would make it faster."
    else:
        about = f"What {name} has to calculate{where}. Nothing was timed."
    return [Text(f"{about}{count}"), Text(failed, "answer")]


def _needs(summary: Summary) -> list[str]:
    """Return memory and least times of a model that was only counted."""
    fit = devices_that_fit(summary) if is_static_only(summary) else None
    if fit is None:
        return []
    lines = [describe_fit(fit)]
    best = next((each for each in on_other_devices(summary) if each.fits is not False), None)
    if best is not None and best.ttft_expected_s is not None and best.tpot_expected_s is not None:
        lines.append(
            f"On {best.device}, the fastest of the usual ones that hold it, expect the first word after "
            f"{units.seconds(best.ttft_expected_s)} and each further word, or part of a long word, after "
            f"{units.seconds(best.tpot_expected_s)}: the steps of this model added up, {_describe_share(best)}."
        )
    elif best is not None and best.ttft_floor_s is not None:
        lines.append(
            f"On {best.device}, the fastest of the usual ones that hold it, the first word takes at least "
            f"{units.seconds(best.ttft_floor_s)} and each further word, or part of a long word, at least "
            f"{units.seconds(best.tpot_floor_s)}. Real runs are slower."
        )
    return lines


def _describe_share(device: OtherDevices) -> str:
    """Describe how much of an expected time is based on measurements of such a device."""
    if not device.measured_share_ratio:
        return "none of which was timed on such a device"
    return f"{units.percent(device.measured_share_ratio)} of which was timed on such a device"


def _speed(summary: Summary) -> Table:
    timings = summary.timings
    rows = [
        _speed_row(summary, "Time for one run of the program", timings.program_s, "program"),
        _speed_row(
            summary, "Time until the first word appears, once the input is prepared", timings.ttft_s, "ttft"
        ),
        _speed_row(summary, "Time for each further word, or part of a long word", timings.tpot_s, "tpot"),
        _speed_row(summary, "Words, or parts of long words, per second", timings.tokens_per_s, None),
    ]
    slow = "slowest request" if sizes_differ(summary.samples) else "slow case (1 in 20)"
    header = columns("what", "typical#", f"{slow}#", "the least this machine allows#")
    return simple(header, [[Cell(value) for value in row] for row in rows if row]).without_empty_columns()


def _speed_row(summary: Summary, label: str, stat: Stat | None, floor: str | None) -> list[str]:
    """Return a row; without a ``floor`` it is a rate, for which lower is slower."""
    least = summary.predictions.get(floor) if floor else None
    if stat is None and least is None:
        return []
    show = units.seconds if floor else units.number
    slow = None if stat is None or stat.n < 2 else stat.p95 if floor else stat.p5
    if stat is not None and sizes_differ(summary.samples):
        # A spread over requests of different sizes is not a slow case: show the slowest request.
        by_request = span_over_samples(summary.samples, f"{floor}_s") if floor else None
        slow = by_request.high if by_request is not None else None
    return [
        label,
        show(stat.shown if stat is not None else None),
        show(slow),
        units.seconds(least.floor_s if least is not None else None),
    ]


def _time_split(summary: Summary) -> list[Block]:
    if summary.wall_clock is None:
        return []
    rows = [
        [
            Cell(PHASES.get(part.name, part.name)),
            Cell(units.seconds(part.seconds)),
            Cell(units.percent(part.share_ratio)),
        ]
        for part in summary.wall_clock.parts
    ]
    return [simple(columns("step", "time per request#", "share#"), rows)]


def _limits(summary: Summary) -> list[str]:
    # The whole adds nothing to its parts.
    phases = [phase for phase in summary.verdicts if phase != "all"] or list(summary.verdicts)
    return [
        f"{capitalised(PHASES.get(phase) or phase)}: {_limit(summary, phase)}."
        for phase in sorted(phases, key=phase_rank)
    ]


def _limit(summary: Summary, phase: str) -> str:
    """Describe what limits a phase; without a single cause, its distance from the machine's best."""
    bound, floor = summary.verdicts[phase].bound, summary.predictions.get(phase)
    if bound == "unknown" and floor is not None and floor.error_ratio is not None and floor.error_ratio > 1:
        times = units.number(floor.error_ratio)
        return f"takes {times} times as long as this machine would need at best; no single cause stands out"
    return BOUNDS[bound]


def _advice(summary: Summary) -> list[Block]:
    to_change = [finding for finding in summary.findings if finding.id not in MEASUREMENT]
    if not to_change and is_static_only(summary):
        return []
    if not to_change:
        return [
            Text(
                "No bottleneck stands out in this data; report.md lists the measurements that would show more."
            )
        ]
    cards = []
    shown = to_change[:_THREE]
    counts = Counter(explain_finding(finding).problem for finding in shown)
    for finding in shown:
        plain = explain_finding(finding)
        where = PHASES.get(finding.phase or "")
        problem = f"{plain.problem}, while {where}" if counts[plain.problem] > 1 and where else plain.problem
        cards.append(Card(problem, _describe_gain(finding), [("", sentence(plain.action))]))
    fewer = "The data shows no further cause with evidence." if len(to_change) < _THREE else ""
    return [Cards(cards, 1), Text(fewer)]


def _describe_gain(finding: Finding) -> str:
    sure = {"high": "", "medium": ", fairly sure", "low": ", a guess"}[finding.confidence]
    if finding.gain_upper_s is None:
        return f"gain cannot be estimated from this data{sure}"
    saved = units.seconds(finding.gain_upper_s)
    if finding.gain_share_ratio is None:
        return f"worth at most {saved} per request{sure}"
    whole = {
        "a sample's wall-clock": "of the time per request",
        "the program's wall-clock": "of the time of one run",
    }.get(finding.gain_of or "", "of the recorded time")
    return f"worth at most {saved}, {units.percent(finding.gain_share_ratio)} {whole}{sure}"


def _reliability(summary: Summary) -> list[str]:
    lines = []
    if summary.workload.weights == "random":
        lines.append(
            "The model ran with random contents: the times are real, the text it wrote is meaningless."
        )
    if summary.hardware.kind == "cpu" and summary.wall_clock is not None:
        lines.append(
            "It ran on an ordinary processor, without an accelerator; an accelerator behaves differently."
        )
    lines.extend(_timing_reliability(summary))
    lines.extend(MEASUREMENT[f.id] for f in summary.findings if f.id in MEASUREMENT)
    if summary.hardware.source == "none" and not summary.workload.program:
        lines.append("The speed limits of the machine are not known, so the distance to them is unknown.")
    counted = summary.coverage.flops_counted_ratio
    if counted is not None:
        lines.append(f"{capitalised(format_share(counted))} of the model's calculations could be counted.")
    unfinished = [
        STAGES.get(name) or name
        for name, stage in summary.stages.items()
        if stage.status == "failed" or (stage.status == "skipped" and _was_wanted(summary, name))
    ]
    if unfinished:
        lines.append(
            f"These steps did not run: {'; '.join(unfinished)}. report.md gives the reason and the fix."
        )
    if summary.findings:
        lines.append(
            "Savings are upper limits: real ones are smaller, and they overlap, so they do not add up."
        )
    return lines


def _was_wanted(summary: Summary, stage: str) -> bool:
    """Whether a stage is expected: with the user's own program, stages of the built-in model are disabled."""
    return not summary.workload.program or stage in ("program", "nsys", "ncu")


def _timing_reliability(summary: Summary) -> list[str]:
    stats = (
        summary.timings.program_s,
        summary.timings.ttft_s,
        summary.timings.decode_s,
        summary.timings.prefill_s,
    )
    counts = [stat.n for stat in stats if stat is not None]
    if not counts:
        return ["No times without recording were given, so the time of a request is unknown."]
    if max(counts) == 1:
        return ["Each time is a single value, so its uncertainty is not known."]
    return [f"Times are the middle of {max(counts)} measurements."]
