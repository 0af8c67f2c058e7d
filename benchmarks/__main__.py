"""Run every benchmark in turn: ``python -m benchmarks [name …]``. Peers are installed in environments of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAMES = (
    "engine_overhead",
    "telemetry_cost",
    "preprocess",
    "what_if",
    "silicon_error",
    "silicon_estimates",
    "static_counters",
    "ncu_parse",
    "nsys_ingest",
    "kineto_ingest",
    "diagnosis",
    "compare_rates",
    "sweep_report",
    "serving_join",
)


def main() -> int:
    wanted = sys.argv[1:] or list(NAMES)
    unknown = [name for name in wanted if name not in NAMES]
    if unknown:
        print(f"unknown benchmark {unknown[0]!r}; known: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    failed = []
    for name in wanted:
        print(f"== {name}", flush=True)
        # One after the other: two at a time would measure each other.
        command = [sys.executable, "-m", f"benchmarks.{name}"]
        if subprocess.run(command, check=False, cwd=HERE.parent).returncode != 0:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all benchmarks ran")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
