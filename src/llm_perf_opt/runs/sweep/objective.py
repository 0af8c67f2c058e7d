"""``sweep.objective``: what a job returns to a sweeper that chooses the next ones by it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.analysis.sweep.metrics import METRICS, Measured, job_metrics, metric_named
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.core.nearest import nearest_key
from llm_perf_opt.core.run_directory import layout
from llm_perf_opt.model.codec import decode_file
from llm_perf_opt.runs.records.manifest import read_manifest

Objective = str
"""The whole name of a metric."""


def checked_objective(names: Sequence[str]) -> list[Objective]:
    """Return whole names of metrics; :class:`ConfigError` for one that is none."""
    found = []
    for name in names:
        known = metric_named(name)
        if known is None:
            near = nearest_key(name, METRICS)
            raise ConfigError(
                f"sweep.objective: there is no metric '{name}'",
                hint=f"did you mean '{near}'?" if near else f"one of {', '.join(METRICS)}",
                key="sweep.objective",
            )
        found.append(known)
    return found


def objective_values(run_dir: Path, names: Sequence[Objective]) -> list[float] | float | None:
    """Read the objective of a job from its summary; ``None``: it is not ok or has none, and the sweeper counts it as failed."""
    if not names:
        return None
    try:
        if read_manifest(run_dir).status != "ok":
            return None
        metrics = job_metrics(decode_file(run_dir / layout.SUMMARY, Measured))
    except InputError:
        return None
    if any(name not in metrics for name in names):
        return None
    values = [metrics[name].value for name in names]
    return values if len(values) > 1 else values[0]
