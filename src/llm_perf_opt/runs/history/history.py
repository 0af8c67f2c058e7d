"""The history of the runs in an index: trends, and the changes of level in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from llm_perf_opt.analysis.history.flatten import PASS_INTERVAL
from llm_perf_opt.analysis.history.record import track_records
from llm_perf_opt.analysis.history.trends import Value, make_trends, method, usable_runs
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.nearest import nearest_key
from llm_perf_opt.model.history import History, RunRow
from llm_perf_opt.runs.history import store

DEFAULT_METRICS = ("tpot", "ttft", "program")
_LEVELS = ("median", "value")


def make_history(folder: Path, metrics: Sequence[str], *, model: str | None = None) -> History:
    """Read an index and follow the metrics in it; ``metrics`` empty: those most look at."""
    info = store.read_info(folder)
    kept, left_out = usable_runs(store.iter_runs(folder, None if model is None else pl.col("model") == model))
    runs = store.count_runs(folder)
    wanted = list(metrics) or list(DEFAULT_METRICS)
    if metrics and runs:
        _check_names(folder, wanted)
    trends = make_trends(kept, read_values(folder, wanted, kept))
    findings = [row for row in store.read_findings(folder) if model is None or row.model == model]
    return History(
        info.directory,
        runs,
        trends,
        method(trends),
        [*info.left_out, *sorted(left_out, key=lambda entry: entry.path)],
        track_records(findings),
    )


def read_values(folder: Path, metrics: Sequence[str], runs: Sequence[RunRow]) -> list[Value]:
    """Return the level of metrics in some runs, with the interval of each run's own repeats."""
    of_runs = pl.DataFrame({"run": [row.run for row in runs]}, schema={"run": pl.String()}).lazy()
    scanned = store.scan_metrics(folder).join(of_runs, on="run", how="semi")
    levels = scanned.filter(pl.col("name").is_in(list(metrics)) & pl.col("statistic").is_in(_LEVELS))
    widths = dict(
        scanned.filter(pl.col("name") == PASS_INTERVAL).select("run", "value").collect().iter_rows()
    )
    return [
        Value(row["run"], row["name"], row["phase"], row["unit"], row["value"], widths.get(row["run"]))
        for row in levels.collect().iter_rows(named=True)
    ]


def _check_names(folder: Path, wanted: Sequence[str]) -> None:
    known = set(store.scan_metrics(folder).select(pl.col("name").unique()).collect()["name"])
    for name in wanted:
        if name not in known:
            near = nearest_key(name, known)
            hint = f"did you mean '{near}'?" if near else f"this index has {', '.join(sorted(known)[:30])}"
            raise ConfigError(f"--metric {name}: no run has it", hint=hint, key=name)
