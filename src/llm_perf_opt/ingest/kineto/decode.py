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
    AnyEvent,
    Args,
    ExactEvent,
    ExactInstant,
    MemoryArgs,
    Metadata,
    NameArgs,
)

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
            self.origin_us = int(next((event.ts for event in timed if event.ts), Decimal(0)))
        origin = self.origin_us
        for event in timed:
            event.ts = float(event.ts - origin)  # type: ignore[assignment]
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
                event.ts = float(event.ts)
        return events


def _decoder(kinds: Sequence[Any]) -> msgspec.json.Decoder[list[Any]]:
    kind: Any = functools.reduce(operator.or_, kinds)
    return msgspec.json.Decoder(list[kind])


_FAST = _decoder(FAST_TYPES)
_EXACT = _decoder(EXACT_TYPES)
_LOOSE = msgspec.json.Decoder(list[Any], float_hook=Decimal)


def microseconds_to_ns(values_us: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.int64]:
    """Convert µs with decimals; the parts are scaled apart because ``value * 1000`` would round twice."""
    whole = np.floor(values_us)
    fraction = np.rint((values_us - whole) * 1000.0)
    nanoseconds: npt.NDArray[np.int64] = whole.astype(np.int64) * 1000 + fraction.astype(np.int64)
    return nanoseconds


# --- forgiving paths -------------------------------------------------------------------------------------

_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?")


def _event_from(value: Mapping[str, Any]) -> Any:
    phase, cat, name = (_text(value.get(key)) for key in ("ph", "cat", "name"))
    pid, tid, ts = _id(value.get("pid")), _id(value.get("tid")), _number(value.get("ts"), 0)
    args = value.get("args")
    args = args if isinstance(args, Mapping) else {}
    if phase == "M":
        return Metadata(name, pid, tid, NameArgs(args.get("name")))
    if phase == "i":
        return ExactInstant(cat, name, ts, MemoryArgs(**_numbers(args, MemoryArgs)))
    if phase != "X":
        cat = "other"
    return ExactEvent(
        cat, name, pid, tid, ts, float(_number(value.get("dur"), 0)), Args(**_numbers(args, Args))
    )


def _numbers(value: Mapping[str, Any], kind: type[Args] | type[MemoryArgs]) -> dict[str, float]:
    fields = msgspec.structs.fields(kind)
    return {
        field.name: float(_number(value[field.encode_name], -1))
        for field in fields
        if field.encode_name in value
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _id(value: Any) -> float | str:
    """Process and thread ids: numbers stay numbers, everything else is text."""
    return float(value) if isinstance(value, int | Decimal) else _text(value)


def _number(value: Any, default: int) -> Decimal:
    text = str(value).strip()
    return Decimal(text) if _NUMBER.fullmatch(text) else Decimal(default)


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
