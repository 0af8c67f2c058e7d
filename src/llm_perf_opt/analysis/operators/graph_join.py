"""Attribute kernels behind graph launches to the operators that recorded them, using the trace of the recording.

A graph is identified by its sequence of kernel names. Where the recording has the same sequence, its operators and
modules are those of the launch. Where several recordings have it (layers of a model are identical), only what they
agree on is used. A sequence that is not found stays unattributed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.analysis.timeline.attribution import NONE, Attribution
from llm_perf_opt.analysis.timeline.range_names import meaning_of
from llm_perf_opt.captures.kineto.calls import RecordedKernel, RecordedRun
from llm_perf_opt.captures.timeline import OpKind, Timeline, behind_graph_launch
from llm_perf_opt.core import units

_LAYER_NUMBER = re.compile(r"(?<=[._])\d+(?=[._]|$)|^\d+(?=[._])")
Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GraphOwner:
    """The operator that recorded one kernel of a graph; ``None``: recordings differ, or it is not recorded."""

    operator: str | None
    module: str | None
    """Layer numbers as ``*`` where only they differ."""


@dataclass(frozen=True, slots=True)
class GraphJoin:
    """Kernels behind graph launches with their owners."""

    owners: dict[int, GraphOwner]
    """Row of ``Timeline.ops`` → its owner."""
    graphs: int
    """Graph launches that ran kernels."""
    joined_graphs: int
    """Of them, found in the recording."""
    kernel_time_ratio: float | None
    """Kernel time behind graph launches that has an operator now ÷ all of it; ``None`` without any."""


@dataclass(frozen=True, slots=True)
class GraphOperatorTime:
    """Device time of one operator behind graph launches, in one phase."""

    operator: str
    phase: str | None
    kernels: int
    device_s: float


def join_graphs(execution: Timeline, recordings: Sequence[RecordedRun]) -> GraphJoin:
    """Name the kernels behind graph launches of a run after the trace of their recording."""
    ops = execution.ops
    kernel = (ops.kind == OpKind.KERNEL) & behind_graph_launch(execution.names, execution.calls, ops)
    rows = np.flatnonzero(kernel)
    by_launch: dict[int, list[int]] = {}
    for row in rows.tolist():  # in order of time
        by_launch.setdefault(int(ops.launch[row]), []).append(row)
    known: dict[Names, list[GraphOwner] | None] = {}
    index = _Recordings(recordings)
    owners: dict[int, GraphOwner] = {}
    joined = 0
    for members in by_launch.values():
        sequence = tuple(execution.names[ops.name[row]] for row in members)
        if sequence not in known:
            known[sequence] = index.owners_of(sequence)
        found = known[sequence]
        if found is not None:
            joined += 1
            owners.update(zip(members, found, strict=True))
    durations = ops.end_ns - ops.start_ns
    total = int(durations[rows].sum())
    named = sum(int(durations[row]) for row, owner in owners.items() if owner.operator is not None)
    return GraphJoin(owners, len(by_launch), joined, named / total if total else None)


class _Recordings:
    """Finds a sequence of kernel names in what was recorded."""

    def __init__(self, runs: Iterable[RecordedRun]) -> None:
        self._graphs: dict[Names, list[tuple[RecordedKernel, ...]]] = {}
        self._passes: list[tuple[Names, tuple[RecordedKernel, ...]]] = []
        for run in runs:
            names = tuple(kernel.name for kernel in run.kernels)
            if run.is_graph:
                self._graphs.setdefault(names, []).append(run.kernels)
            else:
                self._passes.append((names, run.kernels))

    def owners_of(self, names: Names) -> list[GraphOwner] | None:
        """Return the owners all equal sequences agree on; ``None`` if the sequence is not found."""
        candidates = self._graphs.get(names) or self._parts_of_passes(names)
        if not candidates:
            return None
        return [_agreed(kernels) for kernels in zip(*candidates, strict=True)]

    def _parts_of_passes(self, names: Names) -> list[tuple[RecordedKernel, ...]]:
        found = []
        size = len(names)
        for all_names, kernels in self._passes:
            start = 0
            while (place := _find(all_names, names, start)) is not None:
                found.append(kernels[place : place + size])
                start = place + size
        return found


def _find(inside: Names, wanted: Names, start: int) -> int | None:
    """Place of a sequence in another, from ``start`` on."""
    last = len(inside) - len(wanted)
    place = start
    while place <= last:
        try:
            place = inside.index(wanted[0], place, last + 1)
        except ValueError:
            return None
        if inside[place : place + len(wanted)] == wanted:
            return place
        place += 1
    return None


def _agreed(kernels: Sequence[RecordedKernel]) -> GraphOwner:
    operators = {kernel.operator for kernel in kernels}
    modules = {_module(kernel) for kernel in kernels}
    if len(modules) > 1:
        modules = {_LAYER_NUMBER.sub("*", module) if module else None for module in modules}
    return GraphOwner(
        operators.pop() if len(operators) == 1 else None, modules.pop() if len(modules) == 1 else None
    )


def _module(kernel: RecordedKernel) -> str | None:
    return next((module for name in kernel.ranges if (module := meaning_of(name).module) is not None), None)


def graph_operator_times(
    execution: Timeline, attribution: Attribution, join: GraphJoin
) -> list[GraphOperatorTime]:
    """Sum the joined kernels by operator and phase, most time first, for operator tables."""
    ops, phase = execution.ops, attribution.op_phase
    found: dict[tuple[str, str | None], tuple[int, int]] = {}
    for row, owner in join.owners.items():
        if owner.operator is None:
            continue
        where = attribution.phases[int(phase[row])] if phase[row] != NONE else None
        count, time = found.get((owner.operator, where), (0, 0))
        found[owner.operator, where] = (count + 1, time + int(ops.end_ns[row] - ops.start_ns[row]))
    rows = [GraphOperatorTime(*key, count, time / 1e9) for key, (count, time) in found.items()]
    return sorted(rows, key=lambda row: (-row.device_s, row.operator, row.phase or ""))


def join_note(join: GraphJoin) -> str | None:
    """Describe how much of the work behind graph launches was attributed to operators; ``None`` without graphs."""
    if not join.graphs:
        return None
    share = units.percent(join.kernel_time_ratio)
    return (
        f"{join.joined_graphs} of {join.graphs} graph launches have the kernels of a graph in the trace of the "
        f"recording, in the same order: {share} of the kernel time behind graph launches has an operator."
    )
