"""How long ``sweep-report`` takes over many jobs, and how much memory: generated job directories, one process each.

    python benchmarks/sweep_report.py [--jobs 1000 2000 5000 10000] [--summary-kb 120]

Every job has a manifest and a summary of the given size, of which the report needs a few numbers. Time must grow no
faster than the jobs (a factor of 1.3 between the shortest and the longest time per job is allowed), and memory by no more
than a few kB per job. The exit code is 1 where either does not hold.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MOST_TIME_FACTOR = 1.3
MOST_BYTES_PER_JOB = 40_000


def make_sweep(folder: Path, jobs: int, summary_kb: int, seed: int = 0) -> None:
    """Write a plan and so many finished jobs; one in fifty failed, one in a hundred is gone."""
    generator = random.Random(seed)
    filler = [
        {"name": f"kernel_{n}", "total_s": n * 1e-6, "launches": n, "counters": {"dram_ratio": 0.5}}
        for n in range(summary_kb * 1000 // 85)
    ]
    rest = json.dumps(filler)
    planned = []
    for number in range(jobs):
        overrides = [
            f"infer.batch_size={2 ** (number % 5)}",
            f"model.dtype={('float32', 'bfloat16')[number // 5 % 2]}",
            f"infer.max_new_tokens={16 * (1 + number // 10 % 10)}",
            f"model.seed={number // 100}",
        ]
        planned.append(
            {"number": number, "directory": str(number), "overrides": overrides, "config_hash": "0"}
        )
        if number % 100 == 99:
            continue
        job = folder / str(number)
        job.mkdir()
        status = "failed" if number % 50 == 0 else "ok"
        stages = {"direct_inference": {"status": status, "reason": "planned" if status == "failed" else None}}
        manifest = {
            "run_id": str(number),
            "started": "2026-01-01T00:00:00+00:00",
            "command": ["llm-perf-opt", "run", *overrides],
            "status": status,
            "stages": stages,
            "sweep": {"id": "generated", "directory": str(number)},
            "config_hash": "0",
        }
        (job / "manifest.json").write_text(json.dumps(manifest))
        batch = 2 ** (number % 5)
        tpot = 0.01 * batch**0.3 * generator.lognormvariate(0, 0.02)
        values = {"tpot_s": tpot, "ttft_s": 10 * tpot, "tokens_per_s": batch / tpot}
        timings = {
            name: {"median": v, "p5": v * 0.95, "p95": v * 1.05, "mean": v, "std": v * 0.03, "n": 12}
            for name, v in values.items()
        }
        memory = {"all": {"peak_bytes": batch * 1e9}}
        head = json.dumps({"schema_version": "1.1", "timings": timings, "memory": memory})
        (job / "summary.json").write_text(f'{head[:-1]}, "kernels": {rest}}}')
    plan = {"id": "generated", "created": "2026-01-01T00:00:00+00:00", "launcher": "slurm", "overrides": []}
    (folder / "sweep_plan.json").write_text(json.dumps({**plan, "jobs": planned}))


def measure(jobs: int, summary_kb: int) -> tuple[float, float, int]:
    """Return seconds, peak bytes and the size of the page of one report."""
    with tempfile.TemporaryDirectory(prefix="sweep-bench-") as name:
        make_sweep(Path(name), jobs, summary_kb)
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, str(Path(__file__).resolve()), "--report", name],
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - began
        if done.returncode not in (0, 1) or not done.stdout:
            raise SystemExit(done.stderr)
        return seconds, float(done.stdout.split()[-1]), (Path(name) / "sweep.html").stat().st_size


def _report(folder: str) -> int:
    from llm_perf_opt.sweep.command import main

    code = main(["-q", folder])
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    return code


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, nargs="+", default=[1000, 2000, 5000, 10000])
    parser.add_argument("--summary-kb", type=int, default=120)
    parser.add_argument("--report", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.report:
        return _report(options.report)
    rows = []
    print(f"{'jobs':>7} {'time':>8} {'per job':>9} {'memory':>9} {'page':>8}")
    for jobs in options.jobs:
        seconds, peak, page = measure(jobs, options.summary_kb)
        rows.append((jobs, seconds, peak))
        print(
            f"{jobs:>7} {seconds:>6.1f} s {seconds / jobs * 1e3:>6.2f} ms {peak / 2**20:>5.0f} MiB {page / 1e6:>5.1f} MB",
            flush=True,
        )
    first, last = rows[0], rows[-1]
    per_job = [seconds / jobs for jobs, seconds, _ in rows]
    growth = (last[2] - first[2]) / max(last[0] - first[0], 1)
    print(
        f"memory per job: {growth / 1e3:.1f} kB; slowest ÷ first time per job: {max(per_job) / per_job[0]:.2f}"
    )
    return int(max(per_job) / per_job[0] > MOST_TIME_FACTOR or growth > MOST_BYTES_PER_JOB)


if __name__ == "__main__":
    sys.exit(main())
