"""Changes of level: found where they are, and seldom where there are none."""

from __future__ import annotations

import numpy as np
import pytest

from llm_perf_opt.history import changes
from llm_perf_opt.history.changes import ALPHA, LEAST_RUNS, find_levels


def _series(seed: int, *parts: tuple[int, float], spread: float = 0.01) -> list[float]:
    generator = np.random.default_rng(seed)
    levels = np.concatenate([np.full(n, np.log(level)) for n, level in parts])
    return list(np.exp(levels + generator.normal(0, spread, len(levels))))


@pytest.mark.parametrize("seed", range(5))
def test_a_step_is_found_at_its_place(seed: int) -> None:
    (change,) = find_levels(_series(seed, (15, 1.0), (10, 1.08))).changes
    assert change.earliest <= 15 <= change.latest
    assert abs(change.place - 15) <= 1
    assert change.low_ratio <= 1.08 <= change.high_ratio * 1.01


def test_two_steps_are_distinguished() -> None:
    found = find_levels(_series(1, (12, 1.0), (12, 1.1), (12, 0.9))).changes
    assert [change.place for change in found] == [12, 24]
    assert found[0].ratio == pytest.approx(1.1, abs=0.02)
    assert found[1].ratio == pytest.approx(0.9 / 1.1, abs=0.02)


def test_three_runs_after_a_large_step_are_enough() -> None:
    (change,) = find_levels(_series(2, (20, 1.0), (3, 1.2))).changes
    assert change.place == 20


def test_one_disturbed_run_is_no_change_and_hides_none() -> None:
    values = _series(3, (14, 1.0), (14, 1.08))
    quiet = _series(4, (28, 1.0))
    values[5] *= 10
    quiet[20] *= 10
    assert [change.place for change in find_levels(values).changes] == [14]
    assert find_levels(quiet).changes == []


@pytest.mark.parametrize("values", [[], [1.0] * (LEAST_RUNS - 1), [1.0] * 50, [1.0, 2.0] * 3 + [9.0]])
def test_too_few_runs_and_constant_values_have_no_change(values: list[float]) -> None:
    assert find_levels(values).changes == []


def test_changes_below_one_percent_are_not_reported() -> None:
    assert find_levels(_series(5, (20, 1.0), (20, 1.004), spread=0.0005)).changes == []


def test_the_same_series_gives_the_same_answer() -> None:
    values = _series(6, (15, 1.0), (15, 1.03))
    assert find_levels(values).changes == find_levels(values).changes


@pytest.mark.parametrize("noise", ["normal", "heavy"])
def test_false_alarms_stay_near_alpha(noise: str) -> None:
    generator = np.random.default_rng(7)
    draw = generator.normal if noise == "normal" else lambda _, spread, n: spread * generator.standard_t(2, n)
    series = 200
    alarms = sum(bool(find_levels(list(np.exp(draw(0, 0.02, 20)))).changes) for _ in range(series))
    # Three standard deviations of the binomial around alpha.
    assert alarms <= series * ALPHA + 3 * (series * ALPHA) ** 0.5


@pytest.mark.parametrize("seed", range(4))
def test_a_slow_drift_is_reported_as_one_and_is_no_step(seed: int) -> None:
    generator = np.random.default_rng(seed)
    values = np.exp(np.linspace(0, 0.2, 40) + generator.normal(0, 0.01, 40))
    found = find_levels(list(values))
    assert found.changes == []
    assert found.drift_ratio == pytest.approx(np.exp(0.2), rel=0.03)


def test_steps_are_not_taken_for_a_drift() -> None:
    for parts in (((20, 1.0), (20, 1.1)), ((14, 1.0), (14, 1.1), (14, 1.2))):
        found = find_levels(_series(8, *parts))
        assert len(found.changes) == len(parts) - 1
        assert found.drift_ratio is None and not found.is_random_walk


def test_a_random_walk_shows_only_abrupt_changes() -> None:
    generator = np.random.default_rng(2)
    way = np.cumsum(generator.normal(0, 0.01, 80)) + generator.normal(0, 0.005, 80)
    found = find_levels(list(np.exp(way)))
    assert found.is_random_walk and found.changes == []
    way[50:] += 0.3
    (change,) = find_levels(list(np.exp(way))).changes
    assert change.place == 50


def test_looking_at_fewer_orders_where_nothing_is_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    series = [_series(seed, (12, 1.0), (12, 1.0 + 0.01 * seed)) for seed in range(6)]
    early = [[change.place for change in find_levels(values).changes] for values in series]
    monkeypatch.setattr(changes, "_FIRST_LOOK", changes.PERMUTATIONS)
    assert [[change.place for change in find_levels(values).changes] for values in series] == early
