"""What a change of data type, batch size or number of devices would gain, from measured operators instead of bounds."""

from __future__ import annotations

from dataclasses import dataclass

from llm_perf_opt.analysis.expected.calls import At
from llm_perf_opt.analysis.expected.compose import Target
from llm_perf_opt.analysis.expected.estimate import Expectation, Tables, expect
from llm_perf_opt.model.operators import OperatorShapes

LEAST_SHARE = 0.5
"""Of a step's time must rest on measurements on both sides: less, and a difference of rooflines would pass for a measured one."""


@dataclass(frozen=True, slots=True)
class ExpectedGain:
    """Expected times before and after a change, in seconds; per output token those of one sequence's share of a step."""

    ttft_before_s: float
    ttft_after_s: float
    tpot_before_s: float
    tpot_after_s: float
    seconds_per_token_before: float
    seconds_per_token_after: float
    measured_share_ratio: float
    """The smaller of both sides."""
    source: str
    """Frameworks and versions of the tables."""

    @property
    def token_gain_ratio(self) -> float:
        """Share of the time per token, over the batch, that the change saves; below zero: it costs."""
        return 1.0 - self.seconds_per_token_after / self.seconds_per_token_before


def expected_gain(
    shapes: OperatorShapes, before: At, after: At, target: Target, tables: Tables, *, vision: bool = False
) -> ExpectedGain | None:
    """Return what a change gains; ``None`` where the tables do not reach far enough to say."""
    passes = ["vision", "prefill"] if vision else ["prefill"]
    sides = [expect(shapes, passes, at, target, tables) for at in (before, after)]
    known = [side for side in sides if side is not None and _reaches(side)]
    if len(known) < len(sides):
        return None
    (ttft_a, tpot_a, share_a), (ttft_b, tpot_b, share_b) = (_times(side) for side in known)
    source = ", ".join(sorted({name for side in known for name in (side.source() or "").split(", ") if name}))
    return ExpectedGain(
        ttft_a,
        ttft_b,
        tpot_a,
        tpot_b,
        tpot_a / before.batch_size,
        tpot_b / after.batch_size,
        min(share_a, share_b),
        source,
    )


def _reaches(side: Expectation) -> bool:
    known = side.ttft_s is not None and side.tpot_s is not None
    return known and (side.measured_share or 0.0) >= LEAST_SHARE


def _times(side: Expectation) -> tuple[float, float, float]:
    return side.ttft_s or 0.0, side.tpot_s or 0.0, side.measured_share or 0.0
