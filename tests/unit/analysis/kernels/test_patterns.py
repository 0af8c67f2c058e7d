"""Alternatives one by one find what the whole expression finds."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.analysis.kernels.families import alternatives, family_rules
from tests.unit.analysis.kernels.test_attention import MAKES, OTHERS


@pytest.mark.parametrize(
    ("pattern", "needed"),
    [
        ("nccl|rccl", ["nccl", "rccl"]),
        ("flash_?(fwd|bwd)|x", ["flash", ""]),
        (r"^\[CUDA memcpy|a(b|c)dd", ["[cuda memcpy", "dd"]),
        (r"gemm(?!a)|(?<!fb)blas", ["gemm", "blas"]),
        (r"\bscan\d+_abc", ["scan"]),
        ("[ab|]xyz|q", ["xyz", ""]),
        ("abc+d|ab{2}cde|ab*cd", ["abc", "cde", "cd"]),
        ("a.bcd$", ["bcd"]),
    ],
)
def test_the_text_an_alternative_needs(pattern: str, needed: list[str]) -> None:
    assert [text for text, _ in alternatives(pattern).parts] == needed


@pytest.mark.parametrize("name", [name for _, name in MAKES] + OTHERS)
def test_every_rule_finds_what_its_whole_expression_finds(name: str) -> None:
    for rule in family_rules():
        whole = re.search(rule.names.pattern, name, re.IGNORECASE | re.ASCII) is not None
        assert rule.names.found_in(name, name.lower()) is whole, rule


@given(
    st.lists(
        st.sampled_from(
            [word for rule in family_rules() for word, _ in rule.names.parts if word]
            + ["_", "::", "<", " ", "7", "x"]
        )
    ).map("".join),
)
def test_so_does_any_name_made_of_their_parts(name: str) -> None:
    for rule in family_rules():
        whole = re.search(rule.names.pattern, name, re.IGNORECASE | re.ASCII) is not None
        assert rule.names.found_in(name, name.lower()) is whole, rule


def test_every_expression_and_every_alternative_of_the_table_is_valid() -> None:
    for rule in family_rules():
        re.compile(rule.names.pattern)
        assert all(re.compile(part) for _, part in rule.names.parts)
