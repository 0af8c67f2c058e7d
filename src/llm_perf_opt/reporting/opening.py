"""The first screen of a report: the conclusion, the phase bar, four figures, verdicts and findings, and the trust strip."""

from __future__ import annotations

from llm_perf_opt.analysis.context import evidence_of
from llm_perf_opt.analysis.roofline.what_if import (
    OtherDevices,
    devices_that_fit,
    is_static_only,
    on_other_devices,
)
from llm_perf_opt.analysis.shares import Span, span_over_samples
from llm_perf_opt.analysis.verdicts import phases_to_show, shown_bound
from llm_perf_opt.core import units
from llm_perf_opt.reporting.charts import figures as charts
from llm_perf_opt.reporting.document import (
    Block,
    Card,
    Cards,
    Details,
    Facts,
    Figure,
    Figures,
    Heading,
    Note,
    Only,
    Points,
    Text,
    bar,
    chart,
)
from llm_perf_opt.reporting.serving_page import describe_load, serving_numbers
from llm_perf_opt.reporting.tables import Cell, Column, columns, num, simple, text
from llm_perf_opt.reporting.wording import (
    BOUND_NAMES,
    MEASUREMENT,
    TOKENS_VERIFIED,
    capitalised,
    coverage_facts,
    describe_fit,
    describe_gain,
    explain_verdict,
    phase_name,
    phase_rank,
    sentence,
    workload_facts,
)
from llm_perf_opt.summary import Budget, Finding, Stat, Summary

_MOST_FIGURES = 4
_MOST_FINDINGS = 3
_TOO_LITTLE = "Too little was captured to conclude anything; capture some whole steps"
_NOTHING_STANDS_OUT = "No bottleneck stands out in this data."
_MORE_MEASUREMENTS = "“Not in this report” below lists the measurements that would show more."


def opening(summary: Summary) -> list[Block]:
    """Return the first screen, most important first."""
    changes = [finding for finding in summary.findings if finding.id not in MEASUREMENT]
    conclusion = _describe_conclusion(summary, changes)
    return [
        Facts([("run", f"`{summary.run.id}`"), *workload_facts(summary)], summary.run.status),
        Text(conclusion, "answer"),
        *_phase_bar(summary),
        Figures(headline_figures(summary)),
        Only("console", _work(summary)),
        *_verdicts(summary),
        *_findings(summary, changes),
        *_trust(summary),
    ]


def console_headline(summary: Summary) -> str:
    """Return the status and what ran, in one line."""
    workload = summary.workload
    parts = [
        workload.model,
        f"{workload.weights} weights" if workload.weights else None,
        workload.device or summary.hardware.name,
        workload.dtype,
        f"{workload.samples} sample{'s' if workload.samples != 1 else ''}" if workload.samples else None,
    ]
    return f"{summary.run.status}: " + (", ".join(part for part in parts if part) or summary.run.id)


_WORTH_NAMING_RATIO = 0.1
"""Share of the captured time from which a second part is named in the first sentence."""

# One sentence: largest part of the time, its limit, the first recommendation and its gain.


def _describe_conclusion(summary: Summary, changes: list[Finding]) -> str:
    """Return the sentence; for a static run, where the model fits and its best times."""
    if is_static_only(summary):
        return " ".join(_static_answer(summary))
    parts = [_where_time_goes(summary)]
    if changes:
        first = changes[0]
        lead = "fix first" if first.gain_upper_s is not None else "first finding"
        parts.append(f"{lead}: {first.title} ({describe_gain(first)})")
    return sentence("; ".join(part for part in parts if part)) if any(parts) else ""


def _where_time_goes(summary: Summary) -> str:
    """Name the largest part of the time, and what limits it."""
    if summary.wall_clock is not None and summary.wall_clock.parts:
        part = max(summary.wall_clock.parts, key=lambda each: each.seconds)
        bound = shown_bound(summary, part.name)
        limit = f" and {_describe_limit(bound)}" if bound is not None else ""
        share, whole = units.percent(part.share_ratio), units.seconds(summary.wall_clock.span_s)
        return f"{phase_name(part.name)} takes {share} of a sample's {whole}{limit}"
    if summary.serving is not None:
        return describe_load(summary.serving)
    captured = _captured(summary)
    if captured is not None and captured[1].parts:
        phase, budget = captured
        part = max(budget.parts, key=lambda each: each.seconds)
        bound = shown_bound(summary, phase)
        limit = f"; {phase_name(phase)}: {BOUND_NAMES[bound]}" if bound is not None else ""
        takes = f"{part.name} takes {units.percent(part.share_ratio)}"
        # The largest part may have no known cause (a held queue); then the part that decided the verdict is named as well.
        decided = next((each for each in budget.parts if each.name == bound != part.name), None)
        if decided is not None and decided.share_ratio >= _WORTH_NAMING_RATIO:
            takes += f" and {decided.name} {units.percent(decided.share_ratio)}"
        return f"{takes} of the captured {units.seconds(budget.span_s)}{limit}"
    if summary.timings.program_s is not None:
        return f"the program takes {units.seconds(summary.timings.program_s.shown)}"
    return ""


def _describe_limit(bound: str) -> str:
    return "its limit is undetermined" if bound == "unknown" else f"is {BOUND_NAMES[bound]}"


def _captured(summary: Summary) -> tuple[str, Budget] | None:
    """Return the budget of the whole capture, else of its longest phase."""
    if not summary.budget:
        return None
    name = (
        "all"
        if "all" in summary.budget
        else max(summary.budget, key=lambda each: summary.budget[each].span_s)
    )
    return name, summary.budget[name]


def _static_answer(summary: Summary) -> list[str]:
    fit = devices_that_fit(summary)
    sentences = [describe_fit(fit)] if fit is not None else []
    devices = [each for each in on_other_devices(summary) if each.fits is not False]
    return [*sentences, _describe_fastest(devices[0])] if devices else sentences


def _describe_fastest(best: OtherDevices) -> str:
    """Describe the expected and minimum times on the fastest listed device that fits the model."""
    least = f"{units.seconds(best.ttft_floor_s)} to the first token and {units.seconds(best.tpot_floor_s)} for each further one"
    if best.ttft_expected_s is None or best.tpot_expected_s is None:
        return f"The fastest of these devices that can hold it, {best.device}, needs at least {least}."
    return (
        f"On the fastest of these devices that can hold it, {best.device}, expect {units.seconds(best.ttft_expected_s)} to the first "
        f"token and {units.seconds(best.tpot_expected_s)} for each further one (at least {least})."
    )


# The phase bar and the figures.


def _phase_bar(summary: Summary) -> list[Block]:
    """Draw one bar: a sample by phase, else the captured time by budget part."""
    captured = _captured(summary)
    if summary.wall_clock is not None:
        name, title, budget = "one sample", "Where the time goes (one sample)", summary.wall_clock
    elif captured is not None:
        name, budget = phase_name(captured[0]), captured[1]
        title = "Where the captured time goes"
    else:
        return []
    header = columns("part", "time#", "share#", Column(""))
    rows = [
        [
            text(part.name),
            num(part.seconds, units.seconds),
            num(part.share_ratio, units.percent),
            Cell(bar(part.share_ratio)),
        ]
        for part in budget.parts
    ]
    table = simple(header, rows).named("bar", title)
    return [chart(lambda: charts.budget_chart({name: budget}, title), table=table)]


def headline_figures(summary: Summary) -> list[Figure]:
    """Return at most four figures: times where they were measured, else figures of the captures."""
    if is_static_only(summary):
        return _static_figures(summary)[:_MOST_FIGURES]
    served = [Figure(*one) for one in serving_numbers(summary)]
    if served:
        return served[:_MOST_FIGURES]
    timings = summary.timings
    found = [
        *_figure("wall-clock of the program", timings.program_s),
        *_figure("time to first token", timings.ttft_s, span_over_samples(summary.samples, "ttft_s")),
        *_figure("time per output token", timings.tpot_s, span_over_samples(summary.samples, "tpot_s")),
        *_figure("tokens per second", timings.tokens_per_s, rate=True),
    ]
    if summary.wall_clock is not None:
        found.append(Figure("per sample", units.seconds(summary.wall_clock.span_s), "sum of the phases"))
    if len(found) <= 1:
        found += _capture_figures(summary)
    return [*found, *_utilisation_figures(summary)][:_MOST_FIGURES]


def _static_figures(summary: Summary) -> list[Figure]:
    static, fit = summary.static, devices_that_fit(summary)
    if static is None:
        return []
    found = []
    needed, weights = static.resident_bytes.get("total"), static.resident_bytes.get("weights")
    if needed:
        parameters = f"{units.count(static.params.total)} parameters"
        note = f"{parameters}, {units.size(weights)} of weights" if weights else parameters
        found.append(Figure("memory it needs", units.size(needed), note))
    if fit is not None:
        smallest = f"smallest: {fit.fitting[0].device}" if fit.fitting else "it needs several"
        found.append(Figure("fits", f"{len(fit.fitting)} of {fit.known} devices", smallest))
    if not needed:
        found.append(Figure("parameters", units.count(static.params.total)))
    here = summary.hardware.name or "this device"
    return found + (_floor_figures(summary, f"floor on {here}") or _best_floors(summary))


def _floor_figures(summary: Summary, note: str) -> list[Figure]:
    return [
        Figure(label, units.seconds(summary.predictions[name].floor_s), note)
        for name, label in (("ttft", "least time to first token"), ("tpot", "least time per output token"))
        if name in summary.predictions
    ]


def _best_floors(summary: Summary) -> list[Figure]:
    """Without own limits: times on the fastest listed device that fits the model."""
    devices = on_other_devices(summary)
    best = next((each for each in devices if each.fits is not False), devices[0] if devices else None)
    if best is None:
        return []
    if best.ttft_expected_s is not None and best.tpot_expected_s is not None:
        return [
            Figure(label, units.seconds(expected), f"on {best.device}; at least {units.seconds(floor)}")
            for label, expected, floor in (
                ("expected time to first token", best.ttft_expected_s, best.ttft_floor_s),
                ("expected time per output token", best.tpot_expected_s, best.tpot_floor_s),
            )
        ]
    return [
        Figure(label, units.seconds(value), f"floor on {best.device}")
        for label, value in (
            ("least time to first token", best.ttft_floor_s),
            ("least time per output token", best.tpot_floor_s),
        )
        if value is not None
    ]


def _capture_figures(summary: Summary) -> list[Figure]:
    kernels, launches = summary.metrics.get("kernel_time_s"), summary.metrics.get("kernel_launches")
    found = _floor_figures(summary, "floor, not measured")
    if kernels is not None:
        found.append(Figure("kernel time", units.seconds(kernels), "summed over streams"))
    if launches is not None:
        found.append(Figure("kernel launches", units.count(launches), f"of {len(summary.kernels)} kernels"))
    whole = _captured(summary)
    if whole is not None:
        found.insert(0, Figure(f"captured time, {phase_name(whole[0])}", units.seconds(whole[1].span_s)))
    return found


def _utilisation_figures(summary: Summary) -> list[Figure]:
    return [
        Figure(
            f"device busy, {phase_name(phase)}", units.percent(summary.utilisation[phase].device_busy_ratio)
        )
        for phase in sorted(summary.utilisation, key=phase_rank)
        if summary.utilisation[phase].device_busy_ratio is not None
    ]


def _figure(
    label: str, stat: Stat | None, by_sample: Span | None = None, *, rate: bool = False
) -> list[Figure]:
    if stat is None:
        return []
    show = units.number if rate else units.seconds
    spread = f"p5 to p95: {show(stat.p5)} to {show(stat.p95)}" if stat.n > 1 else "one value"
    if by_sample is not None:
        spread = f"by sample {show(by_sample.low)} to {show(by_sample.high)}"
    return [Figure(label, show(stat.shown), spread)]


def _work(summary: Summary) -> list[Block]:
    """Return the model's work, for the console of a static run."""
    static = summary.static
    if static is None or summary.wall_clock is not None:
        return []
    lines = []
    for name in sorted(static.phases, key=phase_rank):
        phase, floor = static.phases[name], summary.predictions.get("tpot" if name == "decode" else name)
        work = units.flops(phase.flops) if phase.flops is not None else "not counted"
        read = (
            f", reads {units.size(phase.weight_bytes)} of weights" if phase.weight_bytes is not None else ""
        )
        least = f", at best {units.seconds(floor.floor_s)} here" if floor is not None else ""
        lines.append((name, f"{work}{read}{least}"))
    if summary.what_if:
        expected = any(row.tpot_expected_s is not None for row in summary.what_if)
        what = "expected times and floors" if expected else "floors"
        lines.append(
            ("", f"{what} on {len({row.device for row in summary.what_if})} devices are in the report")
        )
    return [Heading("Work of the model (one batch; decode: one step)"), Points(lines)]


# Verdicts and findings.


def _verdicts(summary: Summary) -> list[Block]:
    cards = []
    for phase in sorted(phases_to_show(summary.verdicts), key=phase_rank):
        verdict = summary.verdicts[phase]
        lines = [("to improve", f"{verdict.lever.rstrip('.')}.")] if verdict.lever else []
        reasons = [("", explain_verdict(verdict)), *(("from", item) for item in verdict.evidence)]
        cards.append(
            Card(
                phase_name(phase),
                BOUND_NAMES[shown_bound(summary, phase) or verdict.bound],
                lines,
                reasons,
                phase,
            )
        )
    return [Heading("What limits each phase", "verdicts"), Cards(cards)] if cards else []


def _findings(summary: Summary, changes: list[Finding]) -> list[Block]:
    if not changes:
        if is_static_only(summary):
            return []
        evidence = evidence_of(summary)
        if evidence is not None and not evidence.is_enough:
            return [
                Heading("What to change first", "findings"),
                Text(f"{_TOO_LITTLE}: {evidence.describe()}."),
            ]
        return [
            Heading("What to change first", "findings"),
            Text(_NOTHING_STANDS_OUT),
            Only("html", [Text(_MORE_MEASUREMENTS)]),
        ]
    cards = [_finding(finding) for finding in changes]
    more = cards[_MOST_FINDINGS:]
    named = f"{len(more)} further {'finding' if len(more) == 1 else 'findings'}"
    return [
        Heading("What to change first", "findings"),
        Cards(cards[:_MOST_FINDINGS], 1),
        *([Details(named, [Cards(more, _MOST_FINDINGS + 1)])] if more else []),
        Text("Gains are upper bounds; they overlap and do not add up.", "quiet"),
    ]


def _finding(finding: Finding) -> Card:
    where = phase_name(finding.phase) if finding.phase else "whole run"
    reasons = [*(("evidence", item) for item in finding.evidence), ("arithmetic", finding.arithmetic)]
    result = f"{describe_gain(finding)}; {where}; {finding.confidence} confidence"
    return Card(finding.title, result, [("", finding.advice), *_experiment(finding)], reasons)


def _experiment(finding: Finding) -> list[tuple[str, str]]:
    """Describe how to try the advice, and its track record."""
    if finding.improve_command is None:
        reason = finding.no_experiment
        return [("", f"`llm-perf-opt improve` has nothing to try: {reason}.")] if reason else []
    before = f" ({finding.track_record})" if finding.track_record else ""
    return [("try it", f"`{finding.improve_command}`{before}")]


# Trust in the numbers.


def _trust(summary: Summary) -> list[Block]:
    """Return warnings and assurances in one strip; findings about the measurement are warnings."""
    notes = [
        Note(f"{stage.reason or 'no reason is recorded'}", f"{name} {stage.status}")
        for name, stage in summary.stages.items()
        if stage.status != "ok"
    ]
    notes += [_measurement(finding) for finding in summary.findings if finding.id in MEASUREMENT]
    notes += [Note(sentence(note), level="info") for note in summary.notes]
    verified = TOKENS_VERIFIED[summary.workload.tokens_verified] if summary.workload.new_tokens else None
    if verified is not None:
        notes.append(Note(verified, "Output", "trust" if summary.workload.tokens_verified else "warning"))
    covered = ", ".join(f"{name} {value}" for name, value in coverage_facts(summary))
    if covered:
        notes.append(Note(f"{capitalised(covered)}.", "Coverage", "trust"))
    return [Details("How far to trust this", notes, "trust")]


def _measurement(finding: Finding) -> Note:
    where = phase_name(finding.phase) if finding.phase else "whole run"
    known = "; ".join(part for part in (*finding.evidence, finding.arithmetic) if part)
    evidence = f"Evidence ({where}, {finding.confidence} confidence): {known}." if known else ""
    tried = [f"{capitalised(label)}: {text}" if label else text for label, text in _experiment(finding)]
    return Note(
        " ".join(part for part in (sentence(finding.advice), evidence, *tried) if part), finding.title
    )
