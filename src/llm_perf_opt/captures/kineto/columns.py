"""Typed events gathered into columns, one table per kind, names and threads stored once."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from llm_perf_opt.captures.kineto.decode import (
    ABSENT,
    EXACT_BELOW_US,
    AnyEvent,
    Args,
    Event,
    MemoryArgs,
    Metadata,
    microseconds_to_ns,
)
from llm_perf_opt.core.limits import LATEST_NS, MOST_BYTES, MOST_NS

# The events of one category as columns of numbers.
#
# Taking ten attributes of millions of Python objects one by one costs more than parsing them. So the events of
# one category are written as MessagePack in one call: every number is a float of nine bytes and the category
# is the same, so all records have one size, and NumPy reads the columns in place. Where that does not hold
# (thread ids that are text), the attributes are taken one by one.


Column = npt.NDArray[Any]
Fields = Mapping[str, Column]
_ENCODER = msgspec.msgpack.Encoder()
_FLOAT64_TAG = 0xCB
_EVENT_FIELDS = ("name", "pid", "tid", "ts", "dur")


@functools.lru_cache(maxsize=256)
def _record_type(category: str) -> np.dtype[Any]:
    """Layout of one encoded event of a category: the offset of each number, and the tags of those that may be text."""
    record = _ENCODER.encode(Event(cat=category, name=0.0))
    behind = {name: _ENCODER.encode(name) for name in _EVENT_FIELDS}
    args = {field.name: _ENCODER.encode(field.encode_name) for field in msgspec.structs.fields(Args)}
    start_of_args = record.index(_ENCODER.encode("args"))
    tags = {name: record.index(key) + len(key) for name, key in behind.items()}
    tags |= {name: record.index(key, start_of_args) + len(key) for name, key in args.items()}
    return np.dtype(
        {
            "names": ["pid_tag", "tid_tag", *tags],
            "formats": ["u1", "u1", *([">f8"] * len(tags))],
            "offsets": [tags["pid"], tags["tid"], *(tag + 1 for tag in tags.values())],
            "itemsize": len(record),
        }
    )


def packed_fields(events: list[Any]) -> Fields | None:
    """Read the columns of events of one category through MessagePack; ``None`` where records differ in size."""
    record = _record_type(events[0].cat)
    text = _ENCODER.encode(events)
    count = len(events)
    header = 1 if count < 1 << 4 else 3 if count < 1 << 16 else 5
    if len(text) != header + count * record.itemsize:
        return None
    rows = np.frombuffer(text, dtype=record, offset=header)
    if not all((rows[tag] == _FLOAT64_TAG).all() for tag in ("pid_tag", "tid_tag")):
        return None
    return {name: rows[name].astype(np.float64) for name in record.names or () if not name.endswith("_tag")}


def plucked_fields(events: list[Any]) -> Fields:
    """Read the same columns attribute by attribute; ids that are text stay text."""
    fields: dict[str, Column] = {}
    for name in _EVENT_FIELDS:
        values = [getattr(event, name) for event in events]
        numeric = name not in ("pid", "tid") or all(isinstance(value, float) for value in values)
        fields[name] = np.array(values, dtype=np.float64 if numeric else object)
    for name in Args.__struct_fields__:
        fields[name] = np.array([getattr(event.args, name) for event in events], dtype=np.float64)
    return fields


_LATEST_US, _MOST_US = LATEST_NS / 1000, MOST_NS / 1000
_LARGEST_ID = float(2**50)
_LARGEST_DEVICE = float(2**31 - 1)
KERNEL, COPY, MEMSET, CALL, OPERATOR, RANGE, OVERHEAD, FRAME, OTHER = range(9)
# The names of Kineto's activity types, and those of torch before 1.12 (capitalised).
_KINDS = {
    "kernel": KERNEL,
    "Kernel": KERNEL,
    "gpu_memcpy": COPY,
    "Memcpy": COPY,
    "gpu_memset": MEMSET,
    "Memset": MEMSET,
    "Runtime": CALL,
    "cpu_op": OPERATOR,
    "Operator": OPERATOR,
    "user_annotation": RANGE,
    "overhead": OVERHEAD,
    "python_function": FRAME,
}
METADATA, INSTANT = Metadata.cat, "cpu_instant_event"
_CALL_SUFFIXES = ("_runtime", "_driver")
"""``cuda_runtime``, ``cuda_driver``, and the same of other back ends."""


class NeedsExactTimes(Exception):
    """Time stamps are too large for float64; read again with decimal ones."""


def kind_of(category: str) -> int:
    """Return the table an event category belongs to; ``gpu_user_annotation`` belongs to none."""
    return CALL if category.endswith(_CALL_SUFFIXES) else _KINDS.get(category, OTHER)


def rank_label(pid: float | str) -> str:
    """Return what a tool that merges ranks wrote in front of the process id: ``[TP00] 4242`` → ``[TP00]``."""
    return pid.rstrip("0123456789").rstrip() if isinstance(pid, str) else ""


class Table:
    """Columns that grow by the piece and are joined once, at the end."""

    def __init__(self, **columns: Any) -> None:
        self._types = columns
        self._parts: dict[str, list[Column]] = {name: [] for name in columns}

    def add(self, **parts: Column) -> None:
        """Append one part per column."""
        for name, part in parts.items():
            self._parts[name].append(part.astype(self._types[name]))

    def names(self) -> list[str]:
        """Return the names of the columns."""
        return list(self._types)

    def absorb(self, other: Table, renumbered: Mapping[str, Column]) -> None:
        """Append the rows of another table, which is consumed; ids of some columns are renumbered."""
        for name in self._types:
            parts = other._parts.pop(name)
            self._parts[name] += [renumbered[name][part] for part in parts] if name in renumbered else parts

    def peek(self, name: str) -> Column:
        """Join the parts of a column and keep the result."""
        self._parts[name] = [self._joined(name)]
        return self._parts[name][0]

    def keep(self, rows: npt.NDArray[np.bool_]) -> None:
        """Keep only these rows."""
        for name in self._parts:
            self._parts[name] = [self._joined(name)[rows]]

    def _joined(self, name: str) -> Column:
        parts = self._parts[name]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=self._types[name])

    def take(self, name: str) -> Column:
        """Join a column and release its parts."""
        found = self._joined(name)
        del self._parts[name]
        return found


class _Ids(dict[Any, float]):
    """Key → number in order of appearance, as a float: see the module's docstring."""

    def __missing__(self, key: Any) -> float:
        number = self[key] = float(len(self))
        return number


class _Groups(dict[str, Callable[[Any], None]]):
    """Category → function that adds an event to its list."""

    def __init__(self) -> None:
        super().__init__()
        self.members: dict[str, list[Any]] = {}

    def __missing__(self, category: str) -> Callable[[Any], None]:
        members = self.members[category] = []
        append = self[category] = members.append
        return append


class Columns:
    """All kept data of a trace."""

    def __init__(self, *, exact: bool = False) -> None:
        self._largest_us = _LATEST_US if exact else EXACT_BELOW_US
        """Time stamps from here on need to be read exactly; those that were read so may be any."""
        i8, i32, i64 = np.int8, np.int32, np.int64
        self.names = _Ids()
        self.threads = _Ids()
        """``(pid, tid)`` of a host thread → number."""
        self.ranks = _Ids()
        """Label of a rank in front of its process ids → number; one empty label in an ordinary trace."""
        self.thread_names: dict[tuple[Any, Any], str] = {}
        self.counts: Counter[str] = Counter()
        self.overhead_ns = 0
        self.impossible = 0
        """Events without a time or a duration, or with one that cannot be: left out."""
        self.timed = 0
        """Events that have a place in a table, the impossible ones among them."""
        self.device = Table(
            start=i64,
            dur=i64,
            kind=i8,
            name=i32,
            rank=i32,
            device=i32,
            stream=i64,
            bytes=i64,
            correlation=i64,
            external=i64,
        )
        self.calls = Table(start=i64, dur=i64, name=i32, thread=i32, correlation=i64)
        self.operators = Table(start=i64, dur=i64, name=i32, thread=i32, external=i64)
        self.ranges = Table(start=i64, dur=i64, name=i32, thread=i32)
        self.frames = Table(start=i64, dur=i64, name=i32, thread=i32)
        """Python functions, where stacks were recorded."""
        self.memory = Table(time=i64, device_type=i32, device=i32, allocated=i64)
        self._takers: dict[int, Callable[[Fields], None]] = {
            KERNEL: lambda fields: self._add_device(fields, KERNEL),
            COPY: lambda fields: self._add_device(fields, COPY),
            MEMSET: lambda fields: self._add_device(fields, MEMSET),
            CALL: lambda fields: self.calls.add(
                **self._span(fields), correlation=_whole(fields["correlation"], _LARGEST_ID)
            ),
            OPERATOR: lambda fields: self.operators.add(**self._span(fields), external=_external(fields)),
            RANGE: lambda fields: self.ranges.add(**self._span(fields)),
            FRAME: lambda fields: self.frames.add(**self._span(fields)),
            OVERHEAD: self._add_overhead,
        }

    def add(self, events: list[AnyEvent]) -> None:
        """Sort a piece's events into the tables. The events are consumed."""
        groups = _Groups()
        for event in events:
            groups[event.cat](event)
        for category, members in groups.members.items():
            self.counts[category] += len(members)
            if category == METADATA:
                self._add_metadata(members)
            elif category == INSTANT:
                self._add_memory(members)
            elif (taker := self._takers.get(kind_of(category))) is not None:
                taker(self._fields(members))
        events.clear()  # freed before the next piece is decoded, while its memory is still cached

    def tables(self) -> dict[str, Table]:
        """Return the tables by name."""
        return {
            "device": self.device,
            "calls": self.calls,
            "operators": self.operators,
            "ranges": self.ranges,
            "frames": self.frames,
            "memory": self.memory,
        }

    def absorb(self, other: Columns) -> None:
        """Append the rows of another part of the same trace, which is consumed."""
        renumbered = {
            "name": _numbers_in(self.names, other.names),
            "thread": _numbers_in(self.threads, other.threads),
            "rank": _numbers_in(self.ranks, other.ranks),
        }
        theirs = other.tables()
        for name, table in self.tables().items():
            table.absorb(theirs[name], renumbered)
        self.thread_names.update(other.thread_names)
        self.counts.update(other.counts)
        self.overhead_ns += other.overhead_ns
        self.impossible += other.impossible
        self.timed += other.timed

    # --- columns of one category -------------------------------------------------------------------------

    def _fields(self, events: list[Any]) -> Fields:
        names = self.names
        for event in events:
            event.name = names[event.name]
        return self._possible(packed_fields(events) or plucked_fields(events))

    def _possible(self, fields: Fields) -> Fields:
        """Leave out events with invalid times; for a valid trace only four extremes are checked."""
        ts, dur = fields["ts"], fields["dur"]
        self.timed += len(ts)
        if ts.min() >= -_LATEST_US and ts.max() <= _LATEST_US and dur.min() >= 0 and dur.max() <= _MOST_US:
            return fields  # a NaN fails every comparison
        good = (np.abs(ts) <= _LATEST_US) & (dur >= 0) & (dur <= _MOST_US)
        self.impossible += len(ts) - int(good.sum())
        return {name: column[good] for name, column in fields.items()}

    def _times(self, fields: Fields) -> dict[str, Column]:
        if fields["ts"].max(initial=0.0) > self._largest_us:
            raise NeedsExactTimes
        return {"start": microseconds_to_ns(fields["ts"]), "dur": microseconds_to_ns(fields["dur"])}

    def _span(self, fields: Fields) -> dict[str, Column]:
        return {
            **self._times(fields),
            "name": fields["name"],
            "thread": self._threads(fields["pid"], fields["tid"]),
        }

    def _threads(self, pid: Column, tid: Column) -> Column:
        numeric = pid.dtype != object and tid.dtype != object
        if numeric and len(pid) and (pid == pid[0]).all() and (tid == tid[0]).all():
            return np.full(len(pid), self.threads[float(pid[0]), float(tid[0])])
        return np.array([self.threads[pair] for pair in zip(pid.tolist(), tid.tolist(), strict=True)])

    def _ranks(self, pid: Column) -> Column:
        if pid.dtype != object:
            return np.full(len(pid), self.ranks[""])
        return np.array([self.ranks[rank_label(value)] for value in pid.tolist()])

    def _add_device(self, fields: Fields, kind: int) -> None:
        self.device.add(
            **self._times(fields),
            kind=np.full(len(fields["ts"]), kind),
            name=fields["name"],
            rank=self._ranks(fields["pid"]),
            device=_whole(_either(fields["device"], fields["pid"]), _LARGEST_DEVICE),
            stream=_whole(_either(fields["stream"], fields["tid"]), _LARGEST_ID),
            bytes=_whole(fields["bytes"], MOST_BYTES)
            if kind != KERNEL
            else np.full(len(fields["ts"]), ABSENT),
            correlation=_whole(fields["correlation"], _LARGEST_ID),
            external=_external(fields),
        )

    def _add_memory(self, events: list[Any]) -> None:
        reports = [
            event for event in events if event.name == "[memory]" and isinstance(event.args, MemoryArgs)
        ]
        if not reports:
            return
        time = np.array([event.ts for event in reports], dtype=np.float64)
        allocated = np.array([event.args.allocated for event in reports])
        good = (np.abs(time) <= _LATEST_US) & (np.abs(allocated) <= MOST_BYTES)
        self.timed += len(time)
        self.impossible += len(time) - int(good.sum())
        if time[good].max(initial=0.0) > self._largest_us:
            raise NeedsExactTimes
        self.memory.add(
            time=microseconds_to_ns(time[good]),
            device_type=_whole(
                np.array([event.args.device_type for event in reports])[good], _LARGEST_DEVICE
            ),
            device=_whole(np.array([event.args.device_id for event in reports])[good], _LARGEST_DEVICE),
            allocated=allocated[good],
        )

    def _add_metadata(self, events: list[Metadata]) -> None:
        for event in events:
            if event.name == "thread_name" and isinstance(event.args.label, str):
                self.thread_names[event.pid, event.tid] = event.args.label.strip()

    def _add_overhead(self, fields: Fields) -> None:
        self.overhead_ns += int(self._times(fields)["dur"].sum())


def _numbers_in(ids: _Ids, theirs: _Ids) -> Column:
    """Return our number for each of their numbers."""
    return np.array([ids[key] for key in theirs], dtype=np.int32)


def _external(fields: Fields) -> Column:
    found = np.where(fields["external"] == ABSENT, fields["external_lower"], fields["external"])
    return _whole(found, _LARGEST_ID)


def _whole(values: Column, largest: float) -> Column:
    """Return ids and sizes; invalid ones (negative, beyond ``largest``, not a number) as absent."""
    if values.min(initial=0.0) >= ABSENT and values.max(initial=0.0) <= largest:
        return values
    return np.where((values >= 0) & (values <= largest), values, ABSENT)


def _either(first: Column, second: Column) -> Column:
    """``first`` if present, else ``second`` (Kineto repeats device and stream as pid and tid)."""
    absent = first == ABSENT
    if not absent.any():
        return first
    if second.dtype == object:
        second = np.array([value if isinstance(value, float) else ABSENT for value in second.tolist()])
    return np.where(absent, second, first)
