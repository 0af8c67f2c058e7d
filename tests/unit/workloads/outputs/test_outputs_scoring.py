"""Edit distance against the textbook table, and what normalising does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.workloads.outputs.records import edit_distance_ratio, levenshtein, normalise

few_letters = st.text(alphabet="abcé中", max_size=90)


def textbook(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, start=1):
        above, row[0] = row[0], i
        for j, right in enumerate(b, start=1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (left != right))
    return row[-1]


@given(few_letters, few_letters)
def test_equals_the_textbook_algorithm(a: str, b: str) -> None:
    assert levenshtein(a, b) == textbook(a, b)


@given(st.text(max_size=40), st.text(max_size=40))
def test_equals_the_textbook_algorithm_on_any_text(a: str, b: str) -> None:
    assert levenshtein(a, b) == levenshtein(b, a) == textbook(a, b)


@given(few_letters, few_letters, few_letters)
def test_is_a_metric(a: str, b: str, c: str) -> None:
    assert (levenshtein(a, b) == 0) == (a == b)
    assert levenshtein(a, c) <= levenshtein(a, b) + levenshtein(b, c)


@pytest.mark.parametrize(
    ("a", "b", "distance"), [("", "", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("flaw", "lawn", 2)]
)
def test_known_values(a: str, b: str, distance: int) -> None:
    assert levenshtein(a, b) == distance


def test_longer_than_a_machine_word() -> None:
    a = "".join(chr(97 + i * i % 26) for i in range(3000))
    b = a[:1000] + "XYZ" + a[1010:2500] + a[2600:]
    assert levenshtein(a, b) == 10 + 100


def test_ratio_is_relative_to_the_longer_text() -> None:
    assert edit_distance_ratio("abcd", "ab") == 0.5
    assert edit_distance_ratio("", "") == 0.0
    assert edit_distance_ratio("", "abc") == 1.0
    assert edit_distance_ratio("same", "same") == 0.0


@given(st.text(max_size=60), st.text(max_size=60))
def test_ratio_is_between_zero_and_one(a: str, b: str) -> None:
    assert 0.0 <= edit_distance_ratio(a, b) <= 1.0


def test_markup_does_not_count() -> None:
    written = "# Title\n\n**bold**  text ![](images/0.jpg)\n<table><tr><td>1 &lt; 2</td></tr></table>"
    assert normalise(written) == "Title bold text 1 < 2"
    assert edit_distance_ratio(written, "Title\nbold text\n1 < 2") == 0.0
    assert normalise("ﬁt  ①") == "fit 1", "compatibility forms are the same text"
    assert normalise("a < b and c > d") == "a < b and c > d", "comparisons are no tags"
