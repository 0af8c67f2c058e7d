"""One device of the catalogue: its names, its limits, and where each limit is printed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from llm_perf_opt.hardware.reached import Reached, reached_by
from llm_perf_opt.model.summary import Hardware, Peak

Origin = Literal["catalogue", "user"]


@dataclass(frozen=True, slots=True)
class Device:
    """One entry of the catalogue."""

    name: str
    kind: Literal["gpu", "cpu"]
    patterns: tuple[re.Pattern[str], ...]
    peaks: Mapping[str, Peak]
    """Data type → dense peak; ``…_accumulate_float16`` is the rate with float16 accumulation."""
    bandwidth_bytes_per_s: float | None
    bandwidth_source: str | None
    memory_bytes: float | None
    memory_source: str | None
    origin: Origin
    note: str | None = None
    link_bytes_per_s: float | None = None
    """To other devices of the machine, one direction, all links together."""
    link_source: str | None = None

    def matches(self, reported: str) -> bool:
        """Say whether a driver's name is this device, as a whole and without regard to case."""
        return any(pattern.fullmatch(reported) for pattern in self.patterns)

    def to_hardware(self, reported: str | None = None) -> Hardware:
        """Return the limits as they go into a summary; ``reported`` is the driver's name, when there is one."""
        # A user's own entry is another device, whatever its name: our measurements are not of it.
        reached = reached_by(self.name, self.peaks) if self.origin == "catalogue" else Reached()
        return Hardware(
            name=reported or self.name,
            kind=self.kind,
            peak_flops_per_s=dict(self.peaks),
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s,
            source=self.origin,
            memory_bytes=self.memory_bytes,
            bandwidth_source=self.bandwidth_source,
            link_bytes_per_s=self.link_bytes_per_s,
            link_source=self.link_source,
            reached_flops_per_s=dict(reached.flops_per_s),
            reached_bandwidth_bytes_per_s=reached.bandwidth_bytes_per_s,
            reached_bandwidth_source=reached.bandwidth_source,
        )
