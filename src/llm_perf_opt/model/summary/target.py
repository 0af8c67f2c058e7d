"""The best and the median measured time of a kernel's shapes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from llm_perf_opt.model.limits import Bytes, Count, Flops, Ratio, Seconds, Share, SummedSeconds


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
