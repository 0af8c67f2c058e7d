"""Captures of several ranks, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llm_perf_opt.analysis.facts import Capture
from llm_perf_opt.analysis.timeline.summary import summarise_timeline
from llm_perf_opt.captures.timeline import Timeline
from tests.unit.timelines import ALL_REDUCE, LAUNCH, US, Op, make_timeline


def rank_timeline(
    enters: Sequence[int], ends: Sequence[int], *, clock: int = 0, name: str = ALL_REDUCE, **fields: Any
) -> Timeline:
    """A rank that computes until it enters each collective. Times in µs; ``clock`` is how far its clock is ahead."""
    ops: list[Op] = []
    free = 0
    for enter, end in zip(enters, ends, strict=True):
        ops += [(clock + free, clock + enter, "gemm", 0), (clock + enter, clock + end, name, 0)]
        free = end
    ops.append((clock + free, clock + free + 10, "gemm", 0))
    facts = {"rank": None, "world_size": None, "profiler_steps": 1, **fields.pop("facts", {})}
    return make_timeline(ops, [(clock - 9, clock - 5, LAUNCH)], unit=US, facts=facts, **fields)


def rank_capture(timeline: Timeline, name: str, rank: int | None = None) -> Capture:
    """A capture of it, as the torch profiler would leave."""
    if rank is not None:
        timeline.facts["rank"] = rank
    facts = summarise_timeline(timeline, source=name)
    return Capture(Path(name), timeline, facts, tool="torch profiler", disturbance=1)
