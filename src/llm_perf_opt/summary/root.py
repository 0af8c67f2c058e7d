"""The root of ``summary.json``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from llm_perf_opt.core.limits import Number
from llm_perf_opt.summary.devices import (
    Communication,
    DeviceUse,
    Hardware,
    IdleGap,
    MemoryUse,
    RankUse,
    Telemetry,
)
from llm_perf_opt.summary.kernels import CounterConditions, Kernel, KernelFamily, Operator, VendorRule
from llm_perf_opt.summary.phases import (
    Budget,
    CoverageSummary,
    CpuWork,
    LedgerRow,
    Prediction,
    SiliconUse,
    Utilisation,
    Verdict,
    WhatIf,
)
from llm_perf_opt.summary.run import (
    Finding,
    RunInfo,
    SampleTimes,
    Section,
    StageInfo,
    Stat,
    Timings,
    Workload,
)
from llm_perf_opt.summary.serving import Serving
from llm_perf_opt.summary.static import Static

SCHEMA_VERSION = "1.1"
"""What changed between versions: ``versions.py``."""


@dataclass(slots=True)
class Summary:
    """The root of ``summary.json``."""

    run: RunInfo
    environment: dict[str, Any]
    hardware: Hardware
    workload: Workload
    schema_version: str = SCHEMA_VERSION
    notes: list[str] = field(default_factory=list)
    """What the reader must know first, and why anything is missing."""
    coverage: CoverageSummary = field(default_factory=CoverageSummary)
    stages: dict[str, StageInfo] = field(default_factory=dict)
    timings: Timings = field(default_factory=Timings)
    wall_clock: Budget | None = None
    """One sample's wall-clock by phase (medians); ``None`` when nothing was timed."""
    samples: list[SampleTimes] = field(default_factory=list)
    """Every sample by itself, in the order measured; empty where only totals are known."""
    static: Static | None = None
    predictions: dict[str, Prediction] = field(default_factory=dict)
    utilisation: dict[str, Utilisation] = field(default_factory=dict)
    budget: dict[str, Budget] = field(default_factory=dict)
    operators: list[Operator] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    kernel_families: list[KernelFamily] = field(default_factory=list)
    """The same kernels summed by family, the longest first."""
    ledger: list[LedgerRow] = field(default_factory=list)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    counters: CounterConditions | None = None
    """How the hardware counters were measured; ``None`` without any."""
    vendor_rules: list[VendorRule] = field(default_factory=list)
    """NVIDIA's rules, the largest possible gain first; gains of one kernel do not add up."""
    what_if: list[WhatIf] = field(default_factory=list)
    silicon: SiliconUse | None = None
    """Measured operator tables behind the expected times of ``what_if``; ``None`` where nothing was priced."""
    repeat_spread: dict[str, Stat] = field(default_factory=dict)
    """Phase → time of each repeat ÷ median of the same sample's repeats (no unit): how noisy the machine was."""
    sources: dict[str, str] = field(default_factory=dict)
    """Source kind (``nsys``, ``ncu``, ``trace``, ``static``, ``timings``) → file."""
    timeline: dict[str, Any] = field(default_factory=dict)
    """One decode step, ready to draw: ``{phase, span_s, lanes: [{name, events: [{name, start_s, end_s, family}]}]}``."""
    metrics: dict[str, Number | None] = field(default_factory=dict)
    """Further named scalars (``launches_per_token``, ``graph_kernel_time_ratio``, …), unit in the name; those of engines'
    traces: ``docs/engines.md``."""
    sections: list[Section] = field(default_factory=list)
    """What stages say in their own words, plug-ins included, in pipeline order."""
    devices: list[DeviceUse] = field(default_factory=list)
    """Every device of the captures by itself."""
    ranks: list[RankUse] = field(default_factory=list)
    """Every rank by itself, where ranks are known."""
    communication: Communication | None = None
    """Collectives between devices; ``None`` when no capture holds one."""
    idle_gaps: list[IdleGap] = field(default_factory=list)
    """The longest stretches in which a device ran nothing, the longest first."""
    cpu_work: dict[str, CpuWork] = field(default_factory=dict)
    """Phase → what the processor does in it, where the work runs on the processor itself."""
    memory: dict[str, MemoryUse] = field(default_factory=dict)
    """Phase → memory in use, where it was watched; ``all`` is the whole pass."""
    telemetry: Telemetry | None = None
    """Clock, power, temperature and energy during the measured passes; ``None`` without the telemetry stage."""
    serving: Serving | None = None
    """A server under load; ``None`` without records of one."""
