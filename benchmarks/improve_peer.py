"""`improve` against a plain grid search over the same remedies, on the same workload, in one run.

    python benchmarks/improve_peer.py model=llama_tiny --out tmp/peer           # of all remedies, as much of the grid as 6 minutes allow
    python benchmarks/improve_peer.py model=llama_tiny --out tmp/peer --whole   # five remedies, 31 combinations, all of them
    python benchmarks/improve_peer.py --out tmp/peer --whole --pairs 6          # the same for the default workload

The grid is what a sweep does: all combinations of all settings that may be kept (no two of one key), each measured against
the baseline with a fixed number of pairs, the best median wins. It has no order, so it is run in a shuffled one, and stops
when its time is over: then the table says how many combinations there are and how many were run. Both sides check answers, and
neither may keep one that differs. In the end the two winners are measured against each other.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.core import units
from llm_perf_opt.core.console.logs import Verbosity, console_logging
from llm_perf_opt.core.errors import LlmPerfError
from llm_perf_opt.improve import baseline, configurations
from llm_perf_opt.improve.command import duration
from llm_perf_opt.improve.experiment import Outcome, pairs_per_process, run_experiment
from llm_perf_opt.improve.improve import Request, improve, make_plan
from llm_perf_opt.improve.measuring import Spec
from llm_perf_opt.improve.plan import Candidate, Planned
from llm_perf_opt.remedies.base import key_of, this_machine
from llm_perf_opt.remedies.data import Improvement, SearchSettings

_NO_EARLY_END = 1e-9
"""A level no fixed number of pairs reaches: the grid looks at medians, not at evidence."""
_SAME_GAIN = 0.02
FEW = ("compile-decode", "threads", "decode-threads", "inference-mode", "omp-wait")


@dataclass(slots=True)
class GridResult:
    """What the grid came to."""

    combinations: int
    """In all."""
    run: int = 0
    failed: int = 0
    seconds: float = 0.0
    pairs: int = 0
    best: list[str] | None = None
    change_ratio: float | None = None
    best_at: int = 0
    """Experiment that found the best."""


Group = list[Candidate | None]
"""One remedy: none of its settings, or one of them."""


def groups_of(planned: Planned) -> list[Group]:
    """Return the remedies that may be kept by themselves."""
    found: dict[str, Group] = {}
    for candidate in planned.candidates:
        if candidate.remedy.effect != "quality":
            found.setdefault(candidate.remedy.name, [None]).append(candidate)
    return list(found.values())


def without_clash(chosen: Sequence[Candidate | None]) -> list[Candidate] | None:
    """Return the settings of a choice; ``None``: two of them set the same key."""
    picked = [candidate for candidate in chosen if candidate is not None]
    keys = [key_of(item) for candidate in picked for item in candidate.overrides]
    return picked if len(set(keys)) == len(keys) else None


def count_combinations(groups: list[Group]) -> int:
    """Return how many choices there are beside none at all: remedies that share no key multiply."""
    parts: list[tuple[set[str], list[Group]]] = []
    for group in groups:
        keys = {key_of(item) for candidate in group if candidate is not None for item in candidate.overrides}
        touching = [part for part in parts if part[0] & keys]
        parts = [part for part in parts if part not in touching]
        parts.append(
            (keys.union(*(part[0] for part in touching)), [group, *(g for part in touching for g in part[1])])
        )
    counts = [
        sum(without_clash(chosen) is not None for chosen in itertools.product(*members))
        for _, members in parts
    ]
    return math.prod(counts) - 1


def shuffled(groups: list[Group], number: int, seed: int) -> Iterator[list[Candidate]]:
    """Yield every combination once, in an order by chance."""
    chance, seen = random.Random(seed), set[tuple[int, ...]]()
    while len(seen) < number:
        places = tuple(chance.randrange(len(group)) for group in groups)
        picked = without_clash([group[place] for group, place in zip(groups, places, strict=True)])
        if picked and places not in seen:
            seen.add(places)
            yield picked


def experiment(
    a: Sequence[str], b: Sequence[str], folder: Path, options: argparse.Namespace, *, fixed: bool
) -> Outcome:
    """Measure two configurations against each other."""
    first, second = configurations.checked(a), configurations.checked(b)
    spec = Spec(
        a=list(a),
        b=list(b),
        metric=options.metric,
        settings=SearchSettings(
            least_gain_ratio=_SAME_GAIN,
            most_blocks=options.pairs if fixed else 40,
            seed=options.seed,
            most_samples=options.samples,
        ),
        alpha=_NO_EARLY_END if fixed else 0.05,
        limit_s=600.0,
        environment={"a": dict(first.run.env), "b": dict(second.run.env)},
        fixed=fixed,
    )
    own = configurations.needs_own_process(first, second)
    return run_experiment(spec, folder, own_processes=own, with_page=False)


def run_grid(planned: Planned, base: list[str], out: Path, options: argparse.Namespace) -> GridResult:
    """Measure combination after combination until all are done or the time is over."""
    groups = groups_of(planned)
    number = count_combinations(groups)
    print(f"grid: {number} combinations of {len(groups)} remedies", flush=True)
    found = GridResult(number)
    began = time.monotonic()
    for picked in shuffled(groups, number, options.seed):
        if time.monotonic() - began > options.grid_budget:
            break
        overrides = [item for candidate in picked for item in candidate.overrides]
        found.run += 1
        try:
            outcome = experiment(
                base, configurations.merged(base, overrides), out / f"{found.run:04d}", options, fixed=True
            )
        except LlmPerfError as error:
            found.failed += 1
            print(f"  {found.run}: {' '.join(overrides)}: {error.message}", flush=True)
            continue
        equal = outcome.check is not None and outcome.check.tokens_equal is True
        if outcome.failure is not None or outcome.measured is None:
            found.failed += 1
            print(f"  {found.run}: {' '.join(overrides)}: {outcome.failure}", flush=True)
            continue
        change = outcome.measured.change_ratio
        found.pairs += outcome.measured.blocks
        print(
            f"  {found.run}: {' '.join(overrides)}: {change:+.1%}{'' if equal else ', tokens differ'}",
            flush=True,
        )
        if equal and (
            found.change_ratio is None or _cost(change, options) < _cost(found.change_ratio, options)
        ):
            found.best, found.change_ratio, found.best_at = overrides, change, found.run
    found.seconds = time.monotonic() - began
    return found


def _cost(change: float, options: argparse.Namespace) -> float:
    return -change if options.metric == "tokens_per_s" else change


def report(result: Improvement, seconds: float, grid: GridResult) -> None:
    """Print both rows, and what the whole grid would have taken."""
    pairs = sum(
        one.blocks + len(one.process_changes[1:]) * pairs_per_process(one.blocks)
        for one in (trial.measured for trial in result.tried)
        if one is not None
    )
    best = result.best
    print("\n| search | experiments | of | pairs of passes | time | gain | settings |")
    print("|---|---:|---:|---:|---:|---:|---|")
    interval = (
        f" [{best.low:+.1%} … {best.high:+.1%}]" if best.low is not None and best.high is not None else ""
    )
    gain = f"{best.change_ratio:+.1%}{interval}" if best.change_ratio is not None else "none"
    print(
        f"| improve | {len(result.tried)} | {result.method.tests} at most | {pairs} | {units.seconds(seconds)} | {gain} | "
        f"{' '.join(best.overrides) or '-'} |"
    )
    gain = f"{grid.change_ratio:+.1%}" if grid.change_ratio is not None else "none"
    print(
        f"| grid | {grid.run} | {grid.combinations} | {grid.pairs} | {units.seconds(grid.seconds)} | {gain} | "
        f"{' '.join(grid.best or []) or '-'} |"
    )
    if grid.run:
        each = grid.seconds / grid.run
        share = len(result.tried) / grid.combinations
        print(
            f"\nThe grid ran {grid.run} of {grid.combinations} combinations ({grid.failed} failed; the best was number "
            f"{grid.best_at}); all of them would take about {units.seconds(each * grid.combinations)}. improve made "
            f"{units.percent(share)} of the whole grid's experiments, {units.number(len(result.tried) / grid.run)} times those "
            "that were run."
        )


def against_each_other(
    base: list[str], result: Improvement, grid: GridResult, out: Path, options: argparse.Namespace
) -> None:
    """Measure the grid's best against improve's: A is improve's."""
    ours, theirs = result.best.overrides, grid.best or []
    if sorted(ours) == sorted(theirs):
        print("\nBoth found the same settings.")
        return
    outcome = experiment(
        configurations.merged(base, ours),
        configurations.merged(base, theirs),
        out / "winners",
        options,
        fixed=False,
    )
    if outcome.measured is None:
        print(f"\nThe winners could not be compared: {outcome.failure}")
        return
    found = outcome.measured
    low, high = (f"{end:+.1%}" if math.isfinite(end) else "…" for end in (found.low, found.high))
    print(
        f"\nThe grid's best against improve's: {found.change_ratio:+.1%} [{low} … {high}], {found.blocks} pairs: {found.verdict}"
    )


def main() -> int:
    """Run both searches and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", action="append", default=[], help="remedies of both searches")
    parser.add_argument(
        "--whole",
        action="store_true",
        help=f"only {', '.join(FEW)}: few enough for the whole grid, without a time limit",
    )
    parser.add_argument("--metric", default="total", choices=("total", "ttft", "tpot", "tokens_per_s"))
    parser.add_argument("--budget", type=duration, default=360.0, help="of improve (6m)")
    parser.add_argument("--grid-budget", type=duration, default=360.0, help="of the grid (6m)")
    parser.add_argument(
        "--pairs", type=int, default=12, help="pairs of passes for each combination of the grid"
    )
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.whole:
        options.only, options.grid_budget = [*options.only, *FEW], math.inf
    console_logging(Verbosity.normal)
    out = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    start = baseline.run_first(options.overrides, out)
    request = Request(
        run=start.run,
        metric=options.metric,
        budget_s=options.budget,
        out=out / "improve",
        settings=SearchSettings(only=options.only, most_samples=options.samples, seed=options.seed),
    )
    planned = make_plan(request, start, this_machine())
    began = time.monotonic()
    result = improve(request).result
    seconds = time.monotonic() - began
    grid = run_grid(planned, start.overrides, out / "grid", options)
    report(result, seconds, grid)
    against_each_other(start.overrides, result, grid, out, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
