"""The attributed timeline as tables and as a trace that Perfetto opens. Text and columns only: writing is elsewhere."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_perf_opt.analysis.kernels.families import family_of
from llm_perf_opt.analysis.kernels.names import short_name
from llm_perf_opt.analysis.timeline.attribution import NONE, Attribution, attribute
from llm_perf_opt.captures.timeline import DeviceOps, HostCalls, Int32, Int64, OpKind, Ranges, Timeline
from llm_perf_opt.core.arrays import distinct, exact_sums

_DEVICE_PROCESS = 1 << 24
"""Perfetto process id of device 0; those of real processes have 24 bits."""
_PROCESSES_OF_RANK = 1 << 25
"""Perfetto process ids of one rank: its devices come behind its real processes."""
_BLOCK = 1 << 15
"""Events whose text is made at a time."""
_KINDS = {OpKind.KERNEL: "kernel", OpKind.COPY: "copy", OpKind.MEMSET: "memset"}
Columns = dict[str, list[Any]]


def _microseconds(ns: Int64) -> list[str]:
    """Exact decimal microseconds: floats lose nanoseconds on absolute clocks."""
    whole, rest = np.divmod(np.abs(ns), 1000)
    texts = [f"{a}.{b:03d}" for a, b in zip(whole.tolist(), rest.tolist(), strict=True)]
    for row in np.flatnonzero(ns < 0).tolist():
        texts[row] = f"-{texts[row]}"
    return texts


def _head(fields: dict[str, Any]) -> str:
    """The part of an event that many events share; times and the closing brace follow."""
    return json.dumps(fields, separators=(",", ":"))[:-1]


def _blocks(rows: int) -> Iterator[slice]:
    """Parts of a table: text of all events at once would take gigabytes."""
    return (slice(begin, begin + _BLOCK) for begin in range(0, rows, _BLOCK))


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

    def arrow(self, row: int) -> str:
        """Return the JSON text of an arrow's id."""
        return f'"{self.label}{row}"' if self.label else str(row)


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
        for lines in (
            iter([_metadata(timeline, place)]),
            _range_events(timeline, attribution, start, place),
            _call_events(timeline, start, place),
            _op_events(timeline, attribution, start, place),
        ):
            for block in lines:
                yield separator + ",\n".join(block)
                separator = ",\n"
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


def _range_events(
    timeline: Timeline, attribution: Attribution, origin: int, place: _Place
) -> Iterator[list[str]]:
    ranges = timeline.ranges
    phases = [attribution.phases[one] if one >= 0 else None for one in attribution.path_phase.tolist()]

    @functools.cache
    def head(name: int, thread: int, path: int) -> str:
        process, number = _split(thread)
        args = _present({"phase": phases[path], "module": attribution.path_module[path]})
        where = {"pid": place.processes + process, "tid": number}
        return _head({"ph": "X", "cat": "range", "name": timeline.names[name], **where, "args": args})

    for part in _blocks(len(ranges)):
        heads = map(head, *_lists(part, ranges.name, ranges.thread, attribution.paths.of_range))
        yield [
            f'{shared},"ts":{start},"dur":{length}}}'
            for shared, start, length in zip(heads, *_times(ranges, part, origin), strict=True)
        ]


def _lists(part: slice, *columns: npt.NDArray[Any]) -> list[list[Any]]:
    return [column[part].tolist() for column in columns]


def _times(rows: DeviceOps | HostCalls | Ranges, part: slice, origin: int) -> tuple[list[str], list[str]]:
    """Start and duration of every row, in microseconds."""
    start = rows.start_ns[part]
    return _microseconds(start - origin), _microseconds(rows.end_ns[part] - start)


def _call_events(timeline: Timeline, origin: int, place: _Place) -> Iterator[list[str]]:
    calls = timeline.calls
    launching = np.zeros(len(calls), bool)
    launching[timeline.ops.launch[timeline.ops.launch >= 0]] = True

    @functools.cache
    def head(name: int, thread: int) -> tuple[str, str]:
        process, number = _split(thread)
        where = {"pid": place.processes + process, "tid": number}
        call = _head({"ph": "X", "cat": "call", "name": timeline.names[name], **where})
        return call, _head(where)[1:]

    for part in _blocks(len(calls)):
        heads = map(head, *_lists(part, calls.name, calls.thread))
        lines = []
        for row, (shared, where), start, length, launches in zip(
            range(part.start, part.stop),
            heads,
            *_times(calls, part, origin),
            launching[part].tolist(),
            strict=False,
        ):
            lines.append(f'{shared},"ts":{start},"dur":{length}}}')
            if launches:
                arrow = place.arrow(row)
                lines.append(f'{{"ph":"s","cat":"launch","name":"launch","id":{arrow},{where},"ts":{start}}}')
        yield lines


def _op_events(
    timeline: Timeline, attribution: Attribution, origin: int, place: _Place
) -> Iterator[list[str]]:
    ops = timeline.ops
    phases = [attribution.phases[one] if one >= 0 else None for one in attribution.path_phase.tolist()]

    @functools.cache
    def label(name: int) -> tuple[str, str, str]:
        full = timeline.names[name]
        return full, short_name(full), family_of(full)

    @functools.cache
    def head(name: int, path: int, device: int, stream: int, size: int) -> tuple[str, str]:
        full, short, family = label(name)
        args = {
            "kernel": full,
            "phase": phases[path] if path != NONE else None,
            "module": attribution.path_module[path] if path != NONE else None,
            "range": timeline.names[attribution.paths.name[path]] if path != NONE else None,
            "bytes": size if size >= 0 else None,
        }
        where = {"pid": place.processes + _DEVICE_PROCESS + device, "tid": stream}
        fields = {"ph": "X", "cat": family, "name": short, **where, "args": _present(args)}
        return _head(fields), _head(where)[1:]

    for part in _blocks(len(ops)):
        columns = (ops.name, attribution.op_path, ops.device, ops.stream, ops.bytes)
        heads = map(head, *_lists(part, *columns))
        lines = []
        for (shared, where), start, length, launch in zip(
            heads, *_times(ops, part, origin), ops.launch[part].tolist(), strict=True
        ):
            lines.append(f'{shared},"ts":{start},"dur":{length}}}')
            if launch >= 0:
                arrow = place.arrow(launch)
                lines.append(
                    f'{{"ph":"f","bp":"e","cat":"launch","name":"launch","id":{arrow},{where},"ts":{start}}}'
                )
        yield lines


def _present(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def kernel_columns(timeline: Timeline, attribution: Attribution | None = None) -> Columns:
    """Every (phase, module, name) with launches and the spread of its duration: a table for notebooks."""
    attribution = attribution if attribution is not None else attribute(timeline)
    ops = timeline.ops
    names = max(1, len(timeline.names))
    keys = (attribution.op_path.astype(np.int64) + 1) * names + ops.name
    groups, code = distinct(keys)
    # Short integers are sorted by radix, in linear time.
    order = np.argsort(code.astype(np.uint16) if len(groups) < 1 << 16 else code, kind="stable")
    counts = np.bincount(code, minlength=len(groups))
    first = np.cumsum(counts) - counts
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
