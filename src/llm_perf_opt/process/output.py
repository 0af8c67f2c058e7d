"""What a program says, read without bound on its side and with one on ours.

A program may write gigabytes a second, or one line that never ends. Its output comes through pipes that one thread
reads piece by piece: the log keeps the beginning and the end, lines are handed over in pieces of bounded length, and a
program that is faster than the reader waits. Nobody else waits: limits and Ctrl-C are watched by the caller's thread.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from llm_perf_opt.core.files import open_new

HEAD_BYTES = 8 << 20
"""Beginning of a stream that a log keeps, and ..."""
TAIL_BYTES = 8 << 20
"""... its end."""
LINE_BYTES = 64 << 10
"""A longer line is handed over in pieces."""

_PIECE_BYTES = 64 << 10
_TICK_S = 1.0
_PAUSE_S = 0.1
_DRAIN_BYTES = 4 << 20
"""Read at most this of what is still in a pipe that somebody else keeps open."""


class BoundedLog:
    """A stream's beginning and end, in a file or in memory; what lies between is counted and left out."""

    def __init__(
        self, path: Path | None, *, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES
    ) -> None:
        self._path, self._room, self._tail_bytes = path, head_bytes, tail_bytes
        self._file: IO[bytes] | None = open_new(path) if path is not None else None
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._closed = False
        self.left_out = 0
        """Bytes that were read and are not kept."""

    def write(self, data: bytes) -> None:
        """Take the next piece."""
        head, rest = data[: self._room], data[self._room :]
        if head:
            self._room -= len(head)
            self._keep(head)
        if rest:
            self._tail.append(rest)
            self._tail_size += len(rest)
            while self._tail_size - len(self._tail[0]) >= self._tail_bytes:
                dropped = len(self._tail.popleft())
                self._tail_size -= dropped
                self.left_out += dropped

    def close(self) -> None:
        """Put the end behind the beginning, with a line between them that says what is missing."""
        if self._closed:
            return
        self._closed = True
        end = b"".join(self._tail)
        self._tail.clear()
        if self.left_out:
            end = f"\n[… {self.left_out} bytes left out …]\n".encode() + end
        self._keep(end)
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def _keep(self, data: bytes) -> None:
        """Write to the file. A full disk costs the log, not the run: whoever watches the disk says so."""
        if self._file is None:
            self._head += data
            return
        try:
            self._file.write(data)
        except OSError:
            self.left_out += len(data)

    def last(self, keep_bytes: int) -> str:
        """Return the end of what was kept; of a closed log only."""
        if self._path is None:
            return bytes(self._head[-keep_bytes:]).decode("utf-8", errors="replace")
        with os.fdopen(os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - keep_bytes))
            return stream.read().decode("utf-8", errors="replace")


class LineSplitter:
    """Hands over lines as they are complete; a carriage return (progress bar) ends a line too."""

    def __init__(self, handle: Callable[[str], None], *, longest: int = LINE_BYTES) -> None:
        self._handle, self._longest = handle, longest
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take the next piece; a line without an end is handed over before it grows."""
        *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            self._hand_over(line)
        while len(self._rest) > self._longest:
            piece, self._rest = self._rest[: self._longest], self._rest[self._longest :]
            self._hand_over(piece)

    def end(self) -> None:
        """Hand over a last line without an end."""
        self._hand_over(self._rest)
        self._rest = b""

    def _hand_over(self, line: bytes) -> None:
        if line.strip():
            self._handle(line.decode("utf-8", errors="replace"))


@dataclass(slots=True)
class _Stream:
    descriptor: int
    log: BoundedLog
    lines: LineSplitter | None

    def read(self) -> bytes | None:
        """Return the next piece; empty at the end, ``None`` when there is nothing now."""
        try:
            return os.read(self.descriptor, _PIECE_BYTES)
        except BlockingIOError:
            return None

    def take(self, data: bytes) -> None:
        """Keep a piece and hand over its lines."""
        self.log.write(data)
        if self.lines is not None:
            self.lines.feed(data)


class OutputReader:
    """One thread that reads both streams of a program until it and all it started are gone."""

    def __init__(
        self,
        streams: Sequence[tuple[int, BoundedLog]],
        *,
        on_line: Callable[[str], None] | None,
        on_tick: Callable[[float], None] | None,
    ) -> None:
        self._streams = [
            # Of its own: a reader that a callback holds up outlives the program's pipes.
            _Stream(os.dup(descriptor), log, LineSplitter(on_line) if on_line else None)
            for descriptor, log in streams
        ]
        self._on_tick = on_tick
        self._over = threading.Event()
        self.error: Exception | None = None
        """What a callback raised; reading goes on, so that the program does not hang."""
        self._thread = threading.Thread(target=self._run, name="llm-perf-opt-output", daemon=True)
        self._thread.start()

    def finish(self, wait_s: float = 10.0) -> None:
        """Take what is left in the pipes, and end; called when the program is gone."""
        self._over.set()
        self._thread.join(wait_s)

    def _run(self) -> None:
        began = time.monotonic()
        next_tick = 0.0
        with selectors.DefaultSelector() as selector:
            for stream in self._streams:
                os.set_blocking(stream.descriptor, False)
                selector.register(stream.descriptor, selectors.EVENT_READ, stream)
            while not self._over.is_set():
                self._read_once(selector)
                elapsed = time.monotonic() - began
                if self._on_tick and elapsed >= next_tick:
                    next_tick = elapsed + _TICK_S
                    with self._error_kept():
                        self._on_tick(elapsed)
        for stream in self._streams:
            self._drain(stream)
            os.close(stream.descriptor)
            stream.log.close()

    def _read_once(self, selector: selectors.BaseSelector) -> None:
        if not selector.get_map():  # both closed by a program that goes on
            self._over.wait(_PAUSE_S)
            return
        for key, _ in selector.select(_PAUSE_S):
            stream: _Stream = key.data
            data = stream.read()
            if data == b"":
                selector.unregister(stream.descriptor)
            elif data is not None:
                with self._error_kept():
                    stream.take(data)

    def _drain(self, stream: _Stream) -> None:
        """Take what is there. Somebody who left the job may hold the pipe open and go on writing."""
        taken = 0
        while taken < _DRAIN_BYTES and (data := stream.read()):
            taken += len(data)
            with self._error_kept():
                stream.take(data)
        with self._error_kept():
            if stream.lines is not None:
                stream.lines.end()

    @contextlib.contextmanager
    def _error_kept(self) -> Iterator[None]:
        """Keep the first error of a callback for the thread that waits for the program, which raises it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever a callback raises belongs to the caller's thread
            self.error = self.error or error
