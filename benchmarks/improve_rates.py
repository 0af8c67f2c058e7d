"""How often `improve` keeps what does not help, and how often it sees a gain or a slowdown of known size, on timings of this machine.

    python benchmarks/improve_rates.py --out tmp/improve_rates                 # measures for some minutes, then judges
    python benchmarks/improve_rates.py --timings …/timings.json                # judges again
    python benchmarks/improve_rates.py --real 50                               # instead: whole experiments of identical sides

One long run of a tiny decoder through the real engine gives thousands of passes with this machine's own noise: tails, bursts,
drift. Disjoint stretches of it are dealt to the two sides in the order an experiment measures (A B B A or B A A B by chance).
Every keep of identical sides is false. Then every time of B is multiplied, and a keep is a detection (or, of a slowdown, an error).
A level per process is added: each process multiplies B's times by a factor of its own, drawn with the spread of ``SPREADS``, and a
shown gain is measured in further processes as `improve` does it (``with_processes``; their passes are further stretches).
At the end whole searches (the real one: singles, combinations, confirmation, the shared error) are run with experiments that
are dealt such stretches: of remedies that do nothing any best is a false keep, and of one planted gain anything beside it.

``--real`` runs whole experiments, processes and all, on two sides with the same settings: what the memory layout of one side or
the other adds is in those.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from compare_rates import measure, noise
from llm_perf_opt.analysis.metrics import run_series
from llm_perf_opt.analysis.statistics import processes_needed
from llm_perf_opt.improve.costs import BatchPass, UnitPass, as_log_ratio, median_log_ratio, total_change
from llm_perf_opt.improve.experiment import Outcome, pairs_per_process, run_experiment, with_processes
from llm_perf_opt.improve.experiment import measure as measured
from llm_perf_opt.improve.measuring import Letter, Spec, take_turns
from llm_perf_opt.improve.outputs import Answers
from llm_perf_opt.improve.plan import Candidate, Planned
from llm_perf_opt.improve.search import Search
from llm_perf_opt.remedies.base import Remedy, fixed
from llm_perf_opt.remedies.data import Baseline, Best, Improvement, Measured, OutputCheck, SearchSettings

TESTS = 14
"""Tests of a search of usual size, which share the family error."""
FAMILY_ERROR, LEAST_GAIN, MOST_BLOCKS = 0.05, 0.02, 80
SETTINGS = (
    "infer.inference_mode=true",
    "model.attn_implementation=eager",
    "model.cache=preallocated",
    "model.dtype=bfloat16",
    "run.phase_threads.decode=1",
    "run.threads=1",
)
"""One remedy each: a search over them is of usual size. Nothing is run with them."""
PLANTED = {SETTINGS[2]: 0.8}
SPREADS = (0.0, 0.01, 0.03)
"""Deviation between processes of one side; ``process_spread.py`` measures it."""
PROCESSES = SearchSettings().processes
FACTORS = (1.0, 0.95, 0.9, 0.8, 0.5, 1.05, 1.1)
REAL = [
    "model=llama_tiny",
    "model.arch.num_hidden_layers=2",
    "infer.max_new_tokens=4",
    "dataset.synthetic_tokens=16",
]


Stretch = list[list[float]]
"""Times of one pass after the other, of each sample."""


def stretches(samples: list[list[float]]) -> Iterator[Stretch]:
    """Cut the long run into disjoint stretches, one per experiment."""
    need = 2 * math.ceil(MOST_BLOCKS / len(samples))
    for start in range(0, min(map(len, samples)) - need + 1, need):
        yield [values[start : start + need] for values in samples]


def spec(alpha: float, seed: int, least_gain: float = LEAST_GAIN) -> Spec:
    return Spec(
        [],
        [],
        "total",
        SearchSettings(least_gain_ratio=least_gain, most_blocks=MOST_BLOCKS, seed=seed),
        alpha,
        1e9,
    )


def turns(stretch: Stretch, factor: float, wanted: Spec) -> tuple[list[UnitPass], str, int]:
    """Let an experiment take its turns over a stretch; return its passes, its verdict and how many pairs it needed."""
    rows = [iter(values) for values in stretch]
    passes: list[UnitPass] = []

    def run(letter: Letter, unit: int, number: int) -> UnitPass:
        seconds = next(rows[unit]) * (factor if letter == "b" else 1.0)
        passes.append(UnitPass(letter, number, unit, [BatchPass(1, seconds, 0.0, 0, 1, None)]))
        return passes[-1]

    test = take_turns(wanted, len(stretch), run)
    return passes, test.verdict() or "not shown", test.count


@dataclass
class Dealer:
    """Experiments in several processes over stretches that are dealt one after the other."""

    hands: Iterator[Stretch]
    spread: float
    chance: random.Random

    def experiment(self, factor: float, wanted: Spec) -> tuple[Measured | None, list[UnitPass], int]:
        """Return what an experiment comes to, its passes, and how many pairs the first process needed.

        Both sides have a level of their own in each process: their ratio has √2 times the spread.
        """
        passes, verdict, pairs = turns(next(self.hands), factor * self._level(), wanted)
        found = measured(passes, wanted)
        if verdict != "gain" or found is None:
            return found, passes, pairs
        settings = replace(wanted.settings, most_blocks=pairs_per_process(found.blocks))
        again = replace(wanted, settings=settings, fixed=True)
        levels = [as_log_ratio(found.change_ratio, "total")]
        while len(levels) < processes_needed(levels, PROCESSES):
            one = turns(next(self.hands), factor * self._level(), again)[0]
            level = median_log_ratio(one, "total")
            if level is None:
                break
            levels.append(level)
        return with_processes(found, levels[1:], wanted), passes, pairs

    def _level(self) -> float:
        return math.exp(math.sqrt(2) * self.spread * self.chance.gauss(0, 1))


def judge(path: Path, repeats: int, searches: int) -> None:
    series = run_series(json.loads(path.read_text(encoding="utf-8")))["total"]
    samples = list(series.values())
    print(f"noise of one pass: {noise(series)}")
    found = list(stretches(samples))
    print(f"{len(found)} disjoint stretches, each dealt {repeats} times in another order\n")
    print(
        "| B against A | experiments | kept | called slower | pairs needed, median |\n|---|---:|---:|---:|---:|"
    )
    for spread in SPREADS:
        between = f", {spread:.0%} between processes"
        for factor in FACTORS:
            label = "identical" if factor == 1 else f"{factor - 1:+.0%}"
            row(label + between, found, factor, repeats, FAMILY_ERROR / TESTS, LEAST_GAIN, spread)
        row(
            f"identical, all of the error on one test{between}",
            found,
            1.0,
            repeats,
            FAMILY_ERROR,
            LEAST_GAIN,
            spread,
        )
        row(
            f"identical, the same, and any gain counts{between}",
            found,
            1.0,
            repeats,
            FAMILY_ERROR,
            0.0,
            spread,
        )
    for spread in SPREADS:
        families(found, searches, spread)


def row(
    label: str,
    found: list[Stretch],
    factor: float,
    repeats: int,
    alpha: float,
    least_gain: float,
    spread: float = 0.0,
) -> None:
    results = []
    for place in range(len(found)):
        for seed in range(repeats):
            wanted = spec(alpha, seed * 1000 + place, least_gain)
            hands = itertools.cycle([*found[place:], *found[:place]])
            dealer = Dealer(hands, spread, random.Random(wanted.settings.seed))
            outcome, _, blocks = dealer.experiment(factor, wanted)
            results.append(("not shown" if outcome is None else outcome.verdict, blocks))
    kept = sum(verdict == "gain" for verdict, _ in results)
    slower = sum(verdict == "slower" for verdict, _ in results)
    pairs = statistics.median(blocks for _, blocks in results)
    print(
        f"| {label} | {len(results)} | {kept} ({kept / len(results):.0%}) | {slower} ({slower / len(results):.0%}) | {pairs:g} |",
        flush=True,
    )


@dataclass(frozen=True)
class Rates:
    """What many searches came to."""

    searches: int
    tests: int
    """Tests that a search shares its error among."""
    found: int
    """Searches that keep all that was planted, and there was something."""
    false: int
    """Searches whose best has anything that does nothing."""
    any_false: int
    """Searches in which an experiment on nothing but such settings decided to keep."""


def search_once(
    found: Sequence[Stretch], effects: Mapping[str, float], seed: int, spread: float = 0.0
) -> Improvement:
    """Run the real search over the remedies; each experiment is dealt a stretch of its own, in an order by chance."""
    order = list(found)
    random.Random(seed).shuffle(order)
    dealer = Dealer(itertools.cycle(order), spread, random.Random(seed))

    def run(wanted: Spec, folder: Path, *, own_processes: bool = False) -> Outcome:
        factor = math.prod(effects.get(item, 1.0) for item in wanted.b if item not in wanted.a)
        found_here, passes, _ = dealer.experiment(factor, wanted)
        same = Answers(tokens={"x": [1]}, prompt_tokens={"x": 1})
        return Outcome(
            measured=found_here,
            check=OutputCheck(tokens_equal=True, samples=1),
            answers={"a": same, "b": same},
            total_change=total_change(passes, wanted.metric),
            how="own processes" if own_processes else "one process",
        )

    value = statistics.mean(statistics.median(values) for values in order[0])
    result = Improvement(
        metric="total",
        baseline=Baseline(["model=llama_tiny"], value, total_s=value),
        method=SearchSettings(FAMILY_ERROR, 0, LEAST_GAIN, MOST_BLOCKS, seed, ""),
        best=Best([], None, None, None),
    )
    with tempfile.TemporaryDirectory() as out:
        return Search(all_settings(), result, Path(out), 1e9, lambda _: None, run).run()


def all_settings() -> Planned:
    """Return every setting as a remedy of its own."""
    return Planned([Candidate(Remedy(item, item, fixed(item)), (item,)) for item in SETTINGS])


def search_rates(
    found: Sequence[Stretch], effects: Mapping[str, float], searches: int, spread: float = 0.0
) -> Rates:
    """Run many searches, each over the stretches in another order."""
    made = [search_once(found, effects, seed * 1000, spread) for seed in range(searches)]
    return Rates(
        searches=searches,
        tests=all_settings().tests,
        found=sum(bool(effects) and set(effects) <= set(one.best.overrides) for one in made),
        false=sum(bool(set(one.best.overrides) - set(effects)) for one in made),
        any_false=sum(
            any(trial.decision == "keep" and not set(trial.overrides) & set(effects) for trial in one.tried)
            for one in made
        ),
    )


def families(found: Sequence[Stretch], searches: int, spread: float = 0.0) -> None:
    """Whole searches: how many keep what does nothing, and how many find the one gain there is."""
    print(
        f"\n| {searches} searches over {len(SETTINGS)} remedies, {all_settings().tests} tests each, {spread:.0%} between processes | keep what does nothing | "
        "one of their experiments does | find the gain |\n|---|---:|---:|---:|"
    )
    planted = ", ".join(f"{name} {factor - 1:+.0%}" for name, factor in PLANTED.items())
    for label, effects in (("no remedy does anything", {}), (f"one does: {planted}", PLANTED)):
        rates = search_rates(found, effects, searches, spread)
        shown = f"{rates.found} ({rates.found / searches:.0%})" if effects else ""
        print(
            f"| {label} | {rates.false} ({rates.false / searches:.0%}) | {rates.any_false} ({rates.any_false / searches:.0%}) | "
            f"{shown} |",
            flush=True,
        )
    print(f"(at most {FAMILY_ERROR:.0%} promised; the searches share {len(found)} stretches)")


def real(count: int, workload: list[str]) -> None:
    """Run whole experiments on two sides with the same settings, half of them in two processes."""
    print(
        "| real experiment of identical sides | change | interval | pairs | verdict | s |\n|---|---:|---|---:|---|---:|"
    )
    found: list[Outcome] = []
    for number in range(count):
        with tempfile.TemporaryDirectory() as folder:
            wanted = Spec(
                workload,
                workload,
                "total",
                SearchSettings(FAMILY_ERROR, TESTS, LEAST_GAIN, MOST_BLOCKS, number, most_samples=2),
                FAMILY_ERROR / TESTS,
                60,
                checks_text=False,
            )
            outcome = run_experiment(
                wanted, Path(folder) / "x", own_processes=number % 2 == 1, with_page=False
            )
        found.append(outcome)
        measured = outcome.measured
        shown = (
            f"failed: {outcome.failure} | | | |"
            if measured is None
            else f"{measured.change_ratio:+.1%} | {measured.low:+.0%} … {measured.high:+.0%} | {measured.blocks} | {measured.verdict} |"
        )
        print(f"| {number + 1}, {outcome.how} | {shown} {outcome.seconds:.1f} |", flush=True)
    print(
        "\n| B against A | experiments | kept | called slower | failed | pairs needed, median |\n|---|---:|---:|---:|---:|---:|"
    )
    for how in (None, "one process", "own processes"):
        mine = [outcome for outcome in found if how in (None, outcome.how)]
        verdicts = [outcome.measured.verdict for outcome in mine if outcome.measured is not None]
        if verdicts:
            pairs = statistics.median(o.measured.blocks for o in mine if o.measured is not None)
            print(
                f"| identical, real{f', {how}' if how else ''} | {len(mine)} | {verdicts.count('gain')} | {verdicts.count('slower')} | "
                f"{len(mine) - len(verdicts)} | {pairs:g} |"
            )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--timings", type=Path, help="timings.json of a long run; otherwise one is made")
    parser.add_argument("--out", type=Path, default=Path("tmp/improve_rates"))
    parser.add_argument("--passes", type=int, default=6600, help="passes of the long run")
    parser.add_argument("--repeats", type=int, default=3, help="orders each stretch is dealt in")
    parser.add_argument("--searches", type=int, default=40, help="whole searches of each kind")
    parser.add_argument(
        "--real", type=int, default=0, help="instead: so many whole experiments of identical configurations"
    )
    parser.add_argument("--workload", nargs="*", default=REAL, metavar="key=value", help="of --real")
    options = parser.parse_args()
    if options.real:
        real(options.real, options.workload)
    else:
        judge(options.timings or measure(options.out, options.passes), options.repeats, options.searches)
    return 0


if __name__ == "__main__":
    sys.exit(main())
