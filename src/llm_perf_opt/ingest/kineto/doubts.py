"""Events that cannot be as they are written: one of a million is left out and said, most of them are a damaged file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.ingest.kineto.columns import Columns
from llm_perf_opt.model.limits import MOST_NS


def refuse_impossible(path: Path, columns: Columns) -> None:
    """Refuse a trace most of whose events have no time, or one that cannot be."""
    if 2 * columns.impossible > columns.timed:
        raise InputError(
            f"{path}: traceEvents: {columns.impossible} of {columns.timed} events have no 'ts' or 'dur', "
            "or one that is negative or impossible",
            hint="write the trace again; if a tool rewrote it, use the original",
            path=str(path),
        )


def leave_out_far_off(columns: Columns) -> list[str]:
    """Leave out events more than a week away from the others (a time of zero among times since 1970)."""
    tables = (columns.device, columns.calls, columns.operators, columns.ranges, columns.frames)
    starts = [table.peek("start") for table in tables]
    longest = [int(table.peek("dur").max(initial=0)) for table in tables]
    bounds = [(int(s.min()), int(s.max()) + most) for s, most in zip(starts, longest, strict=True) if len(s)]
    if not bounds or max(last for _, last in bounds) - min(first for first, _ in bounds) <= MOST_NS:
        return []  # without a column of ends
    ends = [start + table.peek("dur") for start, table in zip(starts, tables, strict=True)]
    used = [(int(s.min()), int(e.max())) for s, e in zip(starts, ends, strict=True) if len(s)]
    if max(last for _, last in used) - min(first for first, _ in used) <= MOST_NS:
        return []
    middle = int(np.median(np.concatenate(starts)))
    left_out = 0
    for start, end, table in zip(starts, ends, tables, strict=True):
        near = (start >= middle - MOST_NS // 2) & (end <= middle + MOST_NS // 2)
        left_out += int((~near).sum())
        table.keep(near)
    return [f"{left_out} events lie days away from all others and were left out"]
