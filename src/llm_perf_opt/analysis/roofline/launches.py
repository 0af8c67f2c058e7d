"""The third term of a floor: every kernel must be started, however little it does.

A floor takes the least of it: only products and attention (small operators between them can be fused), started by a graph.
What launching one by one costs stands beside it, because most programs still do. Both are linear in the kernels and do not
depend on batch, context or the device's speed.
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Hardware, StaticPhase

GRAPH_NODE_S = 0.5e-6
"""What a kernel costs inside a graph besides its own time: a kernel of 2.9 µs takes 3.4 µs in a graph of twenty (V100).
https://developer.nvidia.com/blog/cuda-graphs/"""
EAGER_LAUNCH_S = 4e-6
"""What the host needs for one launch: 4 to 6 µs (RTX 5070 Ti, CUDA 13).
https://susun-blog.com/blog/pegainfer-3-cuda-graph"""


@dataclass(frozen=True, slots=True)
class LaunchCost:
    """What one launch costs the host, and who says so."""

    seconds: float
    source: str
    is_bound: bool = True
    """Whether a model's own code takes longer: a launch by itself has none of it."""


TYPICAL = LaunchCost(EAGER_LAUNCH_S, "typical")


@dataclass(frozen=True, slots=True)
class Launches:
    """Kernels of one pass."""

    least: int | None
    """Products, convolutions and attention; ``None``: not counted."""
    eager: float | None
    """Everything that is started one by one; ``None``: not counted."""
    cost: LaunchCost = TYPICAL

    @property
    def graph_s(self) -> float:
        """Least time of starting the kernels; 0 where they were not counted."""
        return (self.least or 0) * GRAPH_NODE_S

    @property
    def eager_s(self) -> float | None:
        """Time of starting everything one by one."""
        return self.eager * self.cost.seconds if self.eager is not None else None

    def eager_words(self) -> str:
        """Spell out the time of starting everything one by one."""
        words = f"{units.count(self.eager)} kernels × {units.seconds(self.cost.seconds)} ({self.cost.source})"
        return f"{words} = {units.seconds(self.eager_s)}"


NOTHING_COUNTED = Launches(None, None)


def launches_of(
    phase: StaticPhase | None, *, captured: float | None = None, cost: LaunchCost | None = None
) -> Launches:
    """Return the kernels of a pass; ``captured`` is how many a capture saw it start."""
    if phase is None:
        return Launches(None, captured, cost or TYPICAL)
    eager = captured if captured is not None else phase.operators
    least = phase.products
    if least is not None and captured is not None:
        least = min(least, round(captured))
    return Launches(least, eager, cost or TYPICAL)


def measured_launch(hardware: Hardware) -> LaunchCost | None:
    """Return what starting an operator costs on the run's own accelerator, where its probe measured it."""
    if hardware.kind != "gpu" or not hardware.measured_operator_s:
        return None
    return LaunchCost(hardware.measured_operator_s, "measured on this machine")
