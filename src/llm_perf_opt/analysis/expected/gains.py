"""What a change of data type, batch size or number of devices would gain, from measured operators instead of bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from llm_perf_opt.analysis.expected.calls import At
from llm_perf_opt.analysis.expected.compose import Target
from llm_perf_opt.analysis.expected.estimate import Expectation, Tables, expect
from llm_perf_opt.model.static.operators import OperatorShapes

LEAST_SHARE = 0.5
"""Of a step's work must rest on measurements on both sides: less, and a difference of rooflines would pass for a measured one."""

Basis = Literal["measured operators", "roofline"]
Launched = Literal["one by one", "steps as graphs", "as graphs"]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a change: which model, at which sizes, where, and how its kernels are started."""

    shapes: OperatorShapes
    passes: tuple[str, ...]
    """Phases up to the first token."""
    at: At
    target: Target
    launches_s: tuple[float | None, ...] = ()
    """What starting the kernels of each pass one by one takes the host."""
    step_launches_s: float | None = None
    step_graph: bool = False
    """Whether a decode step is launched as one graph."""


@dataclass(frozen=True, slots=True)
class SideTimes:
    """Expected times of one side."""

    ttft_s: float
    tpot_s: float
    batch_size: int
    measured_share_ratio: float
    """Share of the step's work on the device that rests on measurements."""
    sources: tuple[str, ...]
    """Frameworks and versions of the tables."""
    host_bound: bool
    """Whether launching takes longer than the step's work, so that the work does not show."""

    def answer_s(self, steps: float) -> float:
        """Return the time of an answer of so many decode steps."""
        return self.ttft_s + steps * self.tpot_s

    @property
    def tokens_per_s(self) -> float:
        """Over the batch, while decoding."""
        return self.batch_size / self.tpot_s


@dataclass(frozen=True, slots=True)
class ExpectedGain:
    """Expected times before and after a change."""

    before: SideTimes
    after: SideTimes
    launched: Launched
    """Which times these are: ``steps as graphs`` with passes before them one by one; ``as graphs`` also where launches or
    element-wise operators were not counted."""

    @property
    def measured_share_ratio(self) -> float:
        """The smaller of both sides."""
        return min(self.before.measured_share_ratio, self.after.measured_share_ratio)

    @property
    def basis(self) -> Basis:
        """What the difference rests on."""
        return "measured operators" if self.measured_share_ratio >= LEAST_SHARE else "roofline"

    @property
    def source(self) -> str | None:
        """Frameworks and versions of the tables of both sides; ``None``: no table reaches a shape."""
        return ", ".join(sorted({*self.before.sources, *self.after.sources})) or None

    @property
    def host_bound(self) -> bool:
        """Whether launching hides the change."""
        return self.before.host_bound and self.after.host_bound


def expected_gain(before: Side, after: Side, tables: Tables) -> ExpectedGain | None:
    """Return what a change gains; ``None`` where neither tables nor limits say what a side takes."""
    first, second = (_expect(side, tables) for side in (before, after))
    if first is None or second is None:
        return None
    framework = second.main_framework()
    if framework is not None and first.main_framework() not in (None, framework):
        # Two frameworks' kernels differ by more than the change: those that have what comes after are asked about both.
        again = replace(tables, framework=framework)
        first, second = _expect(before, again) or first, _expect(after, again) or second
    a, b = _as_launched(before, first), _as_launched(after, second)
    if a is not None and b is not None:
        graphs = before.step_graph or after.step_graph
        return ExpectedGain(a, b, "steps as graphs" if graphs else "one by one")
    a, b = _as_graphs(before, first), _as_graphs(after, second)
    return ExpectedGain(a, b, "as graphs") if a is not None and b is not None else None


def _expect(side: Side, tables: Tables) -> Expectation | None:
    return expect(side.shapes, side.passes, side.at, side.target, tables)


def _as_launched(side: Side, found: Expectation) -> SideTimes | None:
    """Return the times with passes launched one by one, and steps as the side launches them."""
    ttft = found.ttft_eager_s(side.launches_s)
    work = found.tpot_s if side.step_graph else found.eager_step_s
    tpot = found.tpot_s if side.step_graph else found.tpot_eager_s(side.step_launches_s)
    if ttft is None or tpot is None or work is None:
        return None
    return _times(side, found, ttft, tpot, work)


def _as_graphs(side: Side, found: Expectation) -> SideTimes | None:
    if found.ttft_s is None or found.tpot_s is None:
        return None
    return _times(side, found, found.ttft_s, found.tpot_s, found.tpot_s)


def _times(side: Side, found: Expectation, ttft_s: float, tpot_s: float, work_s: float) -> SideTimes | None:
    if found.step is None or not work_s or not tpot_s:
        return None
    names = (found.source() or "").split(", ")
    return SideTimes(
        ttft_s,
        tpot_s,
        side.at.batch_size,
        min(1.0, found.step.measured_s / work_s),
        tuple(name for name in names if name),
        host_bound=tpot_s > work_s,
    )
