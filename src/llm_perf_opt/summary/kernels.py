"""Operators and kernels, summed over their calls and launches, and NVIDIA's rules about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from llm_perf_opt.core.limits import Bytes, Count, Flops, Ratio, Seconds, Share, SummedSeconds

# The best and the median measured time of a kernel's shapes.


@dataclass(slots=True)
class KernelTarget:
    """What was measured elsewhere for the shapes a kernel ran, on the same device; a mean over the calls compared."""

    best_s: Seconds
    """The best measured time of one call."""
    median_s: Seconds
    """Median of the tables that hold the shape."""
    ratio: Ratio
    """``measured_s`` ÷ ``best_s``; below 1: faster than any table."""
    source: str
    """Framework, version and kernel of the best time of the shape with the most time."""
    measured_s: Seconds
    """One call in this capture, all its kernels together."""
    calls: Count
    """Calls compared."""
    how: Literal["measured", "interpolated"]
    """``measured``: the very shapes are in the tables; ``interpolated``: some lie between measured ones."""
    shapes: list[str] = field(default_factory=list)
    """The shapes, most time first."""
    compared_ratio: Share | None = None
    """Share of this kernel's time that the calls compared are; ``None`` where the times are of another capture."""
    at_stake_s: SummedSeconds | None = None
    """Device time above the best, of all calls compared; ``None`` where single launches were profiled."""
    flops: Flops | None = None
    """Work of one call."""
    moved_bytes: Bytes | None = None
    """Operands of one call, each once."""
    remark: str | None = None
    """What to know about the comparison."""


# What the profiled launches of a kernel stand for, and under which conditions they were measured.


@dataclass(slots=True)
class ProfiledLaunches:
    """The launches behind the counters of a kernel, next to the launches of the run."""

    launches: Count
    """Launches that were profiled and count for this row."""
    phase: str | None
    """Phase they were profiled in; ``None`` if unknown."""
    representative: bool | None
    """Whether they are representative of the run's launches; ``None`` when no timeline says how long those last. Counters that do
    not are kept, and left out of verdicts, findings and gains."""
    duration_ratio: Ratio | None = None
    """Their duration ÷ the run's mean for the same launches."""
    configurations: Count | None = None
    """Different grids and blocks the run launches this kernel with; ``None`` without a timeline."""
    profiled_configurations: Count | None = None
    """Those of them that were profiled."""
    covered_ratio: Share | None = None
    """Share of this row's time in launches of those configurations."""
    remark: str | None = None
    """Why they are not representative, or what is not known."""


@dataclass(slots=True)
class CounterConditions:
    """How the counters were measured, all captures together."""

    launches: Count
    """Profiled launches."""
    clock_control: str | None = None
    """``base``: clocks locked to base; ``none``: left alone; ``None``: not recorded. Several captures: all, with a comma."""
    cache_control: str | None = None
    """``all``: caches flushed before every replay; ``none``: left alone; ``None``: not recorded."""
    source: str | None = None
    """File it was read from."""
    phases: list[str] = field(default_factory=list)
    """Phases with a profiled launch; empty if unknown."""
    not_representative: Count = 0
    """Rows of ``kernels`` whose counters do not stand for the run."""


@dataclass(slots=True)
class Operator:
    """One operator of the torch profiler, summed over its calls."""

    name: str
    """``aten::mm``."""
    calls: Count
    """How often it ran."""
    self_cpu_s: SummedSeconds
    """Host time without its children."""
    total_cpu_s: SummedSeconds
    """Host time with its children, nested calls of itself counted once."""
    self_device_s: SummedSeconds | None
    """Device time of the kernels it launched itself; ``None`` without a device in the trace."""
    total_device_s: SummedSeconds | None
    """Device time of the kernels it and its children launched."""
    phase: str | None = None
    """Phase, when the table is split by phase."""
    share_ratio: Share | None = None
    """Self time ÷ self time of all operators of the phase, on the processor that ``share_of`` names."""
    share_of: Literal["device", "host"] | None = None
    """``device`` where any operator of the phase has device time, else ``host``."""
    run_share_ratio: Share | None = None
    """Share of the run: ``share_ratio`` × the phase's share of a sample's wall-clock; where phases were not timed,
    self time ÷ self time of all operators."""


@dataclass(slots=True)
class KernelWork:
    """Calls of one shape that a kernel did most of, counted from the shapes a trace recorded."""

    shape: str
    """Operator and shapes of its operands."""
    dtype: str | None
    """Of the operands that are multiplied."""
    calls: Count
    total_s: SummedSeconds
    """Device time of all kernels of these calls."""
    flops: Flops
    """Of one call."""
    moved_bytes: Bytes | None
    """Operands of one call, each once."""


@dataclass(slots=True)
class Kernel:
    """One kernel (by full name and phase), summed over its launches."""

    name: str
    """Full demangled name."""
    short_name: str
    """Readable name."""
    family: str
    """``gemm``, ``attention``, …; ``other`` when no rule matched."""
    phase: str | None
    """Phase of the launching call; ``None`` if unknown."""
    module: str | None
    """Innermost module range, when captured."""
    launches: Count | None
    """How often it ran; ``None`` when only profiled by sampling single launches."""
    total_s: SummedSeconds | None
    """Device time summed over launches."""
    share_ratio: Share | None
    """Of all kernel time."""
    bound: str | None = None
    """Our class from the counters: compute, l1, l2, dram, latency, underfilled, …"""
    vendor_verdict: str | None = None
    """NVIDIA's own rule verdict, in its words."""
    counters: dict[str, Ratio | None] = field(default_factory=dict)
    """``duration_s``, ``intensity_flops_per_byte``, ``achieved_flops_per_s``, ``compute_ratio``, ``dram_ratio``, …"""
    estimated_speedup_ratio: Share | None = None
    """NVIDIA's best estimate of the share of this kernel's time that could be saved."""
    agreement: str | None = None
    """Whether our class and NVIDIA's verdict agree."""
    profiled: ProfiledLaunches | None = None
    """The launches behind ``counters`` next to those of the run; ``None`` without counters."""
    target: KernelTarget | None = None
    """The best and median measured time of its shapes on its device; ``None`` where shape or device is in no table."""
    work: list[KernelWork] = field(default_factory=list)
    """The shapes it ran, most time first; empty where the capture recorded none."""

    @property
    def counters_are_representative(self) -> bool:
        """Whether the counters may be used to judge the run; what is not known to be wrong may."""
        return self.profiled is None or self.profiled.representative is not False


@dataclass(slots=True)
class KernelFamily:
    """All kernels of one family, summed."""

    family: str
    kernels: Count
    """Different kernels, by full name."""
    launches: Count | None
    """How often they ran; ``None`` when no capture counts launches."""
    total_s: SummedSeconds | None
    """Device time; ``None`` when no capture has a time for them."""
    share_ratio: Share | None
    """Of all kernel time."""


@dataclass(slots=True)
class VendorRule:
    """One of NVIDIA's rules about a kernel, turned into time."""

    kernel: str
    """Readable kernel name."""
    phase: str | None
    rule: str
    """Name of the rule in Nsight Compute."""
    text: str
    """NVIDIA's words."""
    estimated_ratio: Share | None
    """Share of the kernel's time NVIDIA estimates could be saved."""
    share_ratio: Share | None
    """The kernel's share of the phase's wall-clock."""
    gain_upper_s: SummedSeconds | None
    """Estimate × share × (the phase's part of the time to first token, time per output token, else per sample)."""
    arithmetic: str
