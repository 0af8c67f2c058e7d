"""How much the speed of the same configuration differs between processes, and what that does to the decisions of `improve`.

    python benchmarks/process_spread.py --processes 20                     # measures for some minutes, then simulates
    python benchmarks/process_spread.py --processes 0                      # only the simulation

Every process builds the same model, warms up and runs the same batch many times. Memory layout, page placement and the choice
of algorithms differ from process to process, so the level of a process (median ratio of its passes to those of all processes in the same
round) differs by more than its passes explain. The processes take turns, one pass each, as the sides of an experiment do: measured one
after the other, changes of the machine's speed over seconds would count as differences between processes. All processes are in memory at the
same time. Passes are measured in processor time, of one thread with the default workload: other programs on the machine change it least.

The simulation draws experiments without an effect at a given spread of processes, and counts how often a gain is shown: by the
passes of one process alone, and by the interval over processes that `improve` uses.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import statistics
import sys
import time
from multiprocessing.connection import Connection

from llm_perf_opt.analysis.statistics import (
    PROCESS_SPREAD_RATIO,
    SequentialTest,
    over_processes,
    processes_needed,
)
from llm_perf_opt.summary.statistics import StoppingRule

WORKLOAD = [
    "model=llama_tiny",
    "infer.max_new_tokens=8",
    "dataset.synthetic_tokens=64",
    "run.threads=1",
]
PASSES = 80
SPREADS = (0.0, 0.01, 0.02, 0.03, 0.05)
NOISE = 0.03
"""Deviation of the log ratio of a pair of passes in the simulation."""
EXTRA_PAIRS = 6


def worker(workload: list[str], connection: Connection) -> None:
    """Build the model, then run the batch once for each message and answer with the processor time of the pass."""
    from llm_perf_opt.core.console.progress import LogProgress
    from llm_perf_opt.improve.configurations import composed
    from llm_perf_opt.workloads.engine.driver import build_engine
    from llm_perf_opt.workloads.registry import load_dataset
    from llm_perf_opt.workloads.setup import workload_config

    chosen = workload_config(composed(workload), repeats=1)
    engine = build_engine(chosen, LogProgress())
    batch = engine.prepare([next(iter(load_dataset(chosen.dataset).samples()))])
    for _ in range(5):
        engine.run_prepared(batch, components=False)
    connection.send(None)  # warm
    while connection.recv():
        began = time.process_time()
        engine.run_prepared(batch, components=False)
        connection.send(time.process_time() - began)


def take_turns(count: int, workload: list[str]) -> list[list[float]]:
    """Return the passes of each process: one pass of every process in each round, in random order, the others waiting."""
    context, chance = multiprocessing.get_context("spawn"), random.Random(0)
    ends: list[Connection] = []
    for _ in range(count):
        ours, theirs = context.Pipe()
        context.Process(target=worker, args=(workload, theirs), daemon=True).start()
        theirs.close()
        try:
            ours.recv()
        except EOFError:
            raise SystemExit("a measuring process failed") from None
        ends.append(ours)
    passes: list[list[float]] = [[] for _ in ends]
    for _ in range(PASSES):
        for number in chance.sample(range(count), count):
            ends[number].send(True)
            passes[number].append(ends[number].recv())
    for end in ends:
        end.send(False)
    return passes


def levels_of(rounds: list[list[float]]) -> list[float]:
    """Return the level of each process: the median log ratio of its passes to those of all processes in the same round."""
    logs = [[math.log(seconds) for seconds in one] for one in rounds]
    ratios = [[value - statistics.median(one) for value in one] for one in logs]
    return [statistics.median(of_process) for of_process in zip(*ratios, strict=True)]


def measure(count: int, workload: list[str]) -> None:
    """Measure the processes in turns: what else the machine does, and its clock rate, meet all of them alike."""
    passes = take_turns(count, workload)
    rounds = [list(one) for one in zip(*passes, strict=True)]
    whole = statistics.stdev(levels_of(rounds))
    # Levels of both halves of the rounds differ by noise alone.
    halves = [a - b for a, b in zip(levels_of(rounds[::2]), levels_of(rounds[1::2]), strict=True)]
    noise = math.sqrt(statistics.fmean(each**2 for each in halves)) / 2
    between = math.sqrt(max(0.0, whole**2 - noise**2))
    print(f"{' '.join(workload)}: {count} processes, {PASSES} passes each, processor time\n")
    print("| pass, median | deviation of the levels | of it noise of the level | between processes |")
    print("|---:|---:|---:|---:|")
    middle = statistics.median(seconds for one in passes for seconds in one)
    print(f"| {1e3 * middle:.2f} ms | {whole:.2%} | {noise:.2%} | {between:.2%} |\n", flush=True)


def simulate(experiments: int, alpha: float, processes: int) -> None:
    print(
        f"{experiments} experiments without an effect each, error {alpha:g}, threshold 2 %, noise of a pair {NOISE:.0%}, "
        f"{processes} processes, prior spread {PROCESS_SPREAD_RATIO:.1%}\n"
    )
    print(
        "| spread between processes | gain shown by one process | gain shown over processes | gain of 10 % found |"
    )
    print("|---:|---:|---:|---:|")
    for spread in SPREADS:
        chance = random.Random(round(1e4 * spread))
        alone = over = found = 0
        for _ in range(experiments):
            one, all_ = experiment(chance, spread, 0.0, alpha, processes)
            alone, over = alone + one, over + all_
            found += experiment(chance, spread, math.log(0.9), alpha, processes)[1]
        print(
            f"| {spread:.1%} | {alone / experiments:.1%} | {over / experiments:.1%} | {found / experiments:.0%} |",
            flush=True,
        )


def experiment(
    chance: random.Random, spread: float, effect: float, alpha: float, processes: int
) -> tuple[bool, bool]:
    """Return whether one process shows a gain, and whether the interval over processes does.

    Each side of each process has a level of its own, so the log ratio of a process has √2 times the spread.
    """
    rule = StoppingRule(alpha, 0.02, 80)
    test, first = SequentialTest(rule), effect + math.sqrt(2) * spread * chance.gauss(0, 1)
    while (verdict := test.add(first + NOISE * chance.gauss(0, 1))) is None:
        pass
    change = test.change()
    if verdict != "gain" or change is None:
        return False, False
    levels = [change.estimate]
    while len(levels) < processes_needed(levels, processes):
        centre = effect + math.sqrt(2) * spread * chance.gauss(0, 1)
        levels.append(statistics.median(centre + NOISE * chance.gauss(0, 1) for _ in range(EXTRA_PAIRS)))
    return True, over_processes(change, levels, alpha).high < math.log1p(-rule.least_gain_ratio)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--processes", type=int, default=20, help="processes of the same configuration; 0: none"
    )
    parser.add_argument("--experiments", type=int, default=1000, help="simulated experiments of each spread")
    parser.add_argument("--per-experiment", type=int, default=3, help="processes of a simulated experiment")
    parser.add_argument("--workload", nargs="*", default=WORKLOAD, metavar="key=value")
    options = parser.parse_args()
    if options.processes == 1:
        parser.error("--processes 1: a spread needs at least two")
    if options.processes:
        measure(options.processes, options.workload)
    if options.experiments:
        for alpha in (0.05, 0.05 / 14):
            simulate(options.experiments, alpha, options.per_experiment)
    return 0


if __name__ == "__main__":
    sys.exit(main())
