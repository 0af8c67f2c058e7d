"""``report.html``: one file that opens offline, asks the network for nothing, and reads on paper, desk and phone."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from llm_perf_opt import __version__, units
from llm_perf_opt.reporting.escape import visible
from llm_perf_opt.reporting.html_sections import Section, sections_of
from llm_perf_opt.reporting.wording import (
    BOUND_NAMES,
    coverage_facts,
    gain_text,
    phase_name,
    phase_rank,
    title_of,
    workload_facts,
)
from llm_perf_opt.summary.model import Stat, Summary

_FOLDER = "templates"
_JSON_MARKS = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def report_html(summary: Summary) -> str:
    """Render the whole report."""
    sections = sections_of(summary)
    points = {block.id: block.points for section in sections for block in section.blocks if block.points}
    return render_page(
        "report.html.j2",
        title=f"{title_of(summary)}: performance report",
        navigation=_navigation(summary, sections),
        data={"points": points},
        context={**_opening(summary), "sections": sections},
    )


def render_page(
    template: str, *, title: str, navigation: list[Section], data: dict[str, Any], context: dict[str, Any]
) -> str:
    """Render a template inside the shell; scripts other than ours are refused by the page itself."""
    script = _text("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        _environment()
        .get_template(template)
        .render(
            title=title,
            version=__version__,
            policy=policy,
            css=Markup(_text("report.css")),
            script=Markup(script),
            data=Markup(safe_json(data)),
            navigation=navigation,
            **context,
        )
    )


def safe_json(value: object) -> str:
    """Return JSON that cannot end the script element it stands in."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return visible("".join(_JSON_MARKS.get(character, character) for character in text))


def _printable(value: object) -> object:
    """Make control characters, direction overrides and lone surrogates visible before they are escaped."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@functools.cache
def _environment() -> Environment:
    return Environment(
        autoescape=True,
        loader=FunctionLoader(_text),
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@functools.cache
def _text(name: str) -> str:
    return resources.files("llm_perf_opt.reporting").joinpath(_FOLDER, name).read_text(encoding="utf-8")


def _navigation(summary: Summary, sections: list[Section]) -> list[Section]:
    first = [Section("summary", "Summary", "Summary")]
    if summary.findings:
        first.append(Section("findings", "What to change first", "Findings"))
    return first + sections


def _opening(summary: Summary) -> dict[str, Any]:
    """Return what the reader sees first."""
    return {
        "heading": title_of(summary),
        "run_id": summary.run.id,
        "status": summary.run.status,
        "facts": workload_facts(summary),
        "notes": summary.notes,
        "unfinished": [
            (name, stage.status) for name, stage in summary.stages.items() if stage.status != "ok"
        ],
        "coverage": coverage_facts(summary),
        "numbers": headline_numbers(summary),
        "verdicts": [
            {
                "phase": phase_name(phase),
                "bound": summary.verdicts[phase].bound,
                "name": BOUND_NAMES[summary.verdicts[phase].bound],
                "lever": summary.verdicts[phase].lever,
                "arithmetic": summary.verdicts[phase].arithmetic,
                "evidence": summary.verdicts[phase].evidence,
            }
            for phase in sorted(summary.verdicts, key=phase_rank)
        ],
        "findings": [
            {
                "title": finding.title,
                "gain": gain_text(finding),
                "phase": phase_name(finding.phase) if finding.phase else "whole run",
                "confidence": finding.confidence,
                "advice": finding.advice,
                "evidence": finding.evidence,
                "arithmetic": finding.arithmetic,
            }
            for finding in summary.findings
        ],
    }


def headline_numbers(summary: Summary) -> list[dict[str, str]]:
    """Return the few numbers that stand at the top: times where they were measured, else what the captures hold."""
    timings, metrics = summary.timings, summary.metrics
    numbers = [
        _number("time to first token", timings.ttft_s),
        _number("time per output token", timings.tpot_s),
        _number("tokens per second", timings.tokens_per_s, rate=True),
    ]
    if summary.wall_clock is not None:
        numbers.append(
            {
                "label": "per sample",
                "value": units.seconds(summary.wall_clock.span_s),
                "note": "sum of the phases",
            }
        )
    if not any(numbers):
        kernels, launches = metrics.get("kernel_time_s"), metrics.get("kernel_launches")
        if kernels is not None:
            numbers.append(
                {"label": "kernel time", "value": units.seconds(kernels), "note": "summed over streams"}
            )
        if launches is not None:
            numbers.append(
                {
                    "label": "kernel launches",
                    "value": units.count(launches),
                    "note": f"of {len(summary.kernels)} kernels",
                }
            )
    for phase in sorted(summary.utilisation, key=phase_rank):
        use = summary.utilisation[phase]
        if use.device_busy_ratio is not None:
            numbers.append(
                {
                    "label": f"device busy, {phase_name(phase)}",
                    "value": units.percent(use.device_busy_ratio),
                    "note": "",
                }
            )
    for phase, label, kind in (
        ("prefill", "of peak arithmetic in prefill", "mfu_ratio"),
        ("decode", "of memory bandwidth in decode", "mbu_ratio"),
    ):
        ratio = getattr(summary.utilisation.get(phase), kind, None)
        if ratio is not None:
            numbers.append(
                {
                    "label": label,
                    "value": units.percent(ratio),
                    "note": "MFU" if kind == "mfu_ratio" else "MBU",
                }
            )
    return [number for number in numbers if number]


def _number(label: str, stat: Stat | None, *, rate: bool = False) -> dict[str, str]:
    if stat is None:
        return {}
    show = units.number if rate else units.seconds
    spread = f"median of {stat.n}, {show(stat.p5)} to {show(stat.p95)}" if stat.n > 1 else "one value"
    return {"label": label, "value": show(stat.median), "note": spread}
