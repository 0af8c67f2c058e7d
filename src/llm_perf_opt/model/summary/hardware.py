"""The limits that utilisation is measured against."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from llm_perf_opt.model.limits import Bytes, Count, Rate, Ratio, SummedSeconds


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
    """What a large matrix product reached on this machine, beside the data sheet's peaks."""
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
    """To other devices of the machine, one direction, all links together; ``None`` where no document says."""
    link_source: str | None = None
    """Where that comes from."""
