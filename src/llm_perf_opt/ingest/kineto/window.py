"""The part of a trace's text that is not decoded yet, in one buffer that is used again and again.

New megabyte strings for every read, slice and bracket would cost more page faults than decoding costs time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from io import BufferedIOBase
from typing import TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")

BETWEEN_EVENTS = re.compile(rb"\}\s*,\s*\{")
_OPEN = 1
"""Text starts here; the byte before holds the bracket that makes a piece an array."""


class TooMuchText(Exception):
    """The text is longer than it may be: what is packed small can fill a memory."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most


class Window:
    """Text read and not yet used."""

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
        """Forget the first ``length`` bytes."""
        begin = _OPEN + length
        rest = self._end - begin
        self._data[_OPEN : _OPEN + rest] = self._data[begin : self._end]
        self._end = _OPEN + rest
        self.dropped_bytes += length

    def text(self, end: int | None = None) -> bytes:
        """Copy the text up to ``end``."""
        return bytes(self._data[_OPEN : self._end if end is None else _OPEN + end])

    def codes(self) -> npt.NDArray[np.uint8]:
        """View the text as numbers; only good until the next ``fill`` or ``drop``."""
        return np.frombuffer(self._data, dtype=np.uint8, count=len(self), offset=_OPEN)

    def last_match(self, pattern: re.Pattern[bytes], within: int) -> tuple[int, int] | None:
        """Return begin and end of the last match in the last ``within`` bytes."""
        begin = max(_OPEN, self._end - within)
        found = None
        for match in pattern.finditer(self._data, begin, self._end):
            found = match.start() - _OPEN, match.end() - _OPEN
        return found

    def objects_with(self, mark: bytes, end: int) -> Iterator[bytes]:
        """Yield the events up to ``end`` that hold ``mark``; only a guess at their bounds, which a parse has to prove."""
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
