"""Rank tests against enumeration and published tables, intervals against what they promise."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_perf_opt.analysis import statistics
from llm_perf_opt.analysis.metrics import Evidence, Series, weigh

numbers = st.floats(-5, 5).map(lambda value: round(value, 1))


def test_published_critical_values() -> None:
    # Wilcoxon (1945): n = 8, smaller rank sum 3 has a two-sided level of 0.039
    assert 2 * statistics.signed_rank_p([-1, -2, 3, 4, 5, 6, 7, 8]) == pytest.approx(10 / 256)
    # Mann and Whitney (1947): 4 against 4, U = 1 has a one-sided level of 0.029
    assert statistics.rank_sum_p([1, 2, 3, 5], [4, 6, 7, 8]) == pytest.approx(2 / 70)
    assert statistics.rank_sum_p([1, 2, 3], [4, 5, 6]) == pytest.approx(1 / 20)
    assert statistics.signed_rank_p([1, 2, 3, 4, 5]) == pytest.approx(1 / 32)


@settings(deadline=None)
@given(st.lists(numbers, min_size=1, max_size=8))
def test_signed_rank_equals_enumeration_of_all_signs(values: list[float]) -> None:
    known = [v for v in values if v != 0]
    ranks = statistics.doubled_ranks([abs(v) for v in known])
    observed = sum(r for r, v in zip(ranks, known, strict=True) if v > 0)
    sums = [
        sum(r for r, keep in zip(ranks, signs, strict=True) if keep)
        for signs in itertools.product((0, 1), repeat=len(ranks))
    ]
    assert statistics.signed_rank_p(values) == pytest.approx(sum(s >= observed for s in sums) / len(sums))


@settings(deadline=None)
@given(st.lists(numbers, min_size=1, max_size=5), st.lists(numbers, min_size=1, max_size=5))
def test_rank_sum_equals_enumeration_of_all_deals(a: list[float], b: list[float]) -> None:
    ranks = statistics.doubled_ranks([*a, *b])
    observed = sum(ranks[len(a) :])
    sums = [sum(chosen) for chosen in itertools.combinations(ranks, len(b))]
    assert statistics.rank_sum_p(a, b) == pytest.approx(sum(s >= observed for s in sums) / len(sums))


def test_large_sets_use_an_approximation_that_agrees_with_the_exact_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = np.random.default_rng(1)
    values = [float(v) for v in generator.normal(0.2, 1, 50)]
    a, b = values[:25], [v + 0.3 for v in values[25:]]
    exact = statistics.signed_rank_p(values), statistics.rank_sum_p(a, b)
    monkeypatch.setattr(statistics, "_MOST_EXACT", 10)
    assert (statistics.signed_rank_p(values), statistics.rank_sum_p(a, b)) == pytest.approx(exact, abs=0.005)
    assert statistics.rank_sum_p([1.0] * 40, [1.0] * 40) == 1.0


def test_no_direction_no_alarm() -> None:
    assert statistics.signed_rank_p([0.0, 0.0]) == 1.0
    assert statistics.rank_sum_p([], [1.0]) == 1.0
    assert statistics.smallest_paired_p(5) < 0.05 < statistics.smallest_paired_p(4)
    assert statistics.smallest_shift_p(3, 3) == 0.05


@settings(deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=2, max_size=9), st.floats(-2, 2))
def test_location_moves_with_the_data(values: list[float], by: float) -> None:
    moved = statistics.paired_location([v + by for v in values])
    assert moved == pytest.approx(statistics.paired_location(values) + by, abs=1e-9)
    assert statistics.shift_location(values, [v + by for v in values]) == pytest.approx(by, abs=1e-9)


def test_one_wild_value_hardly_moves_the_location() -> None:
    calm = [0.01, 0.02, 0.0, -0.01, 0.015, 0.005, 0.0]
    assert abs(statistics.paired_location([*calm, 50.0]) - statistics.paired_location(calm)) < 0.02


def test_intervals_are_seeded_and_contain_their_estimate() -> None:
    values = [0.1, -0.2, 0.3, 0.05, 0.4]
    one = statistics.paired_interval(values, confidence=0.95, resamples=500, seed=3)
    assert one == statistics.paired_interval(values, confidence=0.95, resamples=500, seed=3)
    assert one.low <= one.estimate <= one.high
    wide = statistics.paired_interval(values, confidence=0.99, resamples=500, seed=3)
    assert wide.low <= one.low
    assert wide.high >= one.high


def test_intervals_have_their_nominal_coverage() -> None:
    generator = np.random.default_rng(7)
    inside = 0
    for _ in range(200):
        values = generator.standard_t(3, 8) * 0.05 + 0.03
        found = statistics.paired_interval(values, confidence=0.95, resamples=300, seed=5)
        inside += found.low <= 0.03 <= found.high
    assert inside >= 176  # 88 %: eight values with heavy tails, a bootstrap is a little short of its name


def series(*runs: dict[str, list[float]]) -> Series:
    return Series(list(runs))


def test_rounds_are_pairs() -> None:
    a = series({"x": [1.0, 1.2, 1.1], "y": [4.0]}, {"x": [2.0]}, {"x": [1.0]})
    b = series({"x": [2.2], "y": [1.0]}, {"x": [4.0]}, {"x": [2.0]})
    evidence = weigh(a, b)
    assert evidence is not None
    assert evidence.kind == "rounds"
    assert evidence.n == 3
    assert evidence.differences == pytest.approx([math.log(2)] * 3)  # only x is in every run
    assert not evidence.decidable(two_sided=False)


def test_repeats_are_blocks_over_all_samples() -> None:
    a = series({"x": [1.0, 1.0, 1.0], "y": [4.0, 4.0, 4.0]})
    b = series({"x": [2.0, 2.0, 2.0], "y": [8.0, 8.0, 8.0]})
    evidence = weigh(a, b)
    assert evidence is not None
    assert (evidence.kind, evidence.n) == ("repeats", 3)
    assert evidence.a == 2.5
    assert evidence.decidable(two_sided=False)
    assert not evidence.decidable(two_sided=True)
    assert evidence.p_above(0.0) == pytest.approx(0.05)
    assert evidence.p_above(math.log(3)) > 0.9


def test_few_repeats_of_many_samples_pair_by_sample() -> None:
    a = series({name: [1.0 + number] for number, name in enumerate("abcdef")})
    b = series({name: [1.1 * (1.0 + number)] for number, name in enumerate("abcdefg")})
    evidence = weigh(a, b)
    assert evidence is not None
    assert (evidence.kind, evidence.n) == ("samples", 6)
    assert evidence.decidable(two_sided=True)
    found = evidence.interval(confidence=0.95, resamples=200, seed=1)
    assert found is not None
    assert math.exp(found.estimate) == pytest.approx(1.1)


def test_one_value_cannot_decide_and_zero_is_no_value() -> None:
    evidence = weigh(series({"run": [1.0]}), series({"run": [2.0]}))
    assert evidence is not None
    assert evidence.kind is None
    assert evidence.interval(confidence=0.95, resamples=200, seed=1) is None
    assert weigh(series({"run": [0.0]}), series({"run": [2.0]})) is None
    assert weigh(series(), series({"run": [2.0]})) is None


def test_sides_without_a_common_sample_are_compared_as_wholes() -> None:
    evidence = weigh(series({"a": [1.0, 1, 1, 1], "b": [3.0, 3, 3, 3]}), series({"a+b": [4.0, 4, 4, 4]}))
    assert evidence is not None
    assert evidence.note is not None
    assert (evidence.a, evidence.b) == (2.0, 4.0)


def test_drift_inside_a_run_widens_the_interval_between_runs() -> None:
    steady = weigh(
        series({"x": [1.0, 1.01, 0.99, 1.0, 1.01, 0.99]}), series({"x": [1.2, 1.21, 1.19, 1.2, 1.21, 1.19]})
    )
    wandering = weigh(
        series({"x": [0.8, 0.81, 0.9, 1.0, 1.1, 1.11]}), series({"x": [1.2, 1.21, 1.19, 1.2, 1.21, 1.19]})
    )
    assert steady is not None
    assert wandering is not None
    one = steady.interval(confidence=0.95, resamples=400, seed=1)
    two = wandering.interval(confidence=0.95, resamples=400, seed=1)
    assert one is not None
    assert two is not None
    assert one.low > math.log(1.15)
    assert two.low < 0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.1, 10), min_size=6, max_size=8), st.floats(1.0, 3.0))
def test_swapping_the_sides_inverts_the_ratio(values: list[float], factor: float) -> None:
    runs_a = [{"x": [v]} for v in values]
    runs_b = [{"x": [v * factor]} for v in values]
    forth, back = weigh(Series(runs_a), Series(runs_b)), weigh(Series(runs_b), Series(runs_a))
    assert forth is not None
    assert back is not None
    assert forth.p_above(0.0) == pytest.approx(back.p_below(0.0))
    assert statistics.paired_location(forth.differences) == pytest.approx(
        -statistics.paired_location(back.differences)
    )


STEADY = (0.0,) * 6


@pytest.mark.parametrize(
    ("blocks", "drift"),
    [
        (STEADY, 0.0),
        ((0.0, 0.25), 0.25),
        ((0.0, 0.0, 0.0, 0.25, 0.25, 0.25), 0.25),
        ((0.25, 0.25, 0.25, 0.0, 0.0, 0.0), 0.25),
        ((0.0, 0.0, 0.25, 0.25, 0.0, 0.0), 0.0),  # eight or fewer: halves
        ((0.0, 0.0, 0.0, 0.25, 0.25, 0.25, 0.0, 0.0, 0.0), 0.25),  # nine or more: thirds
        ((0.0, 0.0, 0.0, 0.25, 0.25, 0.25, 0.75, 0.75, 0.75), 0.75),  # the first against the last
        ((0.0, 0.0, 0.25, 0.25, 0.0, 0.0, 0.0, 0.0, 0.0), 0.0),  # a short disturbance is no drift
        ((0.0, 0.0, 0.25, 0.25, 0.0, 0.0, 0.0, 0.0), 0.125),
        ((0.0, 0.0, 0.0, 0.25, 0.25, 0.25, 0.5, 0.5, 0.5, 9.0), 0.5),  # a rest belongs to no third
    ],
)
def test_an_interval_is_widened_by_the_drift_inside_a_run(blocks: tuple[float, ...], drift: float) -> None:
    how = {"confidence": 0.95, "resamples": 200, "seed": 1}
    for a, b in ((blocks, STEADY), (STEADY, blocks)):
        plain = statistics.shift_interval(a, b, **how)  # type: ignore[arg-type]
        value = math.exp(plain.estimate)
        found = Evidence(1.0, value, "repeats", blocks_a=a, blocks_b=b).interval(**how)  # type: ignore[arg-type]
        assert found is not None
        assert found.estimate == pytest.approx(plain.estimate)
        assert plain.low - found.low == pytest.approx(drift)
        assert found.high - plain.high == pytest.approx(drift)


def test_the_change_is_the_quotient_of_the_values_and_its_interval_contains_it() -> None:
    how = {"confidence": 0.95, "resamples": 200, "seed": 1}
    # Skewed repeats: the median of all differences is far from the quotient of the two medians.
    evidence = weigh(series({"x": [1.0, 1.0, 1.0, 9.0, 9.0]}), series({"x": [1.0, 1.0, 2.0, 2.0, 2.0]}))
    assert evidence is not None and (evidence.a, evidence.b) == (1.0, 2.0)
    found = evidence.interval(**how)  # type: ignore[arg-type]
    plain = statistics.shift_interval(evidence.blocks_a, evidence.blocks_b, **how)  # type: ignore[arg-type]
    assert found is not None and found.estimate == pytest.approx(math.log(2)) != plain.estimate
    assert found.low <= min(plain.low, found.estimate) and found.high >= max(plain.high, found.estimate)
    outside = Evidence(1.0, 2.0, "samples", (0.1, 0.1, 0.1, 0.1, 0.1, 0.1)).interval(**how)  # type: ignore[arg-type]
    assert outside is not None and (outside.low, outside.high) == pytest.approx((0.1, math.log(2)))


def test_values_are_means_over_the_common_samples_of_their_medians() -> None:
    a = series({"x": [1.0, 2.0, 9.0], "y": [4.0, 4.0, 4.0], "only here": [100.0] * 3})
    b = series({"x": [3.0, 3.0, 3.0], "y": [5.0, 0.0, 5.0, 5.0]})
    evidence = weigh(a, b)
    assert evidence is not None
    assert (evidence.a, evidence.b) == (3.0, 4.0)
    assert evidence.note is None
    assert evidence.blocks_b == pytest.approx([math.log(15) / 2] * 3)  # zero is no value
    assert evidence.blocks_a == pytest.approx([math.log(4) / 2, math.log(8) / 2, math.log(36) / 2])


def test_sides_without_a_common_sample_have_the_values_of_their_reports() -> None:
    """Means over their own samples of the medians, not medians over repeats of means."""
    a = series({"x": [1.0, 1.0, 7.0], "y": [9.0, 3.0, 3.0]})
    evidence = weigh(a, series({"z": [4.0, 4.0, 4.0]}))
    assert evidence is not None and evidence.note is not None
    assert (evidence.a, evidence.b) == (2.0, 4.0)


def test_two_repeats_of_one_sample_are_blocks_but_cannot_decide() -> None:
    evidence = weigh(series({"x": [1.0, 1.0]}), series({"x": [2.0, 2.0]}))
    assert evidence is not None
    assert (evidence.kind, evidence.n) == ("repeats", 2)
    assert not evidence.decidable(two_sided=False)
    found = evidence.interval(confidence=0.95, resamples=50, seed=1)
    assert found is not None and found.estimate == pytest.approx(math.log(2))


def test_rounds_more_on_one_side_are_left_out() -> None:
    evidence = weigh(series({"x": [1.0]}, {"x": [1.0]}), series({"x": [2.0]}, {"x": [4.0]}, {"x": [99.0]}))
    assert evidence is not None
    assert evidence.differences == pytest.approx([math.log(2), math.log(4)])


@pytest.mark.parametrize(("n", "one", "two"), [(4, False, False), (5, True, False), (6, True, True)])
def test_how_many_pairs_can_decide(n: int, one: bool, two: bool) -> None:
    evidence = Evidence(1.0, 1.0, "rounds", (0.1,) * n)
    assert (evidence.decidable(two_sided=False), evidence.decidable(two_sided=True)) == (one, two)


@pytest.mark.parametrize(("n", "one", "two"), [(2, False, False), (3, True, False), (4, True, True)])
def test_how_many_repeats_can_decide(n: int, one: bool, two: bool) -> None:
    evidence = Evidence(1.0, 1.0, "repeats", blocks_a=(0.1,) * n, blocks_b=(0.2,) * n)
    assert (evidence.decidable(two_sided=False), evidence.decidable(two_sided=True)) == (one, two)


def test_p_below_is_p_above_from_the_other_side() -> None:
    repeats = Evidence(1.0, 1.0, "repeats", blocks_a=(0.0, 0.1, 0.2), blocks_b=(0.5, 0.6, 0.7))
    assert repeats.p_above(0.25) == pytest.approx(0.05)
    assert repeats.p_above(0.55) == pytest.approx(0.8)  # B falls among A
    assert repeats.p_below(0.8) == pytest.approx(0.05)
    assert repeats.p_below(0.25) == pytest.approx(1.0)
    pairs = Evidence(1.0, 1.0, "rounds", (0.5, 0.6, 0.7, 0.8, 0.9))
    assert pairs.p_above(0.4) == pairs.p_below(1.0) == pytest.approx(1 / 32)
    assert pairs.p_above(1.0) == pairs.p_below(0.4) == pytest.approx(1.0)


def test_two_samples_of_one_repeat_are_pairs() -> None:
    evidence = weigh(series({"x": [1.0], "y": [2.0]}), series({"x": [2.0], "y": [8.0]}))
    assert evidence is not None
    assert (evidence.kind, evidence.n) == ("samples", 2)
    assert evidence.differences == pytest.approx([math.log(2), math.log(4)])


def test_intervals_of_two_blocks_reach_both_and_are_stretched_by_the_root_of_two() -> None:
    how = {"confidence": 0.95, "resamples": 500, "seed": 1}
    reach = 0.5 * math.sqrt(2)
    expected = (0.5, pytest.approx(0.5 - reach), pytest.approx(0.5 + reach))
    pairs = statistics.paired_interval([0.0, 1.0], **how)  # type: ignore[arg-type]
    assert (pairs.estimate, pairs.low, pairs.high) == expected
    for a, b in (
        ([0.0, 0.0], [0.0, 1.0]),
        ([0.0, 0.0], [1.0, 0.0]),
        ([0.0, -1.0], [0.0, 0.0]),
        ([-1.0, 0.0], [0.0, 0.0]),
    ):
        shift = statistics.shift_interval(a, b, **how)  # type: ignore[arg-type]
        assert (shift.estimate, shift.low, shift.high) == expected
