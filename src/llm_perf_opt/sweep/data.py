"""``sweep.json`` as types: every job of a sweep, what each swept key changed, and the Pareto-optimal jobs.

Made from the files of the jobs alone, so that it does not depend on how they were started or how the client ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

SCHEMA_VERSION = "1.0"
JobStatus = Literal["ok", "failed", "interrupted", "killed", "running", "pending"]
"""``killed``: its manifest says ``running``, and its process does not live; ``pending``: it has not begun."""
BAD: tuple[JobStatus, ...] = ("failed", "interrupted", "killed")
UNFINISHED: tuple[JobStatus, ...] = ("running", "pending")
Better = Literal["lower", "higher"]


@dataclass(slots=True)
class JobMetric:
    """A metric of one job."""

    value: float
    """As in the report of the job."""
    low: float | None = None
    """Lower end of the 95 % interval of the value; ``None``: too few repeats (fewer than three, or it would be wider than
    a factor of two)."""
    high: float | None = None
    n: int | None = None
    """How many values it is made of."""


@dataclass(slots=True)
class SweepJob:
    """One job."""

    number: int
    overrides: list[str]
    """What was asked of this job and not of all of Hydra."""
    status: JobStatus
    run_dir: str
    """Below the directory of the sweep."""
    reason: str | None = None
    """Why it failed, was interrupted, or is taken for dead."""
    metrics: dict[str, JobMetric] = field(default_factory=dict)
    """By the names of ``summary.json``."""
    seconds: float | None = None
    started: str | None = None
    host: str | None = None
    pid: int | None = None
    config_hash: str | None = None
    shared: str | None = None
    """Why the job had not its device alone; ``None``: it had, or it does not say."""
    report: str | None = None
    """Page of the job, below the directory of the sweep."""


@dataclass(slots=True)
class Effect:
    """What one value of a key does to a metric."""

    value: str
    jobs: int
    """Finished jobs with this value that have the metric."""
    median: float
    """Over those jobs."""
    change_ratio: float | None = None
    """Metric with this value ÷ metric with the first value, between jobs that are equal in every other key."""
    low: float | None = None
    """Lower end of the change's 95 % interval; ``None``: too few repeats or pairs."""
    high: float | None = None
    pairs: int = 0
    """How many such pairs of jobs there are."""


@dataclass(slots=True)
class SweptKey:
    """A key with more than one value."""

    values: list[str]
    """In the order of the jobs; the first is what the others are compared with."""
    effects: dict[str, list[Effect]] = field(default_factory=dict)
    """Metric → one for each value."""


@dataclass(slots=True)
class Front:
    """Jobs that no other job beats in both metrics."""

    x: str
    y: str
    jobs: list[int]
    """Numbers, along ``x``."""
    compared: int
    """Jobs that have both metrics."""


@dataclass(slots=True)
class Best:
    """The best job by one metric."""

    metric: str
    better: Better
    job: int
    value: float
    tied: list[int] = field(default_factory=list)
    """Other jobs whose interval overlaps with the best one's: they cannot be distinguished."""


@dataclass(slots=True)
class LeftOut:
    """Something in the directory that is not a job of this sweep."""

    path: str
    reason: str


@dataclass(slots=True)
class Sweep:
    """The whole sweep."""

    id: str
    directory: str
    launcher: str | None
    command: list[str]
    jobs: list[SweepJob]
    keys: dict[str, SweptKey] = field(default_factory=dict)
    pareto: list[Front] = field(default_factory=list)
    best: list[Best] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    """Status → number of jobs."""
    left_out: list[LeftOut] = field(default_factory=list)
    left_out_count: int = 0
    """How many there are; the list holds the first hundred."""
    notes: list[str] = field(default_factory=list)
    started: str | None = None
    schema_version: str = SCHEMA_VERSION


def count_statuses(jobs: list[SweepJob]) -> dict[str, int]:
    """Return status → number of jobs, in the order of :data:`JobStatus`."""
    order = ("ok", "failed", "interrupted", "killed", "running", "pending")
    found = [job.status for job in jobs]
    return {status: found.count(status) for status in order if status in found}
