"""Operators of the profiled pass as records: by phase, ranked, with the rest summed up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

import numpy as np

from llm_perf_opt.analysis.timeline.attribution import Attribution, Int32, take_or_none
from llm_perf_opt.captures.kineto.operators import OperatorTable
from llm_perf_opt.captures.timeline import Timeline
from llm_perf_opt.summary import Operator

RankBy = Literal["auto", "self_device", "total_device", "self_cpu", "total_cpu", "calls"]


def operator_records(
    table: OperatorTable,
    timeline: Timeline,
    attribution: Attribution | None = None,
    *,
    rank_by: RankBy = "auto",
    limit: int | None = None,
) -> list[Operator]:
    """Sum the table by (phase, operator) and rank it inside each phase.

    Phases come in order of time, calls outside all phases last. ``limit`` keeps the first operators of each
    phase. Ties are broken by name, so the order does not depend on the file's.
    """
    phases = attribution.phases if attribution is not None else ()
    phase = _phase_of_rows(table, attribution)
    names = max(1, len(timeline.names))
    keys, code = np.unique(phase.astype(np.int64) * names + table.name, return_inverse=True)

    def summed(column: str) -> list[int] | None:
        values = getattr(table, column)
        if values is None:
            return None
        total = np.zeros(len(keys), np.int64)
        np.add.at(total, code, values)
        found: list[int] = total.tolist()
        return found

    calls, self_ns, total_ns = summed("calls") or [], summed("self_ns") or [], summed("total_ns") or []
    self_device, total_device = summed("self_device_ns"), summed("total_device_ns")
    records: dict[int, list[Operator]] = {}
    for row, key in enumerate(keys.tolist()):
        number = key // names
        records.setdefault(number if number >= 0 else len(phases), []).append(
            Operator(
                name=timeline.names[key % names],
                calls=calls[row],
                self_cpu_s=self_ns[row] / 1e9,
                total_cpu_s=total_ns[row] / 1e9,
                self_device_s=None if self_device is None else self_device[row] / 1e9,
                total_device_s=None if total_device is None else total_device[row] / 1e9,
                phase=phases[number] if number >= 0 else None,
            )
        )
    return [op for number in sorted(records) for op in rank(records[number], rank_by)[:limit]]


def rank(operators: list[Operator], by: RankBy = "auto") -> list[Operator]:
    """Sort operators, largest first; by name where equal."""
    if by == "auto":
        by = "self_device" if any(op.self_device_s for op in operators) else "self_cpu"

    def size(op: Operator) -> float:
        value = op.calls if by == "calls" else getattr(op, f"{by}_s")
        return 0.0 if value is None else float(value)

    # Host time decides among operators that cause no device time.
    return sorted(operators, key=lambda op: (-size(op), -op.self_cpu_s, op.name))


def add_up(operators: Iterable[Operator], by: RankBy = "auto") -> list[Operator]:
    """Add up the operators of several captures (one per rank) by phase and name; phases in order of appearance."""
    found: dict[tuple[str | None, str], Operator] = {}
    for one in operators:
        before = found.get((one.phase, one.name))
        if before is None:
            found[one.phase, one.name] = replace(one)
            continue
        before.calls += one.calls
        before.self_cpu_s += one.self_cpu_s
        before.total_cpu_s += one.total_cpu_s
        before.self_device_s = _sum(before.self_device_s, one.self_device_s)
        before.total_device_s = _sum(before.total_device_s, one.total_device_s)
    phases = dict.fromkeys(phase for phase, _ in found)
    return [op for phase in phases for op in rank([one for one in found.values() if one.phase == phase], by)]


def _sum(first: float | None, second: float | None) -> float | None:
    return second if first is None else first if second is None else first + second


def _phase_of_rows(table: OperatorTable, attribution: Attribution | None) -> Int32:
    if attribution is None:
        return np.full(len(table), -1, np.int32)
    return take_or_none(attribution.path_phase, take_or_none(attribution.paths.of_range, table.range))
