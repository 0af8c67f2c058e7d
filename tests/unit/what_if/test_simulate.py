"""Continuous batching, simulated: figures that can be computed by hand, and limits that must hold in every step."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_perf_opt.summary.statistics import percentile
from llm_perf_opt.what_if.simulate import Limits, Load, Outcome, Step, mean, simulate


@dataclass
class PlainTimes:
    """A step takes 10 ms, and 0.1 ms for each prompt token."""

    step_s: float = 0.01
    token_s: float = 1e-4
    way_s: float = 0.0
    arrival_s: float = 0.0
    seen: list[Step] = field(default_factory=list)

    def seconds(self, step: Step) -> float:
        self.seen.append(step)
        return self.step_s + self.token_s * (step.tokens - step.decoding) + self.arrival_s * step.arrivals

    def before_s(self, prompt_tokens: int) -> float:
        return self.way_s

    def intake_s(self, prompt_tokens: int) -> float:
        return 0.0

    def after_s(self) -> float:
        return self.way_s


ROOMY = Limits(8192, 256)


def test_one_request_takes_its_prefill_and_its_steps() -> None:
    outcome = simulate(Load(100, 11, concurrency=1), ROOMY, PlainTimes())
    assert mean(outcome.ttft_s) == pytest.approx(0.01 + 100 * 1e-4)
    assert mean(outcome.tpot_s) == pytest.approx(0.01)
    assert mean(outcome.e2e_s) == pytest.approx(0.02 + 10 * 0.01)
    assert outcome.requests_per_s() == pytest.approx(1 / 0.12)


def test_prompts_of_others_are_in_the_time_between_tokens() -> None:
    load = Load(100, 50, concurrency=8, is_spread=True)
    outcome = simulate(load, ROOMY, PlainTimes())
    # Each request meets the prompts of the seven others once: 7 × 10 ms over 49 steps.
    assert mean(outcome.tpot_s) == pytest.approx(0.01 + 7 * 0.01 / 49, rel=0.1)
    largest = outcome.itl_percentile(0.999)
    assert largest is not None and largest >= 0.02


def test_requests_that_arrive_lengthen_the_step_that_runs() -> None:
    load = Load(100, 50, concurrency=8, is_spread=True)
    without = mean(simulate(load, ROOMY, PlainTimes(way_s=0.004)).tpot_s)
    found = simulate(load, ROOMY, PlainTimes(way_s=0.004, arrival_s=0.005))
    # As above: each request meets the seven others once.
    assert without is not None and mean(found.tpot_s) == pytest.approx(without + 7 * 0.005 / 49, rel=0.03)
    alone = simulate(Load(100, 11, concurrency=1), ROOMY, PlainTimes(arrival_s=0.005))
    assert mean(alone.e2e_s) == pytest.approx(0.02 + 10 * 0.01)  # it arrives while no step runs


def test_a_prompt_beyond_the_budget_is_computed_in_chunks() -> None:
    times = PlainTimes()
    outcome = simulate(Load(1000, 2, concurrency=1), Limits(256, 256), times)
    chunks = [step.chunks for step in times.seen if step.chunks]
    assert chunks[-4:] == [((256, 0),), ((256, 256),), ((256, 512),), ((232, 768),)]
    assert mean(outcome.ttft_s) == pytest.approx(4 * 0.01 + 1000 * 1e-4)


def test_the_first_wave_waits_for_all_prompts_sent_at_once() -> None:
    burst = simulate(Load(1000, 20, concurrency=16), Limits(2048, 256), PlainTimes())
    assert burst.burst_ttft_s is not None
    spread = simulate(Load(1000, 20, concurrency=16, is_spread=True), Limits(2048, 256), PlainTimes())
    assert spread.burst_ttft_s is not None and spread.burst_ttft_s < burst.burst_ttft_s


def test_a_benchmark_of_so_many_requests_measures_all_of_them() -> None:
    outcome = simulate(Load(100, 11, concurrency=4, requests=10), ROOMY, PlainTimes())
    assert outcome.completed == 10 == len(outcome.ttft_s)
    # Four prompts at once, twice, and two at the end.
    assert max(outcome.ttft_s) == pytest.approx(0.01 + 400 * 1e-4)
    assert outcome.seconds == pytest.approx(2 * (0.05 + 0.1) + 0.03 + 0.1)


def test_a_full_kv_cache_makes_requests_wait_and_preempts() -> None:
    free = simulate(Load(100, 50, concurrency=16), ROOMY, PlainTimes())
    full = simulate(Load(100, 50, concurrency=16), Limits(8192, 256, 900), PlainTimes())
    assert free.preemptions == 0 and full.preemptions > 0
    assert full.most_running < free.most_running
    assert (mean(full.ttft_s) or 0) > (mean(free.ttft_s) or 0)


def test_a_cache_too_small_for_one_request_ends_without_answers() -> None:
    outcome = simulate(Load(100, 50, concurrency=4), Limits(8192, 256, 120), PlainTimes())
    assert outcome.completed == 0


def test_a_rate_below_capacity_is_sustained_and_one_above_is_not() -> None:
    # A step of up to 256 requests takes 10 ms: the prompts limit this server to less than 100 requests a second.
    slow = simulate(Load(100, 20, rate_per_s=20.0), ROOMY, PlainTimes())
    fast = simulate(Load(100, 20, rate_per_s=200.0), ROOMY, PlainTimes())
    assert slow.is_sustained and not fast.is_sustained
    assert slow.completed > 100 and mean(slow.ttft_s) is not None


def test_the_same_load_gives_the_same_answer() -> None:
    first, second = (simulate(Load(64, 8, rate_per_s=10.0), ROOMY, PlainTimes(way_s=0.003)) for _ in range(2))
    assert first == second


def test_goodput_counts_requests_within_every_limit() -> None:
    outcome = Outcome(ttft_s=[0.1, 0.3], tpot_s=[0.01, 0.01], e2e_s=[1.0, 1.0])
    assert outcome.good_ratio({"ttft": 0.2}) == 0.5
    assert outcome.good_ratio({"ttft": 0.2, "itl": 0.005}) == 0.0
    assert outcome.good_ratio({}) == 1.0 and Outcome().good_ratio({}) is None


def test_figures_of_nothing_are_unknown() -> None:
    assert mean([]) is None and Outcome().itl_percentile(0.5) is None


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.8, 0.99, 1.0])
def test_percentiles_of_gaps_are_those_of_measured_ones(share: float) -> None:
    gaps = [(0.03, 2), (0.01, 5), (0.02, 3), (0.02, 1)]
    each = sorted(gap for gap, weight in gaps for _ in range(weight))
    assert Outcome(gaps_s=gaps).itl_percentile(share) == pytest.approx(percentile(each, share))


@settings(max_examples=40, deadline=None)
@given(
    prompt=st.integers(1, 400),
    new=st.integers(1, 40),
    concurrency=st.integers(1, 24),
    budget=st.integers(32, 600),
    most=st.integers(1, 24),
    room=st.one_of(st.none(), st.integers(500, 4000)),
)
def test_limits_hold_in_every_step(
    prompt: int, new: int, concurrency: int, budget: int, most: int, room: int | None
) -> None:
    times = PlainTimes(way_s=0.002)
    limits = Limits(budget, min(most, budget), room)
    outcome = simulate(Load(prompt, new, concurrency=concurrency), limits, times)
    assert all(step.tokens <= budget for step in times.seen if step.chunks)
    assert all(step.decoding + len(step.chunks) <= limits.most_sequences for step in times.seen)
    if room is not None:
        assert all(step.context_tokens <= room + prompt for step in times.seen)
    if room is None or room > 2 * (prompt + new + 32):
        rate, whole = outcome.requests_per_s(), mean(outcome.e2e_s)
        assert rate is not None and whole is not None
        # Little's law: requests in flight = rate × time of a request.
        assert rate * whole == pytest.approx(concurrency, rel=0.35)
    assert all(first <= whole for first, whole in zip(outcome.ttft_s, outcome.e2e_s, strict=True))
