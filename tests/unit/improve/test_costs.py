"""Costs of passes: every metric as something of which less is better, at equal work."""

from __future__ import annotations

import math

import pytest

from llm_perf_opt.improve.costs import (
    BatchPass,
    UnitPass,
    as_change,
    cost,
    log_ratio,
    medians,
    other_changes,
    pairs,
    recompiles,
    total_change,
)
from tests.text_facts import mentions


def batch(
    ttft: float = 1.0,
    decode: float = 2.0,
    answers: tuple[int, ...] = (5,),
    joules: float | None = None,
    names: str = "",
) -> BatchPass:
    """A batch whose samples answered with so many tokens each; the longest answer makes the steps."""
    steps = max(answers) - 1
    each = decode / steps if steps else None
    return BatchPass(len(answers), ttft, decode, steps, sum(answers), each, joules, list(names))


def unit(side: str, number: int, *batches: BatchPass, place: int = 0, compiled: int = 0) -> UnitPass:
    return UnitPass(side, number, place, list(batches), compiled)


def test_costs_of_the_metrics() -> None:
    one = batch(joules=6.0)
    assert cost([one], "total") == 3.0
    assert cost([one], "ttft") == 1.0
    assert cost([one], "tpot") == 0.5
    assert cost([one], "tokens_per_s") == pytest.approx(3 / 5)
    assert cost([one], "energy") == 6.0


def test_what_was_not_measured_is_not_zero() -> None:
    assert cost([batch()], "energy") is None
    assert cost([batch(answers=(1,), decode=0.0)], "tpot") is None
    assert cost([], "total") is None


def test_a_larger_batch_is_later_for_each_answer_and_faster_for_all() -> None:
    alone = [batch(), batch()]
    together = [batch(ttft=1.5, decode=2.5, answers=(5, 5))]
    assert cost(together, "total") > cost(alone, "total")  # type: ignore[operator]
    assert cost(together, "tokens_per_s") < cost(alone, "tokens_per_s")  # type: ignore[operator]


def test_fewer_tokens_are_no_gain() -> None:
    a, b = unit("a", 0, batch(answers=(5,), decode=2.0)), unit("b", 0, batch(answers=(3,), decode=1.0))
    assert log_ratio((a, b), "total") == pytest.approx(0.0)
    assert log_ratio((a, b), "tokens_per_s") == pytest.approx(0.0)


def test_a_token_that_was_not_requested_is_none() -> None:
    """One of the two answers ends early: the steps go on for the other, and make no tokens of the first."""
    alone = [batch(ttft=0.1, decode=0.9, answers=(10,)), batch(ttft=0.1, decode=9.9, answers=(100,))]
    together = batch(ttft=0.2, decode=9.9, answers=(10, 100))
    assert cost([together], "tokens_per_s") == pytest.approx(10.1 / 110)
    found = log_ratio((unit("a", 0, *alone), unit("b", 0, together)), "tokens_per_s")
    assert found is not None
    assert as_change(found, "tokens_per_s") == pytest.approx(11.0 / 10.1 - 1)


def test_other_batches_are_not_put_at_the_steps_of_the_first() -> None:
    """Sorted by length, the short answers no longer wait for the long ones."""
    mixed = [batch(0.0, 100.0, (101, 11), names="ab"), batch(0.0, 100.0, (101, 11), names="cd")]
    by_length = [batch(0.0, 10.0, (11, 11), names="bd"), batch(0.0, 100.0, (101, 101), names="ac")]
    for metric, change in (("total", -0.45), ("tokens_per_s", 200 / 110 - 1)):
        found = log_ratio((unit("a", 0, *mixed), unit("b", 0, *by_length)), metric)  # type: ignore[arg-type]
        assert found is not None
        assert as_change(found, metric) == pytest.approx(change)  # type: ignore[arg-type]


def test_the_same_tokens_in_fewer_steps_are_a_gain() -> None:
    a, b = batch(0.0, 8.0, (9,)), batch(0.0, 4.0, (9,))
    b.steps = 4
    assert log_ratio((unit("a", 0, a), unit("b", 0, b)), "total") == pytest.approx(math.log(0.5))


def test_pairs_are_of_the_same_round_and_unit() -> None:
    passes = [unit("b", 0, batch()), unit("a", 0, batch()), unit("a", 0, batch(), place=1)]
    assert [(one.side, two.side) for one, two in pairs(passes)] == [("a", "b")]


def test_a_rate_gets_better_when_its_cost_falls() -> None:
    assert as_change(math.log(0.5), "tokens_per_s") == pytest.approx(1.0)
    assert as_change(math.log(0.5), "total") == pytest.approx(-0.5)


def test_changes_of_the_whole_and_of_other_metrics() -> None:
    passes = [
        unit(side, number, batch(ttft=1.0, decode=2.0 if side == "a" else 1.0))
        for number in range(3)
        for side in ("a", "b")
    ]
    assert medians(passes, "a", "total") == 3.0
    assert total_change(passes, "total") == pytest.approx(-1 / 3)
    changes = other_changes(passes, "total")
    assert changes["ttft"] == pytest.approx(0.0)
    assert changes["tpot"] == pytest.approx(-0.5)
    assert "energy" not in changes


def test_compiling_in_every_turn_never_ends() -> None:
    again = [unit("b", number, batch(), compiled=1) for number in range(4)]
    assert mentions(recompiles(again, "b"), "B", "4")
    assert recompiles(again[:3], "b") is None
    assert recompiles([*again, unit("b", 4, batch())], "b") is None
    assert recompiles(again, "a") is None
