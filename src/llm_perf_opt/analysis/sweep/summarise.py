"""All jobs of a sweep together: effects of keys, fronts, the best."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.analysis.sweep.effects import swept_keys
from llm_perf_opt.analysis.sweep.fronts import best_jobs, fronts
from llm_perf_opt.analysis.sweep.metrics import FLOORS, HEADLINE
from llm_perf_opt.model.sweep import Sweep, SweepJob, count_statuses


def shown_metrics(jobs: Sequence[SweepJob]) -> list[str]:
    """Return the main metrics that any job has; where none was measured, the floors."""
    present = {name for job in jobs for name in job.metrics}
    return [name for name in HEADLINE if name in present] or [name for name in FLOORS if name in present]


def complete(sweep: Sweep) -> Sweep:
    """Fill in what follows from the jobs."""
    sweep.counts = count_statuses(sweep.jobs)
    sweep.keys = swept_keys(sweep.jobs, shown_metrics(sweep.jobs))
    sweep.pareto = fronts(sweep.jobs)
    sweep.best = best_jobs(sweep.jobs)
    started = [job.started for job in sweep.jobs if job.started]
    sweep.started = min(started, default=None)
    return sweep
