"""Torch profiler traces (Kineto's Chrome JSON, plain or gzip) as a :class:`Timeline` and a table of operators.

Works for traces of any program and any torch since 1.8: with or without rank, one or several devices and
streams, CUDA graphs, CPU only. Memory grows with what is kept, not with the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from llm_perf_opt.ingest.kineto_columns import Columns, NeedsExactTimes, Table
from llm_perf_opt.ingest.kineto_operators import OperatorTable, operator_table
from llm_perf_opt.ingest.kineto_stream import EventStream
from llm_perf_opt.ingest.linking import link_ranges, order_by_thread, order_by_time
from llm_perf_opt.ingest.timeline import UNKNOWN, DeviceOps, HostCalls, Int32, Int64, Ranges, Timeline

_GRAPH_LAUNCH = re.compile(r"(cuda|cu|hip)GraphLaunch")
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
    """Read a trace; a file that is cut off, damaged or something else raises :class:`InputError`."""
    path = Path(path)
    try:
        stream, columns = _read_columns(path, exact=False)
    except NeedsExactTimes:
        stream, columns = _read_columns(path, exact=True)
    origin_ns = stream.decoder.origin_us * 1000
    host = _host(columns, origin_ns)
    ops, external = _device(columns, origin_ns, host)
    names = [str(name) for name in columns.names]
    timeline = Timeline(
        source=f"{path.name} (torch profiler trace)",
        names=names,
        ops=ops,
        calls=host.calls,
        ranges=host.ranges,
        devices=_device_names(stream.metadata, ops),
    )
    facts = _facts(stream, columns, timeline)
    timeline = replace(
        timeline, facts=facts, warnings=(*stream.warnings, *_what_is_missing(columns, timeline))
    )
    operators = operator_table(
        columns.operators, origin_ns, host.ranges, ops, external, host.calls, len(names)
    )
    return KinetoCapture(timeline, operators, _memory(columns, origin_ns), facts)


def _read_columns(path: Path, *, exact: bool) -> tuple[EventStream, Columns]:
    stream, columns = EventStream(path, exact=exact), Columns()
    for events in stream:
        columns.add(events)
    return stream, columns


# --- host: ranges and calls ------------------------------------------------------------------------------


@dataclass(slots=True)
class _Host:
    ranges: Ranges
    calls: HostCalls
    correlation: Int64
    """Of every call; -1: unknown."""
    range_of_call: Int32


def _host(columns: Columns, origin_ns: int) -> _Host:
    start, end = _times(columns.ranges, origin_ns)
    thread = columns.ranges.take("thread").astype(np.int64)
    order = order_by_thread(thread, start, end)
    start, end, thread = start[order], end[order], thread[order]
    range_name = columns.ranges.take("name")[order]

    call_start, call_end = _times(columns.calls, origin_ns)
    call_thread = columns.calls.take("thread").astype(np.int64)
    order = order_by_thread(call_thread, call_start, call_end)
    calls = HostCalls(
        call_start[order], call_end[order], call_thread[order], columns.calls.take("name")[order]
    )
    correlation = _positive(columns.calls.take("correlation"))[order]
    parent, inside = link_ranges(start, end, thread, np.zeros(len(start), bool), calls.thread, calls.start_ns)
    return _Host(Ranges(start, end, thread, range_name, parent), calls, correlation, inside)


def _times(table: Table, origin_ns: int) -> tuple[Int64, Int64]:
    start = table.take("start")
    if origin_ns:
        start += origin_ns
    return start, start + table.take("dur")


def _positive(ids: Int64) -> Int64:
    """Correlation and operator ids count from one; zero and below mean "none"."""
    ids[ids <= 0] = UNKNOWN
    return ids


# --- device ----------------------------------------------------------------------------------------------


def _device(columns: Columns, origin_ns: int, host: _Host) -> tuple[DeviceOps, Int64]:
    """Return the device operations in time order, and the operator id of each (-1: unknown)."""
    table = columns.device
    start, end = _times(table, origin_ns)
    order = order_by_time(start, end)
    start, end = start[order], end[order]
    launch = _launches(host, start, _positive(table.take("correlation"))[order])
    inside = np.full(len(order), UNKNOWN, np.int32)
    if len(host.calls):
        inside = np.where(launch >= 0, host.range_of_call[launch], UNKNOWN).astype(np.int32)
    ops = DeviceOps(
        start_ns=start,
        end_ns=end,
        kind=table.take("kind")[order],
        name=table.take("name")[order],
        device=table.take("device")[order],
        stream=table.take("stream")[order],
        process=_processes(columns, host, launch),
        launch=launch,
        range=inside,
        bytes=table.take("bytes")[order],
    )
    return ops, _positive(table.take("external"))[order]


def _launches(host: _Host, start: Int64, correlation: Int64) -> Int32:
    """Row of the call that launched each operation.

    Ids are unique in one process. Where they repeat (several ranks merged into one file), the last call with
    the id that began before the operation is taken.
    """
    known = np.flatnonzero(host.correlation >= 0)
    order = known[np.lexsort((host.calls.start_ns[known], host.correlation[known]))]
    keys, begin = host.correlation[order], host.calls.start_ns[order]
    first = np.searchsorted(keys, correlation, side="left")
    behind = np.searchsorted(keys, correlation, side="right")
    best = first.copy()
    for later in range(1, int((behind - first).max(initial=0))):
        candidate = np.minimum(first + later, len(keys) - 1)
        better = (first + later < behind) & (begin[candidate] <= start)
        best[better] = candidate[better]
    found = (behind > first) & (correlation >= 0)
    launch = np.full(len(start), UNKNOWN, np.int32)
    launch[found] = order[best[found]]
    return launch


def _processes(columns: Columns, host: _Host, launch: Int32) -> Int64:
    """Process that launched each operation; the only one of the trace where the launch is not known."""
    pids = np.array([_pid(pid) for pid, _ in columns.threads], dtype=np.int64)
    if not len(pids):
        return np.full(len(launch), UNKNOWN, np.int64)
    only = int(pids[0]) if (pids == pids[0]).all() else UNKNOWN
    if not len(host.calls):
        return np.full(len(launch), only, np.int64)
    return np.where(launch >= 0, pids[host.calls.thread[launch]], only)


def _pid(value: Any) -> int:
    return int(value) if isinstance(value, float) and value.is_integer() else UNKNOWN


# --- the rest --------------------------------------------------------------------------------------------


def _memory(columns: Columns, origin_ns: int) -> MemorySamples:
    time = columns.memory.take("time") + origin_ns
    order = np.argsort(time, kind="stable")
    device_type, device = columns.memory.take("device_type"), columns.memory.take("device")
    return MemorySamples(
        time[order], device_type[order], device[order], columns.memory.take("allocated")[order]
    )


def _device_names(metadata: dict[str, Any], ops: DeviceOps) -> dict[int, str]:
    used = set(np.unique(ops.device).tolist())
    listed = metadata.get("deviceProperties")
    found = {}
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict) and entry.get("id") in used and entry.get("name"):
            found[int(entry["id"])] = str(entry["name"])
    return found


def _facts(stream: EventStream, columns: Columns, timeline: Timeline) -> dict[str, Any]:
    metadata = stream.metadata
    distributed = metadata.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    is_graph = np.array([bool(_GRAPH_LAUNCH.match(name)) for name in timeline.names] or [False])
    is_step = np.array([name.startswith(_STEP) for name in timeline.names] or [False])
    return {
        "tool": "torch profiler",
        "schema_version": metadata.get("schemaVersion"),
        "base_time_ns": metadata.get("baseTimeNanoseconds"),
        "rank": distributed.get("rank"),
        "world_size": distributed.get("world_size"),
        **{key: metadata[key] for key in _METADATA if key in metadata},
        "text_bytes": stream.text_bytes,
        "events": sum(columns.counts.values()),
        "events_by_category": dict(sorted(columns.counts.items())),
        "graph_launches": int(is_graph[timeline.calls.name].sum()),
        "profiler_steps": int(is_step[timeline.ranges.name].sum()),
        "profiler_overhead_ns": columns.overhead_ns,
        "threads": [
            {
                "pid": _pid(pid),
                "tid": tid if isinstance(tid, str) else _pid(tid),
                "name": columns.thread_names.get((pid, tid)),
            }
            for pid, tid in columns.threads
        ],
    }


def _what_is_missing(columns: Columns, timeline: Timeline) -> list[str]:
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
            f"{orphans} of {len(ops)} device operations have no launching call: they were launched before the profiler started"
        )
    if not len(timeline.ranges):
        warnings.append("no record_function annotations in the trace: phases are not known")
    if len({pid for pid, _ in columns.threads}) > 1:
        warnings.append("several processes in one trace: launches are matched by id and time")
    if columns.negative:
        warnings.append(f"{columns.negative} events with a negative duration were counted as 0")
    return warnings
