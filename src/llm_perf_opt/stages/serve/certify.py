"""Capacity of the load client on this machine: events per second, its own time per event, and the error of its time stamps.

The counterpart is a stub server in a separate process (``python -m llm_perf_opt.stages.serve.certify``), which streams
events as fast as they are read, or at a given rate with the time of sending in each.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.process.launch import BackgroundProcess
from llm_perf_opt.stages.serve.client import LoadClient, LoadResult, Target
from llm_perf_opt.stages.serve.load import LoadLevel, PlannedRequest
from llm_perf_opt.summary.statistics import percentile

_STREAMS = 16
_START_S = 30.0
_READY = "listening on port "


@dataclass(frozen=True, slots=True)
class Certificate:
    """The measured values."""

    capacity_per_s: float
    """Events per second that the client read."""
    event_s: float
    """Processor time of the client per event."""
    stamp_error_p99_s: float | None = None
    """99th percentile of arrival − time of sending, at half the capacity (at most 10,000 events per second)."""


def certify_client(log_dir: Path, *, seconds: float = 0.6) -> Certificate:
    """Measure the client against the stub; about two seconds with the start of the stub."""
    port: list[int] = []

    def on_line(line: str) -> None:
        if line.startswith(_READY):
            port.append(int(line.removeprefix(_READY)))

    argv = [sys.executable, "-m", "llm_perf_opt.stages.serve.certify"]
    with BackgroundProcess(argv, log_dir=log_dir, name="client-stub", on_line=on_line, grace_s=2.0) as stub:
        limit = time.monotonic() + _START_S
        while not port:
            if not stub.is_running or time.monotonic() > limit:
                output = stub.stop().tail(3)
                raise ToolError(
                    f"the stub server of the client's certification did not start: {output}",
                    hint=f"see {log_dir}/client-stub.stderr.log",
                )
            time.sleep(0.02)
        return asyncio.run(_measure(f"http://127.0.0.1:{port[0]}", seconds))


async def _measure(url: str, seconds: float) -> Certificate:
    async with LoadClient(Target(url, "stub")) as client:
        await _stream(client, 50)
        tried = await _stream(client, 400)
        rate = tried.events / tried.seconds
        result = await _stream(client, max(100, int(rate * seconds / _STREAMS)))
        if not result.events or any(one.status != "ok" for one in result.records):
            raise ToolError(
                "the load client could not read the stub server", hint="see serve/client-stub.stderr.log"
            )
        capacity = result.events / result.seconds
        client.stamp_errors_s.clear()
        pace = min(capacity / 2, 10_000)
        await _stream(client, max(20, int(pace * seconds / _STREAMS)), pace / _STREAMS)
        errors = sorted(client.stamp_errors_s)
    error = percentile(errors, 0.99) if errors else None
    return Certificate(capacity, result.cpu_s / result.events, error)


async def _stream(client: LoadClient, events: int, per_s: float | None = None) -> LoadResult:
    prompt = f"pace {per_s}" if per_s is not None else ""
    requests = (PlannedRequest(f"stub-{number}", prompt, events) for number in range(_STREAMS))
    return await client.run(LoadLevel("closed", concurrency=_STREAMS), requests)


# The stub: minimal HTTP/1.1, fast and without dependencies.

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_EVENT = (
    b'data: {"id":"cmpl-stub","object":"text_completion","created":0,"model":"stub",'
    b'"choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":null}],"sent_s":%.6f}\n\n'
)
_PLAIN = _EVENT.replace(b',"sent_s":%.6f', b"")
_LAST = (
    b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":%d}}\n\ndata: [DONE]\n\n'
)


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                (
                    int(line.split(b":")[1])
                    for line in head.split(b"\r\n")
                    if line.lower().startswith(b"content-length:")
                ),
                0,
            )
            request = json.loads(await reader.readexactly(length))
            writer.write(_HEAD)
            await _send_events(writer, request["max_tokens"], request.get("prompt", ""))
            writer.write(_chunked(_LAST % request["max_tokens"]) + b"0\r\n\r\n")
            await writer.drain()
    writer.close()


async def _send_events(writer: asyncio.StreamWriter, events: int, prompt: str) -> None:
    if not prompt.startswith("pace "):
        event = _chunked(_PLAIN)
        for _ in range(events):
            writer.write(event)
            await writer.drain()
            await asyncio.sleep(0)
        return
    step = 1 / float(prompt.split()[1])
    due = time.perf_counter()
    for _ in range(events):
        due += step
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        writer.write(_chunked(_EVENT % time.time()))
        await writer.drain()


async def _serve() -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    print(f"{_READY}{server.sockets[0].getsockname()[1]}", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())
