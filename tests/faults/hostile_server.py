"""A server whose every byte is planned, for answers that no HTTP library would send."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

Answer = bytes | Callable[[socket.socket], None]


class HostileServer:
    """Answers each path with planned bytes, then closes; a context manager. ``seen`` has the head of every request."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.answers = dict(answers)
        self.seen: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> HostileServer:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        # A close alone does not wake the thread that accepts.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(30)
            with connection.makefile("rb") as stream:
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    line = stream.readline()
                    if not line:
                        return
                    head += line
                text = head.decode("latin-1")
                lengths = [line for line in text.splitlines() if line.lower().startswith("content-length:")]
                stream.read(int(lengths[0].split(":")[1]) if lengths else 0)
            self.seen.append(text)
            answer = self.answers.get(text.split()[1], plain(b"not here", status=404))
            if callable(answer):
                answer(connection)
            else:
                connection.sendall(answer)
            connection.shutdown(socket.SHUT_RDWR)


def plain(body: bytes, *, status: int = 200, headers: str = "") -> bytes:
    """Return a whole answer."""
    head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{headers}\r\n"
    return head.encode("latin-1") + body


def redirect(url: str, status: int = 307) -> bytes:
    """Return a redirect."""
    return plain(b"", status=status, headers=f"Location: {url}\r\n")


def stream(*events: bytes | dict[str, Any], headers: str = "", rest: bytes = b"") -> bytes:
    """Return server-sent events."""
    lines = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in events]
    body = b"".join(b"data: " + line + b"\n\n" for line in lines) + rest
    return (
        f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n{headers}\r\n".encode()
        + body
    )


def without_end(begin: bytes, piece: bytes, pause_s: float = 0.0) -> Callable[[socket.socket], None]:
    """Return an answer that sends a piece again and again until the client closes."""

    def send(connection: socket.socket) -> None:
        connection.sendall(begin)
        waiting = threading.Event()
        while True:
            connection.sendall(piece)
            if pause_s:
                waiting.wait(pause_s)

    return send
