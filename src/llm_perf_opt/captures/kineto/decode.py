"""One piece of a Kineto ``traceEvents`` array, from JSON text to typed events.

Time stamps are microseconds with three decimals. Below 2**43 µs (102 days) a float64 keeps their nanosecond,
and torch 2.4 and later write times relative to ``baseTimeNanoseconds``, which is less than that away. Older
torch writes microseconds since 1970 (about 1.7e15), where a float64 only keeps a quarter of a microsecond:
those are read as decimal text and made relative to an origin of whole microseconds.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from io import BufferedIOBase
from typing import Any, ClassVar, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

# The events of a Kineto trace as types.
#
# Every number is a float (exact up to 2**53) and every default has the same size, because ``kineto_columns`` relies
# on all events of a category being encoded to records of one size.


ABSENT = -1.0
_NO_TIME = float("nan")
"""An event without a time stamp: it is left out, and said."""


class Args(msgspec.Struct, gc=False, frozen=True):
    """The arguments of a complete event that are used."""

    correlation: float = ABSENT
    external: float = msgspec.field(default=ABSENT, name="External id")
    external_lower: float = msgspec.field(default=ABSENT, name="external id")
    """The same, as torch before 1.12 spells it on device events."""
    device: float = ABSENT
    stream: float = ABSENT
    bytes: float = ABSENT


class MemoryArgs(msgspec.Struct, gc=False, frozen=True):
    """The arguments of an allocator's report."""

    allocated: float = msgspec.field(default=ABSENT, name="Total Allocated")
    device_type: float = msgspec.field(default=ABSENT, name="Device Type")
    device_id: float = msgspec.field(default=ABSENT, name="Device Id")


class NameArgs(msgspec.Struct, gc=False, frozen=True):
    """The arguments of metadata that names a process or thread."""

    label: Any = msgspec.field(default=None, name="name")


class Event(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """An event with a start and a duration."""

    cat: str = ""
    name: float | str = ""
    """The text; ``kineto_columns`` puts the number of the name here."""
    pid: float | str = ABSENT
    tid: float | str = ABSENT
    ts: float = _NO_TIME
    dur: float = ABSENT
    args: Args = Args()


class _ExactEvent(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """The same fields in the same order, with the time stamp as text."""

    cat: str = ""
    name: float | str = ""
    pid: float | str = ABSENT
    tid: float | str = ABSENT
    ts: Decimal = Decimal("NaN")
    dur: float = ABSENT
    args: Args = Args()


class Instant(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    """A point in time: what an allocator reports, markers."""

    cat: str = ""
    name: str = ""
    ts: float = _NO_TIME
    args: MemoryArgs = MemoryArgs()


class _ExactInstant(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    """The same with the time stamp as text."""

    cat: str = ""
    name: str = ""
    ts: Decimal = Decimal("NaN")
    args: MemoryArgs = MemoryArgs()


class Metadata(msgspec.Struct, gc=False, tag_field="ph", tag="M"):
    """The name of a process or thread."""

    cat: ClassVar[str] = "metadata"
    name: str = ""
    pid: float | str = ABSENT
    tid: float | str = ABSENT
    args: NameArgs = NameArgs()


AnyEvent = Event | Instant | Metadata


def _ignored(tag: str, category: str) -> Any:
    """A type for events of one phase that are only counted; they are not kept."""
    name = f"Ignored_{tag}"
    return msgspec.defstruct(name, [], tag_field="ph", tag=tag, gc=False, namespace={"cat": category})


# Kineto writes X, i, M and the arrows from launch to kernel (s, t, f); the rest of the Chrome format is listed so
# that one foreign event does not force its whole piece through the slower path.
_IGNORED = tuple(_ignored(tag, "flow") for tag in "stf") + tuple(
    _ignored(tag, "other") for tag in "BECbenSTpFNODRcVvPI(),"
)
_FAST_TYPES = (Event, Instant, Metadata, *_IGNORED)
_EXACT_TYPES = (_ExactEvent, _ExactInstant, Metadata, *_IGNORED)
_LATEST_ORIGIN_US = 5 * 10**15
"""Its nanoseconds, and those of a century around it, fit 64 bits."""
EXACT_BELOW_US = float(2**43)
"""A float64 below this holds microseconds with three decimals without losing the last one."""


class BadPiece(Exception):
    """The text is not a JSON array of objects: a wrong boundary, or a damaged file."""


class PieceDecoder:
    """Decode ``[event, …]``, fast where the fields have the types torch writes."""

    def __init__(self, *, exact: bool = False) -> None:
        self.exact = exact
        self.origin_us = 0
        """What time stamps are relative to, in exact mode."""

    def decode(self, text: bytes | memoryview) -> list[AnyEvent]:
        """Return the events; raise :class:`BadPiece` when the text is not JSON."""
        try:
            return self._relative(_EXACT.decode(text)) if self.exact else _FAST.decode(text)
        except msgspec.ValidationError:
            return self._decode_lenient(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadPiece(str(error)) from error

    def _relative(self, events: list[Any]) -> list[AnyEvent]:
        timed = [event for event in events if isinstance(event, _ExactEvent | _ExactInstant)]
        if not self.origin_us:
            self.origin_us = int(next((event.ts for event in timed if _can_be_origin(event.ts)), Decimal(0)))
        origin = self.origin_us
        try:
            for event in timed:
                event.ts = float(event.ts - origin)  # type: ignore[assignment]
        except ArithmeticError:  # a number too long even for a Decimal
            for event in timed:
                event.ts = _relative_or_absent(event.ts, origin)  # type: ignore[assignment]
        return events

    def _decode_lenient(self, text: bytes | memoryview) -> list[AnyEvent]:
        """Accept fields of unexpected types (numbers as text, null) where they are valid."""
        try:
            values = _LOOSE.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadPiece(str(error)) from error
        events = [_event_from(value) for value in values if isinstance(value, Mapping)]
        if self.exact:
            return self._relative(events)
        for event in events:
            if not isinstance(event, Metadata):
                event.ts = _as_float(event.ts)
        return events


def _decoder(kinds: Sequence[Any]) -> msgspec.json.Decoder[list[Any]]:
    kind: Any = functools.reduce(operator.or_, kinds)
    return msgspec.json.Decoder(list[kind])


_FAST = _decoder(_FAST_TYPES)
_EXACT = _decoder(_EXACT_TYPES)
_LOOSE = msgspec.json.Decoder(list[Any], float_hook=Decimal)


def _can_be_origin(time_us: Decimal) -> bool:
    return time_us.is_finite() and 0 < time_us <= _LATEST_ORIGIN_US


def _relative_or_absent(time_us: Decimal | float, origin_us: int) -> float:
    if isinstance(time_us, float):
        return time_us
    try:
        return float(time_us - origin_us)
    except ArithmeticError:
        return _NO_TIME


def microseconds_to_ns(values_us: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.int64]:
    """Convert µs with decimals; the parts are scaled separately because ``value * 1000`` would round twice."""
    whole = np.floor(values_us)
    fraction = np.rint((values_us - whole) * 1000.0)
    nanoseconds: npt.NDArray[np.int64] = whole.astype(np.int64) * 1000 + fraction.astype(np.int64)
    return nanoseconds


# --- forgiving paths -------------------------------------------------------------------------------------

_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?")
_LONGEST_NUMBER = 64
_ABSENT_TIME = Decimal("NaN")


def _event_from(value: Mapping[str, Any]) -> Any:
    phase, cat, name = (_text(value.get(key)) for key in ("ph", "cat", "name"))
    pid, tid, ts = _id(value.get("pid")), _id(value.get("tid")), _number(value.get("ts"), _ABSENT_TIME)
    args = value.get("args")
    args = args if isinstance(args, Mapping) else {}
    if phase == "M":
        return Metadata(name, pid, tid, NameArgs(args.get("name")))
    if phase == "i":
        return _ExactInstant(cat, name, ts, MemoryArgs(**_numbers(args, MemoryArgs)))
    if phase != "X":
        cat = "other"
    return _ExactEvent(
        cat, name, pid, tid, ts, _as_float(_number(value.get("dur"), -1)), Args(**_numbers(args, Args))
    )


def _numbers(value: Mapping[str, Any], kind: type[Args] | type[MemoryArgs]) -> dict[str, float]:
    return {
        name: _as_float(_number(value[written], -1)) for name, written in _names(kind) if written in value
    }


@functools.cache
def _names(kind: type[Args] | type[MemoryArgs]) -> tuple[tuple[str, str], ...]:
    """Return (name, name in the file) of every field; msgspec evaluates the annotations at each call."""
    return tuple((field.name, field.encode_name) for field in msgspec.structs.fields(kind))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _id(value: Any) -> float | str:
    """Process and thread ids: numbers stay numbers, everything else is text."""
    number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    return _as_float(Decimal(value)) if number else _text(value)


def _number(value: Any, default: int | Decimal) -> Decimal:
    text = str(value).strip() if not isinstance(value, str) or len(value) <= _LONGEST_NUMBER else ""
    try:
        return Decimal(text) if _NUMBER.fullmatch(text) else Decimal(default)
    except ArithmeticError:
        return Decimal(default)


def _as_float(value: Decimal) -> float:
    try:
        return float(value)
    except (OverflowError, ValueError):
        return _NO_TIME


_STRING_OR_WORD = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\b(?:nan|inf(?:inity)?)\b', re.IGNORECASE | re.DOTALL)
_ESCAPE = re.compile(rb'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?', re.DOTALL)
_CONTROL = re.compile(rb"[\x00-\x1f]")


def repair(text: bytes) -> bytes:
    """Repair known exporter errors: ``inf`` and ``nan`` as numbers, bytes that are not UTF-8,
    Windows paths with single backslashes, control characters inside strings.
    """

    def corrected(match: re.Match[bytes]) -> bytes:
        token = match[0]
        if not token.startswith(b'"'):
            return b"null"
        token = _ESCAPE.sub(lambda escape: escape[0] if escape[1] else b"\\\\", token)
        return _CONTROL.sub(b" ", token)

    return _STRING_OR_WORD.sub(corrected, text.decode("utf-8", errors="replace").encode("utf-8"))


# The undecoded part of a trace's text, in one reused buffer.
#
# New megabyte strings for every read, slice and bracket would cost more page faults than decoding costs time.


T = TypeVar("T")
BETWEEN_EVENTS = re.compile(rb"\}\s*,\s*\{")
_OPEN = 1
"""Text starts here; the byte before holds the bracket that makes a piece an array."""


class TooMuchText(Exception):
    """The text exceeds the limit: a small compressed file can fill the memory."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most


class Window:
    """Text read and not yet consumed."""

    def __init__(self, stream: BufferedIOBase, size: int, *, most: int | None = None) -> None:
        self._stream = stream
        self._most = most
        self._data = bytearray(size + 2)
        self._data[0] = ord("[")
        self._end = _OPEN
        self.at_end = False
        """Nothing more to read."""
        self.read_bytes = 0
        """All text read so far."""
        self.dropped_bytes = 0
        """Text used up so far."""

    def __len__(self) -> int:
        return self._end - _OPEN

    def fill(self, length: int) -> None:
        """Read until the window holds ``length`` bytes or the text ends."""
        missing = _OPEN + length + 1 - len(self._data)
        if missing > 0:
            self._data.extend(bytes(missing))
        with memoryview(self._data) as view:
            while len(self) < length and not self.at_end:
                count = self._stream.readinto(view[self._end : _OPEN + length])
                self.at_end = not count
                self._end += count
                self.read_bytes += count
                if self._most is not None and self.read_bytes > self._most:
                    raise TooMuchText(self._most)

    def drop(self, length: int) -> None:
        """Discard the first ``length`` bytes."""
        begin = _OPEN + length
        rest = self._end - begin
        self._data[_OPEN : _OPEN + rest] = self._data[begin : self._end]
        self._end = _OPEN + rest
        self.dropped_bytes += length

    def text(self, end: int | None = None) -> bytes:
        """Copy the text up to ``end``."""
        return bytes(self._data[_OPEN : self._end if end is None else _OPEN + end])

    def codes(self) -> npt.NDArray[np.uint8]:
        """View the text as numbers; valid only until the next ``fill`` or ``drop``."""
        return np.frombuffer(self._data, dtype=np.uint8, count=len(self), offset=_OPEN)

    def last_match(self, pattern: re.Pattern[bytes], within: int) -> tuple[int, int] | None:
        """Return begin and end of the last match in the last ``within`` bytes."""
        begin = max(_OPEN, self._end - within)
        found = None
        for match in pattern.finditer(self._data, begin, self._end):
            found = match.start() - _OPEN, match.end() - _OPEN
        return found

    def objects_with(self, mark: bytes, end: int) -> Iterator[bytes]:
        """Yield the events up to ``end`` that contain ``mark``; their bounds are a guess that a parse must verify."""
        place, last = self._data.find(mark, _OPEN, _OPEN + end), _OPEN + end
        while place >= 0:
            begin = self._data.rfind(b"{", _OPEN, max(_OPEN, self._data.rfind(b'"ph"', _OPEN, place)))
            behind = BETWEEN_EVENTS.search(self._data, place, last)
            stop = behind.start() + 1 if behind is not None else self._data.rfind(b"}", place, last) + 1
            if begin >= 0:
                yield bytes(self._data[begin:stop])
            place = self._data.find(mark, max(stop, place + 1), last)

    def as_array(self, end: int, decode: Callable[[memoryview], T]) -> T:
        """Decode the text up to ``end`` with brackets around it, in place."""
        place = _OPEN + end
        kept = self._data[place]
        self._data[place] = ord("]")
        try:
            with memoryview(self._data) as view:
                return decode(view[: place + 1])
        finally:
            self._data[place] = kept
