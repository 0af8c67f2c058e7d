"""The sentences of a sweep."""

from __future__ import annotations

import shlex

from llm_perf_opt.analysis.sweep.metrics import METRICS
from llm_perf_opt.model.sweep import Sweep
from llm_perf_opt.reporting.sweep import tables

EFFECTS = (
    "Each value is compared with the first one of its key, between jobs that are equal in every other key; the change is "
    "the geometric mean over such pairs. From three pairs on its interval is Student's over the pairs, below that it "
    "comes from the intervals of the measurements."
)
NO_EFFECTS = "too many for a comparison of each; the trade-offs and the table of jobs have them."
METHOD = (
    "Read from the manifest and the summary of each job, whoever started them. A value is the median over what the job "
    "measured, with the 95 % interval of that median. A job is killed where its manifest says that it runs and its "
    "process does not live any more. Made again with: llm-perf-opt sweep-report DIR."
)


def heading(sweep: Sweep) -> str:
    """Name the sweep by its directory."""
    return f"Sweep {sweep.directory.rstrip('/').rpartition('/')[2]}"


def sentence(sweep: Sweep) -> str:
    """Say how it went and which job is best."""
    said = f"{tables.counts_text(sweep)}."
    if sweep.best:
        best = next((each for each in sweep.best if each.metric == "tokens_per_s"), sweep.best[0])
        job = tables.jobs_by_number(sweep)[best.job]
        value = tables.formatter(best.metric)(best.value)
        tied = f", not told apart from {len(best.tied)} other(s)" if best.tied else ""
        title = METRICS[best.metric].title
        said += f" Best by {title[0].lower()}{title[1:]}: {tables.job_name(sweep, job)} ({value}{tied})."
    return said


def facts(sweep: Sweep) -> list[tuple[str, str]]:
    """Return what the sweep is about, label by label."""
    keys = "; ".join(f"{key} ({len(swept.values)} values)" for key, swept in sweep.keys.items())
    pairs = [
        ("Swept", keys or "nothing: all jobs have the same settings"),
        ("Launcher", sweep.launcher),
        ("Began", sweep.started),
        ("Directory", sweep.directory),
        ("Command", shlex.join(sweep.command) if sweep.command else None),
    ]
    return [(label, value) for label, value in pairs if value]


def trouble(sweep: Sweep) -> list[tuple[str, str]]:
    """Say what did not finish, and what to do."""
    found = []
    bad = tables.bad_jobs(sweep)
    if bad:
        found.append(
            (
                f"{len(bad)} of {len(sweep.jobs)} jobs did not finish",
                f"Their reasons are below; run them again with: llm-perf-opt run --resume={sweep.directory}",
            )
        )
    waiting = sum(sweep.counts.get(status, 0) for status in ("running", "pending"))
    if waiting:
        found.append((f"{waiting} jobs run or have not begun", "This page is of the moment it was made."))
    return found
