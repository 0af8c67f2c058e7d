"""What is said of one phase: its floor, utilisation, budget and verdict, and its modules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from llm_perf_opt.model.limits import Bytes, Count, Depth, Flops, Ratio, Share, SummedSeconds
from llm_perf_opt.model.summary.parallel import IdleOwner

Bound = Literal[
    "compute", "memory", "communication", "launch", "sync", "copy", "host", "queue", "balanced", "unknown"
]


@dataclass(slots=True)
class Prediction:
    """Roofline floor of a phase, made before the run and graded after it."""

    floor_s: SummedSeconds
    """No machine with these limits can be faster."""
    bound: Literal["compute", "memory", "launch", "communication"]
    """Which limit sets the floor."""
    error_ratio: Ratio | None
    """Measured ÷ floor; ``None`` when nothing was measured."""
    arithmetic: str = ""
    """The floor, spelled out."""
    flops: Flops | None = None
    """The work it is the floor of."""
    bytes: Bytes | None = None
    """Weights and cache that work must move."""


@dataclass(slots=True)
class Utilisation:
    """How much of the hardware a phase used."""

    mfu_ratio: Ratio | None = None
    """Model FLOPs ÷ (wall-clock × dense peak)."""
    mbu_ratio: Ratio | None = None
    """Bytes the model must move ÷ (wall-clock × bandwidth)."""
    device_busy_ratio: Share | None = None
    """Union of device activity ÷ wall-clock."""
    arithmetic: str | None = None
    """The numbers that went in, with the denominator's source."""
    mfu_reached_ratio: Ratio | None = None
    """``mfu_ratio`` with the best measured rate of the device (``hardware.reached_flops_per_s``) in place of the peak."""
    mbu_reached_ratio: Ratio | None = None
    """``mbu_ratio`` with the best measured bandwidth (``hardware.reached_bandwidth_bytes_per_s``)."""


@dataclass(slots=True)
class BudgetPart:
    """One share of a phase's wall-clock."""

    name: str
    """``compute``, ``communication``, ``copy`` (the device works); ``sync``, ``launch``, ``host``, ``queue`` (it does not)."""
    seconds: SummedSeconds
    """Its length."""
    share_ratio: Share
    """Of the span."""
    owner: IdleOwner | None = None
    """Idle parts: what the thread that feeds the device was doing for most of it."""


@dataclass(slots=True)
class Budget:
    """A phase's wall-clock, split without overlap: the parts sum to the span. With several devices: their mean."""

    span_s: SummedSeconds
    parts: list[BudgetPart]
    source: str | None = None
    """File the numbers come from."""
    profiled_span_s: SummedSeconds | None = None
    """Where ``span_s`` is a wall-clock without a profiler: the same work under the profiler."""
    inflation_ratio: Ratio | None = None
    """``profiled_span_s`` ÷ ``span_s``: how much the profiler slowed it down."""


@dataclass(slots=True)
class LedgerRow:
    """One module in one phase, joined from all sources."""

    module: str
    """Dotted path or component label."""
    phase: str
    depth: Depth = 0
    """Depth in the tree."""
    params: Count | None = None
    flops: Flops | None = None
    """Static FLOPs of the phase at this run's shapes; in decode of one step, as all numbers of the row."""
    bytes: Bytes | None = None
    """Weights it must read."""
    floor_s: SummedSeconds | None = None
    """Roofline floor."""
    measured_s: SummedSeconds | None = None
    """Best available measurement."""
    measured_source: str | None = None
    """``hooks``: wall-clock of un-profiled passes; ``timeline``: device time of a capture; ``profiler``: the phase's
    wall-clock split by the profiler's shares (work on a CPU)."""
    device_s: SummedSeconds | None = None
    """Device time attributed to it."""
    launches: Count | None = None
    """Kernel launches attributed to it."""
    mfu_ratio: Ratio | None = None
    mbu_ratio: Ratio | None = None
    others_s: dict[str, SummedSeconds] = field(default_factory=dict)
    """The same time by other sources."""
    disagreement: str | None = None
    """Set when sources differ by more than the tolerance."""


@dataclass(slots=True)
class CoverageSummary:
    """How much of the run the report explains; none can exceed 1."""

    time_attributed_ratio: Share | None = None
    """Device time that belongs to a phase."""
    kernel_time_classified_ratio: Share | None = None
    """Kernel time whose family is known."""
    flops_counted_ratio: Share | None = None
    """From the static model."""


@dataclass(slots=True)
class Verdict:
    """What limits a phase, and why we say so."""

    bound: Bound
    arithmetic: str
    """The comparison that decided it, with numbers."""
    evidence: list[str]
    """Facts and their source files."""
    lever: str | None = None
    """What would move it."""
