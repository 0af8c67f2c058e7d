"""What the load client of the stage ``serve`` can do: events per second on one core, and the error of its time stamps.

    python benchmarks/serve_client.py [--rounds 5]

The stub server runs in a process of its own. ``by processor time`` is 1 ÷ the client's processor time per event: what one core could
read if nothing else ran on it. The exit code is 1 when that misses 20,000 events per second, or when the best round's time-stamp error
at half the capacity (99th percentile) is 1 ms or more.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from llm_perf_opt.stages.serve.certify import certify_client

EVENTS_PER_S = 20_000
ERROR_S = 1e-3


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rounds = [certify_client(Path(folder), seconds=options.seconds) for _ in range(options.rounds)]
    print("| round | events/s | by processor time | time-stamp error p99 |\n|---|---|---|---|")
    for number, one in enumerate(rounds, 1):
        error = f"{1e3 * one.stamp_error_p99_s:.2f} ms" if one.stamp_error_p99_s is not None else "none"
        print(f"| {number} | {one.capacity_per_s:,.0f} | {1 / one.event_s:,.0f} | {error} |")
    possible = statistics.median(1 / one.event_s for one in rounds)
    best = min(one.stamp_error_p99_s or 0.0 for one in rounds)
    print(f"median by processor time: {possible:,.0f} events/s; best time-stamp error: {1e3 * best:.2f} ms")
    return int(possible < EVENTS_PER_S or best >= ERROR_S)


if __name__ == "__main__":
    sys.exit(main())
