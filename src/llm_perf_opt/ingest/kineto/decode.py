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
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from llm_perf_opt.ingest.kineto.events import (
    EXACT_TYPES,
    FAST_TYPES,
    NO_TIME,
    AnyEvent,
    Args,
    ExactEvent,
    ExactInstant,
    MemoryArgs,
    Metadata,
    NameArgs,
)

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
        timed = [event for event in events if isinstance(event, ExactEvent | ExactInstant)]
        if not self.origin_us:
            self.origin_us = int(next((event.ts for event in timed if _can_be_origin(event.ts)), Decimal(0)))
        origin = self.origin_us
        try:
            for event in timed:
                event.ts = float(event.ts - origin)  # type: ignore[assignment]
        except ArithmeticError:  # a number so long that not even a Decimal takes it
            for event in timed:
                event.ts = _relative_or_absent(event.ts, origin)  # type: ignore[assignment]
        return events

    def _decode_lenient(self, text: bytes | memoryview) -> list[AnyEvent]:
        """Take fields of unexpected types (numbers as text, null) where they make sense."""
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


_FAST = _decoder(FAST_TYPES)
_EXACT = _decoder(EXACT_TYPES)
_LOOSE = msgspec.json.Decoder(list[Any], float_hook=Decimal)


def _can_be_origin(time_us: Decimal) -> bool:
    return time_us.is_finite() and 0 < time_us <= _LATEST_ORIGIN_US


def _relative_or_absent(time_us: Decimal | float, origin_us: int) -> float:
    if isinstance(time_us, float):
        return time_us
    try:
        return float(time_us - origin_us)
    except ArithmeticError:
        return NO_TIME


def microseconds_to_ns(values_us: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.int64]:
    """Convert µs with decimals; the parts are scaled apart because ``value * 1000`` would round twice."""
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
        return ExactInstant(cat, name, ts, MemoryArgs(**_numbers(args, MemoryArgs)))
    if phase != "X":
        cat = "other"
    return ExactEvent(
        cat, name, pid, tid, ts, _as_float(_number(value.get("dur"), -1)), Args(**_numbers(args, Args))
    )


def _numbers(value: Mapping[str, Any], kind: type[Args] | type[MemoryArgs]) -> dict[str, float]:
    fields = msgspec.structs.fields(kind)
    return {
        field.name: _as_float(_number(value[field.encode_name], -1))
        for field in fields
        if field.encode_name in value
    }


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
        return NO_TIME


_STRING_OR_WORD = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\b(?:nan|inf(?:inity)?)\b', re.IGNORECASE | re.DOTALL)
_ESCAPE = re.compile(rb'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?', re.DOTALL)
_CONTROL = re.compile(rb"[\x00-\x1f]")


def repair(text: bytes) -> bytes:
    """Mend what exporters are known to get wrong: ``inf`` and ``nan`` as numbers, bytes that are not UTF-8,
    Windows paths with single backslashes, control characters inside strings.
    """

    def mend(match: re.Match[bytes]) -> bytes:
        token = match[0]
        if not token.startswith(b'"'):
            return b"null"
        token = _ESCAPE.sub(lambda escape: escape[0] if escape[1] else b"\\\\", token)
        return _CONTROL.sub(b" ", token)

    return _STRING_OR_WORD.sub(mend, text.decode("utf-8", errors="replace").encode("utf-8"))
