"""Many runs over time as plain values: rows of the index, and the JSON of ``llm-perf-opt history``.

``None`` means "not known".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from llm_perf_opt.summary.statistics import Better

SCHEMA_VERSION = "1.0"
Outcome = Literal["better", "worse", "changed"]


SHARED = "the device was shared"
"""Begin of the reason why a run is left out unless ``--include-shared`` is given."""


@dataclass(slots=True)
class RunRow:
    """One row of ``runs.parquet``; the names of the fields are those of the columns."""

    run: str
    """Directory of the run, relative to the indexed directory: the key of the index."""
    summary_size: int
    """Bytes of its ``summary.json``; with the next two it tells whether the file changed since."""
    summary_mtime_ns: int
    summary_path: str
    """The file, relative to the indexed directory."""
    id: str
    status: str
    started: str
    """As the run wrote it (ISO 8601)."""
    started_s: float | None
    """Seconds since 1970 (UTC); ``None``: the text is no time."""
    clock_ahead_s: float | None
    """How long before its own start the summary was written: more than a moment means that clocks disagree."""
    seconds: float | None
    machine: str
    """Device, processor and cores: runs on machines that are alike count as one machine."""
    device: str | None
    hardware: str | None
    model: str | None
    architecture: str | None
    dtype: str | None
    weights: str | None
    batch_size: float | None
    samples: int | None
    prompt_tokens: float | None
    new_tokens: float | None
    cache: str | None
    compiled: bool | None
    config_hash: str
    """Of ``settings``: equal where two runs were asked to measure the same."""
    settings: str
    """JSON: the settings that say what is measured and are not the default."""
    shared: str | None
    """Why the device was not this run's alone; ``None``: it was, or nobody looked."""
    commit: str | None
    """Of the repository the run was started in."""
    version: str | None
    """Of this tool."""
    torch: str | None
    transformers: str | None
    python: str | None
    driver: str | None
    versions: str
    """JSON: every version that ``env.json`` names."""
    schema_version: str


@dataclass(slots=True)
class MetricRow:
    """One row of ``metrics.parquet``."""

    run: str
    name: str
    phase: str | None
    statistic: str
    """``median``, ``p5``, ``p95``, ``mean``, ``std``, ``n``; ``value`` for what was measured once."""
    value: float
    unit: str
    """``s``, ``1/s``, ``ratio``, ``count``, ``bytes``, ``W``, ``J``, …"""


@dataclass(slots=True)
class FindingRow:
    """One row of ``findings.parquet``: what a search (``improve``) says of one finding it tried remedies of."""

    search: str
    """Directory of the search, relative to the indexed directory."""
    file_size: int
    """Bytes of its ``improve.json``; with the next it tells whether the file changed since."""
    file_mtime_ns: int
    started: str
    """As the search wrote it (ISO 8601)."""
    device: str | None
    """Name of the hardware, as in ``runs.parquet`` (``hardware``)."""
    model: str | None
    metric: str
    finding: str
    phase: str | None
    grade: str
    """``confirmed``, ``partly``, ``wrong``, ``not shown``."""
    predicted_gain_s: float | None
    measured_gain_s: float | None
    helped: int
    """Remedies of this finding that helped …"""
    tried: int
    """… of so many."""


@dataclass(slots=True)
class FindingRecord:
    """How well the advice of one rule did on one machine, over all searches."""

    finding: str
    phase: str | None
    device: str | None
    trials: int
    """Searches that could tell."""
    helped: int
    """Of these, searches in which a remedy helped."""
    not_shown: int
    """Searches that could not tell."""
    predicted_gain_s: float | None
    """Median of the upper bounds that the findings named."""
    measured_gain_s: float | None
    """Median of what the best remedy gave."""
    last: str | None
    """When the latest search began."""


@dataclass(slots=True)
class LeftOut:
    """A file or directory that is no part of the index or of a trend, and why."""

    path: str
    reason: str
    size: int | None = None
    mtime_ns: int | None = None


@dataclass(slots=True)
class IndexInfo:
    """``index.json``: what the Parquet files next to it hold."""

    directory: str
    runs: int = 0
    metrics: int = 0
    findings: int = 0
    """Rows of ``findings.parquet``."""
    left_out: list[LeftOut] = field(default_factory=list)
    version: str | None = None
    """Of this tool: what another release read, or could not read, is read again."""
    schema_version: str = SCHEMA_VERSION


@dataclass(slots=True)
class Point:
    """One run in a trend."""

    run: str
    started: str
    value: float
    low: float | None
    """95 % interval by the run's own repeats; ``None``: it has too few."""
    high: float | None
    commit: str | None
    version: str | None


@dataclass(slots=True)
class CoincidentChange:
    """Something recorded that differs between the last run before a change and the first after it."""

    what: str
    before: str | None
    after: str | None


@dataclass(slots=True)
class Change:
    """A change of level."""

    place: int
    """Index in ``points`` of the first run after it."""
    earliest: int
    """The change may have come at any place from here …"""
    latest: int
    """… to here, as far as the values tell (95 %)."""
    before: float
    """Median of the runs up to it, back to the change before."""
    after: float
    ratio: float
    """After ÷ before: Hodges–Lehmann estimate."""
    low_ratio: float
    high_ratio: float
    p_value: float
    outcome: Outcome
    came_with: list[CoincidentChange]
    doubt: str | None = None
    """Why the change is less certain (the name is a key of ``history.json``)."""


@dataclass(slots=True)
class Trend:
    """One metric of one configuration on one machine."""

    metric: str
    phase: str | None
    unit: str
    better: Better | None
    machine: str
    config_hash: str
    label: str
    """Model and the settings that are not the default."""
    points: list[Point]
    changes: list[Change]
    reason: str | None = None
    """Why no change was looked for; ``None``: it was."""
    older: int = 0
    """Runs before the first of ``points`` that were not looked at."""
    drift_ratio: float | None = None
    """Last ÷ first run by a straight line, where that describes the runs better than any step."""
    wanders: bool = False
    """Whether the level is a random walk: only abrupt changes are shown then (the name is a key of ``history.json``)."""


@dataclass(slots=True)
class HistoryMethod:
    """How changes of level were found, so that they can be found again."""

    name: str
    alpha: float
    permutations: int
    seed: int
    least_runs: int
    least_side: int
    least_change_ratio: float
    tested: int
    """Trends that were tested: with nothing changed, about ``alpha`` of them show a change all the same."""


@dataclass(slots=True)
class History:
    """The root of ``history.json``."""

    directory: str
    runs: int
    trends: list[Trend]
    method: HistoryMethod
    left_out: list[LeftOut] = field(default_factory=list)
    """Not in the index, or in no trend."""
    findings: list[FindingRecord] = field(default_factory=list)
    """The track record of advice, by rule and machine."""
    schema_version: str = SCHEMA_VERSION
