"""What runs beside one another: devices, ranks, collectives, and who owns the time in which a device idles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from llm_perf_opt.model.limits import Bytes, Count, PerSecond, Ratio, Share, SummedSeconds

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
    """On paper: weights it holds."""
    kv_bytes_per_token: Bytes | None = None
    """On paper: its part of the cache, for one position of one sequence."""
    link_bytes: dict[str, Bytes] = field(default_factory=dict)
    """On paper: phase → what its links carry in one pass (decode: one step), in one direction at least."""
    floor_s: dict[str, SummedSeconds] = field(default_factory=dict)
    """On paper: phase → the least time of one pass on its device: weights and cache it reads, its part of the work, and what its
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
