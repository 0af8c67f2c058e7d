"""Targets as a part of the report."""

from __future__ import annotations

from llm_perf_opt.analysis.targets.calls import ShapedCalls
from llm_perf_opt.analysis.targets.measured import MeasuredTime
from llm_perf_opt.analysis.targets.targets import Coverage, shape_words
from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Kernel, Section, SectionTable

TITLE = "Kernels against the best measured"
_MOST_ROWS = 20
_MOST_OUTSIDE = 3


def target_section(
    stage: str, coverage: Coverage, origin: str, profiled: Coverage | None = None
) -> list[Section]:
    """Return the comparison shape by shape, the most time above the best first; ``origin`` names the tables."""
    rows = sorted(coverage.compared, key=lambda one: -(one[1].total_s - one[1].calls * one[2].best_s))
    rows += profiled.compared if profiled is not None else []
    if not rows and not coverage.outside:
        return []
    words = [
        "Every call of a matrix product, of attention and of routed experts whose shape is known, against the best and the "
        f"median time measured for that shape on this device ({origin}). Times are of one call, all its kernels together; "
        "measurements that only a cache makes possible are left out. Attention of the tables is a framework's whole step, writing "
        "the cache included, so that a bare kernel may be below 1: faster than any table.",
        *_coverage_words(coverage),
    ]
    columns = ["kernel", "phase", "shape", "calls", "here", "best", "median", "× best", "measured with"]
    tables = [SectionTable(columns, [_row(*one) for one in rows[:_MOST_ROWS]])] if rows else []
    return [Section(stage, TITLE, words, tables)]


def missing_section(stage: str, reason: str) -> list[Section]:
    """Say why there are no targets."""
    return [Section(stage, TITLE, [reason])]


def _coverage_words(coverage: Coverage) -> list[str]:
    if not coverage.outside:
        return []
    named = [
        f"{shape_words(row.operator)} ({units.seconds(row.total_s)})"
        for row in coverage.outside[:_MOST_OUTSIDE]
    ]
    more = len(coverage.outside) - len(named)
    return [
        f"Compared: {units.seconds(coverage.compared_s)}. Outside the tables, so without a target: "
        f"{units.seconds(coverage.outside_s)}: {'; '.join(named)}{f'; {more} more shapes' if more else ''}."
    ]


def _row(kernel: Kernel, row: ShapedCalls, time: MeasuredTime) -> list[str]:
    here_s = row.total_s / row.calls
    remark = kernel.target.remark if kernel.target is not None else None
    return [
        kernel.short_name,
        kernel.phase or units.MISSING,
        shape_words(row.operator),
        units.count(row.calls),
        units.seconds(here_s),
        units.seconds(time.best_s),
        units.seconds(time.median_s),
        units.number(here_s / time.best_s),
        time.source + (f" ({remark})" if remark else ""),
    ]
