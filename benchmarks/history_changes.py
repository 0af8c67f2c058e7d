"""How often the history shows a change of level where there is none, and how often it finds one that is there.

    python -m benchmarks.history_changes [--series 400] [--steps 100] [--seed 31415926]

Series of runs are generated with noise as machines have it. The seed of the documented figures was not used while the rule was
chosen. The exit code is 1 where more changes are shown than the rule states: ``ALPHA`` where runs are independent or nearly so,
``UNSTEADY_ALPHA`` where neighbours are alike or the level drifts (binomial bounds, 99.9 %). A level that wanders by itself has no bound.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.history.changes import ALPHA, UNSTEADY_ALPHA, find_levels

Noise = Callable[[np.random.Generator, int], NDArray[np.float64]]
LENGTHS = (10, 30, 100)
STEPS = (0.02, 0.05, 0.10, 0.20)
_BURN_IN = 50


def _autocorrelated(share: float) -> Noise:
    def draw(generator: np.random.Generator, n: int) -> NDArray[np.float64]:
        noise = generator.normal(0, 0.02, n + _BURN_IN)
        for place in range(1, len(noise)):
            noise[place] += share * noise[place - 1]
        return noise[_BURN_IN:]

    return draw


def _outliers(generator: np.random.Generator, n: int) -> NDArray[np.float64]:
    disturbed = generator.random(n) < 0.05
    return generator.normal(0, 0.01, n) + disturbed * generator.uniform(0.18, 0.47, n)


def _pairs(generator: np.random.Generator, n: int) -> NDArray[np.float64]:
    noise = generator.normal(0, 0.01, n)
    for place in np.flatnonzero(generator.random(n) < 0.03):
        noise[place : place + 2] += 0.1
    return noise


def _daily(generator: np.random.Generator, n: int) -> NDArray[np.float64]:
    cycle = 0.02 * np.sin(2 * np.pi * (np.arange(n) / 12 + generator.random()))
    return generator.normal(0, 0.01, n) + cycle


STILL: dict[str, Noise] = {
    "normal, 2 %": lambda g, n: g.normal(0, 0.02, n),
    "heavy tails (t, 2 degrees)": lambda g, n: 0.02 * g.standard_t(2, n),
    "one side only (log-normal)": lambda g, n: 0.02 * np.exp(g.normal(0, 1, n)),
    "5 % of runs disturbed by 20 to 60 %": _outliers,
    "pairs of runs disturbed by 10 %": _pairs,
    "two states, run by run": lambda g, n: g.normal(0, 0.005, n) + 0.03 * (g.random(n) < 0.4),
    "neighbours alike (AR 0.3)": _autocorrelated(0.3),
}
"""The level stays where it is."""
UNSTEADY: dict[str, Noise] = {
    "neighbours alike (AR 0.6)": _autocorrelated(0.6),
    "a cycle of 12 runs, ± 2 %": _daily,
    "neighbours alike (AR 0.8)": _autocorrelated(0.8),
    "slow drift, 5 % in all": lambda g, n: g.normal(0, 0.01, n) + np.linspace(0, 0.05, n),
    "slow drift, 20 % in all": lambda g, n: g.normal(0, 0.01, n) + np.linspace(0, 0.2, n),
}
"""Neighbours are alike, or the level drifts, and never steps."""
WANDERING: dict[str, Noise] = {
    "wandering level, 0.5 % a run": lambda g, n: g.normal(0, 0.01, n) + np.cumsum(g.normal(0, 0.005, n)),
}
"""Every change that is shown is a false one, though a reader would see some too."""


def share_shown(noise: Noise, runs: int, series: int, step: float, seed: int) -> float:
    """Return how many series show a change; ``step`` comes somewhere in the middle third."""
    generator = np.random.default_rng([seed, runs, round(step * 1000)])
    shown = 0
    for _ in range(series):
        logs = noise(generator, runs)
        if step:
            logs[generator.integers(runs // 3, 2 * runs // 3 + 1) :] += math.log1p(step)
        shown += bool(find_levels(np.exp(logs).tolist()).changes)
    return shown / series


def most_by_chance(stated: float, series: int) -> float:
    """Return the share of series that a stated rate allows with luck of one in a thousand."""
    return stated + 3.1 * math.sqrt(stated * (1 - stated) / series)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--series", type=int, default=400, help="without a change, for each noise and length")
    parser.add_argument("--steps", type=int, default=100, help="with one, for each noise, length and step")
    parser.add_argument("--seed", type=int, default=31415926)
    options = parser.parse_args()
    too_many = []
    print(f"| noise | runs | false alarms | {' | '.join(f'{step:.0%} step found' for step in STEPS)} |")
    for name, noise in (STILL | UNSTEADY | WANDERING).items():
        for runs in LENGTHS:
            false = share_shown(noise, runs, options.series, 0.0, options.seed)
            found = [share_shown(noise, runs, options.steps, step, options.seed) for step in STEPS]
            print(
                f"| {name} | {runs} | {false:.1%} | {' | '.join(f'{share:.0%}' for share in found)} |",
                flush=True,
            )
            stated = ALPHA if name in STILL else UNSTEADY_ALPHA if name in UNSTEADY else 1.0
            if false > most_by_chance(stated, options.series):
                too_many.append(f"{name}, {runs} runs: {false:.1%}")
    for line in too_many:
        print(f"more than is stated: {line}")
    return int(bool(too_many))


if __name__ == "__main__":
    sys.exit(main())
