"""Metrics of a job and their intervals."""

from __future__ import annotations

import random

import pytest

from llm_perf_opt.summary import LatencyStat, LoadPoint, MemoryUse, Serving, Stat, Timings
from llm_perf_opt.summary.statistics import describe
from llm_perf_opt.sweep.metrics import Measured, job_metrics, metric_named, with_interval


def stat(values: list[float]) -> Stat:
    found = describe(values)
    assert found is not None
    return found


def test_the_interval_of_a_median_covers_it() -> None:
    generator, missed = random.Random(1), 0
    for _ in range(300):
        metric = with_interval(stat([generator.gauss(10.0, 1.0) for _ in range(12)]))
        assert metric.low is not None and metric.high is not None
        missed += not metric.low <= 10.0 <= metric.high
    assert missed <= 30  # 5 % of 300, with room for chance


def test_two_values_have_no_interval_and_no_interval_reaches_zero() -> None:
    assert with_interval(stat([1.0, 2.0])).low is None
    wild = with_interval(stat([0.001, 0.001, 0.001, 5.0]))
    assert wild.low is None, "an interval of a factor of more than two is none"
    calm = with_interval(stat([1.0, 1.1, 0.9, 1.05]))
    assert calm.low is not None and calm.high is not None and 0 < calm.low < 1.025 < calm.high


def test_what_was_not_measured_is_not_there() -> None:
    found = job_metrics(
        Measured(timings=Timings(tpot_s=stat([0.1])), memory={"all": MemoryUse(7), "decode": MemoryUse(9)})
    )
    assert {name: metric.value for name, metric in found.items()} == {"tpot_s": 0.1, "peak_bytes": 9.0}


def test_a_server_is_measured_at_the_highest_load_that_the_client_kept() -> None:
    def point(rate: float, p99: float, high: float | None, *, late: bool = False) -> LoadPoint:
        stat = LatencyStat(p50=p99 / 2, p99=p99, p99_low=p99 / 2, p99_high=high, n=500)
        return LoadPoint(
            "open", rate, ttft_s=stat, completed_per_s=rate, goodput_per_s=rate / 2, client_bound=late
        )

    loads = [point(4, 0.2, 0.3), point(1, 0.1, None), point(8, 9.0, None, late=True)]
    found = job_metrics(Measured(serving=Serving(load=loads)))
    first = found["served_ttft_p99_s"]
    assert (first.value, first.low, first.high, first.n) == (0.2, 0.1, 0.3, 500)
    assert (found["served_requests_per_s"].value, found["goodput_per_s"].value) == (4, 2)
    alone = job_metrics(Measured(serving=Serving(load=loads[1:2])))["served_ttft_p99_s"]
    assert (alone.value, alone.low, alone.high) == (0.1, None, None)


@pytest.mark.parametrize(
    ("given", "whole"),
    [("tpot", "tpot_s"), ("tokens_per_s", "tokens_per_s"), ("peak", "peak_bytes"), ("x", None)],
)
def test_names_may_leave_out_the_unit(given: str, whole: str | None) -> None:
    assert metric_named(given) == whole
