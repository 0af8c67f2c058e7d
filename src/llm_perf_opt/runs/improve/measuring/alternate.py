"""The order of an experiment: which side runs which unit of work next, and when enough is known."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from llm_perf_opt.analysis.improve.costs import UnitPass, log_ratio, recompiles
from llm_perf_opt.analysis.improve.sequential import SequentialTest
from llm_perf_opt.runs.improve.spec import SIDES, Letter, Spec

RunUnit = Callable[[Letter, int, int], UnitPass]
"""Side, unit and round → what one pass of that unit took."""


class GivenUpError(RuntimeError):
    """Measuring cannot go on; the message says why."""


def take_turns(
    spec: Spec, unit_count: int, run: RunUnit, clock: Callable[[], float] = time.monotonic
) -> SequentialTest:
    """Run the sides next to each other, A B B A or B A A B by chance, until the test has its answer; return it."""
    test, chance, began = SequentialTest(spec.rule()), random.Random(spec.seed), clock()
    done: list[UnitPass] = []
    first: Letter = "a"
    turn = 0
    # Two pairs are one draw: the order of the second follows from the first, so nothing ends between them.
    while turn % 2 or not spec.time_is_over(clock() - began, test):
        unit, number = turn % unit_count, turn // unit_count
        # The second of two pairs has the other order, so that what drifts meets both sides alike.
        first = chance.choice(SIDES) if turn % 2 == 0 else other_side(first)
        both = {letter: run(letter, unit, number) for letter in (first, other_side(first))}
        done.extend(both.values())
        for letter in SIDES:
            if (why := recompiles(done, letter)) is not None:
                raise GivenUpError(why)
        block = log_ratio((both["a"], both["b"]), spec.metric)
        if block is None:
            raise GivenUpError(f"the metric '{spec.metric}' was not measured")
        turn += 1
        if test.add(block) is not None:
            break
    return test


def units_of(groups: Sequence[Sequence[Sequence[str]]]) -> list[list[list[int]]]:
    """Return the units of each side, as indices of its batches; a batch is given by the names of its samples.

    A batch is a unit where all sides have the same batches; otherwise all of a side's batches are one.
    """
    if all(side == groups[0] for side in groups):
        return [[[index] for index in range(len(groups[0]))] for _ in groups]
    return [[list(range(len(side)))] for side in groups]


def other_side(letter: Letter) -> Letter:
    """Return the side that is not this one."""
    return "b" if letter == "a" else "a"
