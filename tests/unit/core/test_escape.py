"""Whatever is escaped renders as itself: checked with a real Markdown renderer."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from llm_perf_opt.core.escape import md_block, md_cell, md_code, md_target, md_text, one_line, visible

RENDERER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
PIECES = [
    *"`*_{}[]()#+-.!|~$^=@:<>&\\'\"/ \n\t",
    *[
        "a",
        "Z9",
        "<script>",
        "](x)",
        "http://x.y",
        "www.x.y",
        "1. ",
        "---",
        "```",
        "&amp;",
        "\x00",
        "\u202e",
        "é",
    ],
]
nasty = st.lists(st.sampled_from(PIECES), max_size=25).map("".join)


def shown(markup: str) -> str:
    """What a reader sees of rendered HTML."""
    return html.unescape(re.sub(r"<[^>]*>", "", markup))


def squeeze(text: str) -> str:
    return " ".join(text.split())


@given(nasty | st.text(max_size=40))
def test_running_text_is_shown_as_it_is(text: str) -> None:
    rendered = RENDERER.render(md_text(text))
    inside = rendered.strip().removeprefix("<p>").removesuffix("</p>")
    assert "<" not in inside, "nothing of the text became markup"
    assert squeeze(shown(rendered)) == squeeze(one_line(text))


@given(nasty)
def test_a_heading_keeps_its_text(text: str) -> None:
    rendered = RENDERER.render(f"## {md_text(text)}")
    assert rendered.startswith("<h2>")
    assert squeeze(shown(rendered)) == squeeze(one_line(text))


@given(nasty, nasty)
def test_cells_stay_in_their_columns(left: str, right: str) -> None:
    rendered = RENDERER.render(f"| a | b |\n|---|---|\n| {md_cell(left)} | {md_code(right, cell=True)} |\n")
    cells = re.findall(r"<td>(.*?)</td>", rendered, re.DOTALL)
    assert len(cells) == 2
    assert squeeze(shown(cells[0])) == squeeze(one_line(left))
    assert squeeze(shown(cells[1])) == squeeze(one_line(right))


@given(nasty)
def test_code_spans_hold_exactly_the_text(text: str) -> None:
    line = one_line(text)
    rendered = RENDERER.render(f"x {md_code(text)} y")
    if line:
        assert re.fullmatch(r"<p>x <code>.*</code> y</p>\n", rendered, re.DOTALL)
        assert squeeze(shown(rendered)) == squeeze(f"x {line} y")
    else:
        assert md_code(text) == ""


@given(nasty)
def test_no_text_can_close_its_block(text: str) -> None:
    rendered = RENDERER.render(md_block(text) + "\n\nafter")
    assert rendered.endswith("</code></pre>\n<p>after</p>\n")
    assert rendered.count("<pre>") == 1


def test_ordinary_names_stay_readable() -> None:
    assert (
        md_text("at::native::vectorized_kernel(int, float4)") == "at::native::vectorized_kernel(int, float4)"
    )
    assert md_text("DeepSeek-OCR 1.23 s (a+b=c)") == "DeepSeek-OCR 1.23 s (a+b=c)"


@pytest.mark.parametrize("text", ["http://evil.example", "see www.evil.example", "@user"])
def test_no_link_appears_by_itself(text: str) -> None:
    assert re.search(r"\\[:.@]", md_text(text))


def test_targets_cannot_end_the_link() -> None:
    assert md_target("images/a b(1)<x>.jpg") == "images/a%20b%281%29%3Cx%3E.jpg"


def test_control_characters_become_visible() -> None:
    assert visible("a\x1b[31m\u202eb\udcff\n\t") == "a\ufffd[31m\ufffdb?\n\t"
