"""Receiver of forward-pass metrics: SGLang, Dynamo and TensorRT-LLM publish a record of every step over ZeroMQ.

A message has three frames: topic, sequence number (8 bytes, big endian), and the record as msgpack. The record has no time stamp, so the
time of arrival is written next to it. Field names: :mod:`llm_perf_opt.captures.serving.engines`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.process.tools import import_optional

_MOST_MESSAGE_BYTES = 1 << 20
_MOST_FILE_BYTES = 1 << 30
_POLL_MS = 100
_CONNECT_S = 2.0
PACKAGE = "zmq"


class ForwardPassReceiver:
    """Writes every record that arrives as a JSON line: ``{"time_s": …, "fpm": …}``. Used as a context manager."""

    def __init__(self, urls: Sequence[str], path: Path) -> None:
        self.path = path
        self.received = self.invalid = self.lost = 0
        """Records written; messages that are not records; records missing by their sequence numbers."""
        self.full = False
        self.problem: str | None = None
        """Why writing ended early."""
        self._zmq: Any = import_optional(PACKAGE)
        self._context = self._zmq.Context()
        self._socket = self._context.socket(self._zmq.SUB)
        self._socket.setsockopt(self._zmq.LINGER, 0)
        self._socket.setsockopt(self._zmq.MAXMSGSIZE, _MOST_MESSAGE_BYTES)
        self._socket.setsockopt(self._zmq.SUBSCRIBE, b"")
        try:
            for url in urls:
                self._socket.connect(url)
        except self._zmq.ZMQError as error:
            self._close()
            raise ToolError(
                f"cannot subscribe to {', '.join(urls)}: {error}",
                hint="addresses look like tcp://127.0.0.1:20380",
            ) from error
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="forward-pass-receiver", daemon=True)
        self._next: dict[Any, int] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(_CONNECT_S)
        self._close()

    def _close(self) -> None:
        self._socket.close()
        self._context.term()

    def _run(self) -> None:
        try:
            self._write()
        except OSError as error:  # a full disk, for example: the load itself goes on
            self.problem = f"Forward-pass records could not be written: {error}."

    def _write(self) -> None:
        written = 0
        with self.path.open("wb") as stream:
            while True:
                if not self._socket.poll(_POLL_MS):
                    if self._stop.is_set():
                        return
                    stream.flush()
                    continue
                frames = self._socket.recv_multipart()
                line = self._line(frames, time.time())
                if line is None:
                    self.invalid += 1
                elif written + len(line) > _MOST_FILE_BYTES:
                    self.full = True
                else:
                    written += stream.write(line)
                    self.received += 1

    def _line(self, frames: list[bytes], at: float) -> bytes | None:
        """Return the line of a message; ``None`` if it is not a record."""
        try:
            record = msgspec.msgpack.decode(frames[-1])
            if not isinstance(record, dict | list):
                return None
            self._count_lost(frames, record)
            return msgspec.json.encode({"time_s": round(at, 6), "fpm": record}) + b"\n"
        except (msgspec.MsgspecError, ValueError, TypeError, IndexError, RecursionError):
            return None

    def _count_lost(self, frames: list[bytes], record: dict[Any, Any] | list[Any]) -> None:
        if len(frames) < 3 or len(frames[1]) != 8:
            return
        number = int.from_bytes(frames[1], "big")
        publisher = record.get("dp_rank") if isinstance(record, dict) else record[2]
        expected = self._next.get(publisher, number)
        # A smaller number: the engine was started again.
        self.lost += max(number - expected, 0)
        self._next[publisher] = number + 1

    def notes(self) -> list[str]:
        """Return what a reader of the records must know."""
        found = [] if self.problem is None else [self.problem]
        if not self.received and not found:
            found.append(
                "No forward-pass metrics arrived: check the port, and that the engine publishes them."
            )
        if self.lost:
            found.append(f"{self.lost} forward-pass records were lost on the way.")
        if self.invalid:
            found.append(f"{self.invalid} messages of the engine are not forward-pass records.")
        if self.full:
            found.append(f"Forward-pass records beyond {_MOST_FILE_BYTES >> 20} MiB were not kept.")
        return found
