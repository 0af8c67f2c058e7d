"""The simulator against a measured curve: fitted to the steps of some load points, compared at the others.

    python -m benchmarks.serving_curve --measure DIR --vllm .venv-vllm/bin/vllm      # about two minutes on a quiet machine
    python -m benchmarks.serving_curve DIR [--fit 1,8]                               # an existing run

``--measure`` runs ``llm-perf-opt serve`` with the server on one core and the client on another (``--cores``). Each concurrency is measured
twice, in one order and then in the opposite one, so that a machine that becomes slower does so for all of them; the two are averaged. ``--fit``
names the concurrencies whose steps are used, by default the first and the last. The exit code is 1 if TTFT, TPOT or E2E of a load that was
not used for the fit is off by more than 20 %.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.generated import markdown_table
from llm_perf_opt.analysis.serving.section import analyse_serving, steps_of_loads
from llm_perf_opt.core import units
from llm_perf_opt.summary.file import load_summary
from llm_perf_opt.summary.serving import LatencyStat, LoadPoint
from llm_perf_opt.what_if.recorded import RecordedTimes, fit_steps, read_run, recorded_limits, way_of
from llm_perf_opt.what_if.serving import ServingQuery, ServingRow, fill_row
from llm_perf_opt.what_if.simulate import Load

MOST_ERROR = 0.20


def measure(out: Path, vllm: Path, cores: tuple[str, str], levels: list[int], requests: int) -> None:
    """Measure a curve with server and client on separate cores."""
    server, client = cores
    order = ",".join(map(str, [*levels, *reversed(levels)]))
    command = [
        "taskset", "-c", client, sys.executable, "-m", "llm_perf_opt", "serve", "--out", str(out), "--engine", "vllm", "--model", "llama_tiny",
        "--concurrency", order, "--requests", str(requests), "--prompt-tokens", "128", "--new-tokens", "32",
        "--env", f"VLLM_CPU_OMP_THREADS_BIND={server}", "hardware.probe=false", "pipeline.serve.certify=false",
        f"pipeline.serve.executable=[taskset,-c,'{server}',{vllm.absolute()}]",
    ]  # fmt: skip
    subprocess.run(command, check=True)


def averaged(points: list[LoadPoint], name: str) -> float | None:
    """Return the mean of a latency over the measurements of one load."""
    held: list[LatencyStat | None] = [getattr(point, name) for point in points]
    means = [one.mean for one in held if one is not None and one.mean is not None]
    return sum(means) / len(means) if len(means) == len(points) else None


def compare(run: Path, wanted: list[int] | None) -> bool:
    """Print measured and simulated figures next to each other; return whether predicted ones are within the limit."""
    summary, records = load_summary(run), read_run(run)
    if records is None or summary.serving is None:
        raise SystemExit("the run has no step records")
    found = analyse_serving(records)
    if found.steps is None:
        raise SystemExit("the run has no step records")
    points: dict[int, list[tuple[int, LoadPoint]]] = {}
    for number, point in enumerate(summary.serving.load):
        points.setdefault(int(point.concurrency or 0), []).append((number, point))
    levels = list(points)
    chosen = wanted or [levels[0], levels[-1]]
    rows = steps_of_loads(found)
    used = np.any([rows[number] for level in chosen for number, _ in points[level]], axis=0)
    fit = fit_steps(found.steps, used)
    print(fit)
    # The way to the engine and back is recorded at the loads of the fit, too.
    summary.serving.load = [point for level in chosen for _, point in points[level]]
    way_s, within, is_steady, table = way_of(summary), True, True, []
    for level, held in points.items():
        measured = [point for _, point in held]
        load = Load(
            round(measured[0].prompt_tokens or 1),
            round(measured[0].output_tokens or 1),
            concurrency=level,
            requests=measured[0].requests,
        )
        query = ServingQuery(load.prompt_tokens, load.new_tokens, concurrency=[level])
        row = ServingRow("", "", 1, load.prompt_tokens, load.new_tokens, level)
        fill_row(row, load, recorded_limits(run, query), lambda end: RecordedTimes(fit, end, way_s), query)
        cells = []
        for ours, name in (
            (row.ttft_expected_s, "ttft_s"),
            (row.itl_expected_s, "tpot_s"),
            (row.e2e_expected_s, "e2e_s"),
        ):
            theirs = averaged(measured, name)
            error = ours / theirs - 1 if ours is not None and theirs else None
            within &= level in chosen or (error is not None and abs(error) <= MOST_ERROR)
            shown = f" ({error:+.0%})" if error is not None else ""
            cells.append(f"{units.seconds(ours)} / {units.seconds(theirs)}{shown}")
        spread = [point.e2e_s.mean for point in measured if point.e2e_s is not None and point.e2e_s.mean]
        drift = max(spread) / min(spread) - 1 if spread else 0.0
        is_steady &= drift <= MOST_ERROR
        table.append([str(level), "fitted" if level in chosen else "predicted", *cells, f"{drift:.0%}"])
    print(
        markdown_table(
            ["in flight", "steps", "TTFT", "TPOT", "E2E", "E2E differs between measurements"], table
        )
    )
    if not is_steady:
        print("Not conclusive: the machine did not run at the same speed in both measurements of a load.")
    return within


def main() -> int:
    """Measure if asked to, and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="run directory; with --measure the one to make")
    parser.add_argument("--measure", action="store_true", help="measure the curve first")
    parser.add_argument("--vllm", type=Path, default=Path(".venv-vllm/bin/vllm"), help="program of vLLM")
    parser.add_argument("--cores", default="0:1", help="core of the server : core of the client")
    parser.add_argument("--concurrency", default="1,2,4,8")
    parser.add_argument("--requests", type=int, default=32, help="of each load point")
    parser.add_argument("--fit", help="concurrencies whose steps are used, with commas")
    options = parser.parse_args()
    if options.measure:
        server, _, client = options.cores.partition(":")
        levels = [int(part) for part in options.concurrency.split(",")]
        measure(options.run, options.vllm, (server, client), levels, options.requests)
    within = compare(options.run, [int(part) for part in options.fit.split(",")] if options.fit else None)
    print(f"predicted loads within {MOST_ERROR:.0%}: {'yes' if within else 'no'}")
    return int(not within)


if __name__ == "__main__":
    sys.exit(main())
