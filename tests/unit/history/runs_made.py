"""Small finished runs on disk, for tests of the index."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from llm_perf_opt.history import store
from llm_perf_opt.history.data import RunRow
from llm_perf_opt.history.rows import seconds_since_1970
from llm_perf_opt.summary import Hardware, RunInfo, RunStatus, Summary, Timings, Workload
from llm_perf_opt.summary.file import save_summary
from llm_perf_opt.summary.statistics import describe


def make_run(
    root: Path,
    name: str,
    *,
    tpot_s: float = 0.01,
    day: int = 1,
    status: RunStatus = "ok",
    config: str | None = "model:\n  name: tiny\n",
    dtype: str = "float32",
    cpu: str = "a processor",
    ranks: int | None = None,
    **environment: Any,
) -> Path:
    """Write ``summary.json`` (and ``config.yaml``) of a run that began on a day of January 2026."""
    started = f"2026-01-{day:02d}T10:00:00+00:00"
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    stat = describe([tpot_s * 0.99, tpot_s, tpot_s * 1.01])
    summary = Summary(
        RunInfo(folder.name, status, started, 2.0, ["llm-perf-opt", "run"]),
        {
            "llm_perf_opt": "1.0",
            "cpu": {"name": cpu, "cores": 2},
            "packages": {"torch": "2.13"},
            **environment,
        },
        Hardware(cpu, "cpu", {}, None, "none"),
        Workload(model="tiny", device="cpu", dtype=dtype, batch_size=1, ranks=ranks),
        timings=Timings(tpot_s=stat, interval_ratio=0.02),
    )
    path = save_summary(summary, folder)
    if config is not None:
        (folder / "config.yaml").write_text(f"{config}artifacts:\n  runs_dir: {folder}\n", encoding="utf-8")
    # Written a moment after it began, as real ones are.
    written = (seconds_since_1970(started) or 0.0) + 2
    os.utime(path, (written, written))
    return folder


def read_runs(folder: Path) -> list[RunRow]:
    """Return the runs of an index, in the order of their directories."""
    return sorted(store.iter_runs(folder), key=lambda row: row.run)
