"""Expected times of a model at one point: first token and decode step, launched as graphs and one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llm_perf_opt.analysis.expected.calls import At, apart, calls
from llm_perf_opt.analysis.expected.compose import (
    OperatorTimes,
    PassTime,
    Target,
    eager_work_s,
    joined_ends,
    pass_time,
)
from llm_perf_opt.analysis.expected.sharing import why_not_shared
from llm_perf_opt.core.phases import ENCODE
from llm_perf_opt.model.static.operators import OperatorShapes


@dataclass(frozen=True, slots=True)
class Tables:
    """Measured times, and whose kernels are taken first."""

    times: OperatorTimes
    framework: str | None = None
    power_w: Callable[[str], float | None] = lambda _device: None
    """Device → the power it may draw."""
    knows: Callable[[str], bool] = lambda _device: False
    """Whether there are tables of a device."""
    devices_per_machine: Callable[[str], int | None] = lambda _device: None
    """Device → how many of it one machine has."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What to expect of a device."""

    passes: tuple[PassTime, ...]
    """Up to the first token, in sequence; empty: not known."""
    step: PassTime | None
    eager_passes_s: tuple[float | None, ...] = ()
    """The device's work of each pass when nothing is fused."""
    eager_step_s: float | None = None

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token, launched as graphs."""
        return sum(one.seconds for one in self.passes) if self.passes else None

    @property
    def tpot_s(self) -> float | None:
        """Time of a decode step, launched as a graph."""
        return self.step.seconds if self.step is not None else None

    @property
    def ttft_ends_s(self) -> tuple[float, float] | None:
        """Ends of the time to the first token; ``None``: not known."""
        return joined_ends(self.passes)

    @property
    def tpot_ends_s(self) -> tuple[float, float] | None:
        """The same of a decode step."""
        return self.step.band.ends(self.step.seconds) if self.step is not None else None

    def ttft_eager_s(self, launches_s: Sequence[float | None]) -> float | None:
        """Return the time to the first token with operators launched one by one, which takes ``launches_s`` per pass."""
        if not self.passes or len(launches_s) != len(self.eager_passes_s):
            return None
        longer = [_longer(one, host) for one, host in zip(self.eager_passes_s, launches_s, strict=True)]
        return None if None in longer else sum(seconds for seconds in longer if seconds is not None)

    def tpot_eager_s(self, launches_s: float | None) -> float | None:
        """Return the time of a decode step with operators launched one by one."""
        return _longer(self.eager_step_s, launches_s)

    @property
    def measured_share(self) -> float | None:
        """Share of the step's time (without one, of the first token's) that rests on measurements."""
        counted = [self.step] if self.step is not None else list(self.passes)
        total = sum(one.seconds for one in counted)
        return sum(one.measured_s for one in counted) / total if total else None

    def source(self) -> str | None:
        """Return the frameworks and versions of the tables, kernels left out."""
        every = [*self.passes, *([self.step] if self.step is not None else [])]
        names = {
            part.source.partition(",")[0] for one in every for part in one.parts if part.how != "roofline"
        }
        return ", ".join(sorted(names)) or None

    def main_framework(self) -> str | None:
        """Return whose kernels most of the step's time was measured with; ``None``: no table reaches it."""
        seconds: dict[str, float] = {}
        for part in self.step.parts if self.step is not None else ():
            if part.how != "roofline":
                name = part.source.partition(" ")[0]
                seconds[name] = seconds.get(name, 0.0) + part.seconds
        return max(seconds, key=lambda name: seconds[name], default=None)


def _longer(work_s: float | None, host_s: float | None) -> float | None:
    """Host and device work at the same time: of launches and the device's work the longer is seen."""
    return None if work_s is None or host_s is None else max(work_s, host_s)


def expect(
    shapes: OperatorShapes, passes: Sequence[str], at: At, target: Target, tables: Tables | None
) -> Expectation | None:
    """Return what to expect at a point; ``None`` where neither tables nor limits say anything.

    ``passes`` are the phases up to the first token. Encoder-decoders are not estimated: their rows follow two lengths. Nor is
    a model whose heads so many devices cannot share.
    """
    if ENCODE in passes or why_not_shared(shapes, at.tensor_parallel) is not None:
        return None
    times = tables.times if tables is not None else None
    framework = tables.framework if tables is not None else None
    found = [pass_time(calls(shapes, phase, at), target, times, framework) for phase in passes]
    step = pass_time(calls(shapes, "decode", at), target, times, framework)
    known = [one for one in found if one is not None]
    if step is None and len(known) < len(found):
        return None
    if len(known) < len(found):
        known = []

    def eager(phase: str, timed: PassTime | None) -> float | None:
        return None if timed is None else eager_work_s(timed, apart(shapes, phase, at), target)

    return Expectation(
        tuple(known),
        step,
        tuple(eager(phase, one) for phase, one in zip(passes, known, strict=False)),
        eager("decode", step),
    )
