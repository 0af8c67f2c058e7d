"""How often `improve` keeps what does not help, and how often it sees a gain or a slowdown of known size, on timings of this machine.

    python benchmarks/improve_rates.py --out tmp/improve_rates                 # measures for some minutes, then judges
    python benchmarks/improve_rates.py --timings …/timings.json                # judges again
    python benchmarks/improve_rates.py --real 50                               # instead: whole experiments of identical sides

One long run of a tiny decoder through the real engine gives thousands of passes with this machine's own noise: tails, bursts,
drift. Disjoint stretches of it are dealt to the two sides in the order an experiment measures (A B B A or B A A B by chance).
Every keep of identical sides is false. Then every time of B is multiplied, and a keep is a detection (or, of a slowdown, an error).

``--real`` runs whole experiments, processes and all, on two sides with the same settings: what the memory layout of one side or
the other adds is in those.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from compare_rates import measure, noise
from llm_perf_opt.analysis.compare.metrics import run_series
from llm_perf_opt.analysis.improve.costs import BatchPass, UnitPass
from llm_perf_opt.runs.improve.experiment import Outcome, run_experiment
from llm_perf_opt.runs.improve.measuring.alternate import take_turns
from llm_perf_opt.runs.improve.spec import Letter, Spec

TESTS = 14
"""Tests of a search of usual size, which share the family error."""
FAMILY_ERROR, LEAST_GAIN, MOST_BLOCKS = 0.05, 0.02, 80
FACTORS = (1.0, 0.95, 0.9, 0.8, 0.5, 1.05, 1.1)
REAL = [
    "model=llama_tiny",
    "model.arch.num_hidden_layers=2",
    "infer.max_new_tokens=4",
    "dataset.synthetic_tokens=16",
]


def stretches(samples: list[list[float]]) -> Iterator[list[list[float]]]:
    """Cut the long run into disjoint stretches, one per experiment."""
    need = 2 * MOST_BLOCKS // len(samples)
    for start in range(0, min(map(len, samples)) - need + 1, need):
        yield [values[start : start + need] for values in samples]


def spec(alpha: float, seed: int, least_gain: float = LEAST_GAIN) -> Spec:
    return Spec([], [], "total", alpha, least_gain, MOST_BLOCKS, 1e9, seed, 2)


def deal(stretch: list[list[float]], factor: float, wanted: Spec) -> tuple[str, int]:
    """Let an experiment take its turns over a stretch; return its verdict and how many pairs it needed."""
    rows = [iter(values) for values in stretch]

    def run(letter: Letter, unit: int, number: int) -> UnitPass:
        seconds = next(rows[unit]) * (factor if letter == "b" else 1.0)
        return UnitPass(letter, number, unit, [BatchPass(1, seconds, 0.0, 0, 1, None)])

    test = take_turns(wanted, len(stretch), run)
    return test.verdict() or "not shown", test.count


def judge(path: Path, repeats: int) -> None:
    series = run_series(json.loads(path.read_text(encoding="utf-8")))["total"]
    samples = list(series.values())
    print(f"noise of one pass: {noise(series)}")
    found = list(stretches(samples))
    print(f"{len(found)} disjoint stretches, each dealt {repeats} times in another order\n")
    print(
        "| B against A | experiments | kept | called slower | pairs needed, median |\n|---|---:|---:|---:|---:|"
    )
    for factor in FACTORS:
        label = "identical" if factor == 1 else f"{factor - 1:+.0%}"
        row(label, found, factor, repeats, FAMILY_ERROR / TESTS, LEAST_GAIN)
    row("identical, all of the error on one test", found, 1.0, repeats, FAMILY_ERROR, LEAST_GAIN)
    row("identical, the same, and any gain counts", found, 1.0, repeats, FAMILY_ERROR, 0.0)
    families(found)


def row(
    label: str, found: list[list[list[float]]], factor: float, repeats: int, alpha: float, least_gain: float
) -> None:
    results = [
        deal(stretch, factor, spec(alpha, seed * 1000 + place, least_gain))
        for place, stretch in enumerate(found)
        for seed in range(repeats)
    ]
    kept = sum(verdict == "gain" for verdict, _ in results)
    slower = sum(verdict == "slower" for verdict, _ in results)
    pairs = statistics.median(blocks for _, blocks in results)
    print(
        f"| {label} | {len(results)} | {kept} ({kept / len(results):.0%}) | {slower} ({slower / len(results):.0%}) | {pairs:g} |",
        flush=True,
    )


def families(found: list[list[list[float]]]) -> None:
    """Whole searches over remedies that do nothing: how many keep any of them."""
    chance = random.Random(0)
    keeps = [
        deal(stretch, 1.0, spec(FAMILY_ERROR / TESTS, n))[0] == "gain" for n, stretch in enumerate(found * 4)
    ]
    rounds = 200
    bad = sum(any(chance.choice(keeps) for _ in range(TESTS)) for _ in range(rounds))
    print(
        f"\nsearches over {TESTS} remedies that do nothing: {bad} of {rounds} keep any (at most {FAMILY_ERROR:.0%} promised)"
    )


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
                FAMILY_ERROR / TESTS,
                LEAST_GAIN,
                MOST_BLOCKS,
                60,
                number,
                2,
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
    parser.add_argument(
        "--real", type=int, default=0, help="instead: so many whole experiments of identical configurations"
    )
    parser.add_argument("--workload", nargs="*", default=REAL, metavar="key=value", help="of --real")
    options = parser.parse_args()
    if options.real:
        real(options.real, options.workload)
    else:
        judge(options.timings or measure(options.out, options.passes), options.repeats)
    return 0


if __name__ == "__main__":
    sys.exit(main())
