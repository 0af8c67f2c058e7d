"""Verdicts by a timeline: the largest of computing, talking, copying and waiting decides; there is no cliff."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.verdicts import judge
from llm_perf_opt.summary import Budget, BudgetPart, Utilisation
from llm_perf_opt.summary.devices import IdleOwner
from tests.text_facts import mentions
from tests.unit.summaries import budget, summary


def bound_of(**shares: float) -> str:
    return judge(summary(budget={"decode": budget(2.0, **shares)}))["decode"].bound


@pytest.mark.parametrize(
    ("shares", "bound"),
    [
        ({"compute": 0.2, "launch": 0.5, "host": 0.2, "sync": 0.1}, "launch"),
        ({"compute": 0.2, "launch": 0.1, "host": 0.3, "sync": 0.35, "copy": 0.05}, "sync"),
        ({"compute": 0.2, "launch": 0.1, "host": 0.1, "sync": 0.6}, "sync"),
        ({"compute": 0.2, "launch": 0.1, "host": 0.6, "sync": 0.1}, "host"),
        ({"compute": 0.2, "launch": 0.3, "host": 0.1, "data": 0.2, "allocation": 0.1, "sync": 0.1}, "host"),
        ({"compute": 0.3, "launch": 0.1, "copy": 0.6}, "copy"),
        ({"compute": 0.06, "communication": 0.64, "copy": 0.2, "launch": 0.1}, "communication"),
        ({"launch": 0.4, "sync": 0.6}, "sync"),
        ({"compute": 0.9, "launch": 0.1}, "unknown"),
        ({"compute": 0.4, "copy": 0.25, "launch": 0.1}, "unknown"),
    ],
)
def test_a_device_that_does_not_compute_is_explained_by_what_it_does(
    shares: dict[str, float], bound: str
) -> None:
    found = judge(summary(budget={"decode": budget(1.0, **shares)}))["decode"]
    assert found.bound == bound
    if bound != "unknown":
        assert f"the largest: {bound}" in found.arithmetic
        assert found.lever
        assert found.evidence == ["timeline: run.sqlite"]


@pytest.mark.parametrize(
    ("shares", "bound"),
    [
        ({"compute": 0.51, "launch": 0.49}, "unknown"),
        ({"compute": 0.5, "launch": 0.5}, "launch"),
        (
            {"compute": 0.4, "launch": 0.2, "sync": 0.19, "host": 0.01, "copy": 0.2},
            "launch",
        ),  # waits together
        ({"compute": 0.41, "launch": 0.2, "sync": 0.19, "copy": 0.2}, "unknown"),
        ({"compute": 0.4, "communication": 0.41, "launch": 0.19}, "communication"),
        ({"compute": 0.41, "communication": 0.4, "launch": 0.19}, "unknown"),
        ({"compute": 0.3, "copy": 0.31, "sync": 0.3, "host": 0.09}, "copy"),  # single parts with single parts
        ({"compute": 0.08, "communication": 0.4, "launch": 0.35, "sync": 0.16}, "communication"),
        ({"compute": 0.1, "one-off": 0.5, "launch": 0.4}, "one-off"),
        ({"compute": 0.1, "one-off": 0.45, "launch": 0.4}, "launch"),
        ({"compute": 0.1, "copy": 0.5, "sync": 0.4}, "copy"),
    ],
)
def test_where_one_side_begins_to_decide(shares: dict[str, float], bound: str) -> None:
    assert bound_of(**shares) == bound


@pytest.mark.parametrize(
    ("shares", "bound"),
    [
        ({"compute": 0.1, "queue": 0.9}, "queue"),
        ({"compute": 0.49, "queue": 0.51}, "queue"),
        ({"compute": 0.3, "queue": 0.5, "launch": 0.2}, "unknown"),  # nobody that the capture shows
        ({"compute": 0.2, "queue": 0.5, "launch": 0.3}, "launch"),
    ],
)
def test_a_queue_decides_only_where_it_is_most_of_the_time(shares: dict[str, float], bound: str) -> None:
    found = judge(summary(budget={"decode": budget(2.0, **shares)}))["decode"]
    assert found.bound == bound
    assert (found.lever is None) is (bound in ("queue", "unknown"))


def test_the_sentence_of_a_wait_has_its_numbers_and_its_owner() -> None:
    found = judge(summary(budget={"decode": budget(2.0, compute=0.2, sync=0.8, launch=0.0)}))["decode"]
    assert found.bound == "sync"
    assert mentions(found.arithmetic, "2.00 s", "compute", "20.0 %", "sync", "80.0 %")
    assert not mentions(found.arithmetic, "launch"), "a part without time is not listed"
    owner = IdleOwner("data loading", "load_batch")
    parts = [
        BudgetPart("compute", 0.5, 0.25),
        BudgetPart("data", 1.0, 0.5, owner),
        BudgetPart("host", 0.5, 0.25, IdleOwner("python")),
    ]
    found = judge(summary(budget={"all": Budget(2.0, parts, "t.json")}))["all"]
    assert found.bound == "host"
    assert mentions(found.arithmetic, "2.00 s", "25.0 %", "50.0 %", "data loading", "load_batch")
    assert not mentions(found.arithmetic, "python"), "the owner of most of the wait"


def test_a_full_device_is_reported() -> None:
    data = summary(budget={"decode": budget(2.0, compute=0.9, launch=0.1)})
    found = judge(data)["decode"]
    assert found.bound == "unknown"
    assert mentions(found.arithmetic, "90.0 %", "2.00 s", "FLOPs")
    data.utilisation = {"decode": Utilisation(mfu_ratio=0.1, mbu_ratio=0.2)}
    found = judge(data)["decode"]
    assert found.bound == "unknown"
    assert mentions(found.arithmetic, "counters", "MFU", "10.0 %", "MBU", "20.0 %", "40.0 %")
    assert not mentions(found.arithmetic, "FLOPs")


def test_a_budget_of_unknown_parts_decides_nothing() -> None:
    """A stage from outside may split its time by words of its own."""
    assert bound_of(reading=0.7, writing=0.3) == "unknown"
    assert judge(summary(budget={"decode": Budget(0.0, [])}))["decode"].bound == "unknown"
