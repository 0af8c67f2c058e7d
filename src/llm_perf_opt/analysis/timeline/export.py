"""The attributed timeline as tables and as a trace that Perfetto opens. Text and columns only: writing is elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llm_perf_opt.analysis.kernels.families import family_of
from llm_perf_opt.analysis.kernels.names import short_name
from llm_perf_opt.analysis.timeline.attribution import NONE, Attribution, attribute
from llm_perf_opt.captures.timeline import Int32, Int64, OpKind, Timeline
from llm_perf_opt.core.arrays import exact_sums

_DEVICE_PROCESS = 1 << 24
"""Perfetto process id of device 0; those of real processes have 24 bits."""
_PROCESSES_OF_RANK = 1 << 25
"""Perfetto process ids of one rank: its devices come behind its real processes."""
_KINDS = {OpKind.KERNEL: "kernel", OpKind.COPY: "copy", OpKind.MEMSET: "memset"}
Columns = dict[str, list[Any]]


def _microseconds(ns: int) -> str:
    """Exact decimal microseconds: floats lose nanoseconds on absolute clocks."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"


def _line(fields: dict[str, Any], start_ns: int, length_ns: int | None = None) -> str:
    """One event; the times are spliced in as exact decimals."""
    times = f'"ts":{_microseconds(start_ns)}'
    if length_ns is not None:
        times += f',"dur":{_microseconds(length_ns)}'
    text = json.dumps(fields, separators=(",", ":"))
    return f"{text[:-1]},{times}}}"


def _split(thread: int) -> tuple[int, int]:
    """(process, thread) of an nsys global thread id, or of a plain one."""
    return (thread >> 24 & 0xFFFFFF, thread & 0xFFFFFF) if thread >= 1 << 24 else (0, thread)


@dataclass(frozen=True, slots=True)
class RankTimeline:
    """The timeline of one rank, for a trace that holds several."""

    rank: int | None
    timeline: Timeline
    attribution: Attribution | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    """Process and thread ids for the events of one rank, distinct from those of other ranks."""

    processes: int = 0
    label: str = ""

    def arrow(self, row: int) -> int | str:
        return f"{self.label}{row}" if self.label else row


def perfetto_events(timeline: Timeline, attribution: Attribution | None = None) -> Iterator[str]:
    """Yield the JSON text of a Chrome trace, piece by piece: ranges and calls by thread, operations by stream.

    Times start at zero. Arrows lead from launching calls to what they launched.
    """
    yield from perfetto_ranks([RankTimeline(None, timeline, attribution)])


def perfetto_ranks(ranks: Sequence[RankTimeline]) -> Iterator[str]:
    """Yield the same for the timelines of several ranks in one trace; every rank has processes of its own."""
    sources = ", ".join(dict.fromkeys(one.timeline.source for one in ranks))
    origin = min(_origin(one.timeline) + _base(one.timeline) for one in ranks)
    yield '{"displayTimeUnit":"ns","otherData":' + json.dumps({"source": sources}) + ',"traceEvents":[\n'
    separator = ""
    for number, one in enumerate(ranks):
        timeline = one.timeline
        attribution = one.attribution if one.attribution is not None else attribute(timeline)
        label = f"rank {one.rank} " if one.rank is not None and len(ranks) > 1 else ""
        place = _Place(number * _PROCESSES_OF_RANK, label)
        start = origin - _base(timeline)
        for event in (
            *_metadata(timeline, place),
            *_range_events(timeline, attribution, start, place),
        ):
            yield separator + event
            separator = ",\n"
        for events in (
            _call_events(timeline, start, place),
            _op_events(timeline, attribution, start, place),
        ):
            for event in events:
                yield separator + event
    yield "\n]}\n"


def _base(timeline: Timeline) -> int:
    """Return the time base of a torch trace, which differs between processes."""
    base = timeline.facts.get("base_time_ns")
    return base if isinstance(base, int) and not isinstance(base, bool) else 0


def _origin(timeline: Timeline) -> int:
    starts = (timeline.ops.start_ns, timeline.calls.start_ns, timeline.ranges.start_ns)
    known = [int(one.min()) for one in starts if len(one)]
    return min(known) if known else 0


def _metadata(timeline: Timeline, place: _Place) -> list[str]:
    def name(kind: str, process: int, thread: int, label: str) -> str:
        shown = f"{place.label}{label}" if kind == "process_name" else label
        fields = {
            "ph": "M",
            "name": kind,
            "pid": place.processes + process,
            "tid": thread,
            "args": {"name": shown},
        }
        return json.dumps(fields)

    names = timeline.facts.get("processes") or {}
    lines = [name("process_name", 0, 0, "host")]
    threads = np.union1d(np.unique(timeline.ranges.thread), np.unique(timeline.calls.thread)).tolist()
    lines += [
        name("process_name", process, 0, f"host: {names.get(str(process), 'process')} {process}")
        for process in sorted({_split(thread)[0] for thread in threads} - {0})
    ]
    for device in np.unique(timeline.ops.device).tolist():
        label = f"device {device}" + (f": {timeline.devices[device]}" if device in timeline.devices else "")
        where = _DEVICE_PROCESS + device
        lines.append(name("process_name", where, 0, label))
        streams = np.unique(timeline.ops.stream[timeline.ops.device == device]).tolist()
        lines += [name("thread_name", where, stream, f"stream {stream}") for stream in streams]
    return lines


def _range_events(timeline: Timeline, attribution: Attribution, origin: int, place: _Place) -> Iterator[str]:
    ranges = timeline.ranges
    phases = [attribution.phases[one] if one >= 0 else None for one in attribution.path_phase.tolist()]
    for row in range(len(ranges)):
        process, thread = _split(int(ranges.thread[row]))
        path = int(attribution.paths.of_range[row])
        args = {"phase": phases[path], "module": attribution.path_module[path]}
        fields = {
            "ph": "X",
            "cat": "range",
            "name": timeline.names[ranges.name[row]],
            "pid": place.processes + process,
            "tid": thread,
        }
        start = int(ranges.start_ns[row])
        yield _line({**fields, "args": _present(args)}, start - origin, int(ranges.end_ns[row]) - start)


def _call_events(timeline: Timeline, origin: int, place: _Place) -> Iterator[str]:
    calls = timeline.calls
    launching = np.zeros(len(calls), bool)
    launching[timeline.ops.launch[timeline.ops.launch >= 0]] = True
    for row in range(len(calls)):
        process, thread = _split(int(calls.thread[row]))
        start, where = int(calls.start_ns[row]), {"pid": place.processes + process, "tid": thread}
        name = timeline.names[calls.name[row]]
        yield _line(
            {"ph": "X", "cat": "call", "name": name, **where}, start - origin, int(calls.end_ns[row]) - start
        )
        if launching[row]:
            yield _line(
                {"ph": "s", "cat": "launch", "name": "launch", "id": place.arrow(row), **where},
                start - origin,
            )


def _op_events(timeline: Timeline, attribution: Attribution, origin: int, place: _Place) -> Iterator[str]:
    ops = timeline.ops
    phases = [attribution.phases[one] if one >= 0 else None for one in attribution.path_phase.tolist()]
    labels = {
        name: (timeline.names[name], short_name(timeline.names[name]))
        for name in np.unique(ops.name).tolist()
    }
    for row in range(len(ops)):
        full, short = labels[int(ops.name[row])]
        path = int(attribution.op_path[row])
        args = {
            "kernel": full,
            "phase": phases[path] if path != NONE else None,
            "module": attribution.path_module[path] if path != NONE else None,
            "range": timeline.names[attribution.paths.name[path]] if path != NONE else None,
            "bytes": int(ops.bytes[row]) if ops.bytes[row] >= 0 else None,
        }
        where = {
            "pid": place.processes + _DEVICE_PROCESS + int(ops.device[row]),
            "tid": int(ops.stream[row]),
        }
        start = int(ops.start_ns[row])
        fields = {"ph": "X", "cat": family_of(full), "name": short, **where, "args": _present(args)}
        yield _line(fields, start - origin, int(ops.end_ns[row]) - start)
        if ops.launch[row] >= 0:
            arrow = {
                "ph": "f",
                "bp": "e",
                "cat": "launch",
                "name": "launch",
                "id": place.arrow(int(ops.launch[row])),
                **where,
            }
            yield _line(arrow, start - origin)


def _present(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def kernel_columns(timeline: Timeline, attribution: Attribution | None = None) -> Columns:
    """Every (phase, module, name) with launches and the spread of its duration: a table for notebooks."""
    attribution = attribution if attribution is not None else attribute(timeline)
    ops = timeline.ops
    names = max(1, len(timeline.names))
    keys = (attribution.op_path.astype(np.int64) + 1) * names + ops.name
    order = np.argsort(keys, kind="stable")
    groups, first = np.unique(keys[order], return_index=True)
    durations = (ops.end_ns - ops.start_ns)[order]
    kind = ops.kind[order]
    rows = []
    for number, (key, begin) in enumerate(zip(groups.tolist(), first.tolist(), strict=True)):
        end = int(first[number + 1]) if number + 1 < len(first) else len(durations)
        rows.append(
            _spread(timeline, attribution, key, names, durations[begin:end], OpKind(int(kind[begin])))
        )
    rows.sort(key=lambda row: (-row["total_ns"], row["name"], row["range_path"] or ""))
    columns = (
        list(rows[0]) if rows else ["phase", "module", "range_path", "kind", "family", "name", "launches"]
    )
    return {column: [row[column] for row in rows] for column in columns}


def _spread(
    timeline: Timeline, attribution: Attribution, key: int, names: int, durations: Int64, kind: OpKind
) -> dict[str, Any]:
    path, name = key // names - 1, timeline.names[key % names]
    phase = int(attribution.path_phase[path]) if path != NONE else NONE
    chain = [timeline.names[attribution.paths.name[one]] for one in attribution.paths.ancestors(path)]
    return {
        "phase": attribution.phases[phase] if phase != NONE else None,
        "module": attribution.path_module[path] if path != NONE else None,
        "range_path": "/".join(reversed(chain)) if chain else None,
        "kind": _KINDS[kind],
        "family": family_of(name),
        "short_name": short_name(name),
        "name": name,
        "launches": len(durations),
        "total_ns": int(durations.sum()),
        "mean_ns": float(durations.mean()),
        "median_ns": float(np.median(durations)),
        "min_ns": int(durations.min()),
        "max_ns": int(durations.max()),
        "std_ns": float(durations.std(ddof=1)) if len(durations) > 1 else None,
    }


def range_columns(timeline: Timeline, attribution: Attribution | None = None) -> Columns:
    """Every distinct nesting of ranges: how often, host time, and the device time of what was launched inside."""
    attribution = attribution if attribution is not None else attribute(timeline)
    paths = attribution.paths
    count = len(paths.name)
    instances = np.bincount(paths.of_range, minlength=count) if count else np.zeros(0, np.int64)
    host = _sums(paths.of_range, timeline.ranges.end_ns - timeline.ranges.start_ns, count)
    inside = attribution.op_path >= 0
    device = _sums(attribution.op_path[inside], (timeline.ops.end_ns - timeline.ops.start_ns)[inside], count)
    launches = np.bincount(attribution.op_path[inside], minlength=count).tolist() if count else []
    for path in range(count - 1, -1, -1):  # children come after their parents
        parent = paths.parent[path]
        if parent != NONE:
            device[parent] += device[path]
            launches[parent] += launches[path]
    phases = [attribution.phases[one] if one >= 0 else None for one in attribution.path_phase.tolist()]
    labels = [
        "/".join(timeline.names[paths.name[one]] for one in reversed(paths.ancestors(path)))
        for path in range(count)
    ]
    return {
        "range_path": labels,
        "name": [timeline.names[one] for one in paths.name],
        "phase": phases,
        "module": list(attribution.path_module),
        "depth": [len(paths.ancestors(path)) - 1 for path in range(count)],
        "instances": instances.tolist(),
        "host_ns": host,
        "device_ns": device,
        "launches": launches,
    }


def _sums(code: Int32, values: Int64, count: int) -> list[int]:
    return [int(one) for one in exact_sums(code.astype(np.int64), values, count)] if count else []
