"""A capture, what is wrong with it, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from .events import RankEvents
from .gpus import Gpu
from .machine import HostCosts, Program, Rank
from .together import run_together

Format = Literal["kineto", "nsys"]
CAUSES = (
    "exposed-communication",
    "straggler",
    "input-pipeline",
    "host-sync",
    "launch-bound",
    "host-idle",
    "allocation",
    "copies",
    "eager-attention",
    "unfused-elementwise",
    "misaligned-gemm",
)
"""Finding ids, and what each planted loss is.

exposed-communication  only communication ran on the device, mean over the ranks
straggler              the other ranks have nothing to run but a collective that the late rank has not entered, mean over them
input-pipeline         device idle while the host loads or tokenises
host-sync              device idle after the host had waited for it, though the host could have kept ahead
launch-bound           device idle because launching takes longer than the kernels
host-idle              device idle while the host computes outside operators and calls, with no wait before
allocation             device idle around cudaMalloc and cudaFree
copies                 only copies ran
eager-attention        kernels on the scores between the two batched products of attention
unfused-elementwise    element-wise chains, less what one fused kernel for each would take
misaligned-gemm        misaligned products, less what they would take at the rate of the aligned ones
"""


@dataclass(frozen=True, slots=True)
class World:
    """The ranks a program runs on."""

    gpu: Gpu
    ranks: int = 1
    captured: int | None = None
    """How many of them were captured; ``None``: all."""
    costs: HostCosts = field(default_factory=HostCosts)
    with_stack: bool = False
    straggler: int | None = None
    slower: float = 1.0
    """How many times slower the straggler's kernels are."""
    clocks_ms: float = 0.0
    """Clocks of the ranks differ by up to this."""
    default_cause: str | None = None
    start: Callable[[Rank], None] | None = None

    def build(self, program: Callable[[Rank], Program], seed: int) -> list[Rank]:
        """Run the program on all ranks."""
        ranks = [self._rank(number, seed) for number in range(self.ranks)]
        for rank in ranks:
            if self.start is not None:
                self.start(rank)
        run_together([program(rank) for rank in ranks])
        return ranks

    def _rank(self, number: int, seed: int) -> Rank:
        rank = Rank(
            number,
            self.ranks,
            self.gpu,
            seed=seed,
            costs=self.costs,
            with_stack=self.with_stack,
            device_factor=self.slower if number == self.straggler else 1.0,
            clock_offset_ns=int(self.clocks_ms * 1e6 * (number * 7919 % 13 - 6) / 6),
        )
        rank.straggler, rank.default_cause = self.straggler, self.default_cause
        return rank


@dataclass(frozen=True, slots=True)
class Case:
    """One labelled capture."""

    name: str
    format: Format
    causes: tuple[str, ...]
    """The largest first; none: healthy."""
    world: World
    program: Callable[[Rank], Program]
    one_file: bool = False
    """nsys: all ranks in one export."""
    suffix: str = ".json.gz"
    unprofiled_ratio: float | None = None
    """Wall-clock without a profiler ÷ device time: given beside the capture, it decides the loss."""
    tokens_per_sample: int = 0
    """Tokens the wall-clock is of; the capture may hold fewer steps."""
    steps: int = 0
    """Decode steps in the capture."""
    seed: int = 14

    @property
    def healthy(self) -> bool:
        return not self.causes


@dataclass(frozen=True, slots=True)
class Built:
    """A simulated case: the ranks that were captured, and the planted losses."""

    ranks: list[RankEvents]
    losses_s: dict[str, float]
    span_s: float
    """First to last activity of a device, mean over the ranks."""
    timings: dict[str, float] | None = None
    """Wall-clock without a profiler."""


def build(case: Case) -> Built:
    """Simulate a case."""
    ranks = case.world.build(case.program, case.seed)
    captured = ranks[: case.world.captured or len(ranks)]
    spans = [_span_ns(rank) for rank in captured]
    losses = {cause: _loss_s(cause, captured, case.world.straggler) for cause in case.causes}
    built = Built([rank.recorded() for rank in captured], losses, sum(spans) / len(spans) / 1e9)
    return built if case.unprofiled_ratio is None else _with_wall_clock(case, built)


def _with_wall_clock(case: Case, built: Built) -> Built:
    """The loss is what the wall-clock without a profiler has over the device's own time."""
    (rank,) = built.ranks
    token_s = sum(event.end_ns - event.start_ns for event in rank.devices) / case.steps / 1e9
    unprofiled_s = token_s * (case.unprofiled_ratio or 1.0)
    tokens = case.tokens_per_sample
    timings = {"samples": 1, "new_tokens": tokens, "decode_s": unprofiled_s * tokens}
    losses = dict.fromkeys(case.causes, (unprofiled_s - token_s) * tokens)
    return replace(built, losses_s=losses, timings=timings)


def _loss_s(cause: str, ranks: Sequence[Rank], straggler: int | None) -> float:
    if cause == "straggler":
        ranks = [rank for rank in ranks if rank.number != straggler]
    return sum(rank.lost_ns.get(cause, 0) for rank in ranks) / len(ranks) / 1e9


def _span_ns(rank: Rank) -> int:
    return max(e.end_ns for e in rank.devices) - min(e.start_ns for e in rank.devices)
