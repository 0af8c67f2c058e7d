"""Waiting for launches without a timeline: by what the device leaves over."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.findings import launch_bound
from llm_perf_opt.model.summary import Utilisation
from tests.unit.summaries import budget, cpu, operator, summary, timings, verdict


@pytest.mark.parametrize(
    ("fields", "confidence"),
    [
        ({"utilisation": {"decode": Utilisation(device_busy_ratio=0.1)}}, "high"),
        ({"utilisation": {"decode": Utilisation(mfu_ratio=0.1)}}, "medium"),
        ({"utilisation": {"all": Utilisation(device_busy_ratio=0.1)}}, "medium"),
        ({"budget": {"all": budget(1.0, launch=0.9)}}, "medium"),
        ({}, "medium"),
    ],
)
def test_launch_bound_is_certain_only_where_the_phase_itself_was_watched(
    fields: dict[str, object], confidence: str
) -> None:
    (found,) = launch_bound.find(summary(verdicts={"decode": verdict("launch")}, **fields))
    assert found.confidence == confidence


def test_launch_bound_names_its_phase_and_its_launches() -> None:
    data = summary(
        verdicts={"prefill": verdict("launch"), "decode": verdict("launch"), "all": verdict("launch")},
        metrics={"launches_per_token": 1320.0},
        timings=timings(prefill=2.0, decode=4.0),
        utilisation={
            "prefill": Utilisation(device_busy_ratio=0.25),
            "decode": Utilisation(device_busy_ratio=0.0),
        },
    )
    prefill, decode = launch_bound.find(data)
    assert prefill.title == "Prefill waits for the host to launch work"
    assert prefill.gain_upper_s == 1.5
    assert prefill.arithmetic == "2.00 s × 75.0 % spent launching or on the host = at most 1.50 s"
    assert not any("launches per" in line for line in prefill.evidence)
    assert decode.title == "Decode waits for the host to launch work"
    assert decode.gain_upper_s == 4.0
    assert decode.evidence[-1] == "1320 kernel launches per generated token"
    (whole,) = launch_bound.find(summary(verdicts={"decode": verdict("memory"), "all": verdict("launch")}))
    assert whole.title == "The run waits for the host to launch work"
    assert whole.arithmetic == "kernels run for 20 % of it"  # nothing was timed: the verdict's own words


def test_a_phase_with_a_timeline_has_losses_of_its_own() -> None:
    """Whatever the verdict: the same time must not be claimed twice."""
    spans = {"prefill": budget(2.0, launch=0.9), "decode": budget(2.0, launch=0.9)}
    told = {"prefill": verdict("launch"), "decode": verdict("launch")}
    assert launch_bound.find(summary(verdicts=told, budget=spans)) == []
    del spans["decode"]
    assert [one.phase for one in launch_bound.find(summary(verdicts=told, budget=spans))] == ["decode"]


def test_launch_bound_has_no_price_without_a_share() -> None:
    (found,) = launch_bound.find(summary(verdicts={"decode": verdict("launch")}, timings=timings(decode=4.0)))
    assert (found.gain_upper_s, found.arithmetic) == (None, "kernels run for 20 % of it")


def test_launch_bound_takes_what_the_device_leaves_over() -> None:
    data = summary(
        verdicts={"decode": verdict("launch")},
        timings=timings(prefill=1.0, decode=4.0),
        utilisation={"decode": Utilisation(device_busy_ratio=0.25)},
    )
    assert launch_bound.find(data)[0].gain_upper_s == pytest.approx(3.0)
    data.utilisation = {"all": Utilisation(device_busy_ratio=0.4)}
    (found,) = launch_bound.find(data)
    assert found.gain_upper_s == pytest.approx(3.0)
    assert found.arithmetic == (
        "the device idles for 60.0 % of 5.00 s per sample; at most 3.00 s of that is in decode"
    )
    on_cpu = summary(
        hardware=cpu(),
        verdicts={"decode": verdict("launch")},
        timings=timings(decode=4.0),
        operators=[operator("aten::mm", 1, 0.25), operator("aten::mul", 1, 0.75)],
    )
    assert launch_bound.find(on_cpu) == []  # the processor works itself: cpu_work says what it does
