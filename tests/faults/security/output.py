"""What comes out of a file or a child must stay text: in pages, tables, spreadsheets and terminals."""

from __future__ import annotations

import contextlib
import csv
import io
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from markdown_it import MarkdownIt

from llm_perf_opt.core.console.command_line import print_error, run_guarded
from llm_perf_opt.core.console.logs import PlainFormatter
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.escape import csv_text, visible
from llm_perf_opt.reporting.console import console_summary
from llm_perf_opt.reporting.html.page import safe_json
from llm_perf_opt.reporting.render import _write_table
from llm_perf_opt.reporting.report import kernels_markdown, operators_markdown, report_html, report_markdown
from llm_perf_opt.reporting.stakeholder import stakeholder_markdown
from llm_perf_opt.stages.ncu.profile_set import targets_table
from llm_perf_opt.stages.ncu.targets import Target
from llm_perf_opt.summary import Summary
from llm_perf_opt.workloads.outputs.gallery import Entry, GalleryHeader, write_gallery
from tests.faults.security.check import Check
from tests.unit.report_summaries import full_summary, hostile_summary, kernel
from tests.unit.reporting.test_reports import Elements

_MARK = "hacked77"
_PAYLOADS = {
    "a script": f"<script>window.{_MARK}=1</script>",
    "an image that fails": f"<img src=x onerror=window.{_MARK}=1>",
    "the end of a title": f"</title><script>{_MARK}</script>",
    "the end of the data": f"</script><script>{_MARK}()</script>",
    "an SVG with a handler": f"<svg/onload={_MARK}()>",
    "a frame": f"<iframe srcdoc='<script>{_MARK}</script>'>",
    "an attribute that ends": f'" onmouseover="{_MARK}()',
    "a link to a script": f"[{_MARK}](javascript:{_MARK})",
    "a link elsewhere": f"[{_MARK}](https://evil.invalid/)",
    "a picture from elsewhere": f"![{_MARK}](https://evil.invalid/x.png)",
    "a heading": f"x\n# {_MARK}\n",
    "a row of a table": f"a | b | {_MARK}\n|---|---|",
    "the end of a code span": f"`` ` {_MARK} ``` <b>",
    "a comment": f"<!-- {_MARK} --> <!-- ",
    "an entity": f"&lt;script&gt;{_MARK}&#60;script&#62;",
    "a direction": f"{_MARK}\u202egnp.exe",
    "a null byte": f"{_MARK}\x00<b>",
}
_PAGES: dict[str, Callable[[Summary], str]] = {
    "report.md": report_markdown,
    "stakeholder_summary.md": stakeholder_markdown,
    "kernels.md": kernels_markdown,
    "operators.md": operators_markdown,
}
_TAGS = {
    "h1",
    "h2",
    "p",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "code",
    "strong",
    "em",
    "ul",
    "ol",
    "li",
}
_TAGS |= {"blockquote", "a"}
_CONTROL = {"\x1b", "\x07", "\x9b", "\x00", "\u202e"}


def _summary_with(payload: str) -> Summary:
    summary = full_summary()
    summary.workload.model = summary.run.id = summary.hardware.name = payload
    summary.kernels = [kernel(place, name=payload + str(place), counted=True) for place in range(4)]
    summary.notes = [payload]
    return summary


def _in_html(payload: str) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        page = report_html(_summary_with(payload))
        elements = Elements(page)
        assert elements.tags.count("script") == Elements(report_html(full_summary())).tags.count("script")
        assert not {"img", "iframe", "object", "embed", "base"} & set(elements.tags)
        assert not [key for key, _ in elements.attributes if key.startswith("on")]
        targets = [value or "" for key, value in elements.attributes if key in ("href", "src", "action")]
        assert not [value for value in targets if value and not value.startswith(("#", "data:,"))], targets
        assert not _CONTROL & set(page)

    return run


def _in_markdown(name: str) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        elements = Elements(
            MarkdownIt("gfm-like", {"linkify": False}).render(_PAGES[name](hostile_summary()))
        )
        assert set(elements.tags) <= _TAGS, set(elements.tags) - _TAGS
        targets = {value for key, value in elements.attributes if key == "href"}
        assert targets <= {"kernels.md", "torch_profiler/operators.md"}, targets
        assert elements.tags.count("h1") == 1

    return run


def _in_all_markdown(payload: str) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        for name, render in _PAGES.items():
            elements = Elements(
                MarkdownIt("gfm-like", {"linkify": False}).render(render(_summary_with(payload)))
            )
            assert set(elements.tags) <= _TAGS, (name, set(elements.tags) - _TAGS)
            assert "evil.invalid" not in str(elements.attributes), name
            assert elements.tags.count("h1") == 1, name

    return run


def _page_policy(folder: Path) -> None:
    page = report_html(full_summary())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy.group(1).replace("&#39;", "'").startswith("default-src 'none'")
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page)


def _data_cannot_end(folder: Path) -> None:
    assert not set("<>&\u2028") & set(safe_json({"a": "</script><!--<script>&\u2028\ud800"}))


def _gallery(folder: Path) -> None:
    hostile = "<script>alert(1)</script> \"'><img src=x onerror=alert(1)> [a](javascript:x) {{ 7*7 }}"
    record = {
        "id": hostile,
        "prompt": hostile,
        "text": hostile,
        "clean_text": hostile,
        "raw_text": hostile,
        "boxes": [],
    }
    header = GalleryHeader(title=hostile)
    write_gallery(folder, header, [Entry(record=record, path=None)], thumbnail_width=100)
    page = (folder / "predictions.html").read_text()
    assert "<script>alert" not in page
    assert "onerror" not in str(Elements(page).attributes)
    assert "{{ 7*7 }}" in page


def _formula(text: str) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        assert csv_text(text)[:1] == "'"
        table = targets_table([Target(text, 0.5, 3, ["decode"])])
        assert next(csv.DictReader(io.StringIO(table, newline="")))["name"] == csv_text(text)
        _write_table({"name": [text]}, folder / "t.csv", "csv")
        rows = list(csv.DictReader(io.StringIO((folder / "t.csv").read_bytes().decode(), newline="")))
        assert rows[0]["name"] == f"'{text}"

    return run


def _printed(action: Callable[[], object]) -> str:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        run_guarded(lambda _: (action() and 0) or 0, [])
    return out.getvalue() + err.getvalue()


_ESCAPE = "k\x1b[2J\x1b]0;title\x07\x9b31m\u202e"


def _standard_output(folder: Path) -> None:
    assert not _CONTROL & set(_printed(lambda: print(_ESCAPE)))


def _error(folder: Path) -> None:
    assert not _CONTROL & set(_printed(lambda: print_error(InputError(_ESCAPE))))


def _console(folder: Path) -> None:
    text = _printed(lambda: print(console_summary(_summary_with(_ESCAPE), folder / "report.html")))
    assert not _CONTROL & set(text)


def _log_record(folder: Path) -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, _ESCAPE, None, None)
    assert not _CONTROL & set(PlainFormatter().format(record))


def _all_control(folder: Path) -> None:
    kept = {"\t", "\n"}
    shown = visible("".join(map(chr, [*range(32), *range(127, 160)])))
    assert {letter for letter in shown if ord(letter) < 32 or 127 <= ord(letter) < 160} <= kept | {"\r"}


def _checks() -> Iterator[Check]:
    for what, payload in _PAYLOADS.items():
        yield Check("escaping", f"{what} in report.html", _in_html(payload))
        yield Check("escaping", f"{what} in every Markdown page", _in_all_markdown(payload))
    for name in _PAGES:
        yield Check("escaping", f"hostile names everywhere in {name}", _in_markdown(name))
    yield Check("escaping", "report.html loads nothing and runs only its own script", _page_policy)
    yield Check("escaping", "the data of report.html cannot end its element", _data_cannot_end)
    yield Check("escaping", "answers of a model in the gallery", _gallery)
    for text in ("=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1"):
        yield Check("CSV formulas", f"{text!r} is quoted in tables", _formula(text))
    yield Check("terminal escapes", "standard output", _standard_output)
    yield Check("terminal escapes", "error messages", _error)
    yield Check("terminal escapes", "the summary on the console", _console)
    yield Check("terminal escapes", "log records", _log_record)
    yield Check("terminal escapes", "every control character", _all_control)


CHECKS = tuple(_checks())
