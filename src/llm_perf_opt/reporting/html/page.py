"""Documents as HTML: one self-contained file without network requests, for print, desktop and mobile."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from urllib.parse import quote

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from llm_perf_opt.core.escape import visible
from llm_perf_opt.core.version import __version__
from llm_perf_opt.reporting.document import Block, Chart, Details, Document, Section, blocks_for

_FOLDER = "templates"
_JSON_MARKS = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def write_html(document: Document) -> str:
    """Return the page; its content security policy blocks other scripts."""
    sections = [
        Section(section.anchor, section.title, blocks, section.short or section.title)
        for section in document.sections
        if (blocks := blocks_for("html", section.blocks))
    ]
    opening = blocks_for("html", document.opening)
    charts = _charts([*opening, *(block for section in sections for block in section.blocks)])
    script = _read_asset("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            document=document,
            opening=opening,
            sections=sections,
            version=__version__,
            policy=policy,
            css=Markup(_read_asset("report.css")),
            script=Markup(script),
            data=Markup(
                safe_json({"points": {chart.name: chart.points for chart in charts if chart.points}})
            ),
        )
    )


def _charts(blocks: Sequence[Block]) -> Iterator[Chart]:
    for block in blocks:
        if isinstance(block, Chart):
            yield block
        elif isinstance(block, Details):
            yield from _charts(block.blocks)


def safe_json(value: object) -> str:
    """Return JSON that cannot end its script element."""
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
    """Show text between backticks as code; everything is escaped piece by piece."""
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
    environment.filters["drawn"] = Markup  # charts escape all text, so their markup is trusted
    environment.filters["target"] = quote
    environment.filters["shown"] = functools.partial(blocks_for, "html")
    return environment


@functools.cache
def _read_asset(name: str) -> str:
    return resources.files("llm_perf_opt.reporting.html").joinpath(_FOLDER, name).read_text(encoding="utf-8")
