"""How often `compare` cries wolf, and how often it sees a real 5 % slowdown, on timings of this machine.

    python benchmarks/compare_rates.py --out tmp/rates                       # measures for some minutes, then judges
    python benchmarks/compare_rates.py --timings tmp/rates/run/direct_inference/timings.json    # judges again

One long run of a tiny decoder through the real engine gives thousands of passes with this machine's own noise: tails,
bursts, drift. Disjoint stretches of it are dealt out to two sides with the same configuration, in the order `compare --run`
measures (A B B A …), and one after the other, as two saved runs are. Every gate that fails is a false alarm. Then every
time of B is multiplied by 1.05 (and 1.1), and every gate that fails is a detection.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from llm_perf_opt.analysis.metrics import Series, run_series, weigh
from llm_perf_opt.compare.compare import default_method
from llm_perf_opt.compare.gates import apply_gate, parse_gate
from llm_perf_opt.compare.measure import order
from llm_perf_opt.process.launch import run_process

METRICS = ("ttft", "tpot", "total")
LIMITS = (0, 3)
SLOWDOWNS = (1.05, 1.1)
Run = dict[str, list[float]]


def measure(out: Path, repeats: int) -> Path:
    """Run the tiny decoder many times; return its timings."""
    argv = [
        sys.executable, "-m", "llm_perf_opt", "run", "-q", "model=llama_tiny", "hardware.probe=false",
        "pipeline.static_analysis.enable=false", "pipeline.torch_profiler.enable=false",
        "pipeline.direct_inference.enable=true", f"pipeline.direct_inference.repeats={repeats}",
        "infer.max_new_tokens=5", "dataset.synthetic_tokens=16", f"artifacts.runs_dir={out.absolute() / 'run'}",
    ]  # fmt: skip
    result = run_process(argv, log_dir=out, name="measure", timeout_s=3600)
    if not result.ok:
        sys.exit(f"the long run failed:\n{result.tail()}")
    return out / "run" / "direct_inference" / "timings.json"


def stretch(samples: Run, start: int, count: int) -> Run:
    return {name: values[start : start + count] for name, values in samples.items()}


def deal_in_turn(samples: Run, start: int, rounds: int, repeats: int) -> tuple[Series, Series]:
    """Give stretches to A and B in the order `compare --run` measures."""
    sides: dict[str, list[Run]] = {"a": [], "b": []}
    for place, (_, side) in enumerate(order(rounds)):
        sides[side].append(stretch(samples, start + place * repeats, repeats))
    return Series(sides["a"]), Series(sides["b"])


def deal_in_sequence(samples: Run, start: int, rounds: int, repeats: int) -> tuple[Series, Series]:
    """Give A the first stretch and B the next, as two saved runs are measured."""
    count = rounds * repeats
    return Series([stretch(samples, start, count)]), Series([stretch(samples, start + count, count)])


ORDERS: dict[str, tuple[Callable[[Run, int, int, int], tuple[Series, Series]], int, int]] = {
    "--run --together, 60 passes": (deal_in_turn, 60, 1),
    "--run --together, 120 passes": (deal_in_turn, 120, 1),
    "--run, 8 rounds of 3 repeats": (deal_in_turn, 8, 3),
    "two saved runs of 3 repeats": (deal_in_sequence, 1, 3),
    "two saved runs of 10 repeats": (deal_in_sequence, 1, 10),
}


def comparisons(samples: Run, order_name: str, most: int) -> list[tuple[Series, Series]]:
    """Cut the long run into disjoint stretches, one per comparison."""
    deal, rounds, repeats = ORDERS[order_name]
    need = 2 * rounds * repeats
    starts = range(0, min(len(values) for values in samples.values()) - need + 1, need)
    return [deal(samples, start, rounds, repeats) for start in list(starts)[:most]]


def slowed(series: Series, factor: float) -> Series:
    return Series(
        [{name: [v * factor for v in values] for name, values in run.items()} for run in series.runs]
    )


def failing(pairs: Sequence[tuple[Series, Series]], metric: str, limit: float, factor: float) -> int:
    gate, method = parse_gate(f"{metric}:+{limit}%"), default_method()
    results = [apply_gate(gate, weigh(a, slowed(b, factor)), method) for a, b in pairs]
    return sum(result.status == "regression" for result in results)


def noise(samples: Run) -> str:
    values = sorted(v / statistics.median(times) for times in samples.values() for v in times)
    at = {q: values[int(q * (len(values) - 1))] for q in (0.05, 0.5, 0.95, 0.99)}
    return ", ".join(f"p{round(q * 100)} {value:.2f}" for q, value in at.items()) + " of the median"


def judge(path: Path, most: int) -> Iterator[dict[str, Any]]:
    series = run_series(json.loads(path.read_text(encoding="utf-8")))
    print(f"noise of one pass: {noise(series['total'])}")
    for name in ORDERS:
        for metric in METRICS:
            pairs = comparisons(series[metric], name, most)
            for limit in LIMITS if pairs else ():
                counts = [failing(pairs, metric, limit, factor) for factor in (1.0, *SLOWDOWNS)]
                yield {
                    "order": name,
                    "gate": f"{metric}:+{limit}%",
                    "comparisons": len(pairs),
                    "failing": counts,
                }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--timings", type=Path, help="timings.json of a long run; otherwise one is made")
    parser.add_argument("--out", type=Path, default=Path("tmp/compare_rates"))
    parser.add_argument("--passes", type=int, default=6600, help="passes of the long run")
    parser.add_argument("--most", type=int, default=100, help="comparisons of each kind")
    options = parser.parse_args()
    path = options.timings or measure(options.out, options.passes)
    slow = " | ".join(f"{(factor - 1):.0%} slowdown detected" for factor in SLOWDOWNS)
    print(
        f"| order | gate | comparisons | false alarms | {slow} |\n|---|---|---:|---:|{'---:|' * len(SLOWDOWNS)}"
    )
    for row in judge(path, options.most):
        shares = " | ".join(f"{count} ({count / row['comparisons']:.0%})" for count in row["failing"])
        print(f"| {row['order']} | {row['gate']} | {row['comparisons']} | {shares} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
