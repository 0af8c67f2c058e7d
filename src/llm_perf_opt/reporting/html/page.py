"""``report.html``: one file that opens offline, asks the network for nothing, and reads on paper, desk and phone."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from llm_perf_opt.analysis.verdicts import worth_showing
from llm_perf_opt.core.escape import visible
from llm_perf_opt.core.version import __version__
from llm_perf_opt.model.summary import Summary
from llm_perf_opt.reporting.html.blocks import Section
from llm_perf_opt.reporting.html.sections import sections_of
from llm_perf_opt.reporting.html.tiles import headline_numbers, static_answer, tile_columns
from llm_perf_opt.reporting.wording import (
    BOUND_NAMES,
    coverage_facts,
    gain_text,
    phase_name,
    phase_rank,
    sentence,
    title_of,
    why,
    workload_facts,
)

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
        context={**_introduction(summary), "sections": sections},
    )


def render_page(
    template: str, *, title: str, navigation: list[Section], data: dict[str, Any], context: dict[str, Any]
) -> str:
    """Render a template inside the shell; scripts other than ours are refused by the page itself."""
    script = _read_asset("report.js")
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
            css=Markup(_read_asset("report.css")),
            script=Markup(script),
            data=Markup(safe_json(data)),
            navigation=navigation,
            **context,
        )
    )


def safe_json(value: object) -> str:
    """Return JSON that cannot end the script element it stands in."""
    text = json.dumps(_visible_texts(value), ensure_ascii=False, separators=(",", ":"))
    return "".join(_JSON_MARKS.get(character, character) for character in text)


def _visible_texts(value: object) -> object:
    if isinstance(value, Mapping):
        return {visible(str(key)): _visible_texts(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_visible_texts(item) for item in value]
    return visible(value) if isinstance(value, str) else value


def _printable(value: object) -> object:
    """Make control characters, direction overrides and lone surrogates visible before they are escaped."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def inline(value: str) -> Markup:
    """Show what stands between backticks as code; everything is escaped piece by piece."""
    pieces = visible(value).split("`")
    if len(pieces) % 2 == 0:
        return escape(visible(value))
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if place % 2 else escape(piece)
        for place, piece in enumerate(pieces)
    )


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(_read_asset),
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["inline"] = inline
    return environment


@functools.cache
def _read_asset(name: str) -> str:
    return resources.files("llm_perf_opt.reporting.html").joinpath(_FOLDER, name).read_text(encoding="utf-8")


def _navigation(summary: Summary, sections: list[Section]) -> list[Section]:
    first = [Section("summary", "Summary", "Summary")]
    if summary.findings:
        first.append(Section("findings", "What to change first", "Findings"))
    return first + sections


def _introduction(summary: Summary) -> dict[str, Any]:
    """Return what the reader sees first."""
    return {
        "heading": title_of(summary),
        "run_id": summary.run.id,
        "status": summary.run.status,
        "facts": workload_facts(summary),
        "notes": [sentence(note) for note in summary.notes],
        "unfinished": [
            (name, stage.status) for name, stage in summary.stages.items() if stage.status != "ok"
        ],
        "coverage": coverage_facts(summary),
        "numbers": headline_numbers(summary),
        "columns": tile_columns(len(headline_numbers(summary))),
        "answer": static_answer(summary),
        "verdicts": [
            {
                "phase": phase_name(phase),
                "key": phase,
                "bound": summary.verdicts[phase].bound,
                "name": BOUND_NAMES[summary.verdicts[phase].bound],
                "lever": summary.verdicts[phase].lever,
                "arithmetic": why(summary.verdicts[phase]),
                "evidence": summary.verdicts[phase].evidence,
            }
            for phase in sorted(worth_showing(summary.verdicts), key=phase_rank)
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
                "command": finding.improve_command,
                "no_experiment": finding.no_experiment,
                "track_record": finding.track_record,
            }
            for finding in summary.findings
        ],
    }
