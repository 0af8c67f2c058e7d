"""Waiting for launches without a timeline: by what the device leaves over."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.findings import idle
from llm_perf_opt.summary import Utilisation
from tests.text_facts import mentions, mentions_in_order
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
    (found,) = idle.find_launch_bound(summary(verdicts={"decode": verdict("launch")}, **fields))
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
    prefill, decode = idle.find_launch_bound(data)
    for found, phase in ((prefill, "prefill"), (decode, "decode")):
        assert (found.id, found.phase) == ("launch-bound", phase)
        assert [name for name in ("prefill", "decode") if name in found.title.lower()] == [phase]
    assert prefill.gain_upper_s == 1.5
    assert mentions_in_order(prefill.arithmetic, "2.00 s", "75.0 %", "1.50 s")
    assert not any("1320" in line for line in prefill.evidence)
    assert decode.gain_upper_s == 4.0
    assert mentions(decode.evidence[-1], "1320")
    (whole,) = idle.find_launch_bound(
        summary(verdicts={"decode": verdict("memory"), "all": verdict("launch")})
    )
    assert whole.phase == "all" and "decode" not in whole.title.lower()
    assert whole.arithmetic == verdict("launch").arithmetic  # nothing was timed: the verdict's own words


def test_a_phase_with_a_timeline_has_losses_of_its_own() -> None:
    """Whatever the verdict: the same time must not be claimed twice."""
    spans = {"prefill": budget(2.0, launch=0.9), "decode": budget(2.0, launch=0.9)}
    shown = {"prefill": verdict("launch"), "decode": verdict("launch")}
    assert idle.find_launch_bound(summary(verdicts=shown, budget=spans)) == []
    del spans["decode"]
    assert [one.phase for one in idle.find_launch_bound(summary(verdicts=shown, budget=spans))] == ["decode"]


def test_launch_bound_has_no_price_without_a_share() -> None:
    (found,) = idle.find_launch_bound(
        summary(verdicts={"decode": verdict("launch")}, timings=timings(decode=4.0))
    )
    assert (found.gain_upper_s, found.arithmetic) == (None, verdict("launch").arithmetic)


def test_launch_bound_takes_what_the_device_leaves_over() -> None:
    data = summary(
        verdicts={"decode": verdict("launch")},
        timings=timings(prefill=1.0, decode=4.0),
        utilisation={"decode": Utilisation(device_busy_ratio=0.25)},
    )
    assert idle.find_launch_bound(data)[0].gain_upper_s == pytest.approx(3.0)
    data.utilisation = {"all": Utilisation(device_busy_ratio=0.4)}
    (found,) = idle.find_launch_bound(data)
    assert found.gain_upper_s == pytest.approx(3.0)
    assert mentions_in_order(found.arithmetic, "60.0 %", "5.00 s", "3.00 s") and mentions(
        found.arithmetic, "decode"
    )
    on_cpu = summary(
        hardware=cpu(),
        verdicts={"decode": verdict("launch")},
        timings=timings(decode=4.0),
        operators=[operator("aten::mm", 1, 0.25), operator("aten::mul", 1, 0.75)],
    )
    assert idle.find_launch_bound(on_cpu) == []  # the processor works itself: cpu_work says what it does
