"""Text that others wrote (kernel names, file names, model output) made harmless in Markdown and HTML.

Markdown has no single escape: prose needs its marks neutralised, code spans need a longer fence, table cells
must not hold a line break or a pipe. The result shows the text literally, without markup.
"""

from __future__ import annotations

import re
from urllib.parse import quote

# Characters with a meaning in CommonMark and GitHub text. Kernel and file names stay readable: an
# underscore between letters and a lone colon have no meaning to a renderer.
_MARKS = re.compile(
    r"[\\`*\[\]|~$@]"  # escapes, code, emphasis, links, table cells, strike-through, formulas, mentions
    r"|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"  # emphasis
    r"|:(?=//)|(?<=[Ww])\.(?=\S)"  # links made without markup: http://…, www.…
    r"|(?:^|(?<=\s))#"  # headings, and the end of one
    r"|^[-+=]"  # lists, rules, underlined headings
)
_LIST_NUMBER = re.compile(r"^(\d+)([.)])(?=\s|$)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_BREAKS = re.compile(r"[\r\n\t\x0b\x0c\x85\u2028\u2029]+")
_ROWS = re.compile(r"[\r\n\x0b\x0c\x85\u2028\u2029]+")
_BACKTICKS = re.compile(r"`+")
_FORMULA = frozenset("=+-@\t\r")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# A sign between blanks or before a number opens nothing: "(< 50 %)" is readable in the file itself.
_OPENS_HTML = re.compile(r"<(?![\s\d=])|(?<!\s)>|>(?![\s\d=])|&(?!\s)")
_SAFE_IN_TARGET = "/-._~"


def visible(text: str) -> str:
    """Replace control characters, direction overrides and lone surrogates by the replacement character."""
    text = text.encode("utf-8", errors="replace").decode("utf-8")
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str) -> str:
    """Join lines with a blank, so that the text cannot start a block."""
    return visible(_BREAKS.sub(" ", text)).strip()


def _html_marks(text: str) -> str:
    return _OPENS_HTML.sub(lambda match: _HTML[match.group()], text)


def md_text(text: object) -> str:
    """Return text for running Markdown: one line, no markup, no HTML, no automatic links."""
    marked = _MARKS.sub(lambda match: "\\" + match.group(), one_line(str(text)))
    # HTML comes second: its entities hold no character that the marks would have escaped.
    return _html_marks(_LIST_NUMBER.sub(r"\1\\\2", marked))


def md_cell(text: object) -> str:
    """Return text for a table cell."""
    return md_text(text)


def md_code(text: object, *, cell: bool = False) -> str:
    """Return a code span that shows exactly this text on one line; ``cell=True`` inside a table.

    GitHub splits table rows at pipes before it looks for code, so a pipe inside a cell is written ``\\|``.
    """
    line = one_line(str(text))
    if not line:
        return ""
    fence = "`" * (_longest_backticks(line) + 1)
    # A space keeps a backtick at the edge apart from the fence; renderers strip one on each side.
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    if cell:
        line = line.replace("|", "\\|")
    return f"{fence}{pad}{line}{pad}{fence}"


def md_block(text: str) -> str:
    """Return a fenced block that no content can close."""
    body = visible(text.replace("\r\n", "\n").replace("\r", "\n")).rstrip("\n")
    fence = "`" * max(3, _longest_backticks(body) + 1)
    return f"{fence}text\n{body}\n{fence}"


def csv_text(text: str) -> str:
    """Return text for a cell of a table that a spreadsheet may open: formulas are quoted with an apostrophe.

    On one line: a carriage return, which writers leave unquoted, would begin a row of its own.
    """
    line = _ROWS.sub(" ", text)
    return f"'{line}" if text[:1] in _FORMULA else line


def md_target(path: str) -> str:
    """Return a relative path as the target of a link or image."""
    return quote(path.encode("utf-8", errors="surrogateescape"), safe=_SAFE_IN_TARGET)


def _longest_backticks(text: str) -> int:
    return max((len(run) for run in _BACKTICKS.findall(text)), default=0)
