"""Single collectives of a trace: name, payload and group.

torch writes these facts as arguments of the host's ``record_param_comms`` operator, and of the kernel since 2.4. They
are text among numbers, and few events have them: so they are found in the text of a piece and decoded by themselves,
and the reading of all other events stays as fast as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from llm_perf_opt.captures.kineto.columns import Columns
from llm_perf_opt.captures.kineto.decode import Window
from llm_perf_opt.captures.timeline import CollectiveCalls, DeviceOps, HostCalls, Int64, no_collectives
from llm_perf_opt.core.arrays import enclosing, innermost
from llm_perf_opt.core.limits import MOST_BYTES, MOST_COUNT

MARK = b'"Collective name"'
_MOST_KEPT = 2_000_000
_NEAR_NS = 1_000
"""Two time stamps of one kernel differ by rounding only."""
_DTYPE_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "byte": 1, "char": 1, "short": 2, "int": 4, "long": 8, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "complexfloat": 8,
    "complexdouble": 16,
}  # fmt: skip
"""Element sizes by torch's names of scalar types, lower case."""


class _Args(msgspec.Struct):
    name: Any = msgspec.field(default=None, name="Collective name")
    elements_in: Any = msgspec.field(default=None, name="In msg nelems")
    elements_out: Any = msgspec.field(default=None, name="Out msg nelems")
    dtype: Any = None
    group_size: Any = msgspec.field(default=None, name="Group size")


class _Event(msgspec.Struct):
    cat: str
    name: str
    ts: float
    dur: float
    pid: float | str
    tid: float | str
    args: _Args


_DECODER = msgspec.json.Decoder(_Event, strict=False)


@dataclass(slots=True)
class CollectiveEvents:
    """Collected while the pieces of a trace are read."""

    found: list[_Event] = field(default_factory=list)

    def look_into(self, window: Window, end: int) -> None:
        """Add the events of a piece that describe a collective."""
        if len(self.found) < _MOST_KEPT:
            self.found.extend(_events(window, end))

    def also(self, other: CollectiveEvents) -> None:
        """Add the events of another part of the trace; the order does not matter."""
        self.found.extend(other.found[: _MOST_KEPT - len(self.found)])

    @classmethod
    def from_builtins(cls, values: Any) -> CollectiveEvents:
        """Restore from ``msgspec.to_builtins`` output."""
        return cls(msgspec.convert(values, list[_Event]))


def _events(window: Window, end: int) -> Iterator[_Event]:
    for text in window.objects_with(MARK, end):
        try:
            yield _DECODER.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue  # the piece itself is read elsewhere, where errors are reported


def collective_calls(
    events: CollectiveEvents, columns: Columns, ops: DeviceOps, calls: HostCalls
) -> CollectiveCalls:
    """Find the device operation of each described collective. New names are added to the columns."""
    timed = [event for event in events.found if _ns(event.ts) >= 0 and _ns(event.dur) >= 0]
    if not timed or not len(ops):
        return no_collectives()
    on_host = [event for event in timed if event.cat != "kernel"]
    on_device = [event for event in timed if event.cat == "kernel"]
    launched = _launched_inside(on_host, columns, ops, calls)
    places = [*launched.tolist(), *_same_kernels(on_device, columns, ops)]
    rows = {op: event for op, event in zip(places, [*on_host, *on_device], strict=True) if op >= 0}
    order = sorted(rows)
    chosen = [rows[op] for op in order]
    return CollectiveCalls(
        op=np.array(order, np.int32),
        name=np.array([int(columns.names[str(event.args.name)]) for event in chosen], np.int32),
        bytes=np.array([_payload(event.args) for event in chosen], np.int64),
        group_size=np.array([_whole(event.args.group_size, 1 << 30) for event in chosen], np.int32),
    )


def _launched_inside(events: list[_Event], columns: Columns, ops: DeviceOps, calls: HostCalls) -> Int64:
    """First device operation launched inside each host event; -1 for none."""
    found = np.full(len(events), -1, np.int64)
    known = np.flatnonzero(ops.launch >= 0)
    if not len(events) or not len(known):
        return found
    threads = np.array([int(columns.threads[event.pid, event.tid]) for event in events])
    start = np.array([_ns(event.ts) for event in events], np.int64)
    end = start + np.array([_ns(event.dur) for event in events], np.int64)
    launch_thread, launch_at = calls.thread[ops.launch[known]], calls.start_ns[ops.launch[known]]
    for thread in np.unique(threads).tolist():
        mine = np.flatnonzero(threads == thread)
        mine = mine[np.lexsort((-end[mine], start[mine]))]
        launches = np.flatnonzero(launch_thread == thread)
        inside = innermost(start[mine], end[mine], enclosing(end[mine]), launch_at[launches])
        for row, op in zip(inside[::-1].tolist(), known[launches][::-1].tolist(), strict=True):
            if row >= 0:
                found[mine[row]] = op
    return found


def _same_kernels(events: list[_Event], columns: Columns, ops: DeviceOps) -> list[int]:
    """Device operation of each device event: same name and time, each used once; -1 for none."""
    found = [-1] * len(events)
    by_name: dict[str, list[int]] = {}
    for place, event in enumerate(events):
        by_name.setdefault(event.name, []).append(place)
    for name, places in by_name.items():
        rows = np.flatnonzero(ops.name == int(columns.names[name])).tolist()
        starts = ops.start_ns[rows].tolist()
        row = 0
        for place in sorted(places, key=lambda one: events[one].ts):
            at = _ns(events[place].ts)
            while row < len(rows) and starts[row] < at - _NEAR_NS:
                row += 1
            while row + 1 < len(rows) and abs(starts[row + 1] - at) < abs(starts[row] - at):
                row += 1
            if row < len(rows) and abs(starts[row] - at) <= _NEAR_NS:
                found[place] = rows[row]
                row += 1
    return found


def _ns(microseconds: float) -> int:
    limit = 2.0**52
    return round(microseconds * 1000.0) if 0 <= microseconds < limit else -1


def _payload(args: _Args) -> int:
    elements = max(_whole(args.elements_in, MOST_COUNT), _whole(args.elements_out, MOST_COUNT))
    size = _DTYPE_BYTES.get(str(args.dtype).lower())
    if elements < 0 or size is None or elements * size > MOST_BYTES:
        return -1
    return elements * size


def _whole(value: Any, largest: float) -> int:
    """Return a count; -1 if invalid."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        value = int(value)
    is_count = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= largest
    return int(value) if is_count else -1
