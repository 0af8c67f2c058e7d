"""What the tables say of one operator, as a target: only measured or interpolated times, and none a model cannot have.

Tables repeat one call. Where its weights fit into a cache, later repetitions find them there; a model meets hundreds of
other weights in between. A time shorter than reading the weights from memory once is therefore no target.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from llm_perf_opt.analysis.expected.uncached import uncached_bytes
from llm_perf_opt.core.dtypes import canonical_dtype
from llm_perf_opt.hardware.frameworks import framework_words
from llm_perf_opt.hardware.silicon.operators import Attention, Gemm, MoeLayer, Operator
from llm_perf_opt.hardware.silicon.timing import RESTS_ON_TABLES, TableTime, Timing
from llm_perf_opt.model.summary import Hardware

Ask = Callable[[Operator], Timing | None]
LookUp = Callable[[Operator], "MeasuredTime | None"]
_SPLITS = (1, 2, 4, 8)
"""Ranks over which an expert may be split: shapes of a trace are those of one rank, tables name the whole."""


@dataclass(frozen=True, slots=True)
class MeasuredTime:
    """Best and median of the tables that hold a shape."""

    best_s: float
    median_s: float
    how: Literal["measured", "interpolated"]
    source: str


def look_up_in(ask: Ask, hardware: Hardware) -> LookUp:
    """Return a function from an operator to its measured time on this device; ``None`` outside the tables."""
    known: dict[Operator, MeasuredTime | None] = {}

    def look_up(operator: Operator) -> MeasuredTime | None:
        if operator not in known:
            known[operator] = _measured(ask, operator, hardware)
        return known[operator]

    return look_up


def _measured(ask: Ask, operator: Operator, hardware: Hardware) -> MeasuredTime | None:
    floor_s = _least_seconds(operator, hardware)
    for candidate in _candidates(operator):
        timing = ask(candidate)
        if timing is None or timing.how not in RESTS_ON_TABLES:
            continue
        answers = [answer for answer in timing.tables if answer.seconds >= floor_s]
        if answers:
            return _summed_up(answers)
    return None


def _candidates(operator: Operator) -> Iterable[Operator]:
    if not isinstance(operator, MoeLayer) or operator.tensor_parallel != 1:
        return (operator,)
    return (replace(operator, inter=operator.inter * ranks, tensor_parallel=ranks) for ranks in _SPLITS)


def _summed_up(answers: list[TableTime]) -> MeasuredTime:
    best = min(answers, key=lambda answer: answer.seconds)
    return MeasuredTime(
        best.seconds,
        statistics.median(answer.seconds for answer in answers),
        "measured" if all(answer.how == "measured" for answer in answers) else "interpolated",
        framework_words(best.source.framework, best.source.version, best.source.kernel),
    )


def _least_seconds(operator: Operator, hardware: Hardware) -> float:
    """Return the time of computing at the peak, or of reading the weights or the cache once; 0 without limits."""
    if isinstance(operator, Gemm | Attention | MoeLayer):
        dtype = "float8" if operator.dtype == "fp8_block" else canonical_dtype(operator.dtype)
        peak = hardware.peak_flops_per_s.get(dtype)
        compute_s = operator.flops / peak.dense if peak is not None else 0.0
        bandwidth = hardware.bandwidth_bytes_per_s
        memory_s = uncached_bytes(operator) / bandwidth if bandwidth else 0.0
        return max(compute_s, memory_s)
    return 0.0
