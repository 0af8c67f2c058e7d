"""What a comparison concludes: the wall-clock first, then what the captures say, each at equal work."""

from __future__ import annotations

from llm_perf_opt.analysis.compare.conclusion.captured import conclude_captures
from llm_perf_opt.analysis.compare.conclusion.wall_clock import conclude_wall_clock
from llm_perf_opt.model.comparison import Comparison
from llm_perf_opt.model.conclusion import Conclusion, Work
from llm_perf_opt.model.summary import Summary

_OTHER = ("model", "architecture", "hardware", "weights", "dtype")
"""Differences that are a cause of their own."""


def conclude(result: Comparison, a: Summary, b: Summary, work: Work, *, failed: list[str]) -> None:
    """Add conclusions and the first sentence to a comparison that holds metrics, splits and kernels already."""
    if failed:
        result.sentence = f"No conclusion: {failed[0]}"
        return
    found = (
        conclude_wall_clock(a, b, result.metrics, result.splits),
        conclude_captures(a, b, result.kernels, work),
    )
    result.conclusions = [each for each in found if each is not None]
    if not result.conclusions:
        result.sentence = (
            "No conclusion: nothing that tells how long the work takes was measured on both sides."
        )
        return
    _warn(result.conclusions[0], result)
    result.sentence = result.conclusions[0].sentence


def _warn(first: Conclusion, result: Comparison) -> None:
    other = [row for row in result.differences if row.what in _OTHER and row.a and row.b]
    if other:
        said = ", ".join(f"{row.what} ({row.a} → {row.b})" for row in other)
        first.details.append(f"The sides differ in {said}: not all of the change need be one of speed.")
