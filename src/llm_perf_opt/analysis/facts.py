"""What a stage says about a run: the one shape in which measurements reach the summary and the report.

A stage fills in what it knows and leaves the rest empty. Everything here is data; :mod:`llm_perf_opt.analysis.join`
makes one whole of a list of facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.model.summary import Budget, Finding, MemoryUse, Operator, Section, Static, Telemetry

if TYPE_CHECKING:  # stages are imported for help and checks, which must not wait for NumPy
    from llm_perf_opt.analysis.operators.work import OperatorWork
    from llm_perf_opt.analysis.rank_calls import HostCollectives
    from llm_perf_opt.analysis.targets.calls import ShapedCalls, TracedKernel
    from llm_perf_opt.analysis.timeline.attribution import Attribution
    from llm_perf_opt.analysis.timeline.summary import TimelineFacts
    from llm_perf_opt.model.captured import CapturedRange
    from llm_perf_opt.model.counters import NcuCapture
    from llm_perf_opt.model.static.document import StaticDocument
    from llm_perf_opt.model.timeline import KernelTotals, Timeline
    from llm_perf_opt.model.wall_clock import WallClock

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


@dataclass(slots=True)
class Facts:
    """What one stage, or one file of a user, says."""

    stage: str = ""
    """Who says it; also the folder of the pages made from it."""
    sources: dict[str, tuple[Path, ...]] = field(default_factory=dict)
    """Kind of source → files that were read."""
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
    host_collectives: list[HostCollectives] = field(default_factory=list)
    """Of ranks that talk on the host (gloo), where no device was captured."""
    recordings: list[Path] = field(default_factory=list)
    """Traces of graphs being recorded: they say whose kernels a graph launch runs, and nothing of how long they take."""
    operators: list[Operator] = field(default_factory=list)
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
    metrics: dict[str, float | None] = field(default_factory=dict)
    """Named scalars, unit in the name (``energy_per_token_j``)."""
    budget: dict[str, Budget] = field(default_factory=dict)
    """Phase → split of its wall-clock, for phases no capture splits."""
    module_times: dict[ModulePhase, float] = field(default_factory=dict)
    """Measured seconds of modules, per sample (decode: per step)."""
    memory: dict[str, MemoryUse] = field(default_factory=dict)
    telemetry: Telemetry | None = None
    """What the device told of itself during measured passes."""
    findings: list[Finding] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    """Parts of the report in the stage's own words."""

    def says_anything(self) -> bool:
        """Whether anything was found: a stage that failed early leaves nothing."""
        return self != Facts(stage=self.stage)


def merge_facts(stage: str, parts: Sequence[Facts]) -> Facts:
    """Return what the parts say as the facts of one stage; of values there can be only one of, the first counts."""
    merged = Facts(stage=stage)
    for part in parts:
        for item in fields(Facts):
            ours, theirs = getattr(merged, item.name), getattr(part, item.name)
            if item.name == "stage":
                continue
            if item.name == "sources":
                for kind, paths in theirs.items():
                    ours[kind] = (*ours.get(kind, ()), *paths)
            elif isinstance(ours, dict):
                for key, value in theirs.items():
                    ours.setdefault(key, value)
            elif isinstance(ours, list):
                ours.extend(theirs)
            elif ours is None:
                setattr(merged, item.name, theirs)
    return merged
