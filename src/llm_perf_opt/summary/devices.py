"""The limits that utilisation is measured against."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from llm_perf_opt.core.limits import Bytes, ChangedBytes, Count, PerSecond, Rate, Ratio, Share, SummedSeconds
from llm_perf_opt.summary.run import Stat


@dataclass(slots=True)
class Peak:
    """Peak arithmetic rate of one data type."""

    dense: Rate
    """FLOP/s without structured sparsity."""
    source: str
    """Where the number comes from: a data sheet, or ``measured on this machine``."""


@dataclass(slots=True)
class Hardware:
    """The device whose limits the utilisation is measured against."""

    name: str | None
    """As the driver reports it."""
    kind: Literal["gpu", "cpu", "unknown"]
    """What sort of device."""
    peak_flops_per_s: dict[str, Peak]
    """Data type → peak. A type that is not listed has no sourced peak."""
    bandwidth_bytes_per_s: Rate | None
    """Main-memory bandwidth."""
    source: str
    """``catalogue``, ``probe``, ``user`` or ``none``."""
    memory_bytes: Bytes | None = None
    """Size of device memory."""
    reason: str | None = None
    """Why limits are missing, when they are."""
    bandwidth_source: str | None = None
    """Where the bandwidth comes from: a data sheet, or ``measured on this machine``."""
    measured_peak_flops_per_s: dict[str, Peak] = field(default_factory=dict)
    """Rate that a large matrix product reached on this machine, in addition to the data sheet's peaks."""
    measured_bandwidth_bytes_per_s: Rate | None = None
    """What a streaming copy reached on this machine."""
    measured_at: str | None = None
    """When that was measured, in this run or an earlier one (ISO 8601 with time zone); of several, the best."""
    measured_under_load: bool | None = None
    """Whether other programs used the processor in every measurement: then the rates may be too low."""
    measured_other_load_ratio: Ratio | None = None
    """Share of the processor's time that other programs took, in the quietest of the measurements."""
    measurements: Count | None = None
    """Measurements the rates are the best of."""
    measured_operator_s: SummedSeconds | None = None
    """What calling an operator on a single element costs on this machine: dispatch, and next to no work."""
    reached_flops_per_s: dict[str, Peak] = field(default_factory=dict)
    """Data type → the best rate a matrix product was ever measured at on such a device, whoever measured it."""
    reached_bandwidth_bytes_per_s: Rate | None = None
    """The best rate at which weights too large for any cache were read on such a device."""
    reached_bandwidth_source: str | None = None
    """Which measurement that is."""
    link_bytes_per_s: Rate | None = None
    """To other devices of the machine, one direction, all links together; ``None`` without a source."""
    link_source: str | None = None
    """Where that comes from."""


# What a device reported while it worked: memory, clock, power, temperature, energy.


MemoryCounts = Literal["allocator", "process"]


@dataclass(slots=True)
class MemoryUse:
    """Memory of one phase, measured and predicted by the static model."""

    peak_bytes: ChangedBytes
    """Peak memory in use; ``counts`` names what is counted."""
    begin_bytes: ChangedBytes | None = None
    """In use when the phase began."""
    end_bytes: ChangedBytes | None = None
    """In use when the phase ended."""
    reserved_bytes: Bytes | None = None
    """The most that was held for it: an accelerator's allocator keeps more than is in use; on a CPU all memory of the
    process, Python and its libraries included."""
    predicted_bytes: Bytes | None = None
    """Prediction of the static model: the sum of ``predicted``; ``None`` where ``peak_bytes`` counts something else."""
    predicted: dict[str, Bytes] = field(default_factory=dict)
    """``weights``, ``kv_cache`` and, where the phase's are known, ``activations`` (those of the largest operator)."""
    counts: MemoryCounts | None = None
    """``allocator``: all that the device's allocator holds; ``process``: what the process gained since before the model was
    built; ``None``: from the profiler, on a CPU what was allocated since the pass began."""


@dataclass(slots=True)
class EnergyUse:
    """Energy of the measured passes, in joules: prompt, answer and what lies between them."""

    per_token: Ratio | None = None
    """÷ generated tokens, all sequences of a batch."""
    per_sample: Ratio | None = None
    """÷ samples."""
    total: Ratio | None = None
    """From the begin of the first measured pass to the end of the last one."""
    source: str | None = None
    """``counter``: the meter's own; ``power``: power summed over time."""


@dataclass(slots=True)
class TelemetrySeries:
    """One quantity over time, thinned to a few hundred points."""

    name: str
    """``clock_hz``, ``power_w``, ``temperature_c``, ``memory_bytes``."""
    points: list[tuple[Ratio, Ratio | None]] = field(default_factory=list)
    """(Seconds since the first measured pass began, value); ``None``: not available at that moment."""


@dataclass(slots=True)
class Telemetry:
    """Telemetry during the measured passes; ``None``: not available, with the reason in ``notes``."""

    clock_hz: Stat | None = None
    """Clock of the compute units, over the samples."""
    power_w: Stat | None = None
    """Power of the device (a CPU: all its packages, whoever uses them), over the samples."""
    temperature_c: Stat | None = None
    """Temperature of the chip in °C, over the samples."""
    energy_j: EnergyUse = field(default_factory=EnergyUse)
    throttled: list[str] = field(default_factory=list)
    """Reasons for which the clock, or the processor time, was held down in at least one sample, the most frequent first."""
    throttled_ratio: dict[str, Share] | None = None
    """Reason → share of the samples; ``None``: not available."""
    memory_bytes: Stat | None = None
    """Memory in use: of the whole device, on a CPU of the process."""
    clock_max_hz: Rate | None = None
    """The highest clock the device allows."""
    power_limit_w: Rate | None = None
    """The limit in force."""
    device: str | None = None
    """As the reader names it."""
    reader: str | None = None
    """``nvidia-ml``, ``amdsmi`` or ``linux`` (RAPL, cpufreq, thermal zones, /proc)."""
    samples: Count = 0
    """Samples inside the measured passes."""
    interval_s: SummedSeconds | None = None
    """Time between two samples, in the end."""
    span_s: SummedSeconds | None = None
    """From the begin of the first measured pass to the end of the last one."""
    cost_ratio: Ratio | None = None
    """Processor time of the sampling ÷ the time it went on."""
    series: list[TelemetrySeries] = field(default_factory=list)


# What runs side by side: devices, ranks, collectives, and who owns the time in which a device idles.


OwnerKind = Literal[
    "data loading",
    "tokenising",
    "launch calls",
    "synchronisation",
    "allocation",
    "compilation",
    "collective wait",
    "operator",
    "range",
    "python",
    "not recorded",
    "queued work",
    "between kernels",
    "input copy",
    "first use",
    "warm-up",
]
"""What the thread that feeds a stream did while the device idled."""


@dataclass(slots=True)
class IdleOwner:
    """Who holds the device up: the thread that feeds it, and what that thread was doing."""

    what: OwnerKind
    range: str | None = None
    """Innermost range, operator or call around most of this time."""
    thread: str | None = None
    """Name or number of the thread that launches the device's work."""
    share_ratio: Share | None = None
    """Of the part's time: how much of it this owner has; the rest has others."""


@dataclass(slots=True)
class IdleGap:
    """One stretch in which a device ran nothing."""

    device: Count
    start_s: SummedSeconds
    """Since the first activity of the capture."""
    seconds: SummedSeconds
    owner: IdleOwner
    phase: str | None = None
    rank: Count | None = None
    frames: list[str] = field(default_factory=list)
    """Python frames open in it, outermost first, where the profiler recorded them."""


@dataclass(slots=True)
class DeviceUse:
    """One device of a capture."""

    device: Count
    """Its number in the capture."""
    name: str | None = None
    rank: Count | None = None
    span_s: SummedSeconds | None = None
    """From its first to its last activity, without ``backlog_s``."""
    busy_s: SummedSeconds | None = None
    """Something ran: the union of kernels, copies and fills."""
    busy_ratio: Share | None = None
    """``busy_s`` ÷ ``span_s``."""
    idle_s: SummedSeconds | None = None
    """Nothing ran: ``span_s`` − ``busy_s``."""
    queued_s: SummedSeconds | None = None
    """Part of ``idle_s``: nothing ran although work had been launched, so that the host was not what it waited for."""
    backlog_s: SummedSeconds | None = None
    """Not in ``span_s``: the stream was busy with work from before the capture while the capture's own was queued."""
    communication_s: SummedSeconds | None = None
    """A communication kernel ran."""
    exposed_communication_s: SummedSeconds | None = None
    """Only communication ran."""
    copy_s: SummedSeconds | None = None
    """Only copies or fills ran."""
    streams: Count | None = None


@dataclass(slots=True)
class RankUse:
    """One rank: the same figures over its devices, and its part in the waiting."""

    rank: Count
    device: Count | None = None
    """Its device, where it has one."""
    span_s: SummedSeconds | None = None
    busy_ratio: Share | None = None
    """Mean over its devices."""
    idle_s: SummedSeconds | None = None
    communication_s: SummedSeconds | None = None
    exposed_communication_s: SummedSeconds | None = None
    compute_s: SummedSeconds | None = None
    """Kernels other than communication ran."""
    waits_s: SummedSeconds | None = None
    """It stood in a collective that another rank had not entered yet; ``None`` where ranks could not be matched."""
    last_in: Count | None = None
    """Collectives it entered last."""
    causes_wait_s: SummedSeconds | None = None
    """Waiting of the other ranks (mean over them) in collectives that it entered last."""
    source: str | None = None
    weight_bytes: Bytes | None = None
    """Static analysis: weights it holds."""
    kv_bytes_per_token: Bytes | None = None
    """Static analysis: its part of the cache, for one position of one sequence."""
    link_bytes: dict[str, Bytes] = field(default_factory=dict)
    """Static analysis: phase → what its links carry in one pass (decode: one step), in one direction at least."""
    floor_s: dict[str, SummedSeconds] = field(default_factory=dict)
    """Static analysis: phase → the least time of one pass on its device: weights and cache it reads, its part of the work, and what its
    links carry where their bandwidth is known."""


@dataclass(slots=True)
class Collective:
    """One kind of collective, summed over ranks and calls."""

    name: str
    """``all_reduce``, ``all_gather``, …"""
    count: Count
    """Calls; a collective of several ranks counts once."""
    bytes: Bytes | None
    """Payload of all calls of one rank; ``None`` where the capture does not tell."""
    total_s: SummedSeconds
    """Kernel time of one rank, mean over the ranks."""
    exposed_s: SummedSeconds
    """Of it, with nothing else running on the device."""
    bus_bytes_per_s: PerSecond | None
    """Bytes on the links ÷ time (all-reduce: 2(n−1)/n × payload), waiting left out where ranks could be matched."""
    last_rank: Count | None = None
    """The rank that most often enters last, weighted by the waiting it causes."""
    algorithm_bytes_per_s: PerSecond | None = None
    """Payload ÷ time."""
    group_size: Count | None = None
    """Ranks that take part; ``None`` where it differs or is not recorded."""
    wait_s: SummedSeconds | None = None
    """Of ``total_s``: waiting for the last rank."""
    devices: Count | None = None
    """Devices of the capture it ran on."""


@dataclass(slots=True)
class Communication:
    """Everything devices say to one another."""

    collectives: list[Collective] = field(default_factory=list)
    """Most exposed time first."""
    total_s: SummedSeconds = 0.0
    """A communication kernel ran, per device (mean)."""
    exposed_s: SummedSeconds = 0.0
    """Only communication ran, per device (mean)."""
    share_ratio: Share | None = None
    """``exposed_s`` ÷ span."""
    wait_s: SummedSeconds | None = None
    """Part of ``total_s`` spent waiting for the last rank; ``None`` with one rank."""
    straggler: Count | None = None
    """The rank the others wait for in most of that time."""
    straggler_share_ratio: Ratio | None = None
    """Its share of ``wait_s``."""
