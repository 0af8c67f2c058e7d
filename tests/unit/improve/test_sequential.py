"""The sequential test: its error holds at every look, it sees what is there, it abstains in noise."""

from __future__ import annotations

import math
import random

import pytest

from llm_perf_opt.analysis.statistics import Change, SequentialTest, over_processes, processes_needed
from llm_perf_opt.summary.statistics import StoppingRule

RULE = StoppingRule(alpha=0.05 / 10, least_gain_ratio=0.02, most_blocks=80)


def run(blocks: list[float], rule: StoppingRule = RULE) -> SequentialTest:
    test = SequentialTest(rule)
    for block in blocks:
        if test.add(block) is not None:
            break
    return test


def noise(chance: random.Random, spread: float) -> float:
    """Heavy tails: one pass in ten stalls."""
    return chance.gauss(0, spread * (5 if chance.random() < 0.1 else 1))


def test_nothing_is_kept_too_often_when_nothing_changed() -> None:
    rule = StoppingRule(alpha=0.1, least_gain_ratio=0.0, most_blocks=60)
    chance = random.Random(3)
    kept = sum(run([noise(chance, 0.1) for _ in range(60)], rule).verdict() == "gain" for _ in range(200))
    # 200 tests at 10 %: 20 expected at most; 35 is more than three deviations above.
    assert kept <= 35


@pytest.mark.parametrize(("gain", "most"), [(0.5, 15), (0.2, 25), (0.1, 60)])
def test_a_gain_is_shown_and_a_large_one_soon(gain: float, most: int) -> None:
    chance = random.Random(5)
    tests = [run([math.log(1 - gain) + noise(chance, 0.05) for _ in range(80)]) for _ in range(20)]
    assert sum(test.verdict() == "gain" for test in tests) >= 18
    assert sorted(test.count for test in tests)[10] <= most


def test_a_slowdown_ends_early_and_is_never_a_gain() -> None:
    chance = random.Random(7)
    tests = [run([math.log(1.2) + noise(chance, 0.05) for _ in range(80)]) for _ in range(20)]
    assert {test.verdict() for test in tests} <= {"slower", "no gain"}
    assert max(test.count for test in tests) < 40


def test_a_machine_too_noisy_shows_nothing() -> None:
    chance = random.Random(11)
    test = run([math.log(0.97) + chance.gauss(0, 0.6) for _ in range(80)])
    assert test.verdict() == "not shown"
    assert test.count == RULE.most_blocks


def test_the_interval_contains_the_truth_and_a_keep_excludes_zero() -> None:
    chance = random.Random(13)
    truth = math.log(0.8)
    test = run([truth + chance.gauss(0, 0.05) for _ in range(80)])
    change = test.change()
    assert change is not None
    assert change.low < truth < change.high < math.log(0.98)
    assert change.low <= change.estimate <= change.high


def test_one_stall_decides_nothing() -> None:
    blocks = [0.0, 0.001, -0.001, 0.002, -0.002, 0.001, -5.0]
    assert run(blocks * 2).verdict() != "gain"


def test_few_blocks_decide_nothing_and_none_have_no_change() -> None:
    assert SequentialTest(RULE).change() is None
    assert run([-3.0] * 5).verdict() is None


def test_nothing_is_shown_between_the_two_blocks_of_one_draw() -> None:
    """What the second adds of the order of running takes away what the first did: half a draw would be luck."""
    test = SequentialTest(StoppingRule(alpha=0.2, least_gain_ratio=0.0, most_blocks=80))
    for _ in range(3):
        test.add(-0.01)
        test.add(0.01)
    before, interval = test.wealth(0.0, below=True), test.change()
    assert test.add(-4.0) is None
    assert not test.in_sight()
    assert test.wealth(0.0, below=True) == before
    ends = test.change()
    assert ends is not None and interval is not None
    assert (ends.low, ends.high) == (interval.low, interval.high)
    assert test.verdict_at_the_end() == "not shown"


def test_the_order_of_running_alone_wins_no_bet() -> None:
    """Whoever runs second is faster by far: no draw of two blocks may look like a gain, whatever the scale."""
    chance = random.Random(19)
    for _ in range(50):
        test = SequentialTest(StoppingRule(alpha=0.05, least_gain_ratio=0.0, most_blocks=40))
        for _ in range(20):
            first = chance.choice((-0.5, 0.5))
            test.add(first)
            test.add(-first)
            assert test.wealth(0.0, below=True) <= 1 + 1e-9


def test_an_odd_number_of_pairs_is_never_exceeded() -> None:
    rule = StoppingRule(alpha=0.05, least_gain_ratio=0.02, most_blocks=7)
    assert run([0.3, -0.3] * 10, rule).count == 6
    fixed = StoppingRule(alpha=0.05, least_gain_ratio=0.02, most_blocks=4, fixed=True)
    assert run([-0.3] * 10, fixed).count == 4


def test_values_beyond_measure_are_cut_off() -> None:
    test = run([float("-inf")] * 20)
    change = test.change()
    assert test.verdict() == "gain"
    assert change is not None
    assert math.isfinite(change.low)


def test_a_gain_is_in_sight_before_it_is_shown_and_never_in_plain_noise() -> None:
    chance = random.Random(17)
    rule = StoppingRule(alpha=0.001, least_gain_ratio=0.02, most_blocks=200)
    seen = shown = None
    test = SequentialTest(rule)
    while shown is None:
        verdict = test.add(math.log(0.9) + chance.gauss(0, 0.05))
        seen = test.count if seen is None and test.in_sight() else seen
        shown = test.count if verdict == "gain" else None
    assert seen is not None and seen < shown
    still = [run([chance.gauss(0, 0.05) for _ in range(80)], rule) for _ in range(30)]
    assert sum(test.in_sight() for test in still) <= 1


def test_what_is_dropped_early_has_a_useful_interval() -> None:
    test = run([math.log(1.3)] * 8, StoppingRule(alpha=0.001, least_gain_ratio=0.02, most_blocks=80))
    assert test.verdict() == "slower"
    shown = test.change(0.05)
    assert shown is not None and -0.5 < shown.low < math.log(1.3) < shown.high < 1.0


# Several processes.


def experiment(chance: random.Random, spread: float, effect: float, processes: int) -> tuple[bool, bool]:
    """Return whether one process shows a gain, and whether all together do; each side of a process has a level of its own."""
    rule = StoppingRule(alpha=0.05, least_gain_ratio=0.02, most_blocks=40)

    def level() -> float:
        return effect + math.sqrt(2) * chance.gauss(0, spread)

    first = level()
    test = run([first + chance.gauss(0, 0.02) for _ in range(40)], rule)
    change = test.change()
    assert change is not None
    if test.verdict_at_the_end() != "gain":
        return False, False
    levels = [change.estimate]
    while len(levels) < processes_needed(levels, processes):
        levels.append(level() + chance.gauss(0, 0.01))
    return True, over_processes(change, levels, rule.alpha).high < math.log1p(-rule.least_gain_ratio)


@pytest.mark.parametrize("spread", [0.02, 0.03])
def test_processes_that_differ_show_no_gain(spread: float) -> None:
    chance = random.Random(17)
    made = [experiment(chance, spread, 0.0, 3) for _ in range(150)]
    alone, together = (sum(column) for column in zip(*made, strict=True))
    assert alone >= 12  # passes of one process cannot tell its level from an effect
    assert together <= 7  # 5 %


def test_a_gain_larger_than_the_spread_of_processes_is_shown() -> None:
    chance = random.Random(19)
    assert sum(experiment(chance, 0.005, math.log(0.9), 3)[1] for _ in range(30)) >= 28


def test_processes_that_differ_are_doubled() -> None:
    assert processes_needed([-0.1], 3) == 3, "not all of the planned ones ran yet"
    assert processes_needed([-0.1, -0.1, -0.105], 3) == 3
    assert processes_needed([-0.1, -0.1, -0.13], 3) == 6
    assert processes_needed([-0.05, -0.05, -0.072, -0.055, -0.056], 3) == 6, "decided by the planned ones"
    assert processes_needed([-0.1], 1) == 1


def test_more_processes_narrow_the_interval_and_their_spread_widens_it() -> None:
    first = Change(-0.1, -0.11, -0.09)

    def width(*levels: float) -> float:
        found = over_processes(first, levels, 0.01)
        return found.high - found.low

    assert width(-0.1) > width(-0.1, -0.1) > width(-0.1, -0.1, -0.1)
    assert width(-0.1, -0.13, -0.07) > 2 * width(-0.1, -0.1, -0.1)
    assert over_processes(first, [-0.1, -0.2], 0.01).estimate == pytest.approx(-0.15)
