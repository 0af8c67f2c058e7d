"""Expected gain of a change of data type, batch size or number of devices, from measured operators instead of bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from llm_perf_opt.analysis.roofline.demand import own_point
from llm_perf_opt.analysis.roofline.expected_calls import At, reason_not_sharded
from llm_perf_opt.analysis.roofline.expected_times import (
    Expectation,
    Tables,
    Target,
    at_point,
    expect,
    target_of,
)
from llm_perf_opt.analysis.roofline.launches import started_in
from llm_perf_opt.core.phases import ENCODE
from llm_perf_opt.hardware.silicon.installation import describe_absence
from llm_perf_opt.summary import Summary
from llm_perf_opt.summary.static import OperatorShapes

_LEAST_SHARE = 0.5
"""Of a step's work must rest on measurements on both sides: less, and a difference of rooflines would pass for a measured one."""
Basis = Literal["measured operators", "roofline"]
_Launched = Literal["one by one", "steps as graphs", "as graphs"]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a change: the model, its sizes, the device, and how kernels are launched."""

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
    launched: _Launched
    """Which times these are: ``steps as graphs`` with passes before them one by one; ``as graphs`` also where launches or
    element-wise operators were not counted."""

    @property
    def measured_share_ratio(self) -> float:
        """The smaller of both sides."""
        return min(self.before.measured_share_ratio, self.after.measured_share_ratio)

    @property
    def basis(self) -> Basis:
        """The basis of the difference."""
        return "measured operators" if self.measured_share_ratio >= _LEAST_SHARE else "roofline"

    @property
    def source(self) -> str | None:
        """Frameworks and versions of the tables of both sides; ``None``: no table covers a shape."""
        return ", ".join(sorted({*self.before.sources, *self.after.sources})) or None

    @property
    def host_bound(self) -> bool:
        """Whether launching hides the change."""
        return self.before.host_bound and self.after.host_bound


def expected_gain(before: Side, after: Side, tables: Tables) -> ExpectedGain | None:
    """Return the gain of a change; ``None`` if neither tables nor limits give the time of a side."""
    first, second = (_expect(side, tables) for side in (before, after))
    if first is None or second is None:
        return None
    framework = second.main_framework()
    if framework is not None and first.main_framework() not in (None, framework):
        # Two frameworks' kernels differ by more than the change: both sides use the frameworks that cover the new point.
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


# A finished run as one side of a change: its operators, its sizes, its device and how it launches.


_SLICE = re.compile(r"\bMIG\b", re.IGNORECASE)
Limits = Mapping[str, Target]
"""Devices by name, for runs whose own limits are not known."""


def side_of(
    summary: Summary, tables: Tables | None, *, stored_dtype: str | None = None, limits: Limits | None = None
) -> tuple[Side | None, str | None]:
    """Return a run as a side, or the reason why the tables do not cover it.

    ``stored_dtype``: what its weights were quantised to when they were loaded.
    """
    if tables is None:
        return None, describe_absence()
    static = summary.static
    if static is None or static.operators is None:
        return None, "the operators of its model were not counted by shape (pipeline.static_analysis)"
    if ENCODE in static.phases:
        return None, "encoder-decoders are not estimated"
    name = device_name(summary)
    if name is None:
        return None, "its device is not known by name"
    if _SLICE.search(name) or not tables.knows(name):
        return None, f"no operator was measured on {name}"
    point = own_point(static, stored_dtype or summary.workload.dtype)
    if point is None:
        return None, "it has no decode step, or no data type"
    started = started_in(summary, tables)
    passes = tuple(phase for phase in ("vision", "prefill") if phase in static.phases)
    at = at_point(static, point, summary.workload.ranks)
    unshared = reason_not_sharded(static.operators, at.tensor_parallel)
    if unshared is not None:
        return None, unshared
    return Side(
        static.operators,
        passes,
        at,
        _target(name, summary, limits or {}, tables),
        tuple(launches.eager_s for launches in started.before(len(passes))),
        started.step.eager_s,
        bool(summary.workload.compiled or summary.workload.cuda_graphs),
    ), None


def device_name(summary: Summary) -> str | None:
    """Return the name of a run's device; a run of several ranks has it in its environment."""
    own, place = summary.hardware.name, summary.workload.device or "cpu"
    if own is not None and own != place:
        return own
    names = summary.environment.get("devices")
    known = {str(name) for name in names} if isinstance(names, list) else set()
    return known.pop() if len(known) == 1 and not place.startswith("cpu") else own


def _target(name: str, summary: Summary, limits: Limits, tables: Tables) -> Target:
    own, listed = summary.hardware, limits.get(name)
    peaks, bandwidth, link = own.peak_flops_per_s, own.bandwidth_bytes_per_s, own.link_bytes_per_s
    if listed is not None:
        if not peaks or bandwidth is None:
            peaks, bandwidth = dict(listed.peaks), listed.bandwidth_bytes_per_s
        link = link if link is not None else listed.link_bytes_per_s
    return target_of(name, peaks, bandwidth, link, tables)
