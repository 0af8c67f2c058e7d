"""The index over many generated summaries: time per summary, memory, and what renewing without a change costs.

>>> python -m benchmarks.history_index --runs 10000 100000 --out tmp/history   # doctest: +SKIP
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

_CHILD = """
import json, resource, sys, time
from pathlib import Path
from llm_perf_opt.history.index import renew_index
began = time.perf_counter()
done = renew_index(Path(sys.argv[1]))
print(json.dumps({"seconds": time.perf_counter() - began, "read": done.read, "runs": done.info.runs,
    "values": done.info.metrics, "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
"""


def make_summaries(source: Path, target: Path, runs: int, seed: int = 0) -> None:
    """Write summaries like that of a real run, with other times, dates and commits."""
    summary = json.loads((source / "summary.json").read_text(encoding="utf-8"))
    config = (source / "config.yaml").read_text(encoding="utf-8")
    generator = np.random.default_rng(seed)
    began = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(runs):
        folder = target / f"{number // 1000:04d}" / f"{number:07d}"
        folder.mkdir(parents=True)
        factor = float(np.exp(generator.normal(0, 0.02)))
        for stat in summary["timings"].values():
            if isinstance(stat, dict) and "median" in stat:
                stat["median"] = stat["mean"] * factor
        summary["run"]["id"] = folder.name
        summary["run"]["started"] = (began + timedelta(minutes=number)).isoformat()
        summary["environment"]["commit"] = f"{number // 50:040x}"
        (folder / "summary.json").write_text(json.dumps(summary, separators=(",", ":")), encoding="utf-8")
        # Fifty configurations, as an index of many users has.
        (folder / "config.yaml").write_text(
            config.replace("seed: 0", f"seed: {number % 50}", 1), encoding="utf-8"
        )


def index_once(folder: Path) -> dict[str, float]:
    """Renew the index in a process of its own; return its time and memory."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(folder)], capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


def measure_index(source: Path, out: Path, runs: int) -> None:
    """Print what indexing so many summaries takes."""
    folder = out / f"runs-{runs}"
    shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    make_summaries(source, folder, runs)
    print(f"{runs} summaries made in {time.perf_counter() - began:.0f} s")
    first, again = index_once(folder), index_once(folder)
    shutil.rmtree(folder / "0000" / f"{0:07d}")
    (folder / "0000" / f"{1:07d}" / "summary.json").touch()
    changed = index_once(folder)
    size = sum((folder / name).stat().st_size for name in ("runs.parquet", "metrics.parquet"))
    for name, row in (("first", first), ("nothing changed", again), ("one changed, one gone", changed)):
        print(
            f"{name}: {row['seconds']:.2f} s, {row['read']:.0f} read, {row['seconds'] / runs * 1e6:.0f} µs per run, "
            f"{row['values']:.0f} values, peak {row['peak_bytes'] / 2**20:.0f} MiB, Parquet {size / 2**20:.1f} MiB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, help="directory of a real run to make summaries from")
    parser.add_argument("--out", type=Path, default=Path("tmp/history"))
    parser.add_argument("--runs", type=int, nargs="*", default=[10_000])
    options = parser.parse_args()
    for runs in options.runs:
        measure_index(options.source, options.out, runs)
    print(f"peak of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
