"""Torch profiler traces (Kineto's Chrome JSON, plain or gzip) as a :class:`Timeline` and a table of operators.

Works for traces of any program and any torch since 1.8: with or without rank, one or several devices and
streams, CUDA graphs, CPU only. Memory grows with what is kept, not with the file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from llm_perf_opt.captures.kineto.collectives import collective_calls
from llm_perf_opt.captures.kineto.columns import Columns, NeedsExactTimes
from llm_perf_opt.captures.kineto.operators import OperatorTable, SpanTable, operator_table
from llm_perf_opt.captures.kineto.parts import read_in_parts
from llm_perf_opt.captures.kineto.stream import EventStream
from llm_perf_opt.captures.kineto.timeline import (
    device_names,
    device_side,
    frame_spans,
    host_side,
    leave_out_far_off,
    process_id,
    refuse_impossible,
)
from llm_perf_opt.captures.timeline import (
    DeviceOps,
    Int32,
    Int64,
    Timeline,
    behind_graph_launch,
    check_limits,
    is_graph_launch,
)

_STEP = "ProfilerStep"
_METADATA = (
    "cuda_runtime_version",
    "cuda_driver_version",
    "hip_runtime_version",
    "hip_driver_version",
    "cupti_version",
    "record_shapes",
    "with_stack",
    "with_flops",
    "with_modules",
    "profile_memory",
)


@dataclass(frozen=True, slots=True)
class MemorySamples:
    """What the allocators reported (``profile_memory=True``), in time order."""

    time_ns: Int64
    device_type: Int32
    """0: host, 1: CUDA (torch's ``DeviceType``)."""
    device: Int32
    allocated_bytes: Int64
    """In use after the event. The host's count starts with the profile, so it is relative."""

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(frozen=True, slots=True)
class KinetoCapture:
    """A torch trace in memory."""

    timeline: Timeline
    operators: OperatorTable
    memory: MemorySamples
    facts: dict[str, Any]
    """The same as ``timeline.facts``."""


def read_kineto(path: Path) -> KinetoCapture:
    """Read a trace; a truncated, damaged or foreign file raises :class:`InputError`."""
    path = Path(path)
    try:
        stream, columns = _read_columns(path, exact=False)
    except NeedsExactTimes:
        stream, columns = _read_columns(path, exact=True)
    refuse_impossible(path, columns)
    far_off = leave_out_far_off(columns)
    origin_ns = stream.decoder.origin_us * 1000
    host = host_side(columns, origin_ns)
    ops, external = device_side(columns, origin_ns, host)
    collectives = collective_calls(stream.collectives, columns, ops, host.calls)
    names = [str(name) for name in columns.names]
    timeline = Timeline(
        source=f"{path.name} (torch profiler trace)",
        names=names,
        ops=ops,
        calls=host.calls,
        ranges=host.ranges,
        devices=_device_names(stream.metadata, ops),
    )
    check_limits(timeline, path)
    facts = _facts(stream, columns, timeline)
    timeline = replace(
        timeline,
        facts=facts,
        warnings=(
            *stream.warnings,
            *far_off,
            *_what_is_missing(columns, timeline, ambiguous=host.ambiguous),
        ),
    )
    frames = frame_spans(columns, origin_ns)
    spans = SpanTable(columns.operators, origin_ns, host.unique_operator_ids)
    behind = behind_graph_launch(names, host.calls, ops) if facts["graph_launches"] else None
    operators, calls = operator_table(spans, host.ranges, ops, external, host.calls, len(names), behind)
    timeline = replace(timeline, operators=calls, frames=frames, collectives=collectives)
    return KinetoCapture(timeline, operators, _memory(columns, origin_ns), facts)


def _read_columns(path: Path, *, exact: bool) -> tuple[EventStream, Columns]:
    in_parts = None if exact else read_in_parts(path)
    if in_parts is not None:
        return in_parts
    stream, columns = EventStream(path, exact=exact), Columns(exact=exact)
    for events in stream:
        columns.add(events)
    return stream, columns


def _memory(columns: Columns, origin_ns: int) -> MemorySamples:
    time = columns.memory.take("time") + origin_ns
    order = np.argsort(time, kind="stable")
    device_type, device = columns.memory.take("device_type"), columns.memory.take("device")
    return MemorySamples(
        time[order], device_type[order], device[order], columns.memory.take("allocated")[order]
    )


def _device_names(metadata: dict[str, Any], ops: DeviceOps) -> dict[int, str]:
    return device_names(metadata, np.unique(ops.device).tolist())


def _facts(stream: EventStream, columns: Columns, timeline: Timeline) -> dict[str, Any]:
    metadata = stream.metadata
    distributed = metadata.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    is_graph = np.array([is_graph_launch(name) for name in timeline.names] or [False])
    is_step = np.array([name.startswith(_STEP) for name in timeline.names] or [False])
    return {
        "tool": "torch profiler",
        "schema_version": metadata.get("schemaVersion"),
        "base_time_ns": metadata.get("baseTimeNanoseconds"),
        "rank": distributed.get("rank"),
        "world_size": distributed.get("world_size"),
        **{key: metadata[key] for key in _METADATA if key in metadata},
        "ranks": [label for label in columns.ranks if label],
        "text_bytes": stream.text_bytes,
        "events": sum(columns.counts.values()),
        "events_by_category": dict(sorted(columns.counts.items())),
        "graph_launches": int(is_graph[timeline.calls.name].sum()),
        "profiler_steps": int(is_step[timeline.ranges.name].sum()),
        "profiler_overhead_ns": columns.overhead_ns,
        "threads": [
            {
                "pid": process_id(pid),
                "tid": tid if isinstance(tid, str) else process_id(tid),
                "name": columns.thread_names.get((pid, tid)),
            }
            for pid, tid in columns.threads
        ],
    }


def _what_is_missing(columns: Columns, timeline: Timeline, *, ambiguous: bool) -> list[str]:
    warnings = []
    ops, calls = timeline.ops, timeline.calls
    if not len(ops):
        warnings.append(
            "no device activity in the trace: nothing ran on a GPU, or CUDA activity was not recorded"
        )
    elif not len(calls):
        warnings.append("no CUDA calls in the trace: kernels cannot be traced to the code that launched them")
    orphans = int((ops.launch < 0).sum())
    if orphans and len(calls):
        warnings.append(
            f"{orphans} of {len(ops)} device operations have no launching call: they were launched before "
            "the profiler started"
        )
    if not len(timeline.ranges):
        warnings.append("no record_function annotations in the trace: phases are not known")
    if ambiguous and len({pid for pid, _ in columns.threads}) > 1:
        warnings.append("several processes with equal correlation ids: launches are matched by id and time")
    if columns.impossible:
        warnings.append(
            f"{columns.impossible} of {columns.timed} events have no time, or a negative or impossible one, "
            "and were left out"
        )
    return warnings
