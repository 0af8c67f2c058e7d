"""Boxes out of text that nobody controls."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_perf_opt.workloads.outputs.records import (
    DET,
    DET_END,
    REF,
    REF_END,
    Region,
    clean_text,
    parse_grounding,
    strip_special_tokens,
)

TOKENS = [
    REF,
    REF_END,
    DET,
    DET_END,
    "[[",
    "]]",
    "[",
    "]",
    ",",
    "1",
    "999",
    "-5",
    "1e9",
    "nan",
    " ",
    "\n",
    "text",
    "<",
    "|>",
]
hostile = st.lists(st.sampled_from(TOKENS) | st.text(max_size=5), max_size=60).map("".join)
coordinates = st.integers(0, 999)


def mark(label: str, boxes: str) -> str:
    return f"{REF}{label}{REF_END}{DET}{boxes}{DET_END}"


def test_one_box() -> None:
    found = parse_grounding(mark("title", "[[10, 20, 300, 40]]") + "\n# Heading")
    assert found.regions == (Region("title", 10, 20, 300, 40),)
    assert found.text == "\n# Heading"
    assert found.malformed == 0


def test_several_boxes_of_one_label_and_space_between_the_parts() -> None:
    found = parse_grounding(f"{REF} cat {REF_END} \n{DET}[[1,2,3,4], [5,6,7,8]]{DET_END}")
    assert [(region.label, region.x1) for region in found.regions] == [("cat", 1), ("cat", 5)]


def test_a_flat_list_is_understood() -> None:
    assert parse_grounding(mark("a", "[1,2,3,4]")).regions == (Region("a", 1, 2, 3, 4),)


@given(
    st.lists(
        st.tuples(
            st.text(alphabet=string.ascii_letters + " _", min_size=1, max_size=20),
            coordinates,
            coordinates,
            coordinates,
            coordinates,
        ),
        max_size=20,
    )
)
def test_what_is_written_is_read_back(boxes: list[tuple[str, int, int, int, int]]) -> None:
    text = "".join(
        mark(label, f"[[{x1}, {y1}, {x2}, {y2}]]") + f"\nline {n}\n"
        for n, (label, x1, y1, x2, y2) in enumerate(boxes)
    )
    found = parse_grounding(text)
    assert [(r.label, r.x1, r.y1, r.x2, r.y2) for r in found.regions] == [
        (b[0].strip(), *b[1:]) for b in boxes
    ]
    assert found.text == "".join(f"\nline {n}\n" for n in range(len(boxes)))
    assert found.malformed == 0


@pytest.mark.parametrize(
    "boxes",
    [
        "",
        "[]",
        "[[1,2,3]]",
        "[[a,b,c,d]]",
        "__import__('os').system('x')",
        "[[1,2,3,4],[5,6",
        "[[1,2,3,4]] or x",
        "[" * 5000,
        "[[1e400,1,1,1]]",
        "[[99999999999,1,2,3]]",
    ],
)
def test_malformed_boxes_are_counted_and_removed(boxes: str) -> None:
    found = parse_grounding(f"before {mark('x', boxes)} after")
    assert found.malformed == 1
    assert found.text == "before  after"


def test_a_partly_readable_list_gives_what_it_has() -> None:
    found = parse_grounding(mark("x", "[[1,2,3,4],[5,6"))
    assert found.regions == (Region("x", 1, 2, 3, 4),)
    assert found.malformed == 1


@pytest.mark.parametrize(
    "text",
    [
        REF,
        f"{REF}a",
        f"{REF}a{REF_END}",
        f"{REF}a{REF_END}{DET}",
        f"{DET}[[1,2,3,4]]",
        f"{REF}a{REF_END}{DET}[[1,2,3",
    ],
)
def test_output_cut_off_in_the_middle_stays_text(text: str) -> None:
    found = parse_grounding(text)
    assert found.regions == ()
    assert found.text == text


def test_an_unfinished_mark_does_not_swallow_the_next() -> None:
    found = parse_grounding(f"{REF}a{REF_END}{DET}[[1,{REF}b{REF_END}{DET}[[1,2,3,4]]{DET_END}")
    assert [region.label for region in found.regions] == ["b"]


@given(hostile)
def test_never_fails_and_never_invents_text(text: str) -> None:
    found = parse_grounding(text)
    assert len(found.text) <= len(text)
    for region in found.regions:
        left, top, right, bottom = region.pixels(640, 480)
        assert 0 <= left <= right <= 640
        assert 0 <= top <= bottom <= 480
    assert isinstance(clean_text(text), str)


@settings(max_examples=20)
@given(st.sampled_from(TOKENS), st.sampled_from(TOKENS))
def test_long_repetitions_take_linear_work(one: str, two: str) -> None:
    # 120,000 repetitions would not end within the test's time limit if the scan were quadratic.
    assert isinstance(clean_text((one + two) * 120_000), str)


def test_pixels_follow_the_published_scale() -> None:
    assert Region("x", 0, 0, 999, 999).pixels(1240, 1754) == (0, 0, 1240, 1754)
    assert Region("x", 500, 250, 100, 750).pixels(999, 999) == (100, 250, 500, 750), (
        "corners are put in order"
    )
    assert Region("x", -5, 1200, 2000, 3).pixels(100, 100) == (0, 0, 100, 100), "clamped to the page"


def test_special_tokens_go_and_ordinary_text_stays() -> None:
    text = "<｜begin▁of▁sentence｜>a <|grounding|>b <td>1</td> x <| y |> a<b|c>d<｜end▁of▁sentence｜>"
    assert strip_special_tokens(text) == "a b <td>1</td> x <| y |> a<b|c>d"


def test_clean_text_is_markdown() -> None:
    text = (
        mark("title", "[[1,1,2,2]]")
        + "\n# A  \n\n\n\n"
        + mark("text", "[[1,1,2,2]]")
        + "\nbody<｜end▁of▁sentence｜>"
    )
    assert clean_text(text) == "# A\n\nbody"
