"""A device that was held back, and devices that were not."""

from __future__ import annotations

from typing import Any

import pytest

from llm_perf_opt.analysis.findings.conditions import find_throttling
from llm_perf_opt.summary import Telemetry, Timings
from llm_perf_opt.summary.statistics import describe
from tests.text_facts import any_mentions, mentions
from tests.unit.summaries import summary


def device(**changes: Any) -> Telemetry:
    base: dict[str, Any] = {
        "clock_hz": describe([1.2e9] * 20),
        "clock_max_hz": 2e9,
        "power_w": describe([500.0] * 20),
        "power_limit_w": 700.0,
        "temperature_c": describe([88.0] * 20),
        "throttled": ["hardware thermal slowdown"],
        "throttled_ratio": {"hardware thermal slowdown": 0.8},
        "samples": 20,
    }
    return Telemetry(**{**base, **changes})


TIMES = Timings(ttft_s=describe([1.0]), decode_s=describe([4.0]))


def test_heat_is_a_finding_bounded_by_the_clock() -> None:
    (found,) = find_throttling(summary(telemetry=device(), timings=TIMES))
    assert found.id == "throttled"
    assert found.gain_upper_s == pytest.approx(5.0 * (1 - 1.2 / 2.0))
    assert mentions(found.evidence[0], "hardware thermal slowdown", "80.0 %", "20")
    assert any_mentions(found.evidence, "88 °C")
    assert any_mentions(found.evidence, "500", "700 W")
    assert found.confidence == "high"


@pytest.mark.parametrize(
    "telemetry",
    [
        None,
        Telemetry(),
        device(throttled=[], throttled_ratio={}),
        device(throttled=[], throttled_ratio=None),
        device(throttled_ratio={"hardware thermal slowdown": 0.04}),
        device(samples=9),
    ],
    ids=["no stage", "nothing told", "not throttled", "reasons not told", "a hiccup", "too few samples"],
)
def test_nothing_is_reported_without_evidence(telemetry: Telemetry | None) -> None:
    assert find_throttling(summary(telemetry=telemetry, timings=TIMES)) == []


def test_a_power_limit_is_reported_with_less_confidence() -> None:
    capped = device(throttled_ratio={"software power cap": 0.9})
    assert find_throttling(summary(telemetry=capped, timings=TIMES))[0].confidence == "medium"


@pytest.mark.parametrize(
    "changes", [{"clock_hz": None}, {"clock_max_hz": None}, {"clock_hz": describe([2e9] * 20)}]
)
def test_without_a_lower_clock_no_gain_is_promised(changes: dict[str, Any]) -> None:
    (found,) = find_throttling(summary(telemetry=device(**changes), timings=TIMES))
    assert found.gain_upper_s is None


def test_a_quota_is_no_matter_of_the_clock() -> None:
    held = device(throttled_ratio={"processor quota of the container": 0.5})
    (found,) = find_throttling(summary(telemetry=held, timings=TIMES))
    assert found.gain_upper_s is None
    assert "run.threads" in found.advice
