"""Read a Kineto trace piece by piece, whatever its text layout, without holding it in memory.

The reader guesses that ``}`` ``,`` ``{`` separates two events and lets the parse prove it: a piece that
starts at an event and decodes as a whole array can only end between two events, because anywhere else a
string or a bracket would still be open. A failed guess is resolved by an exact outline of the brackets.
So a file by torch, re-indented, compact or on a single line reads the same, and a cut-off file is noticed.
"""

from __future__ import annotations

import contextlib
import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from llm_perf_opt.captures.kineto.collectives import CollectiveEvents
from llm_perf_opt.captures.kineto.decode import (
    BETWEEN_EVENTS,
    AnyEvent,
    BadPiece,
    PieceDecoder,
    TooMuchText,
    Window,
    repair,
)
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.files import UNPACK_VARIABLE, most_unpacked, require_regular

_Codes = npt.NDArray[np.uint8]
PIECE_BYTES = 1 << 20
"""Text decoded at a time: large enough to amortise, small enough to forget."""
_HEADER_LIMIT_BYTES = 64 << 20
_EVENT_LIMIT_BYTES = 64 << 20
GUESS_WINDOW_BYTES = 64 << 10
_KEY_MARGIN_BYTES = 4096
_UNPACKED_FREE_BYTES = 16 << 20
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_DISTRIBUTED, _SCHEMA = b'"distributedInfo"', b'"schemaVersion"'
_ALONE = re.compile(rb'"world_size"\s*:\s*1\s*[,}]')
_BOM = b"\xef\xbb\xbf"
_GZIP_MAGIC = b"\x1f\x8b"
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Outline:
    """Where a piece that starts between two events could end."""

    last_comma: int | None
    """Last comma between two events."""
    array_end: int | None
    """The bracket that closes the array of events."""


def outline(codes: _Codes) -> Outline:
    """Find the structure of a piece exactly: strings are skipped, brackets are counted."""
    positions = np.flatnonzero(_STRUCTURAL[codes])
    positions = positions[np.searchsorted(_string_quotes(codes), positions) % 2 == 0]
    depth = np.cumsum(_DEPTH_CHANGE[codes[positions]])
    closing = np.flatnonzero(depth < 0)
    if len(closing):
        positions, depth = positions[: closing[0] + 1], depth[: closing[0] + 1]
    commas = positions[(depth == 0) & (codes[positions] == ord(","))]
    return Outline(
        last_comma=int(commas[-1]) if len(commas) else None,
        array_end=int(positions[-1]) if len(closing) else None,
    )


def _string_quotes(codes: _Codes) -> npt.NDArray[np.int64]:
    """Positions of quotes that open or close a string (not those after an odd number of backslashes)."""
    quotes = np.flatnonzero(codes == ord('"'))
    backslash = codes == ord("\\")
    if not backslash.any():
        return quotes
    last_other = np.maximum.accumulate(np.where(backslash, -1, np.arange(len(codes))))
    before = np.maximum(quotes - 1, 0)
    run = np.where(quotes > 0, before - last_other[before], 0)
    real: npt.NDArray[np.int64] = quotes[run % 2 == 0]
    return real


_STRUCTURAL = np.zeros(256, dtype=bool)
_STRUCTURAL[[ord(character) for character in "{}[],"]] = True
_DEPTH_CHANGE = np.zeros(256, dtype=np.int64)
_DEPTH_CHANGE[[ord("{"), ord("[")]] = 1
_DEPTH_CHANGE[[ord("}"), ord("]")]] = -1


class EventStream:
    """Iterate over lists of events; afterwards ``metadata`` holds everything else."""

    def __init__(
        self,
        path: Path,
        *,
        exact: bool = False,
        piece_bytes: int = PIECE_BYTES,
        decoder: PieceDecoder | None = None,
    ) -> None:
        self.path = Path(path)
        self.decoder = PieceDecoder(exact=exact) if decoder is None else decoder
        self.metadata: dict[str, Any] = {}
        self.warnings: list[str] = []
        self.collectives = CollectiveEvents()
        """Events that describe a collective, as written."""
        self.text_bytes = 0
        """Uncompressed bytes read."""
        self.start_last_part: Callable[[int, bool], int | None] | None = None
        """Asked, with the place of the first event and whether collectives may be described, where to go on in a plain file:
        what lies between is read by others. ``None``: nowhere else."""
        self._piece_bytes = piece_bytes
        self._bare_array = False
        self._repaired = 0
        self._may_talk = True
        self._elsewhere_bytes = 0

    def __iter__(self) -> Iterator[list[AnyEvent]]:
        with _open(self.path) as stream:
            window = Window(stream, self._piece_bytes, most=_most_text(self.path))
            try:
                header = self._read_header(window)
                # A program with ranks declares them before the events; searching other traces would cost a tenth of the reading time.
                self._may_talk = (_DISTRIBUTED in header or _SCHEMA not in header) and not _ALONE.search(
                    header
                )
                window = self._behind_other_parts(stream, window)
                yield from self._pieces(window)
                self._finish(header, window)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise self._cut_off(window, f"the gzip data ends early or is damaged ({error})") from error
            except TooMuchText as error:
                raise InputError(
                    f"{self.path} unpacks to more than {error.most} bytes",
                    hint=f"if that is right, set {UNPACK_VARIABLE} to a larger factor than {most_unpacked()}",
                    path=str(self.path),
                ) from error

    def _behind_other_parts(self, stream: BufferedIOBase, window: Window) -> Window:
        if self.start_last_part is None or self._bare_array or isinstance(stream, gzip.GzipFile):
            return window
        place = self.start_last_part(window.dropped_bytes, self._may_talk)
        if place is None:
            return window
        stream.seek(place)
        self._elsewhere_bytes = place
        return Window(stream, self._piece_bytes)

    # --- before the events -------------------------------------------------------------------------------

    def _read_header(self, window: Window) -> bytes:
        """Read up to the first event; return the text before it, proven to be a JSON object left open."""
        window.fill(self._piece_bytes)
        self._bare_array = self._first_character(window) == b"["
        if self._bare_array:
            window.drop(window.text().index(b"[") + 1)
            return b"["
        searched = 0
        while True:
            text = window.text()
            for match in _EVENTS_KEY.finditer(text, searched):
                header = text[: match.end() - 1]
                if _is_json(header.removeprefix(_BOM) + b"[]}"):
                    window.drop(match.end())
                    return header.removeprefix(_BOM)
            if window.at_end or len(text) > _HEADER_LIMIT_BYTES:
                raise InputError(
                    f"{self.path} has no 'traceEvents': it is not a torch profiler trace",
                    hint="give the file written by prof.export_chrome_trace(...) or tensorboard_trace_handler",
                    path=str(self.path),
                )
            searched = max(0, len(text) - _KEY_MARGIN_BYTES)
            window.fill(2 * len(text))

    def _first_character(self, window: Window) -> bytes:
        first = window.text(min(len(window), _KEY_MARGIN_BYTES)).removeprefix(_BOM).lstrip()[:1]
        if first not in (b"{", b"["):
            what = "is empty" if not first else "is not JSON"
            raise InputError(
                f"{self.path} {what}: it is not a torch profiler trace",
                hint="give a Kineto trace as .json or .json.gz",
                path=str(self.path),
            )
        return first

    # --- pieces ------------------------------------------------------------------------------------------

    def _pieces(self, window: Window) -> Iterator[list[AnyEvent]]:
        """Yield events until the array is closed; leaves the window after the closing bracket."""
        size = self._piece_bytes
        while True:
            window.fill(size)
            boundary = None if window.at_end else window.last_match(BETWEEN_EVENTS, GUESS_WINDOW_BYTES)
            if boundary is not None:
                with contextlib.suppress(BadPiece):
                    self._look_for_collectives(window, boundary[0] + 1)
                    # Not bound to a name here: the consumer frees the events before the next piece is decoded.
                    yield window.as_array(boundary[0] + 1, self.decoder.decode)
                    window.drop(boundary[1] - 1)
                    size = self._piece_bytes
                    continue
            shape = outline(window.codes())
            end = shape.last_comma if shape.array_end is None else shape.array_end
            if end is not None:
                self._look_for_collectives(window, end)
                yield self._decode(window, end)
                window.drop(end + 1)
                size = self._piece_bytes
            elif not window.at_end:
                if len(window) > _EVENT_LIMIT_BYTES:
                    raise self._too_large(f"one event takes more than {_EVENT_LIMIT_BYTES >> 20} MiB of text")
                size = 2 * len(window)
            else:
                yield self._last_of_open_array(window)
            if shape.array_end is not None or (end is None and window.at_end):
                return

    def _look_for_collectives(self, window: Window, end: int) -> None:
        if self._may_talk:
            self.collectives.look_into(window, end)

    def _decode(self, window: Window, end: int) -> list[AnyEvent]:
        """Decode a piece whose bounds are known; repair it once if it is not JSON."""
        try:
            return window.as_array(end, self.decoder.decode)
        except BadPiece as first:
            try:
                events = self.decoder.decode(repair(b"[" + window.text(end) + b"]"))
            except BadPiece:
                raise InputError(
                    f"{self.path} is damaged near byte {window.dropped_bytes}: {first}",
                    hint="write the trace again; if a tool rewrote it, use the original",
                    path=str(self.path),
                ) from first
            self._repaired += 1
            return events

    def _last_of_open_array(self, window: Window) -> list[AnyEvent]:
        """Handle a file that ends inside the array: the Chrome format allows that for bare arrays only."""
        if self._bare_array:
            with contextlib.suppress(BadPiece):
                events = self.decoder.decode(b"[" + window.text().rstrip().rstrip(b",") + b"]")
                self.warnings.append(
                    f"{self.path.name}: the array of events is not closed; all events are whole"
                )
                window.drop(len(window))
                return events
        raise self._cut_off(window, "the text ends inside the list of events")

    def _cut_off(self, window: Window, why: str) -> InputError:
        return InputError(
            f"{self.path} is cut off after {window.read_bytes} bytes of JSON: {why}",
            hint="capture or copy the trace again; totals of a part would be wrong",
            path=str(self.path),
        )

    def _too_large(self, what: str) -> InputError:
        return InputError(
            f"{self.path}: {what}", hint="give the file that the profiler wrote", path=str(self.path)
        )

    # --- behind the events -------------------------------------------------------------------------------

    def _finish(self, header: bytes, window: Window) -> None:
        if self._repaired:
            self.warnings.append(
                f"{self.path.name}: {self._repaired} pieces were not valid JSON and were repaired"
            )
        while not window.at_end:
            if len(window) > _HEADER_LIMIT_BYTES:
                raise self._too_large(f"more than {_HEADER_LIMIT_BYTES >> 20} MiB follow the events")
            window.fill(len(window) + self._piece_bytes)
        self.text_bytes = self._elsewhere_bytes + window.read_bytes
        if self._bare_array:
            return
        try:
            self.metadata = msgspec.json.decode(header + b"[]" + window.text(), type=dict[str, Any])
        except _NOT_JSON:
            self.warnings.append(
                f"{self.path.name}: the text after the events is damaged or cut off; the events are whole"
            )
            self.metadata = msgspec.json.decode(header + b"[]}", type=dict[str, Any])
        self.metadata.pop("traceEvents", None)


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except _NOT_JSON:
        return False
    return True


def _most_text(path: Path) -> int:
    """Return how much text a file may hold: a compressed file may expand by a limited factor."""
    size = path.stat().st_size
    return max(size, _UNPACKED_FREE_BYTES + most_unpacked() * size)


@contextlib.contextmanager
def _open(path: Path) -> Iterator[BufferedIOBase]:
    """Open plain or gzip by content, not by name."""
    try:
        require_regular(path)
        with path.open("rb") as plain:
            packed = plain.read(2) == _GZIP_MAGIC
            plain.seek(0)
            if packed:
                with gzip.GzipFile(fileobj=plain, mode="rb") as unpacked:
                    yield unpacked
            else:
                yield plain
    except FileNotFoundError as error:
        raise InputError(
            f"no such file: {path}", hint="check the path of the trace", path=str(path)
        ) from error
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise
        raise InputError(
            f"cannot read {path}: {error.strerror}", hint="give a readable trace file", path=str(path)
        ) from error
