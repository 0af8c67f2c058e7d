"""One document, three writers: everything is shown once, in order, escaped, and nothing of another medium."""

from __future__ import annotations

import re

import pytest
from markdown_it import MarkdownIt

from llm_perf_opt.reporting.charts.bars import Bar, bars
from llm_perf_opt.reporting.console import write_console
from llm_perf_opt.reporting.document import (
    Block,
    Card,
    Cards,
    Details,
    Document,
    Facts,
    Figure,
    Figures,
    Heading,
    Links,
    Note,
    Only,
    Points,
    Section,
    Text,
    chart,
)
from llm_perf_opt.reporting.html.page import write_html
from llm_perf_opt.reporting.markdown import write_markdown
from llm_perf_opt.reporting.tables import columns, simple, text
from tests.unit.report_summaries import HOSTILE
from tests.unit.reporting.test_reports import Elements


def every_block(mark: str) -> list[Block]:
    """One of each, every text of it marked with its place."""
    table = simple(columns(f"t1{mark}", "n#"), [[text(f"t2{mark}"), text(f"t3{mark}")]]).named(
        "t", f"t0{mark}"
    )
    drawn = simple(columns("part", "time#"), [[text(f"c1{mark}"), text("1 s")]]).named("c", f"c0{mark}")
    return [
        Text(f"answer{mark}", "answer"),
        Facts([("name", f"fact{mark}")], f"ok{mark}"),
        Figures([Figure(f"f1{mark}", f"f2{mark}", f"f3{mark}")]),
        chart(lambda: bars("Bars", [Bar(f"bar{mark}", 1.0)]), table=drawn),
        Heading(f"h{mark}", "verdicts"),
        Cards([Card(f"v1{mark}", f"v2{mark}", [("to improve", f"v3{mark}")], [("", f"v4{mark}")], "decode")]),
        Cards([Card(f"w1{mark}", f"w2{mark}")], 1),
        table,
        Points([(f"p1{mark}", f"p2{mark}")]),
        Links([(f"l1{mark}", "a b/report.html")]),
        Details(f"d1{mark}", [Note(f"n2{mark}", f"n1{mark}")], "trust"),
    ]


def document(blocks: list[Block], *sections: Section) -> Document:
    return Document("Title", "Heading", blocks, sections, ["data.json"])


NAMES = [
    "answer",
    "fact",
    "ok",
    "f1",
    "f2",
    "f3",
    "h",
    "v1",
    "v2",
    "v3",
    "v4",
    "w1",
    "w2",
    "t0",
    "t1",
    "t2",
    "t3",
    "p1",
    "p2",
    "l1",
    "d1",
    "n1",
    "n2",
]
ON_THE_CONSOLE = [name for name in NAMES if name not in ("fact", "ok", "f3", "v3", "v4", "l1")]


def test_every_block_is_written_once_and_in_order() -> None:
    page = write_html(document(every_block("@"))).partition("<main")[2].partition("</main>")[0]
    shown = re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)
    shown = re.sub(r'<caption.*?</caption>|aria-label="[^"]*"|class="[^"]*"', "", shown)
    assert re.findall(r"(\w+)@", shown) == _html_order()
    assert 'href="a%20b/report.html"' in page
    markdown = write_markdown(document(every_block("@")))
    assert [name for name in re.findall(r"(\w+)\\@", markdown) if name not in ("c0", "c1")] == _html_order()
    assert "c0" in markdown and "bar" not in markdown.replace("c0", ""), "a chart is its table"
    assert re.findall(r"(\w+)@", "\n".join(write_console(every_block("@")))) == [
        name for name in _html_order(charts=True) if name in (*ON_THE_CONSOLE, "c0", "c1")
    ]


def _html_order(*, charts: bool = False) -> list[str]:
    order = [
        "answer",
        "ok",
        "fact",
        "f1",
        "f2",
        "f3",
        "h",
        "v1",
        "v2",
        "v3",
        "v4",
        "w1",
        "w2",
        "t0",
        "t1",
        "t2",
        "t3",
        "p1",
        "p2",
        "l1",
        "d1",
        "n1",
        "n2",
    ]
    return [*order[:6], *(["c0", "c1"] if charts else []), *order[6:]]


def test_hostile_text_is_text_in_every_block() -> None:
    page = Elements(write_html(document(every_block(HOSTILE))))
    assert page.tags.count("script") == 2 and not {"img", "iframe"} & set(page.tags), (
        "the data and our own script"
    )
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    markdown = write_markdown(document(every_block(HOSTILE)))
    shown = Elements(MarkdownIt("gfm-like", {"linkify": False}).render(markdown))
    assert not {"script", "img", "iframe"} & set(shown.tags) and shown.tags.count("h1") == 1
    assert {value for name, value in shown.attributes if name == "href"} == {"a%20b/report.html"}
    for line in write_console(every_block(HOSTILE)):
        assert not {"\x00", "\x1b", "\u202e", "\n"} & set(line)


def test_a_medium_shows_what_is_meant_for_it_and_no_empty_section() -> None:
    blocks: list[Block] = [
        Only("html", [Text("on the page")]),
        Only("markdown", [Text("in the file")]),
        Text("both"),
    ]
    found = document(
        blocks,
        Section("a", "Only a picture", [Only("html", [Text("drawn")])]),
        Section("b", "Nothing", [Points([])]),
    )
    page, markdown = write_html(found), write_markdown(found)
    assert "on the page" in page and "in the file" not in page and "Only a picture" in page
    assert "in the file" in markdown and "on the page" not in markdown and "Only a picture" not in markdown
    assert "Nothing" not in page + markdown and page.count("both") == markdown.count("both") == 1
    assert write_console(blocks) == ["both"]


@pytest.mark.parametrize("width", [30, 79, 200])
def test_running_text_fits_the_terminal(width: int) -> None:
    blocks: list[Block] = [
        Text("word " * 80),
        Points([("label", "word " * 80)]),
        Note("word " * 80 + "(fix: " + "do this " * 30 + ")"),
    ]
    lines = write_console(blocks, width)
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).split()).count("do this") == 30
    cut = write_console(blocks, width, most_lines=3)
    assert len(cut) < len(lines) and " ".join(cut).count("this") == 30, "a fix is never cut"
