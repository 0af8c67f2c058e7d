"""The simulator against a measured curve: fitted to the steps of some load points, compared at the others.

Run: ``python -m benchmarks.serving_curve RUN [--fit 1,8]`` with a run of ``llm-perf-opt serve --concurrency 1,2,4,8`` that has step records,
server and client on cores of their own. ``--fit`` names the load points (by concurrency) whose steps are used; the default is the
first and the last.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.generated import markdown_table
from llm_perf_opt.analysis.serving.matching import merge_steps
from llm_perf_opt.captures.serving.records import ServingRecords, StepRows, Steps
from llm_perf_opt.core import units
from llm_perf_opt.summary.file import load_summary
from llm_perf_opt.what_if.recorded import RecordedTimes, fit_steps, read_run, recorded_limits, way_of
from llm_perf_opt.what_if.serving import ServingQuery, ServingRow, fill_row
from llm_perf_opt.what_if.simulate import Load


def chosen_steps(steps: Steps, records: ServingRecords, loads: set[int]) -> Steps:
    """Return the steps within the times of some load points."""
    requests = records.requests
    assert requests is not None
    keep = np.zeros(len(steps), np.bool_)
    for load in loads:
        rows = (requests.load == load) & requests.completed
        first, last = requests.sent_s[rows].min(), (requests.sent_s + requests.e2e_s)[rows].max()
        keep |= (steps.end_s >= first) & (steps.end_s <= last)
    found = StepRows()
    for row in np.flatnonzero(keep).tolist():
        found.add(
            end_s=float(steps.end_s[row]),
            duration_s=float(steps.duration_s[row]),
            prefill=(int(steps.prefill_requests[row]), int(steps.prefill_tokens[row])),
            decode=(int(steps.decode_requests[row]), int(steps.decode_tokens[row])),
        )
    return found.table()


def main() -> None:
    """Print measured and simulated figures side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--fit", help="concurrencies whose steps are used, with commas")
    options = parser.parse_args()
    summary, records = load_summary(options.run), read_run(options.run)
    if records is None or summary.serving is None or records.requests is None:
        raise SystemExit("the run has no step records")
    steps = merge_steps(records.steps)
    assert steps is not None
    points = summary.serving.load
    levels = [int(point.concurrency or 0) for point in points]
    wanted = [int(part) for part in options.fit.split(",")] if options.fit else [levels[0], levels[-1]]
    fit = fit_steps(chosen_steps(steps, records, {levels.index(level) for level in wanted}))
    print(fit)
    rows = []
    for level, point in zip(levels, points, strict=True):
        load = Load(
            round(point.prompt_tokens or 1),
            round(point.output_tokens or 1),
            concurrency=level,
            requests=point.requests,
        )
        query = replace(ServingQuery(load.prompt_tokens, load.new_tokens), concurrency=[level])
        row = ServingRow("", "", 1, load.prompt_tokens, load.new_tokens, level)
        way_s = way_of(summary)
        fill_row(
            row,
            load,
            recorded_limits(options.run, query),
            lambda end: RecordedTimes(fit, end, way_s),  # noqa: B023 (used at once)
            query,
        )
        pairs = (
            (row.ttft_expected_s, point.ttft_s.mean if point.ttft_s else None),
            (row.itl_expected_s, point.tpot_s.mean if point.tpot_s else None),
            (row.e2e_expected_s, point.e2e_s.mean if point.e2e_s else None),
        )
        cells = [
            f"{units.seconds(ours)} / {units.seconds(theirs)} ({ours / theirs - 1:+.0%})"
            for ours, theirs in pairs
            if ours is not None and theirs
        ]
        ratio = (row.tokens_per_s or 0.0) / (point.tokens_per_s or 1.0) - 1
        used = "fitted" if level in wanted else "predicted"
        rows.append(
            [str(level), used, *cells, f"{row.tokens_per_s:.0f} / {point.tokens_per_s:.0f} ({ratio:+.0%})"]
        )
    print(markdown_table(["in flight", "steps", "TTFT", "TPOT", "E2E", "tokens/s"], rows))


if __name__ == "__main__":
    main()
