"""``stakeholder_summary.md``: one page for people who decide, in plain words."""

from __future__ import annotations

from llm_perf_opt import units
from llm_perf_opt.reporting.escape import md_text
from llm_perf_opt.reporting.markdown import bullets, section, table
from llm_perf_opt.summary.model import Summary

_PHASE_WORDS = {
    "vision": "Looking at the image",
    "prefill": "Reading the request",
    "decode": "Writing the answer",
    "all": "The run as a whole",
}
_BOUND_WORDS = {
    "compute": "limited by how fast the processor can calculate",
    "memory": "limited by how fast data can be read from memory",
    "launch": "mostly waiting for instructions: the processor could do more but is not told to in time",
    "sync": "mostly waiting because the program stops to look at intermediate results",
    "copy": "mostly busy moving data between the computer and the accelerator",
    "balanced": "well balanced: calculating and reading memory take about the same time",
    "unknown": "not decided with the data at hand",
}
_THREE = 3


def stakeholder_markdown(summary: Summary) -> str:
    """Render the one-page summary."""
    return "".join(
        (
            "# Summary for stakeholders\n\n",
            _what(summary),
            section("How fast it is", _speed(summary)),
            section("Where the time goes", _where(summary)),
            section("What holds it back", bullets(_limits(summary))),
            section("What to do, and what each step is worth", _advice(summary)),
            section("How far to trust this page", bullets(_trust(summary))),
        )
    )


def _what(summary: Summary) -> str:
    workload = summary.workload
    name = md_text(workload.model or "The model")
    where = (
        f" on {md_text(summary.hardware.name or workload.device)}"
        if summary.hardware.name or workload.device
        else ""
    )
    count = f" It covers {workload.samples} requests." if workload.samples else ""
    return f"This page reports how fast {name} answers{where}, what limits it, and what would make it faster.{count}\n\n"


def _speed(summary: Summary) -> str:
    timings = summary.timings
    rows = [
        ("Time until the first word appears", timings.ttft_s, units.seconds),
        ("Time for each further piece of text", timings.tpot_s, units.seconds),
        ("Pieces of text per second", timings.tokens_per_s, units.number),
    ]
    return table(
        ["what", "typical", "slow case (1 in 20)"],
        [
            [
                label,
                show(stat.median),
                show(stat.p5 if show is units.number else stat.p95) if stat.n > 1 else units.MISSING,
            ]
            for label, stat, show in rows
            if stat is not None
        ],
        numbers=(1, 2),
    )


def _where(summary: Summary) -> str:
    timings = summary.timings
    parts = [
        ("preparing the input", timings.preprocess_s),
        ("looking at the image", timings.vision_s),
        ("reading the request", timings.prefill_s),
        ("writing the answer", timings.decode_s),
    ]
    known = [(name, stat.median) for name, stat in parts if stat is not None]
    total = sum(value for _, value in known)
    if not total:
        return ""
    return table(
        ["step", "time per request", "share"],
        [[name, units.seconds(v), units.percent(v / total)] for name, v in known],
        numbers=(1, 2),
    )


def _limits(summary: Summary) -> list[str]:
    return [
        f"{_PHASE_WORDS.get(phase, md_text(phase))}: {_BOUND_WORDS[verdict.bound]}."
        for phase, verdict in summary.verdicts.items()
    ]


def _advice(summary: Summary) -> str:
    lines = []
    for index, finding in enumerate(summary.findings[:_THREE], 1):
        worth = (
            f"Saves at most {units.seconds(finding.gain_upper_s)} per request."
            if finding.gain_upper_s is not None
            else "Its worth cannot be bounded yet."
        )
        lines.append(f"{index}. **{md_text(finding.title)}.** {md_text(finding.advice)} {worth}")
    return (
        "\n".join(lines)
        or "Nothing stands out in the data at hand; see report.md for what further measurements would tell.\n"
    )


def _trust(summary: Summary) -> list[str]:
    lines = [md_text(note) for note in summary.notes]
    unfinished = [name for name, stage in summary.stages.items() if stage.status in ("failed", "skipped")]
    if unfinished:
        lines.append(
            f"These steps did not run: {', '.join(md_text(name) for name in unfinished)}; report.md says why."
        )
    lines.append("Savings are upper limits: real gains are smaller, and they do not add up.")
    return lines
