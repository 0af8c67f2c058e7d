"""Targets as a part of the report."""

from __future__ import annotations

from collections.abc import Iterable

from llm_perf_opt.analysis.targets.targets import Coverage, shape_words
from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Kernel, Section, SectionTable

TITLE = "Kernels against the best measured"
_MOST_ROWS = 20
_MOST_OUTSIDE = 3


def target_section(stage: str, kernels: Iterable[Kernel], coverage: Coverage, origin: str) -> list[Section]:
    """Return the comparison, the most time at stake first; ``origin`` names the tables."""
    rows = [kernel for kernel in kernels if kernel.target is not None]
    rows.sort(key=lambda kernel: -_stake(kernel))
    if not rows and not coverage.outside:
        return []
    words = [
        "Every call of a matrix product, of attention and of routed experts whose shape is known, against the best and the "
        f"median time measured for that shape on this device ({origin}). Times are of one call, all its kernels together; "
        "measurements that only a cache makes possible are left out. Attention of the tables is a framework's whole step, writing "
        "the cache included, so that a bare kernel may be below 1: faster than any table.",
        *_coverage_words(coverage),
    ]
    columns = [
        "kernel",
        "phase",
        "shape",
        "calls",
        "here",
        "best",
        "median",
        "× best",
        "at stake",
        "measured with",
    ]
    tables = [SectionTable(columns, [_row(kernel) for kernel in rows[:_MOST_ROWS]])] if rows else []
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


def _row(kernel: Kernel) -> list[str]:
    target = kernel.target
    if target is None:
        return []
    more = f" and {len(target.shapes) - 1} more" if len(target.shapes) > 1 else ""
    return [
        kernel.short_name,
        kernel.phase or units.MISSING,
        (target.shapes[0] if target.shapes else units.MISSING) + more,
        units.count(target.calls),
        units.seconds(target.measured_s),
        units.seconds(target.best_s),
        units.seconds(target.median_s),
        units.number(target.ratio),
        units.seconds(target.at_stake_s),
        target.source + (f" ({target.remark})" if target.remark else ""),
    ]


def _stake(kernel: Kernel) -> float:
    return (kernel.target.at_stake_s or 0.0) if kernel.target is not None else 0.0
