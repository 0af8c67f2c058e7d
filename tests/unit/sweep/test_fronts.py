"""Fronts and the best job."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.sweep.analysis import best_jobs, fronts
from llm_perf_opt.sweep.data import JobMetric, SweepJob


def job(number: int, **values: float | JobMetric) -> SweepJob:
    metrics = {k: v if isinstance(v, JobMetric) else JobMetric(v) for k, v in values.items()}
    return SweepJob(number, [], "ok", str(number), metrics=metrics)


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=2, max_size=40))
def test_a_job_is_on_the_front_exactly_when_no_other_is_better_in_both(points: list[tuple[int, int]]) -> None:
    jobs = [job(n, tpot_s=float(x), tokens_per_s=float(y)) for n, (x, y) in enumerate(points)]
    front = next(front for front in fronts(jobs) if front.x == "tpot_s")
    for number, (x, y) in enumerate(points):
        beaten = any((a <= x and b >= y) and (a < x or b > y) for a, b in points)
        twin = any(points[other] == (x, y) for other in range(number))
        assert (number in front.jobs) == (not beaten and not twin)


def test_pairs_that_nobody_measured_have_no_front() -> None:
    assert fronts([job(0, tpot_s=1.0), job(1, tpot_s=2.0)]) == []


def test_the_best_names_those_it_is_tied_with() -> None:
    jobs = [
        job(0, tpot_s=JobMetric(1.0, 0.9, 1.1, 9)),
        job(1, tpot_s=JobMetric(1.05, 0.95, 1.15, 9)),
        job(2, tpot_s=JobMetric(2.0, 1.9, 2.1, 9)),
    ]
    jobs[2].status = "ok"
    (best,) = best_jobs(jobs)
    assert (best.metric, best.job, best.tied) == ("tpot_s", 0, [1])


def test_throughput_is_better_when_higher_and_failed_jobs_do_not_count() -> None:
    jobs = [job(0, tokens_per_s=5.0), job(1, tokens_per_s=7.0), job(2, tokens_per_s=9.0)]
    jobs[2].status = "failed"
    assert [best.job for best in best_jobs(jobs)] == [1]


def test_without_measurements_the_floors_are_compared() -> None:
    assert [best.metric for best in best_jobs([job(0, decode_floor_s=1.0)])] == ["decode_floor_s"]
