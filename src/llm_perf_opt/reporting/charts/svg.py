"""A small SVG writer: escaped text, fixed number format, theme through CSS variables, labels that fit.

A page that embeds a chart may set ``--chart-surface``, ``--chart-text``, ``--chart-muted``, ``--chart-grid``
and ``--chart-1`` … ``--chart-8``; a chart on its own follows the reader's light or dark preference.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from html import escape
from typing import TypeVar

Drawn = TypeVar("Drawn")
_FONT_SIZE = 12.0
LINE_HEIGHT = 16.0
_WIDTH: ContextVar[float] = ContextVar("width of a chart", default=760.0)
_NARROW_WIDTH = 366.0
"""A phone of 390 pixels without the margins of a page."""
PALETTE_SIZE = 8
# Okabe and Ito's colour-blind-safe set, ordered so that neighbours differ in lightness too.
_LIGHT = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#737373", "#f0e442")
_DARK = ("#4aa3df", "#e9ab2e", "#2fbf93", "#d994ba", "#8accf0", "#ee7f3b", "#a3a3a3", "#efe466")
_THEME = {
    "surface": ("#ffffff", "#15181d"),
    "text": ("#1d2329", "#e6e9ee"),
    "muted": ("#5a6470", "#a2acb8"),
    "grid": ("#dfe3e8", "#343b45"),
}
# Text on a filled bar: white on the two darkest colours of the light theme, near-black elsewhere (at least 4.5:1).
_INK_LIGHT = ("#ffffff", "#14171a", "#14171a", "#14171a", "#14171a", "#14171a", "#ffffff", "#14171a")
# Code points that XML 1.0 does not allow, lone surrogates, and marks that reverse the reading direction of what
# follows: kernel names and model output may hold them.
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069\ufffe\uffff\ud800-\udfff]")
_WIDE = frozenset("mwMWQO@%&GDHNUCRABKVXYZPESTFL—…")
_NARROW = frozenset("iljtfrI.,:;'|!()[] ·")
_LEGEND_ENTRIES = 24
"""More names than this are counted, not listed."""


def clean(text: str) -> str:
    """Replace characters that are invalid in XML; line breaks and tabs become spaces."""
    return _NOT_XML.sub("\ufffd", text).replace("\n", " ").replace("\r", " ").replace("\t", " ")


def number(value: float) -> str:
    """Format a coordinate: at most two decimals, no exponent, no negative zero."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def attributes(values: dict[str, str | float | None]) -> str:
    """Format attributes in the order given; ``None`` leaves one out, ``_`` in a name becomes ``-``."""
    parts = []
    for name, value in values.items():
        if value is None:
            continue
        text = value if isinstance(value, str) else number(value)
        parts.append(f' {name.rstrip("_").replace("_", "-")}="{escape(clean(text), quote=True)}"')
    return "".join(parts)


def element(tag: str, content: str | None = None, /, **values: str | float | None) -> str:
    """Return one element; ``content`` is markup that is already escaped."""
    opening = f"<{tag}{attributes(values)}"
    return f"{opening}/>" if content is None else f"{opening}>{content}</{tag}>"


def text(
    x: float,
    y: float,
    content: str,
    *,
    anchor: str = "start",
    role: str = "text",
    **values: str | float | None,
) -> str:
    """Return a line of text, baseline at ``y``; ``role``: ``text``, ``muted``, ``head`` or an ink class."""
    fitted = None if anchor == "start" else anchor
    return element(
        "text", escape(clean(content)), x=x, y=y, text_anchor=fitted, class_=f"lpo-{role}", **values
    )


def hover(content: str) -> str:
    """Return a ``<title>`` child: the tooltip of browsers."""
    return element("title", escape(clean(content)))


def text_width(content: str, size: float = _FONT_SIZE) -> float:
    """Estimate the width of text in pixels, a little too wide rather than too narrow."""
    total = 0.0
    for character in content:
        if character in _NARROW:
            total += 0.36
        elif character in _WIDE:
            total += 0.78
        elif ord(character) > 0x2E7F:
            total += 1.05
        else:
            total += 0.6
    return total * size


def fit(content: str, width: float, size: float = _FONT_SIZE) -> str:
    """Shorten text with an ellipsis in the middle (names differ at both ends) until it fits ``width``."""
    content = clean(content)
    if text_width(content, size) <= width:
        return content
    for kept in range(len(content) - 1, 0, -1):
        head = (kept * 3 + 2) // 5
        tail = kept - head
        short = content[:head] + "…" + (content[-tail:] if tail else "")
        if text_width(short, size) <= width:
            return short
    return "…"


def colour_class(index: int) -> str:
    """Return the CSS class of the ``index``-th colour; after eight they repeat with lower opacity."""
    faded = " lpo-faded" if (index // PALETTE_SIZE) % 2 else ""
    return f"lpo-fill-{index % PALETTE_SIZE + 1}{faded}"


def colour_indices(names: Iterable[str], fixed: Mapping[str, int] | None) -> dict[str, int]:
    """Give every name a palette index in order of appearance, keeping those the caller fixed."""
    ordered = dict.fromkeys(names)
    wanted = fixed or {}
    taken = {wanted[name] for name in ordered if name in wanted}
    free = (index for index in range(len(ordered) + len(taken) + 1) if index not in taken)
    return {name: wanted[name] if name in wanted else next(free) for name in ordered}


def data_attributes(values: Mapping[str, str]) -> dict[str, str | float | None]:
    """Return ``data-…`` attributes; characters a name cannot hold become dashes."""
    return {"data-" + re.sub(r"[^a-z0-9-]", "-", name.lower()): value for name, value in values.items()}


def ink_role(index: int) -> str:
    """Return the text role that is readable on the ``index``-th colour."""
    return f"ink-{index % PALETTE_SIZE + 1}"


def _variables(column: int, palette: Sequence[str], inks: Sequence[str]) -> str:
    theme = "".join(f"--l-{name}:var(--chart-{name},{pair[column]});" for name, pair in _THEME.items())
    fills = "".join(f"--l-{i}:var(--chart-{i},{colour});" for i, colour in enumerate(palette, start=1))
    ink = "".join(f"--i-{i}:var(--chart-ink-{i},{colour});" for i, colour in enumerate(inks, start=1))
    return theme + fills + ink


def _style() -> str:
    dark_inks = ("#14171a",) * PALETTE_SIZE
    fills = "".join(
        f".lpo .lpo-fill-{i}{{fill:var(--l-{i})}}.lpo .lpo-line-{i}{{stroke:var(--l-{i});fill:none}}"
        f".lpo .lpo-ink-{i}{{fill:var(--i-{i})}}"
        for i in range(1, PALETTE_SIZE + 1)
    )
    return (
        f".lpo{{{_variables(0, _LIGHT, _INK_LIGHT)}font-family:system-ui,-apple-system,'Segoe UI',Roboto,"
        f"'Helvetica Neue',Arial,sans-serif;font-size:{number(_FONT_SIZE)}px}}"
        f"@media (prefers-color-scheme:dark){{.lpo{{{_variables(1, _DARK, dark_inks)}}}}}"
        ".lpo-surface{fill:var(--l-surface)}.lpo text{fill:var(--l-text)}.lpo .lpo-muted{fill:var(--l-muted)}"
        ".lpo .lpo-head{font-size:14px;font-weight:600}.lpo .lpo-headsmall{font-size:11.5px;font-weight:600}"
        ".lpo-grid{stroke:var(--l-grid);stroke-width:1;fill:none}"
        ".lpo-axis{stroke:var(--l-muted);stroke-width:1;fill:none}"
        ".lpo-roof{stroke:var(--l-text);stroke-width:1.6;fill:none}.lpo-dash{stroke-dasharray:5 4}"
        ".lpo-edge{stroke:var(--l-surface);stroke-width:1}.lpo-faded{fill-opacity:.5}"
        ".lpo-halo{paint-order:stroke;stroke:var(--l-surface);stroke-width:3px;stroke-linejoin:round}"
        ".lpo [tabindex]:focus{outline:2px solid var(--l-text);outline-offset:2px}"
        # After the colours, whose lines have no fill: a hollow mark must still catch the pointer.
        f"{fills}.lpo .lpo-hollow{{fill:var(--l-surface);stroke-width:2}}"
        ".lpo .lpo-solid{fill:var(--l-text)}.lpo .lpo-outline{stroke:var(--l-text)}"
    )


_STYLE = _style()
"""Every rule of every chart; names start with ``lpo`` so that a page's own rules are left alone."""


def chart_width() -> float:
    """Return the width that a chart is drawn for."""
    return _WIDTH.get()


def draw_narrow(draw: Callable[[], Drawn]) -> Drawn:
    """Draw one or several charts for narrow screens."""
    token = _WIDTH.set(_NARROW_WIDTH)
    try:
        return draw()
    finally:
        _WIDTH.reset(token)


def document(
    title: str,
    description: str,
    width: float,
    height: float,
    body: Iterable[str],
    *,
    kind: str,
    focusable: bool = False,
) -> str:
    """Wrap markup in a complete SVG with a description for screen readers.

    ``focusable``: marks inside can be reached by keyboard, so the root is a group and not one image.
    """
    content = "".join(body)
    key = hashlib.sha256(f"{kind}\0{title}\0{content}".encode("utf-8", "backslashreplace")).hexdigest()[:10]
    head = (
        element("title", escape(clean(title)), id=f"t{key}")
        + element("desc", escape(clean(description)), id=f"d{key}")
        + f"<style>{_STYLE}</style>"
        + element("rect", class_="lpo-surface", width=width, height=height)
    )
    return element(
        "svg",
        head + content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {number(width)} {number(height)}",
        width=width,
        height=height,
        style="max-width:100%;height:auto",
        role="group" if focusable else "img",
        aria_labelledby=f"t{key} d{key}",
        class_=f"lpo lpo-{kind}",
    )


def heading(title: str) -> str:
    """Return the title of a chart, reduced and then shortened to fit; bold text is wider than the estimate."""
    room = chart_width() - 32
    if text_width(title, 15.5) <= room:
        return text(16, 24, clean(title), role="head")
    return text(16, 24, fit(title, room, 12.5), role="headsmall")


def axis_label(middle: float, y: float, content: str, role: str = "text") -> str:
    """Return the label below an axis: centred on it where it fits, else on the chart."""
    half = text_width(content) / 2 + 4
    width = chart_width()
    at = middle if half <= min(middle, width - middle) else width / 2
    return text(at, y, fit(content, width - 8), anchor="middle", role=role)


def no_data(title: str, reason: str, *, kind: str) -> str:
    """Return a chart with the reason why it is empty."""
    width = chart_width()
    body = [
        heading(title),
        text(16, 52, fit(reason, width - 32), role="muted"),
    ]
    return document(title, reason, width, 76, body, kind=kind)


def legend(
    entries: Sequence[tuple[str, int]],
    x: float,
    y: float,
    width: float,
    *,
    lines: bool = False,
) -> tuple[str, float]:
    """Lay out (name, colour index) entries in rows; return the markup and the height it takes.

    ``lines``: samples are strokes, dashed as in a line chart that runs out of colours.
    """
    parts: list[str] = []
    left, top = x, y
    shown = list(entries[:_LEGEND_ENTRIES])
    for name, index in shown:
        label = fit(name, min(width - 20, 240))
        needed = 18 + text_width(label) + 14
        if left > x and left + needed > x + width:
            left, top = x, top + LINE_HEIGHT + 3
        parts.append(_sample(left, top, index, lines))
        parts.append(text(left + 16, top + 10, label))
        left += needed
    if len(entries) > _LEGEND_ENTRIES:
        if left + 90 > x + width:
            left, top = x, top + LINE_HEIGHT + 3
        parts.append(text(left, top + 10, f"and {len(entries) - _LEGEND_ENTRIES} more", role="muted"))
    return "".join(parts), top + LINE_HEIGHT - y


def _sample(left: float, top: float, index: int, as_line: bool) -> str:
    if not as_line:
        return element("rect", x=left, y=top, width=11, height=11, rx=2, class_=colour_class(index))
    dash = " lpo-dash" if index >= PALETTE_SIZE else ""
    path = f"M{number(left - 2)} {number(top + 6)}h13"
    return element("path", d=path, class_=f"lpo-line-{index % PALETTE_SIZE + 1}{dash}", stroke_width=3)


_DRAWABLE = 1e100
"""Larger magnitudes (and smaller positive ones than its inverse) are broken data and overflow an axis."""


def usable(value: float | None) -> bool:
    """Return whether a value can be drawn on a linear scale."""
    return value is not None and math.isfinite(value) and abs(value) <= _DRAWABLE


def positive(value: float | None) -> bool:
    """Return whether a value can be drawn on a logarithmic scale."""
    return value is not None and 1 / _DRAWABLE <= value <= _DRAWABLE


# Meaning of colours in all charts.


BUDGET_COLOURS = {
    "compute": 0,
    "communication": 2,
    "copy": 4,
    "launch": 1,
    "sync": 5,
    "allocation": 13,
    "data": 11,
    "host": 3,
    "queue": 7,
    "one-off": 12,
    "other": 6,
    "idle": 6,
}
"""Palette index of a budget part, so that every chart shows launch time in the same colour."""
FAMILY_COLOURS = {
    "gemm": 0,
    "gemv": 8,
    "attention": 1,
    "kv_cache": 9,
    "elementwise": 2,
    "triton": 10,
    "reduce": 3,
    "norm": 11,
    "copy": 4,
    "memcpy": 12,
    "moe": 5,
    "conv": 13,
    "other": 6,
    "communication": 14,
    "index": 7,
    "sort": 15,
}
"""Palette index of a kernel family: kin share a colour, full and pale. Families not listed take free ones."""
PHASE_COLOURS = {"preprocess": 6, "vision": 2, "encode": 3, "prefill": 0, "mixed": 7, "decode": 1}
"""Palette index of a phase: the same in every chart and on every page."""


def component_colours(names: Iterable[str]) -> dict[str, int]:
    """Assign components colours that are not used for phases; then the pale ones."""
    free = [index for index in range(2 * PALETTE_SIZE) if index not in PHASE_COLOURS.values()]
    return {name: free[place % len(free)] for place, name in enumerate(names)}
