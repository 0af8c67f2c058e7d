"""What a stage measured: the one shape in which measurements reach the summary and the report.

A stage fills in what it knows and leaves the rest empty. :func:`merge_facts` merges a list of facts, and
:func:`add_fields` copies fields of the same name and type to the summary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.limits import Number
from llm_perf_opt.summary import Budget, Finding, MemoryUse, Operator, Section, Serving, Static, Telemetry

if TYPE_CHECKING:
    from llm_perf_opt.analysis.intervals import IntervalSet
    from llm_perf_opt.analysis.operators.work import OperatorWork
    from llm_perf_opt.analysis.targets import ShapedCalls, TracedKernel
    from llm_perf_opt.analysis.timeline.attribution import Attribution
    from llm_perf_opt.analysis.timeline.summary import TimelineFacts
    from llm_perf_opt.captures.compile_logs import CompileEvent
    from llm_perf_opt.captures.ncu.launches import NcuCapture
    from llm_perf_opt.captures.timeline import CapturedRange, Int64, KernelTotals, Timeline
    from llm_perf_opt.captures.timings import WallClock
    from llm_perf_opt.summary.static import StaticDocument


NO_DEVICE_EVENTS = "The trace contains no device events"
"""Begins the note that comes first: whatever else is said, it is not about a device."""

# The collectives of one rank, as recorded in captures.


@dataclass(frozen=True, slots=True, eq=False)
class RankCalls:
    """The collectives of one rank."""

    rank: int
    kind: Sequence[str]
    """``all_reduce``, …"""
    start_ns: Int64
    """On the rank's own clock."""
    end_ns: Int64
    bytes: Int64
    """-1: not recorded."""


@dataclass(frozen=True, slots=True, eq=False)
class HostCollectives:
    """The collectives of one rank on its host."""

    rank: int
    size: int | None
    """Ranks of the program."""
    source: str
    span_ns: int
    """Of the working thread, from its first to its last operator."""
    calls: RankCalls
    waiting: IntervalSet
    """The working thread was inside a call of ``torch.distributed``."""


@dataclass(frozen=True, slots=True)
class CaptureOrigin:
    """The process and job of a capture, as far as it is recorded in the capture."""

    path: Path
    tool: str
    rank: int | None = None
    world_size: int | None = None
    devices: frozenset[str] = frozenset()
    """Models of the devices it holds work of."""
    phases: frozenset[str] = frozenset()
    start_ns: int | None = None
    """Of its first event since 1970; ``None`` where its clock has another origin."""
    end_ns: int | None = None


ModulePhase = tuple[str, str]
"""(Module or component, phase)."""


@dataclass(slots=True)
class Capture:
    """One capture of device work, read and analysed once."""

    path: Path
    found: Timeline | KernelTotals
    facts: TimelineFacts
    attribution: Attribution | None = None
    """``None`` for totals, which have no ranges."""
    tool: str = ""
    disturbance: int = 0
    """How much the tool slows the run down, as a rank: captures of the tool that disturbs least are used."""
    covers_run: bool = False
    """Whether it saw all samples that were timed, so that its launches can be divided by their tokens."""
    range: CapturedRange | None = None
    """What a table without a time axis is of, where its name or configuration tells."""
    tables: bool = False
    """Whether tables and a Perfetto timeline are written for it."""


@dataclass(slots=True)
class ProfiledPass:
    """The pass our own profiler stage recorded."""

    sample_ids: list[str]
    new_tokens: int
    active_passes: int
    seconds: float
    """Wall-clock under the profiler, all active passes together."""

    def metrics(self, clock: WallClock | None) -> dict[str, float | None]:
        """Return how many decode steps were recorded, and the slowdown caused by the profiler."""
        steps = self.active_passes * (self.new_tokens - 1)
        found: dict[str, float | None] = {"profiled_decode_steps": float(steps) if steps > 0 else None}
        plain = clock.sample_totals.get("+".join(self.sample_ids)) if clock is not None else None
        # The profiled pass may be cut short; only equal work shows what the profiler costs.
        if plain is not None and plain.new_tokens == self.new_tokens and plain.seconds > 0:
            found["profiled_over_unprofiled_ratio"] = self.seconds / self.active_passes / plain.seconds
        return found


# How two values of a field are merged: (the value so far, the next one) → the merged value, always a new container.


_MergeRule = Callable[[Any, Any], Any]
_RULE = "merge"
TIMINGS = "timings"
"""The source of the wall-clock: :attr:`stages.facts.Part.what` and :attr:`Facts.unreadable`."""


def _missing_keys(ours: Mapping[Any, Any], theirs: Mapping[Any, Any]) -> dict[Any, Any]:
    return {**ours, **{key: value for key, value in theirs.items() if key not in ours}}


def _concatenated(ours: Sequence[Any], theirs: Sequence[Any]) -> list[Any]:
    return [*ours, *theirs]


def _first_value(ours: Any, theirs: Any) -> Any:
    return theirs if ours is None else ours


def _first_rows(ours: Sequence[Any], theirs: Sequence[Any]) -> list[Any]:
    return list(ours or theirs)


def _all_files(
    ours: Mapping[str, tuple[Path, ...]], theirs: Mapping[str, tuple[Path, ...]]
) -> dict[str, tuple[Path, ...]]:
    return {kind: (*ours.get(kind, ()), *theirs.get(kind, ())) for kind in {**ours, **theirs}}


def join_memory(ours: Mapping[str, MemoryUse], theirs: Mapping[str, MemoryUse]) -> dict[str, MemoryUse]:
    """Merge the peaks of two sources: of the same phase, the one that counts everything is kept."""
    merged = dict(ours)
    for phase, use in theirs.items():
        there = merged.get(phase)
        if there is None or (there.counts is None and use.counts is not None):
            merged[phase] = use
    return merged


@dataclass(slots=True)
class Facts:
    """What one stage, or one file of a user, measured.

    Facts of several stages are merged field by field: dicts get the keys they lack, lists are concatenated, of other
    values the first counts. A field with another rule names it.
    """

    stage: str = field(default="", metadata={_RULE: lambda ours, _: ours})
    """The stage; also the folder of the pages made from it."""
    sources: dict[str, tuple[Path, ...]] = field(default_factory=dict, metadata={_RULE: _all_files})
    """Kind of source → files that were read."""
    unreadable: list[str] = field(default_factory=list)
    """Sources that are there and could not be read (``timings``, ``torch trace``); each has a note."""
    notes: list[str] = field(default_factory=list)
    """What the reader must know, and what could not be read."""
    wall_clock: WallClock | None = None
    """Timings without a tool attached."""
    static: Static | None = None
    """The static model at the shapes of the run."""
    static_document: StaticDocument | None = None
    """The whole static analysis, for a page of its own."""
    model: dict[str, str] = field(default_factory=dict)
    """``name``, ``architecture``, ``dtype`` of the model, where known."""
    captures: list[Capture] = field(default_factory=list)
    origins: list[CaptureOrigin] = field(default_factory=list)
    """Where each capture of a timeline comes from: captures of different jobs are not joined."""
    host_collectives: list[HostCollectives] = field(default_factory=list)
    """Of ranks that talk on the host (gloo), where no device was captured."""
    recordings: list[Path] = field(default_factory=list)
    """Traces of graphs being recorded: they say whose kernels a graph launch runs, and nothing of how long they take."""
    operators: list[Operator] = field(default_factory=list, metadata={_RULE: _first_rows})
    """Of one stage: two profilers of the same pass would count it twice."""
    operator_work: OperatorWork | None = None
    """FLOPs of the operators, where a trace recorded their shapes."""
    shaped_calls: list[ShapedCalls] = field(default_factory=list)
    """Shapes of products, attention and experts by the kernel that ran them, where a trace recorded them."""
    traced_kernels: list[TracedKernel] = field(default_factory=list)
    """All kernels of the traces that ``shaped_calls`` is from."""
    module_shares: dict[ModulePhase, float] = field(default_factory=dict)
    """Share of its phase's host time a module has, where the work ran on the host."""
    host_seconds: dict[str, float] = field(default_factory=dict)
    """Phase → what its ranges took under the profiler, where the work ran on the host."""
    profiled: ProfiledPass | None = None
    counters: NcuCapture | None = None
    """Hardware counters of kernels."""
    metrics: dict[str, Number | None] = field(default_factory=dict)
    """Named scalars, unit in the name (``energy_per_token_j``)."""
    budget: dict[str, Budget] = field(default_factory=dict)
    """Phase → split of its wall-clock, for phases no capture splits."""
    module_times: dict[ModulePhase, float] = field(default_factory=dict)
    """Measured seconds of modules, per sample (decode: per step)."""
    memory: dict[str, MemoryUse] = field(default_factory=dict, metadata={_RULE: join_memory})
    telemetry: Telemetry | None = None
    """What the device reported during measured passes."""
    serving: Serving | None = None
    """A server under load."""
    compile_traced: list[CompileEvent] = field(default_factory=list)
    """What ``torch.compile`` did, as torch traces tell it: when and for how long."""
    compile_logged: list[CompileEvent] = field(default_factory=list)
    """The same, as its own logs and our runs tell it: causes and places."""
    findings: list[Finding] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    """Parts of the report in the stage's own words."""

    def is_empty(self) -> bool:
        """Whether nothing was found: a stage that failed early leaves no facts."""
        return self == Facts(stage=self.stage)


def merge_facts(stage: str, parts: Sequence[Facts]) -> Facts:
    """Return the facts of the parts, in order, as the facts of one stage."""
    merged = Facts(stage=stage)
    for part in parts:
        add_fields(merged, part)
    return merged


def add_fields(target: Any, source: Any) -> None:
    """Add every field of a dataclass to the field of ``target`` that has the same name and type, if there is one."""
    theirs = {item.name: item for item in fields(source)}
    for item in fields(target):
        other = theirs.get(item.name)
        if other is None or other.type != item.type:
            continue
        ours = getattr(target, item.name)
        rule: _MergeRule = other.metadata.get(_RULE) or _rule_of(ours)
        setattr(target, item.name, rule(ours, getattr(source, item.name)))


def _rule_of(value: Any) -> _MergeRule:
    if isinstance(value, dict):
        return _missing_keys
    return _concatenated if isinstance(value, list) else _first_value
