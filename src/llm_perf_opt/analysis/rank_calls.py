"""The collectives of one rank, as captures tell them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.analysis.intervals import IntervalSet
from llm_perf_opt.model.timeline import Int64


@dataclass(frozen=True, slots=True, eq=False)
class RankCalls:
    """The collectives of one rank."""

    rank: int
    kind: Sequence[str]
    """``all_reduce``, …"""
    start_ns: Int64
    """On the rank's own clock."""
    end_ns: Int64
    bytes: Int64
    """-1: not recorded."""


@dataclass(frozen=True, slots=True, eq=False)
class HostCollectives:
    """The collectives of one rank on its host."""

    rank: int
    size: int | None
    """Ranks of the program."""
    source: str
    span_ns: int
    """Of the working thread, from its first to its last operator."""
    calls: RankCalls
    waiting: IntervalSet
    """The working thread was inside a call of ``torch.distributed``."""
