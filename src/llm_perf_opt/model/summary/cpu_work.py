"""What a processor does in a phase, where the work runs on the processor itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llm_perf_opt.model.limits import Count, Ratio, Share, SummedSeconds

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
"""``dispatch``: Python, views and the operators' own cost. ``outside operators``: the same where it cannot be told from what
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
