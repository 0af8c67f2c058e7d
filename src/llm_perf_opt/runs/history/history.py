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
    rows = store.read_runs(folder)
    kept, left_out = usable_runs(row for row in rows if model is None or row.model == model)
    wanted = list(metrics) or list(DEFAULT_METRICS)
    if metrics:
        _check_names(folder, wanted, rows)
    trends = make_trends(kept, read_values(folder, wanted))
    findings = [row for row in store.read_findings(folder) if model is None or row.model == model]
    return History(
        info.directory,
        len(rows),
        trends,
        method(trends),
        [*info.left_out, *left_out],
        track_records(findings),
    )


def read_values(folder: Path, metrics: Sequence[str]) -> list[Value]:
    """Return the level of metrics in every run, with the interval of the run's own repeats."""
    scanned = store.scan_metrics(folder)
    levels = scanned.filter(
        pl.col("name").is_in(list(metrics)) & pl.col("statistic").is_in(_LEVELS)
    ).collect()
    widths = dict(
        scanned.filter(pl.col("name") == PASS_INTERVAL).select("run", "value").collect().iter_rows()
    )
    return [
        Value(row["run"], row["name"], row["phase"], row["unit"], row["value"], widths.get(row["run"]))
        for row in levels.iter_rows(named=True)
    ]


def _check_names(folder: Path, wanted: Sequence[str], rows: Sequence[RunRow]) -> None:
    known = set(store.scan_metrics(folder).select(pl.col("name").unique()).collect()["name"])
    for name in wanted:
        if name not in known and rows:
            near = nearest_key(name, known)
            hint = f"did you mean '{near}'?" if near else f"this index has {', '.join(sorted(known)[:30])}"
            raise ConfigError(f"--metric {name}: no run has it", hint=hint, key=name)
