"""What is said of one phase: its floor, utilisation, budget and verdict, and its modules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from llm_perf_opt.core.limits import Bytes, Count, Depth, Flops, PerSecond, Ratio, Share, SummedSeconds
from llm_perf_opt.summary.devices import IdleOwner

Bound = Literal[
    "compute",
    "memory",
    "communication",
    "launch",
    "sync",
    "copy",
    "host",
    "queue",
    "one-off",
    "balanced",
    "unknown",
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
    """Model FLOPs ÷ (time × dense peak); the time is wall-clock, or the captured span where nothing was timed."""
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
    mfu_busy_ratio: Ratio | None = None
    """FLOPs counted from a trace's shapes ÷ (time in which the device was busy × dense peak)."""


@dataclass(slots=True)
class BudgetPart:
    """One share of a phase's wall-clock."""

    name: str
    """``compute``, ``communication``, ``copy`` (the device works); ``sync``, ``launch``, ``allocation``, ``data``, ``host``,
    ``queue``, ``one-off`` (it does not)."""
    seconds: SummedSeconds
    """Its length."""
    share_ratio: Share
    """Of the span."""
    owner: IdleOwner | None = None
    """Idle parts: what the thread that feeds the device was doing for most of it."""
    count: Count | None = None
    """``sync``: waits after which the device ran dry, per device; null: not counted."""


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


# What a processor does in a phase, where the work runs on the processor itself.


CpuPartName = Literal[
    "matrix",
    "movement",
    "growing cache",
    "element-wise",
    "normalisation",
    "sampling",
    "other",
    "compiled",
    "unknown",
    "dispatch",
    "outside operators",
]
"""``dispatch``: Python, views and the operators' own cost. ``outside operators``: the same where it cannot be separated from what
the profiler adds or from compiled code. ``unknown``: operators that no rule knows."""
Basis = Literal["wall-clock", "profiled", "operators"]
"""What shares are of: the same work without a profiler, under it, or only the time inside operators."""


@dataclass(slots=True)
class CpuPart:
    """One share of a phase."""

    name: CpuPartName
    seconds: SummedSeconds
    """Of ``CpuWork.span_s``."""
    share_ratio: Share
    calls: Count
    """Operator calls in the profiled pass; of ``dispatch``, all of them."""
    operator: str | None = None
    """The operator with most of it."""
    operator_share_ratio: Share | None = None
    """That operator's share of the phase."""


@dataclass(slots=True)
class CpuWork:
    """A phase's time on the processor, split by what its operators do; the parts sum to the span."""

    span_s: SummedSeconds
    """One sample's wall-clock without a profiler; where that is not known, the time under the profiler."""
    parts: list[CpuPart]
    """The largest first."""
    of: Basis
    profiled_ratio: Ratio | None = None
    """The same work under the profiler ÷ without it."""
    operator_cost_s: SummedSeconds | None = None
    """What one operator call was taken to cost by itself; ``None``: not measured, so only views count."""

    def share(self, *names: CpuPartName) -> float:
        """Return the share of the named parts together."""
        return sum(part.share_ratio for part in self.parts if part.name in names)

    def part(self, name: CpuPartName) -> CpuPart | None:
        """Return one part; ``None`` when the phase has none of it."""
        return next((part for part in self.parts if part.name == name), None)


# The same model on other devices.


@dataclass(slots=True)
class WhatIf:
    """The same model elsewhere: floors no machine can beat, and times to expect."""

    device: str
    dtype: str
    batch_size: Count
    context_tokens: Count
    ttft_floor_s: SummedSeconds | None
    tpot_floor_s: SummedSeconds | None
    tokens_per_s: PerSecond | None
    """Upper bound over the batch (1/s)."""
    fits: bool | None
    """Whether weights and KV cache fit the device's memory."""
    note: str | None = None
    """What bounds a step there, and what it needs."""
    memory_bytes: Bytes | None = None
    """Size of the device's memory."""
    floor_term: Literal["compute", "memory", "launch", "communication"] | None = None
    """Which term sets the floor of a step (without one, that of the first token)."""
    launch_graph_s: SummedSeconds | None = None
    """Term of launching in the floor of a step: products and attention as nodes of a graph."""
    launch_eager_s: SummedSeconds | None = None
    """The same with every operator launched one by one, at a measured or typical cost: next to the floor, not in it."""
    prompt_tokens: Count | None = None
    """Positions of the prompt up to the first token."""
    tensor_parallel: Count = 1
    """Devices that share every layer among them."""
    link_bytes: Bytes | None = None
    """What each of several devices sends to the others in one decode step at least; ``None``: not known."""
    communication_s: SummedSeconds | None = None
    """Term of communication in the floor of a step: ``link_bytes`` ÷ the bandwidth of the links; ``None``: not known, and so
    not in the floor."""
    ttft_expected_s: SummedSeconds | None = None
    """Time to the first token as measured operators add up to it, launched as graphs."""
    tpot_expected_s: SummedSeconds | None = None
    """The same of a decode step."""
    ttft_expected_eager_s: SummedSeconds | None = None
    """The same launched one by one: the longer of the device's work and the launches."""
    tpot_expected_eager_s: SummedSeconds | None = None
    """The same of a decode step."""
    measured_share_ratio: Share | None = None
    """Share of the expected time of a step (without one, of the first token) that rests on measured shapes and those between
    them; the rest is extrapolated or a roofline at a stated share of the limits."""
    tokens_per_s_expected: PerSecond | None = None
    """Over the batch, at the expected time of a step (1/s)."""
    tokens_per_s_per_w: PerSecond | None = None
    """The same ÷ the power limit of the devices."""
    expected_source: str | None = None
    """Frameworks and versions whose kernels were measured."""
    ttft_expected_low_s: SummedSeconds | None = None
    """Ends of where the expected time may lie by the errors that interpolation, extrapolation and rooflines were measured to have
    (nine in ten shapes); how an engine schedules is not in them."""
    ttft_expected_high_s: SummedSeconds | None = None
    tpot_expected_low_s: SummedSeconds | None = None
    """The same of a decode step."""
    tpot_expected_high_s: SummedSeconds | None = None
    eager_host_s: SummedSeconds | None = None
    """What the host takes to launch one operator, behind ``…_eager_s``."""
    eager_host_source: str | None = None
    """``this run's own steps`` (which waited for the host), ``measured on this machine`` (a probe), or ``typical``."""
    eager_is_bound: bool | None = None
    """Whether ``…_eager_s`` are lower bounds: a model's own code takes longer than a launch by itself."""


@dataclass(slots=True)
class SiliconUse:
    """The measured operator tables that expected times rest on."""

    version: str | None
    """Of the package that holds them; ``None``: none were used."""
    framework: str | None = None
    """Whose kernels are taken first."""
    problems: list[str] = field(default_factory=list)
    """Tables and rows that were left out, and why."""
    reason: str | None = None
    """Why none were used: not installed, or switched off."""
    package: str | None = None
    """Package that holds them."""
    collected: str | None = None
    """Newest day on which a table was collected, as the package states it."""
