"""NVIDIA's estimates become time of the phase they speak of, never more than it took."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.ncu.vendor_rules import phase_times
from tests.unit.summaries import one, summary, timings


def test_vision_and_prefill_split_the_time_to_first_token() -> None:
    data = summary(timings=timings(vision=0.3, prefill=0.1, decode=0.8, tpot=0.01))
    times = phase_times(data)
    assert times == pytest.approx({"vision": 0.3, "prefill": 0.1, "decode": 0.01, "all": 1.2})
    assert data.timings.ttft_s is not None
    assert times["vision"] + times["prefill"] <= data.timings.ttft_s.mean + 1e-12


def test_the_time_to_first_token_stands_in_for_an_unknown_prefill() -> None:
    data = summary()
    data.timings.ttft_s = one(0.4)
    assert phase_times(data) == {"prefill": 0.4}
