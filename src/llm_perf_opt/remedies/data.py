"""What ``llm-perf-opt improve`` found, as plain values: ``improve.json``.

The baseline is A, a remedy is B; every change is B ÷ A − 1 of the metric, so that a gain in time is below zero. ``None``
means "not known".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.phases import BEFORE_PREFILL, DECODE, MIXED, PREFILL
from llm_perf_opt.summary.codec import decode_file, save_json
from llm_perf_opt.summary.statistics import SEQUENTIAL_TEST, StoppingRule, TrialVerdict


def holds_phase(metric: str, phase: str | None) -> bool:
    """Return whether a change in a phase changes the metric; ``None``: the finding is about all of the run."""
    return phase is None or phase in _PHASES.get(metric, (phase,))


_PHASES: dict[str, tuple[str, ...]] = {
    "ttft": (*BEFORE_PREFILL, PREFILL, MIXED),
    "tpot": (DECODE, MIXED),
}
"""What a metric of a part of the answer contains; all others contain everything."""
METRICS: tuple[Metric, ...] = ("total", "ttft", "tpot", "tokens_per_s", "energy")
SERVING_METRICS: tuple[Metric, ...] = (
    "goodput",
    "tokens_per_s",
    "ttft_p50",
    "ttft_p90",
    "ttft_p99",
    "tpot_p50",
    "tpot_p90",
    "tpot_p99",
    "e2e_p50",
    "e2e_p90",
    "e2e_p99",
)
"""Of a search over the options of a server."""
SCHEMA_VERSION = "1.0"
FILE_NAME = "improve.json"
EXPERIMENTS = "experiments"
"""Folder of a search that holds its experiments: their sides are no runs of their own."""
TIME_IS_OVER = "the time budget was used up"
"""Why a remedy was not tried that another budget would try."""
SPEC = "spec.json"
"""What an experiment measures; in its folder."""
Metric = Literal[
    "total",
    "ttft",
    "tpot",
    "tokens_per_s",
    "energy",
    "goodput",
    "ttft_p50",
    "ttft_p90",
    "ttft_p99",
    "tpot_p50",
    "tpot_p90",
    "tpot_p99",
    "e2e_p50",
    "e2e_p90",
    "e2e_p99",
]
"""The first five are of a workload, ``tokens_per_s`` and the rest of a server under load (percentiles over requests)."""
Decision = Literal["keep", "drop", "ask", "failed"]
OutputResult = Literal["equal", "differs", "failed"]
Effect = Literal["nothing", "rounding", "quality"]
"""What a remedy may do to the answer: leave it, change the last bits of its arithmetic, or change what the model is."""
EFFECTS: tuple[Effect, ...] = ("nothing", "rounding", "quality")
"""From least to most."""
PredictedBy = Literal["bound", "measured operators", "roofline"]
"""``bound``: the finding's upper bound; ``measured operators``: expected times of which at least half of a step rests on tables
of measured operators; ``roofline``: expected times of which less does."""
Role = Literal["single", "combination", "confirmation"]
Grade = Literal["confirmed", "partly", "wrong", "not shown"]
Status = Literal["complete", "out of time", "interrupted"]
_SearchKind = Literal["greedy", "optuna"]
"""Singles, then together one by one; or combinations that Optuna proposes."""


@dataclass(slots=True)
class Measured:
    """A change of the metric with its interval, which holds however often it was looked at."""

    change_ratio: float
    """B ÷ A − 1."""
    low: float
    high: float
    blocks: int
    """Pairs of neighbouring passes that were compared."""
    a: float
    """Median of the metric on A's side of this experiment, in its unit."""
    b: float
    verdict: TrialVerdict
    confidence_ratio: float
    """Of both ends of this interval alone. All ends on one side hold together at 1 − the family error of the method, both ends of
    all intervals at 1 − twice the family error; those of ``slower`` and ``no gain`` have an error of 5 % at each end instead."""
    processes: int = 1
    """Processes (or pairs of them) that were compared; the interval of a gain contains their spread."""
    process_changes: list[float] = field(default_factory=list)
    """B ÷ A − 1 of each process; empty: one process."""


@dataclass(slots=True)
class OutputCheck:
    """What a remedy did to the answers."""

    tokens_equal: bool | None
    samples: int
    """Samples whose answers were compared."""
    differing_samples: int = 0
    first_difference: int | None = None
    """Position (from 1) of the first token that differs, over all samples."""
    first_sample: str | None = None
    largest_logit_difference: float | None = None
    """Over all positions before the first difference, where both sides saw the same text."""
    edit_distance_before_ratio: float | None = None
    """Mean distance to the reference texts, where the data set has some."""
    edit_distance_after_ratio: float | None = None
    perplexity_before: float | None = None
    """Of the prompts, for text models."""
    perplexity_after: float | None = None
    reason: str | None = None
    """Why something could not be checked."""


@dataclass(slots=True)
class Answered:
    """A finding that a remedy answers."""

    finding: str
    phase: str | None
    predicted_gain_s: float | None
    """The finding's upper bound per sample."""


@dataclass(slots=True)
class Trial:
    """One experiment: what was tried, what it should have given, what it gave."""

    remedy: str
    overrides: list[str]
    finding: str | None
    """The finding it answers; ``None``: no finding of this run asked for it."""
    predicted_gain_s: float | None
    """Seconds per sample that it should save, comparable with ``measured_gain_s``; below zero: it should cost."""
    measured: Measured | None
    output: OutputResult
    decision: Decision
    reason: str
    title: str = ""
    phase: str | None = None
    role: Role = "single"
    on_top_of: list[str] = field(default_factory=list)
    """Overrides that both sides had."""
    measured_gain_s: float | None = None
    """Seconds per sample, A − B, by the measured change; only where the metric is a time."""
    effect: Effect = "nothing"
    cost: str = ""
    """What adopting it costs (memory, a warm-up, a dependency)."""
    check: OutputCheck | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    """Change ratios of the other metrics."""
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Their intervals, with an error of 5 % at each end."""
    how: Literal["one process", "own processes"] | None = None
    seconds: float = 0.0
    """What the experiment took."""
    comparison: str | None = None
    """Page of the comparison, relative to this file."""
    patch: bool = False
    """Whether code patched the model in addition to the overrides."""
    answers: list[Answered] = field(default_factory=list)
    """All findings that it answers; ``finding`` is the one with the largest bound."""
    predicted_by: PredictedBy | None = None
    """What ``predicted_gain_s`` is; ``None``: nothing predicts it."""
    predicted_source: str | None = None
    """Frameworks and versions of the tables; with a bound why no table predicts this change of type, batch or ranks."""
    predicted_measured_share_ratio: float | None = None
    """Share of the expected step that rests on measured operators, the smaller of both sides."""
    predicted_change_ratio: float | None = None
    """B ÷ A − 1 of the metric by expected times; ``None`` for bounds."""
    bound_gain_s: float | None = None
    """The finding's upper bound per sample, whatever predicts."""


@dataclass(slots=True)
class NotTried:
    """A remedy that was not tried, and why."""

    remedy: str
    reason: str
    title: str = ""
    finding: str | None = None
    overrides: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Step:
    """A step of the ladder from the baseline to the best."""

    remedy: str
    overrides: list[str]
    value: float
    """The metric after this step."""
    change_ratio: float
    """Against the step before."""


@dataclass(slots=True)
class Baseline:
    """Where the search started."""

    overrides: list[str]
    metric_value: float | None
    ttft_s: float | None = None
    tpot_s: float | None = None
    total_s: float | None = None
    tokens_per_s: float | None = None
    run: str | None = None
    """Run whose findings were tried, relative to this file where it is below it."""
    model: str | None = None
    device: str | None = None
    samples: list[str] = field(default_factory=list)
    """Those that were measured and whose answers were checked."""
    first_finding: Answered | None = None
    """The run's first finding, whose advice is the first thing a reader does; ``None``: it has none."""
    engine: str | None = None
    """The server whose options were searched; ``None``: a workload was. Overrides of trials are then arguments of the server."""
    load: str | None = None
    """The load point at which the server was measured."""


@dataclass(slots=True)
class Best:
    """What to keep, all together."""

    overrides: list[str]
    change_ratio: float | None
    low: float | None
    high: float | None
    output: OutputResult | None = None
    confirmed: bool = False
    """Whether the whole was measured against the baseline once more."""
    command: str | None = None


@dataclass(slots=True)
class FindingGrade:
    """What a finding promised against what its remedies gave."""

    finding: str
    phase: str | None
    predicted_gain_s: float | None
    measured_gain_s: float | None
    """Largest measured gain of its remedies; below zero: all made it slower."""
    helped: int
    tried: int
    grade: Grade
    predicted_by: PredictedBy | None = None
    """What ``predicted_gain_s`` is: of several remedies the largest prediction."""


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How a search decides. Stored as ``method``, so that a search can be repeated and resumed."""

    family_error_ratio: float = 0.05
    """Most probable false keeps over the whole search."""
    tests: int = 0
    """Tests the family error is shared among; a search that is resumed keeps them, and runs no more than these. 0: not
    planned yet."""
    least_gain_ratio: float = 0.02
    """A smaller gain counts as none."""
    most_blocks: int = 80
    """Most pairs of passes of one experiment."""
    seed: int = 20240229
    """Seed of the order of passes."""
    bound: str = SEQUENTIAL_TEST
    """Description of the statistical test."""
    search: _SearchKind = "greedy"
    only: list[str] = field(default_factory=list)
    """Remedies and findings that were asked for (``--only``); empty: all."""
    own: list[str] = field(default_factory=list)
    """The user's own remedies (``--try``), each a line of overrides."""
    most_samples: int = 4
    """Samples that are measured and whose answers are compared."""
    processes: int = 3
    """Processes, or pairs of them, that a gain must hold in."""
    allow: Effect = "nothing"
    """Changes of the answers that may be kept (``--allow``): ``rounding`` lets remedies that only round differently change tokens,
    ``quality`` also those that may make answers worse."""

    def rule(self, alpha: float, widest_ratio: float | None = None, *, fixed: bool = False) -> StoppingRule:
        """Return when an experiment with this share of the family error ends."""
        return StoppingRule(alpha, self.least_gain_ratio, self.most_blocks, widest_ratio, fixed)


@dataclass(slots=True)
class Improvement:
    """The root of ``improve.json``."""

    metric: Metric
    baseline: Baseline
    method: SearchSettings
    best: Best
    schema_version: str = SCHEMA_VERSION
    status: Status = "complete"
    started: str = ""
    seconds: float = 0.0
    budget_s: float | None = None
    machine: str | None = None
    tried: list[Trial] = field(default_factory=list)
    not_tried: list[NotTried] = field(default_factory=list)
    ladder: list[Step] = field(default_factory=list)
    grades: list[FindingGrade] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def save_improvement(result: Improvement, folder: Path) -> Path:
    """Write ``improve.json``, whole or not at all."""
    return save_json(folder / FILE_NAME, result)


def load_improvement(path: Path) -> Improvement:
    """Read ``improve.json`` of a folder (or the file itself)."""
    path = path / FILE_NAME if path.is_dir() else path
    result = decode_file(path, Improvement, hint="give a directory made by `llm-perf-opt improve`")
    if result.schema_version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
        raise InputError(
            f"{path} has schema version {result.schema_version}, this program reads {SCHEMA_VERSION}",
            hint="read it with the release that wrote it",
            path=str(path),
        )
    return result
