"""Effects of swept keys: between jobs that are equal in everything else, with intervals that can be believed."""

from __future__ import annotations

import random
import re

import pytest

from llm_perf_opt.summary.statistics import describe
from llm_perf_opt.sweep.analysis import MOST_VALUES, best_jobs, largest_effects, swept_keys
from llm_perf_opt.sweep.data import JobMetric, JobStatus, SweepJob
from llm_perf_opt.sweep.metrics import with_interval
from llm_perf_opt.sweep.page import effect_charts


def job(
    number: int, settings: dict[str, object], tpot: float | None, half: float = 0.0, status: JobStatus = "ok"
) -> SweepJob:
    metric = None if tpot is None else JobMetric(tpot, tpot * (1 - half), tpot * (1 + half), 10)
    overrides = [f"{key}={value}" for key, value in settings.items()]
    return SweepJob(
        number, overrides, status, str(number), metrics={} if metric is None else {"tpot_s": metric}
    )


def grid(effect: float, noise: float, seed: int = 0) -> list[SweepJob]:
    generator = random.Random(seed)
    jobs = []
    for batch in (1, 2, 4, 8, 16):
        for dtype in ("float32", "bfloat16"):
            factor = effect if dtype == "bfloat16" else 1.0
            tpot = 0.01 * batch * factor * generator.lognormvariate(0, noise)
            jobs.append(job(len(jobs), {"batch": batch, "dtype": dtype, "fixed": 3}, tpot))
    return jobs


def test_an_effect_is_found_although_another_key_does_far_more() -> None:
    keys = swept_keys(grid(0.8, 0.01), ["tpot_s"])
    assert list(keys) == ["batch", "dtype"]  # a key with one value is not swept
    first, second = keys["dtype"].effects["tpot_s"]
    assert (first.value, first.change_ratio, first.pairs) == ("float32", None, 0)
    assert second.pairs == 5
    assert second.change_ratio == pytest.approx(0.8, rel=0.03)
    assert second.low is not None and second.high is not None
    assert second.low < 0.8 < second.high < 1.0


def test_no_effect_is_claimed_where_there_is_none() -> None:
    """The interval covers "no change" in about 95 of 100 sweeps."""
    missed = 0
    for seed in range(200):
        effect = swept_keys(grid(1.0, 0.05, seed), ["tpot_s"])["dtype"].effects["tpot_s"][1]
        assert effect.low is not None and effect.high is not None
        missed += not effect.low <= 1.0 <= effect.high
    assert missed <= 24  # 5 % of 200, with room for chance


def test_one_pair_takes_the_intervals_of_its_measurements() -> None:
    jobs = [job(0, {"dtype": "a"}, 1.0, 0.03), job(1, {"dtype": "b"}, 1.1, 0.04)]
    effect = swept_keys(jobs, ["tpot_s"])["dtype"].effects["tpot_s"][1]
    assert effect.low is not None and effect.high is not None
    assert effect.change_ratio == pytest.approx(1.1)
    assert effect.low == pytest.approx(1.1 * 2.718281828**-0.05, rel=1e-3)
    assert effect.high == pytest.approx(1.1 * 2.718281828**0.05, rel=1e-3)


def test_too_few_repeats_are_a_statement_and_no_axis() -> None:
    """Intervals wider than a factor of two say that nothing is known: none is drawn, and the page says why."""
    jobs = [job(0, {"dtype": "a"}, 1.0), job(1, {"dtype": "b"}, 1.1), job(2, {"dtype": "c"}, 1.2)]
    for each in jobs:
        wild = describe([1e-5, 1.0, 9.0])
        assert wild is not None
        each.metrics["tpot_s"] = with_interval(wild)
    swept = swept_keys(jobs, ["tpot_s"])["dtype"]
    assert all(effect.low is None for effect in swept.effects["tpot_s"])
    (drawn,) = effect_charts("dtype", swept)
    assert "too few repeats" in drawn
    assert not re.search(r"\d{6,} %", drawn)
    assert best_jobs(jobs)[0].tied, "none is the best without an interval"


def test_one_pair_without_intervals_has_none() -> None:
    jobs = [job(0, {"dtype": "a"}, 1.0), job(1, {"dtype": "b"}, 1.1)]
    for each in jobs:
        each.metrics["tpot_s"].low = None
    effect = swept_keys(jobs, ["tpot_s"])["dtype"].effects["tpot_s"][1]
    assert effect.change_ratio == pytest.approx(1.1)
    assert effect.low is None and effect.high is None


def test_jobs_that_did_not_finish_have_no_effect_but_their_values_are_known() -> None:
    jobs = [job(0, {"x": 1}, 1.0), job(1, {"x": 2}, 5.0, status="interrupted"), job(2, {"x": 3}, None)]
    key = swept_keys(jobs, ["tpot_s"])["x"]
    assert key.values == ["1", "2", "3"]
    assert [effect.value for effect in key.effects["tpot_s"]] == ["1"]


def test_jobs_that_differ_elsewhere_too_are_not_compared() -> None:
    jobs = [job(0, {"x": 1, "y": 1}, 1.0), job(1, {"x": 2, "y": 2}, 2.0)]
    assert swept_keys(jobs, ["tpot_s"])["x"].effects["tpot_s"][1].change_ratio is None


def test_a_key_with_a_value_for_every_job_has_no_table() -> None:
    jobs = [job(n, {"seed": n}, 1.0) for n in range(MOST_VALUES + 1)]
    assert swept_keys(jobs, ["tpot_s"])["seed"].effects == {}


def test_keys_are_ordered_by_what_they_do() -> None:
    assert largest_effects(swept_keys(grid(0.8, 0.0), ["tpot_s"]), "tpot_s") == ["batch", "dtype"]
