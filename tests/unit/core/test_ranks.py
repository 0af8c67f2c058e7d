"""Which rank a process is, by the variables of its launcher."""

from __future__ import annotations

import pytest

from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.ranks import Rank, rank_in_mark, this_rank
from tests.text_facts import mentions


@pytest.mark.parametrize("given", [{}, {"WORLD_SIZE": ""}, {"WORLD_SIZE": "1", "RANK": "0"}, {"RANK": "3"}])
def test_a_process_alone_has_no_rank(given: dict[str, str]) -> None:
    assert this_rank(given) is None


def test_a_launcher_gives_the_rank() -> None:
    assert this_rank({"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"}) == Rank(3, 4, 1)
    assert this_rank({"WORLD_SIZE": "4", "RANK": "3"}) == Rank(3, 4, 3)


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ({"WORLD_SIZE": "2"}, ["WORLD_SIZE=2", "RANK"]),
        ({"WORLD_SIZE": "two", "RANK": "0"}, ["WORLD_SIZE=two"]),
        ({"WORLD_SIZE": "2", "RANK": "-1"}, ["RANK=-1"]),
        ({"WORLD_SIZE": "2", "RANK": "2"}, ["RANK=2", "WORLD_SIZE=2"]),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, str], facts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        this_rank(given)
    assert mentions(caught.value.message, *facts)


def test_a_rank_is_known_by_its_mark() -> None:
    assert rank_in_mark(Rank(3, 4, 1).mark) == (3, 4)
    for text in ("rank 3 of 4", "llm_perf_opt: rank 4 of 4", "llm_perf_opt: rank -1 of 4", "decode"):
        assert rank_in_mark(text) is None
