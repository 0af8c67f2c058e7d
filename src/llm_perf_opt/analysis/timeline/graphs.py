"""Work behind graph launches, and traces of graphs being recorded: what may be said of them and what may not.

A graph holds kernels that other operators put there earlier. Its launch tells the phase, nothing more; which
operator or module a kernel belongs to is only known where the trace of the recording is given too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from llm_perf_opt.analysis.timeline.attribution import NONE, Attribution, totals
from llm_perf_opt.core import units
from llm_perf_opt.ingest.graphs import behind_graph_launch, is_capture_begin, is_capture_end, is_kernel_launch
from llm_perf_opt.model.timeline import HostCalls, Int64, OpKind, Timeline

MOSTLY_RECORDED = 0.5
"""From this many launches that only recorded, per kernel that ran, a trace is of recording and not of running."""


@dataclass(frozen=True, slots=True)
class GraphUse:
    """What graphs have to do with a capture."""

    kernel_time_ratio: float | None
    """Kernel time behind graph launches ÷ all kernel time; ``None`` where no kernel's launch is known."""
    recordings: int
    """Graphs recorded in the capture."""
    recorded_launches: int
    """Kernel launches that put a kernel into a graph instead of running it."""
    executed_kernels: int

    @property
    def is_recording(self) -> bool:
        """Whether the capture shows graphs being recorded rather than a program running."""
        enough = self.recorded_launches >= MOSTLY_RECORDED * self.executed_kernels
        return self.recordings > 0 and (enough if self.recorded_launches else not self.executed_kernels)


def graph_use(timeline: Timeline) -> GraphUse:
    """Look at the launches and recordings of a capture."""
    ops, calls, names = timeline.ops, timeline.calls, timeline.names
    kernel = ops.kind == OpKind.KERNEL
    ratio = None
    durations = (ops.end_ns - ops.start_ns)[kernel]
    total = int(durations.sum())
    if total and (ops.launch[kernel] >= 0).any():
        behind = behind_graph_launch(names, calls, ops)[kernel]
        ratio = int(durations[behind].sum()) / total
    begins, ends = _rows(calls, names, is_capture_begin), _rows(calls, names, is_capture_end)
    recorded = 0
    if len(begins):
        launches = _rows(calls, names, is_kernel_launch)
        ran = np.zeros(len(calls), bool)
        ran[ops.launch[ops.launch >= 0]] = True
        launches = launches[~ran[launches]]
        recorded = _inside_recordings(calls, launches, begins, ends)
    return GraphUse(ratio, len(begins), recorded, int(kernel.sum()))


def _rows(calls: HostCalls, names: list[str], wanted: Callable[[str], bool]) -> Int64:
    chosen = [index for index in np.unique(calls.name).tolist() if wanted(names[index])]
    rows: Int64 = np.flatnonzero(np.isin(calls.name, chosen))
    return rows


def _inside_recordings(calls: HostCalls, launches: Int64, begins: Int64, ends: Int64) -> int:
    """Count launches between a begin and the next end on the same thread; an end that is missing holds to the last."""
    count = 0
    for thread in np.unique(calls.thread[begins]).tolist():
        opened = np.sort(calls.start_ns[begins[calls.thread[begins] == thread]])
        closed = np.sort(calls.start_ns[ends[calls.thread[ends] == thread]])
        at = calls.start_ns[launches[calls.thread[launches] == thread]]
        began, ended = np.searchsorted(opened, at, "right"), np.searchsorted(closed, at, "right")
        count += int((began > ended).sum())
    return count


def graph_device_seconds(timeline: Timeline, attribution: Attribution) -> dict[str | None, float]:
    """Return phase → device time behind graph launches; phases without any are left out."""
    behind = behind_graph_launch(timeline.names, timeline.calls, timeline.ops)
    if not behind.any():
        return {}
    found = totals(timeline, attribution.op_phase.astype(np.int64), behind)
    return {
        attribution.phases[number] if number != NONE else None: total.total_ns / 1e9
        for number, total in found.items()
    }


def graph_notes(use: GraphUse) -> list[str]:
    """Return what a reader must know of graphs in a capture."""
    notes = []
    if use.is_recording:
        notes.append(
            f"The trace shows graphs being recorded ({use.recordings} recordings, {use.recorded_launches} kernel "
            f"launches that only record, {use.executed_kernels} kernels that ran): it tells which operators a graph "
            "holds, not how busy a device is. Give the trace of the run as well."
        )
    if use.kernel_time_ratio:
        notes.append(
            f"{units.percent(use.kernel_time_ratio)} of kernel time lies behind graph launches: it belongs to the phase "
            "of the launch, and no operator or module claims it."
        )
    return notes


def unclaimed_behind_graphs(timeline: Timeline, attribution: Attribution) -> Attribution:
    """Take kernels behind graph launches out of the modules around the launch; phase and component stay."""
    behind = behind_graph_launch(timeline.names, timeline.calls, timeline.ops)
    if not behind.any() or not any(attribution.path_module):
        return attribution
    outside = np.array([_outside_modules(attribution, path) for path in range(len(attribution.path_module))])
    op_path = attribution.op_path.copy()
    rows = np.flatnonzero(behind & (op_path != NONE))
    op_path[rows] = outside[op_path[rows]]
    return replace(attribution, op_path=op_path)


def _outside_modules(attribution: Attribution, path: int) -> int:
    """Return the nearest path around (or this one) that names no module; itself where only modules name its phase."""
    for above in attribution.paths.ancestors(path):
        same_phase = attribution.path_phase[above] == attribution.path_phase[path]
        same_component = attribution.path_component[above] == attribution.path_component[path]
        if not (same_phase and same_component):
            return path
        if attribution.path_module[above] is None:
            return above
    return NONE if attribution.path_phase[path] == NONE and attribution.path_component[path] is None else path
