"""What repeats say about the measurement: spread, warm-up, drift, growth, padding."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_perf_opt.captures.timings import (
    SampleTotal,
    measurement_metrics,
    repeat_spread,
    sample_rows,
    sample_totals,
)
from llm_perf_opt.summary import SampleTimes
from llm_perf_opt.summary.statistics import describe, mean_of, percentile


def sample(*decode: float, tokens: list[float] | None = None, **fields: Any) -> dict[str, Any]:
    repeats = [{"vision_s": None, "prefill_s": 1.0, "decode_s": d, "token_s": tokens or []} for d in decode]
    return {"id": "page", "new_tokens": 5, "prompt_tokens": 10, "repeats": repeats, **fields}


def test_spread_is_relative_to_the_same_sample() -> None:
    spread = repeat_spread([sample(1.0, 2.0, 3.0), sample(10.0, 20.0, 30.0)])
    assert spread["decode"].n == 6
    assert spread["decode"].median == pytest.approx(1.0)
    assert spread["prefill"].p95 == 1.0
    assert "vision" not in spread
    assert repeat_spread([sample(1.0)]) == {}


def test_a_cold_first_pass_and_drift() -> None:
    cold = measurement_metrics([sample(7.0, 1.0, 1.0)])
    assert cold["first_repeat_ratio"] == pytest.approx(8.0 / 2.0)
    drift = measurement_metrics([sample(1.0, 1.0, 3.0)])
    assert drift["last_over_first_repeat_ratio"] == pytest.approx(4.0 / 2.0)
    assert measurement_metrics([sample(7.0, 1.0)])["first_repeat_ratio"] is None  # two repeats cannot tell
    assert measurement_metrics([]) == dict.fromkeys(cold)


def test_growth_over_tokens() -> None:
    growing = [1.0] * 4 + [1.2] * 8 + [1.5] * 4
    assert measurement_metrics([sample(1.0, tokens=growing)])["tpot_growth_ratio"] == pytest.approx(1.5)
    assert measurement_metrics([sample(1.0, tokens=[1.0] * 15)])["tpot_growth_ratio"] is None


def test_padding_follows_from_the_lengths_of_the_sequences() -> None:
    batch = sample(1.0, facts={"prompt_tokens": [10, 5, 5]})
    single = sample(1.0, facts={"prompt_tokens": [10]})
    assert measurement_metrics([batch])["padding_ratio"] == pytest.approx(1 - 20 / 30)
    assert measurement_metrics([batch, single])["padding_ratio"] == pytest.approx(1 - 30 / 40)
    assert measurement_metrics([single])["padding_ratio"] == 0.0
    assert measurement_metrics([sample(1.0, facts={"padding_ratio": 0.4})])["padding_ratio"] == 0.4
    assert measurement_metrics([sample(1.0)])["padding_ratio"] is None


def test_totals_per_sample() -> None:
    assert sample_totals([sample(1.0, 2.0, 9.0)]) == {"page": SampleTotal(5, 3.0)}


@settings(deadline=None)
@given(st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=40))
def test_statistics_are_ordered_and_bounded(values: list[float]) -> None:
    stat = describe([*values, None])
    assert stat is not None
    assert stat.n == len(values)
    slack = 1e-9 * max(values)
    assert min(values) - slack <= stat.p5 <= stat.median + slack
    assert stat.median <= stat.p95 + slack
    assert min(values) - slack <= stat.mean <= max(values) + slack
    assert (stat.std is None) == (len(values) == 1)


def test_statistics_of_nothing() -> None:
    assert describe([None]) is None
    assert mean_of([None, None]) is None
    assert mean_of([1, None, 3]) == 2.0
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)
    assert math.isclose(percentile([1.0, 2.0], 0.25), 1.25)


def test_every_sample_by_itself() -> None:
    repeats = [
        {"vision_s": 1.0 * k, "prefill_s": 2.0, "decode_s": 4.0 * k, "preprocess_s": 0.5} for k in (1, 2, 9)
    ]
    rows = sample_rows(
        [
            {"id": "a", "prompt_tokens": 7, "image_tokens": 5, "new_tokens": 5, "repeats": repeats},
            {"id": "b", "new_tokens": 1, "repeats": [{"prefill_s": 1.0}]},
        ]
    )
    assert rows[0] == SampleTimes("a", 3, 7, 5, 5, 0.5, 2.0, 2.0, 8.0, 4.0, 2.0)
    assert rows[1] == SampleTimes("b", 1, None, None, 1, prefill_s=1.0, ttft_s=1.0)
