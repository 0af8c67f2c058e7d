"""Step times of a server: from expected operator times, or fitted to the step records of a finished run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from llm_perf_opt.analysis.roofline.expected_calls import At, Call, calls
from llm_perf_opt.analysis.roofline.expected_times import MEMORY_SHARE, Tables, Target, pass_time
from llm_perf_opt.hardware.silicon import Attention, LatentBlock
from llm_perf_opt.what_if.simulate import Step

if TYPE_CHECKING:
    from llm_perf_opt.summary.static import OperatorShapes

End = Literal["low", "expected", "high"]


@dataclass(frozen=True, slots=True)
class Ranged:
    """An assumed value with the range of published engines."""

    low: float
    expected: float
    high: float

    def at(self, end: End) -> float:
        """Return one of the three."""
        return float(getattr(self, end))


@dataclass(frozen=True, slots=True)
class EngineCosts:
    """What an engine adds to the work of its device: assumptions, not measurements, stated with every result."""

    step_s: Ranged = Ranged(0.1e-3, 0.5e-3, 2.5e-3)
    """Host time of a step that the device waits for: scheduling, inputs, sampling, outputs. The low end is scheduling that
    overlaps with the step before, the high end an engine without it."""
    sequence_s: Ranged = Ranged(2e-6, 8e-6, 25e-6)
    """The same per request of the batch."""
    rank_s: Ranged = Ranged(0.05e-3, 0.2e-3, 0.8e-3)
    """The same for handing a step to several devices."""
    launch_s: Ranged = Ranged(2e-6, 4e-6, 8e-6)
    """Per operator of a step with prompt chunks, which is not one graph; hidden where the device's work is longer."""
    request_s: Ranged = Ranged(1.5e-3, 4e-3, 12e-3)
    """From sending to the scheduler: HTTP, chat template, transport between processes."""
    intake_s: Ranged = Ranged(0.2e-3, 0.7e-3, 2e-3)
    """Of it, what the front end does for one request at a time."""
    prompt_token_s: Ranged = Ranged(0.5e-6, 1.5e-6, 4e-6)
    """Tokenising, per prompt token."""
    answer_s: Ranged = Ranged(0.2e-3, 1e-3, 3e-3)
    """From the end of a step to the client."""
    work_ratio: Ranged = Ranged(0.9, 1.0, 1.15)
    """Kernels inside an engine ÷ the same kernels timed alone: clocks under sustained load, operators that are not fused."""


_UNKNOWN = Ranged(0.7, 1.0, 1.5)
"""Range of a part whose error was never measured."""
_SAMPLING_PASSES = 4.0
_SAMPLING_KERNELS_S = 15e-6
_CAPTURED = 512
"""Largest number of tokens that engines capture as a graph; up to it batches are padded to the next captured size."""

Times = tuple[float, float, float]
"""Low, expected, high."""


class OperatorSteps:
    """Step times of a counted model on a device: the operators of the step's tokens, its attention, and the engine's cost."""

    def __init__(
        self, shapes: OperatorShapes, at: At, target: Target, tables: Tables | None, costs: EngineCosts
    ) -> None:
        self.shapes, self.at, self.target, self.tables, self.costs = shapes, at, target, tables, costs
        self.heads = {
            one.name
            for one in shapes.products
            if one.phase in ("prefill", "decode") and one.rows_follow == "sequences"
        }
        self.vocabulary = max((one.outputs for one in shapes.products if one.name in self.heads), default=0)
        self.has_vision = any(one.phase == "vision" for one in shapes.products)
        """Whether a request begins with images: they are encoded in the step of its first prompt chunk."""
        self._cache: dict[tuple[str, int, int], Times] = {}
        self._steps: dict[Step, Times] = {}
        self.operators = sum(call.times for call in calls(shapes, "prefill", self._at(1, 64, 64)))
        """Operators of a step with prompt chunks, which is launched one by one."""
        self.unknown = False
        """Whether a part had no measured error."""

    def work(self, step: Step) -> Times:
        """Return the device's time of a step."""
        found = self._steps.get(step)
        if found is None:
            if len(self._steps) > 20_000:
                self._steps.clear()
            found = self._steps[step] = self._work(step)
        return found

    def _work(self, step: Step) -> Times:
        parts = [self._linear("prefill" if step.chunks else "decode", padded(step.tokens))]
        if step.decoding:
            parts.append(self._decode_attention(step.decoding, step.context_tokens / step.decoding))
        groups: dict[tuple[int, int], int] = {}
        for new, before in step.chunks:
            groups[_rounded(new), _rounded(before)] = groups.get((_rounded(new), _rounded(before)), 0) + 1
        parts += [self._chunk(new, before, count) for (new, before), count in groups.items()]
        if step.sampled:
            parts.append(self._head(padded(step.sampled)))
        begun = sum(not before for _, before in step.chunks)
        if begun and self.has_vision:
            parts.append(self._timed(("vision", begun, 0), "vision", self._at(begun, 1, 1), lambda _: True))
        return (sum(one[0] for one in parts), sum(one[1] for one in parts), sum(one[2] for one in parts))

    def _at(self, batch: int, prompt: int, context: int) -> At:
        return At(batch, prompt, context, self.at.dtype, self.at.cache_dtype, self.at.tensor_parallel)

    def _timed(self, key: tuple[str, int, int], phase: str, at: At, chosen: Callable[[Call], bool]) -> Times:
        found = self._cache.get(key)
        if found is None:
            wanted = [call for call in calls(self.shapes, phase, at) if chosen(call)]
            times = self.tables.times if self.tables is not None else None
            framework = self.tables.framework if self.tables is not None else None
            timed = pass_time(wanted, self.target, times, framework)
            if timed is None:
                raise UnknownTime(phase)
            ends = timed.band.ends(timed.seconds)
            if ends is None:
                self.unknown = True
                ends = timed.seconds * _UNKNOWN.low, timed.seconds * _UNKNOWN.high
            found = self._cache[key] = (ends[0], timed.seconds, ends[1])
        return found

    def _linear(self, phase: str, tokens: int) -> Times:
        """Return everything but attention and the output head, which do not scale with tokens."""
        at = self._at(tokens, 1, 1) if phase == "decode" else self._at(1, tokens, 1)
        return self._timed((f"linear {phase}", tokens, 0), phase, at, self._is_linear)

    def _is_linear(self, call: Call) -> bool:
        return not _is_attention(call) and call.name not in self.heads

    def _head(self, sequences: int) -> Times:
        low, expected, high = self._timed(
            ("head", sequences, 0), "decode", self._at(sequences, 1, 1), lambda call: call.name in self.heads
        )
        bandwidth = self.target.bandwidth_bytes_per_s
        moved = sequences * self.vocabulary * 4.0 * _SAMPLING_PASSES
        sampling = _SAMPLING_KERNELS_S + (moved / (bandwidth * MEMORY_SHARE) if bandwidth else 0.0)
        return low + 0.5 * sampling, expected + sampling, high + 2.0 * sampling

    def _decode_attention(self, requests: int, context: float) -> Times:
        """Return attention of decoding requests at their mean context, between two lengths of a grid."""
        requests = padded(requests)
        below = _grid_below(context)
        above = max(math.ceil(below * 1.25), below + 1)
        share = min(1.0, max(0.0, (context - below) / (above - below)))
        first, second = (
            self._timed(
                ("decode attention", requests, length),
                "decode",
                self._at(requests, 1, length),
                _is_attention,
            )
            for length in (below, above)
        )
        return _between(first, second, share)

    def _chunk(self, new: int, before: int, count: int) -> Times:
        """Return attention of prompt chunks: a prompt of all positions less one of those computed before."""
        whole = self._context_attention(before + new, count)
        if not before:
            return whole
        earlier, alone = self._context_attention(before, count), self._context_attention(new, count)
        low, expected, high = (max(w - e, a) for w, e, a in zip(whole, earlier, alone, strict=True))
        return low, expected, high

    def _context_attention(self, tokens: int, count: int) -> Times:
        return self._timed(
            ("context attention", tokens, count), "prefill", self._at(count, tokens, 1), _is_attention
        )


class UnknownTime(Exception):
    """An operator has neither a table nor limits."""


class EngineTimes:
    """One end of the range of step times, for the simulation."""

    def __init__(self, steps: OperatorSteps, end: End) -> None:
        self.steps, self.end = steps, end

    def seconds(self, step: Step) -> float:
        """Return the device's time and what the engine adds; errors of the two are independent."""
        work = self.steps.work(_coarse(step))
        expected = self._with_launches(work[1], step, "expected") + self._added_s(step, "expected")
        if self.end == "expected":
            return expected
        place, costs = (0 if self.end == "low" else 2), self.steps.costs
        errors = (
            work[place] - work[1],
            work[1] * (costs.work_ratio.at(self.end) - 1.0),
            self._added_s(step, self.end) - self._added_s(step, "expected"),
            self._with_launches(work[1], step, self.end) - self._with_launches(work[1], step, "expected"),
        )
        error = math.sqrt(sum(one * one for one in errors))
        return max(expected - error, work[0]) if self.end == "low" else expected + error

    def _with_launches(self, work_s: float, step: Step, end: End) -> float:
        return (
            max(work_s, self.steps.operators * self.steps.costs.launch_s.at(end)) if step.chunks else work_s
        )

    def _added_s(self, step: Step, end: End) -> float:
        costs = self.steps.costs
        several = costs.rank_s.at(end) if self.steps.at.tensor_parallel > 1 else 0.0
        return costs.step_s.at(end) + several + (step.decoding + len(step.chunks)) * costs.sequence_s.at(end)

    def before_s(self, prompt_tokens: int) -> float:
        """Return the time to the scheduler."""
        costs = self.steps.costs
        return costs.request_s.at(self.end) + prompt_tokens * costs.prompt_token_s.at(self.end)

    def intake_s(self, prompt_tokens: int) -> float:
        """Return what the front end does one request at a time."""
        costs = self.steps.costs
        return costs.intake_s.at(self.end) + prompt_tokens * costs.prompt_token_s.at(self.end)

    def after_s(self) -> float:
        """Return the time back to the client."""
        return self.steps.costs.answer_s.at(self.end)


def padded(tokens: int) -> int:
    """Return the size a step runs at: the next captured one; larger steps in sixty-fours."""
    if tokens <= 2:
        return max(tokens, 1)
    if tokens <= 4:
        return 4
    if tokens <= 256:
        return math.ceil(tokens / 8) * 8
    if tokens <= _CAPTURED:
        return math.ceil(tokens / 16) * 16
    return round(tokens / 64) * 64


def _rounded(tokens: int) -> int:
    return tokens if tokens <= 64 else round(tokens / 32) * 32


def _coarse(step: Step) -> Step:
    """Return a rounded step, so that the times of similar steps are computed once."""
    chunks = tuple(sorted((_rounded(new), _rounded(before)) for new, before in step.chunks))
    if not step.decoding:
        return Step(0, 0.0, chunks, step.sampled)
    mean = step.context_tokens / step.decoding
    mean = mean if mean < 64 else round(mean / 16) * 16
    return Step(step.decoding, mean * step.decoding, chunks, step.sampled)


def _grid_below(context: float) -> int:
    """Return the largest length of the grid (a quarter apart) that is not above a context."""
    if context < 16:
        return max(int(context), 1)
    length = 16
    while math.ceil(length * 1.25) <= context:
        length = math.ceil(length * 1.25)
    return length


def _between(first: Times, second: Times, share: float) -> Times:
    low, expected, high = (a + (b - a) * share for a, b in zip(first, second, strict=True))
    return low, expected, high


def _is_attention(call: Call) -> bool:
    return isinstance(call.operator, Attention | LatentBlock)
