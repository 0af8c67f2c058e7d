"""How often the run launches each kernel with each grid and block, by phase."""

from __future__ import annotations

import numpy as np

from llm_perf_opt.analysis.timeline.attribution import NONE, Attribution
from llm_perf_opt.ingest.linking import distinct, exact_sums
from llm_perf_opt.model.counters import LaunchConfiguration
from llm_perf_opt.model.timeline import Int64, OpKind, Timeline

_WHOLE_GRAPH = "[CUDA graph]"


def launch_configurations(
    timeline: Timeline, attribution: Attribution, start_ns: Int64, shapes: Int64
) -> list[LaunchConfiguration] | None:
    """Group the kernels of a timeline by name, phase and shape; ``None`` when the shapes are not of these kernels."""
    ops = timeline.ops
    graphs = [number for number, name in enumerate(timeline.names) if name == _WHOLE_GRAPH]
    rows = np.flatnonzero((ops.kind == OpKind.KERNEL) & ~np.isin(ops.name, graphs))
    if len(rows) != len(start_ns) or not np.array_equal(ops.start_ns[rows], start_ns):
        return None
    columns = [ops.name[rows], attribution.op_phase[rows], *shapes.T]
    group = np.zeros(len(rows), np.int64)
    for column in columns:
        values, position = distinct(column.astype(np.int64))
        group = distinct(group * len(values) + position)[1]
    count = int(group.max(initial=-1)) + 1
    first = np.zeros(count, np.int64)
    first[group[::-1]] = np.arange(len(rows))[::-1]
    found = np.column_stack([column[first] for column in columns])
    launches = np.bincount(group, minlength=count).tolist()
    total = exact_sums(group, ops.end_ns[rows] - ops.start_ns[rows], count).tolist()
    return [
        LaunchConfiguration(
            timeline.names[name],
            attribution.phases[phase] if phase != NONE else None,
            (shape[0], shape[1], shape[2]),
            (shape[3], shape[4], shape[5]),
            often,
            time,
        )
        for (name, phase, *shape), often, time in zip(found.tolist(), launches, total, strict=True)
        if min(shape) > 0
    ]
