"""``stakeholder_summary.md``: one page for people who decide, in plain words."""

from __future__ import annotations

from collections import Counter

from llm_perf_opt.analysis.roofline.elsewhere import Elsewhere, elsewhere, is_static_only, where_it_fits
from llm_perf_opt.analysis.samples import sizes_differ, span_over_samples
from llm_perf_opt.core import units
from llm_perf_opt.core.escape import md_text
from llm_perf_opt.model.summary import Finding, Stat, Summary
from llm_perf_opt.reporting.markdown.writer import bullets, section, table
from llm_perf_opt.reporting.plain_words import (
    BOUNDS,
    MEASUREMENT,
    PHASES,
    STAGES,
    in_plain_words,
)
from llm_perf_opt.reporting.wording import capitalised, fit_text, phase_rank, share_text

_THREE = 3


def stakeholder_markdown(summary: Summary) -> str:
    """Render the one-page summary."""
    page = "".join(
        (
            "# Summary for stakeholders\n\n",
            _workload_sentence(summary),
            section("What it needs", bullets(_needs(summary))),
            section("How fast it is", _speed(summary)),
            section("Where the time goes", _time_split(summary)),
            section("What holds it back", bullets(_limits(summary))),
            section("What to do, and what each step is worth", _advice(summary)),
            section("How far to trust this page", bullets(_reliability(summary))),
        )
    )
    return page.rstrip("\n") + "\n" + _small_units(page)


def _small_units(page: str) -> str:
    """Explain the units of short times that the page uses."""
    known = {
        " ms": "ms: thousandths of a second",
        " µs": "µs: millionths of a second",
        " ns": "ns: billionths of a second",
    }
    used = [meaning for unit, meaning in known.items() if unit in page]
    return f"\n*{'; '.join(used)}.*\n" if used else ""


def _workload_sentence(summary: Summary) -> str:
    workload = summary.workload
    name = md_text(workload.model) if workload.model else "the model"
    place = summary.hardware.name or workload.device
    where = f" on {md_text(place)}" if place else ""
    count = (
        f" It rests on {workload.samples} request{'s' if workload.samples != 1 else ''}."
        if workload.samples
        else ""
    )
    failed = (
        ""
        if summary.run.status == "ok"
        else f" **The run did not complete ({summary.run.status}); what follows is what was measured until then.**"
    )
    if summary.wall_clock is not None:
        about = f"How fast {name} answers{where}, what limits it, and what would make it faster."
    elif summary.timings.program_s is not None:
        about = f"How long {name} takes{where}, and what a recording of it shows."
    elif summary.kernels or summary.operators:
        about = f"What a recording of {name}{where} shows: what limits it, and what would make it faster."
    else:
        about = f"What {name} has to calculate{where}. Nothing was timed."
    return f"{about}{count}{failed}\n\n"


def _needs(summary: Summary) -> list[str]:
    """Return memory and least times of a model that was counted and not run."""
    fit = where_it_fits(summary) if is_static_only(summary) else None
    if fit is None:
        return []
    lines = [md_text(fit_text(fit))]
    best = next((each for each in elsewhere(summary) if each.fits is not False), None)
    if best is not None and best.ttft_expected_s is not None and best.tpot_expected_s is not None:
        lines.append(
            f"On {md_text(best.device)}, the fastest of the usual ones that hold it, expect the first word after "
            f"{units.seconds(best.ttft_expected_s)} and each further word, or part of a long word, after "
            f"{units.seconds(best.tpot_expected_s)}: the steps of this model added up, {_share_words(best)}."
        )
    elif best is not None and best.ttft_floor_s is not None:
        lines.append(
            f"On {md_text(best.device)}, the fastest of the usual ones that hold it, the first word takes at least "
            f"{units.seconds(best.ttft_floor_s)} and each further word, or part of a long word, at least "
            f"{units.seconds(best.tpot_floor_s)}. Real runs are slower."
        )
    return lines


def _share_words(device: Elsewhere) -> str:
    """Say how much of an expected time was seen on such a device."""
    if not device.measured_share_ratio:
        return "none of which was timed on such a device"
    return f"{units.percent(device.measured_share_ratio)} of which was timed on such a device"


def _speed(summary: Summary) -> str:
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
    header = ["what", "typical", slow, "the least this machine allows"]
    # A column in which nothing is known says nothing.
    kept = [0] + [place for place in (1, 2, 3) if any(row and row[place] != units.MISSING for row in rows)]
    shown = [[row[place] for place in kept] for row in rows if row]
    return table([header[place] for place in kept], shown, numbers=range(1, len(kept)))


def _speed_row(summary: Summary, label: str, stat: Stat | None, floor: str | None) -> list[str]:
    """Return a row; without a ``floor`` it is a rate, of which less is slower."""
    least = summary.predictions.get(floor) if floor else None
    if stat is None and least is None:
        return []
    show = units.seconds if floor else units.number
    slow = None if stat is None or stat.n < 2 else stat.p95 if floor else stat.p5
    if stat is not None and sizes_differ(summary.samples):
        # A spread over requests of different sizes is no slow case: show the slowest of them.
        by_request = span_over_samples(summary.samples, f"{floor}_s") if floor else None
        slow = by_request.high if by_request is not None else None
    return [
        label,
        show(stat.median if stat is not None else None),
        show(slow),
        units.seconds(least.floor_s if least is not None else None),
    ]


def _time_split(summary: Summary) -> str:
    if summary.wall_clock is None:
        return ""
    rows = [
        [
            PHASES.get(part.name, md_text(part.name)),
            units.seconds(part.seconds),
            units.percent(part.share_ratio),
        ]
        for part in summary.wall_clock.parts
    ]
    return table(["step", "time per request", "share"], rows, numbers=(1, 2))


def _limits(summary: Summary) -> list[str]:
    # The whole says nothing new beside its parts.
    phases = [phase for phase in summary.verdicts if phase != "all"] or list(summary.verdicts)
    return [
        f"{capitalised(PHASES.get(phase) or md_text(phase))}: {_limit(summary, phase)}."
        for phase in sorted(phases, key=phase_rank)
    ]


def _limit(summary: Summary, phase: str) -> str:
    """Say what limits a phase; where no single cause was found, how far it is from the best the machine allows."""
    bound, floor = summary.verdicts[phase].bound, summary.predictions.get(phase)
    if bound == "unknown" and floor is not None and floor.error_ratio is not None and floor.error_ratio > 1:
        times = units.number(floor.error_ratio)
        return f"takes {times} times as long as this machine would need at best; no single cause stands out"
    return BOUNDS[bound]


def _advice(summary: Summary) -> str:
    to_change = [finding for finding in summary.findings if finding.id not in MEASUREMENT]
    if not to_change and is_static_only(summary):
        return ""
    if not to_change:
        return "Nothing stands out in the data at hand; report.md says which further measurements would tell more.\n"
    lines = []
    shown = to_change[:_THREE]
    said = Counter(in_plain_words(finding).problem for finding in shown)
    for place, finding in enumerate(shown, 1):
        plain = in_plain_words(finding)
        where = PHASES.get(finding.phase or "")
        problem = f"{plain.problem}, while {where}" if said[plain.problem] > 1 and where else plain.problem
        lines.append(f"{place}. **{_sentence(problem)}** {_sentence(plain.action)} {_gain_sentence(finding)}")
    if len(to_change) < _THREE:
        lines.append("\nThe data at hand shows no further cause with evidence.")
    return "\n".join(lines)


def _sentence(text: str) -> str:
    return md_text(text if text.endswith((".", "!", "?")) else f"{text}.")


def _gain_sentence(finding: Finding) -> str:
    sure = {"high": "", "medium": " (fairly sure)", "low": " (a guess)"}[finding.confidence]
    if finding.gain_upper_s is None:
        return f"What it is worth cannot be bounded with the data at hand{sure}."
    saved = units.seconds(finding.gain_upper_s)
    if finding.gain_share_ratio is None:
        return f"Worth at most {saved} per request{sure}."
    whole = {
        "a sample's wall-clock": "of the time per request",
        "the program's wall-clock": "of the time of one run",
    }.get(finding.gain_of or "", "of the recorded time")
    return f"Worth at most {saved}, {units.percent(finding.gain_share_ratio)} {whole}{sure}."


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
        lines.append(
            "The speed limits of the machine are not known, so the page cannot say how far from them the model runs."
        )
    counted = summary.coverage.flops_counted_ratio
    if counted is not None:
        lines.append(f"{capitalised(share_text(counted))} of the model's calculations could be counted.")
    unfinished = [
        STAGES.get(name) or md_text(name)
        for name, stage in summary.stages.items()
        if stage.status == "failed" or (stage.status == "skipped" and _was_wanted(summary, name))
    ]
    if unfinished:
        lines.append(
            f"These steps did not run: {'; '.join(unfinished)}. report.md says why and how to change that."
        )
    if summary.findings:
        lines.append(
            "Savings are upper limits: real ones are smaller, and they overlap, so they do not add up."
        )
    return lines


def _was_wanted(summary: Summary, stage: str) -> bool:
    """With the user's own program, stages of the built-in model are left out on purpose."""
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
        return ["No times without recording were given, so nothing here says how long a request takes."]
    if max(counts) == 1:
        return ["Each time is a single value, so its uncertainty is not known."]
    return [f"Times are the middle of {max(counts)} measurements."]
