"""An OpenAI-compatible server with planted behaviour: queue, prefill, decode steps, stalls, and every fault a server can have.

In a test: ``with ServingStub(Behaviour(prefill_s=0.02)) as stub: … stub.url``. As a program, which the stage can start in place
of an engine: ``python -m tests.serving_stub --port N`` with the behaviour as JSON in the variable ``SERVING_STUB``. Of vLLM's options,
``--max-num-seqs`` and ``--max-num-batched-tokens`` have an effect; ``--planted-NAME=JSON`` changes the behaviour; others are ignored.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass
class Behaviour:
    """What the server does."""

    model: str = "stub"
    owner: str = "stub"
    strict: bool = False
    """Whether fields that OpenAI's server does not have are refused."""
    prefill_s: float = 0.0
    """Added to a step for every prompt that begins in it."""
    decode_s: float = 0.001
    """Of every step."""
    max_batch: int = 64
    stall_at_s: float | None = None
    """Seconds after the first request at which the server freezes, once."""
    stall_s: float = 0.0
    tokens_per_chunk: int = 1
    reasoning_tokens: int = 0
    tool_call: bool = False
    usage: bool = True
    done_mark: bool = True
    metrics_page: bool = True
    cached_tokens: int | None = None
    states_times: bool = False
    """Whether the last chunk states a queue time of 1.5 ms and a prefill of 2.5 ms."""
    api_key: str | None = None
    fault: str | None = None
    """``429``, ``500``, ``half-chunk``, ``invalid-json``, ``invalid-sse``, ``reset``, ``error-event``, ``empty``, ``never-ends``,
    ``wrong-types``, ``endless-line``."""
    fault_every: int = 1
    """Every so many requests have the fault."""
    healthy_after_s: float = 0.0
    die_after_requests: int | None = None
    ignore_sigterm: bool = False
    leave_child: bool = False
    """Start a process in a session of its own, as engines do."""
    say: str = ""
    """Printed at the start."""
    word: str = "t"
    """Words of the answers begin so."""
    prompt_token_s: float = 0.0
    """Added to a step for every token of a prompt that begins in it."""
    max_step_tokens: int | None = None
    """A prompt of more tokens takes further steps of ``decode_s`` each."""


@dataclass
class _Request:
    id: str
    tokens: int
    prompt_tokens: int
    queue: asyncio.Queue[int | None] = field(default_factory=asyncio.Queue)
    sent: int = 0
    arrived: float = field(default_factory=time.time)
    cancelled: bool = False


class StubServer:
    """The server itself, in whatever loop runs it."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.requests: list[dict[str, Any]] = []
        """Bodies of all requests, with their headers under ``headers``."""
        self.steps: list[dict[str, Any]] = []
        """What really happened, in the format of ``serve/steps.jsonl``."""
        self.resets = 0
        self._waiting: list[_Request] = []
        self._active: list[_Request] = []
        self._work = asyncio.Event()
        self._first: float | None = None
        self._stalled = False
        self._began = time.monotonic()

    async def start(self, port: int = 0) -> int:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", port, limit=1 << 24)
        self._loop_task = asyncio.create_task(self._steps())
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        self._loop_task.cancel()
        self._server.close()

    async def _steps(self) -> None:
        b = self.behaviour
        while True:
            if not self._waiting and not self._active:
                self._work.clear()
                await self._work.wait()
            begun = []
            while self._waiting and len(self._active) + len(begun) < b.max_batch:
                begun.append(self._waiting.pop(0))
            decoding = [one.id for one in self._active]
            prompts = sum(one.prompt_tokens for one in begun)
            further = (prompts - 1) // b.max_step_tokens if b.max_step_tokens and prompts else 0
            duration = b.decode_s * (1 + further) + b.prefill_s * len(begun) + b.prompt_token_s * prompts
            start = time.time()
            await asyncio.sleep(duration)
            now = time.monotonic()
            if (
                b.stall_at_s is not None
                and not self._stalled
                and self._first is not None
                and now - self._first >= b.stall_at_s
            ):
                self._stalled = True
                await asyncio.sleep(b.stall_s)
            end = time.time()
            self._active += begun
            finished = []
            for one in list(self._active):
                one.sent += 1
                one.queue.put_nowait(one.sent)
                if one.sent >= one.tokens or one.cancelled:
                    one.queue.put_nowait(None)
                    self._active.remove(one)
                    finished.append(
                        {"request_id": one.id, "e2e_s": end - one.arrived, "output_tokens": one.sent}
                    )
            self.steps.append(
                {
                    "end_s": end,
                    "duration_s": end - start,
                    "prefill": {one.id: one.prompt_tokens for one in begun},
                    "decode": decoding,
                    "running": len(self._active),
                    "waiting": len(self._waiting),
                    "first_waits_s": [end - one.arrived for one in begun],
                    "finished": finished,
                }
            )

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.split("\r\n")
                method, path, _ = first.split(" ")
                headers = {
                    name.strip().lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in lines if line)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if not await self._answer(method, path, headers, body, writer):
                    break
        with contextlib.suppress(ConnectionError, RuntimeError):
            writer.close()

    async def _answer(
        self, method: str, path: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter
    ) -> bool:
        b = self.behaviour
        if b.api_key is not None and headers.get("authorization") != f"Bearer {b.api_key}":
            return await self._plain(writer, 401, f'{{"error": "bad key {headers.get("authorization")}"}}')
        if path == "/health":
            ready = time.monotonic() - self._began >= b.healthy_after_s
            return await self._plain(writer, 200 if ready else 503, "{}")
        if path == "/v1/models":
            return await self._plain(
                writer, 200, json.dumps({"data": [{"id": b.model, "owned_by": b.owner}]})
            )
        if path == "/version":
            return await self._plain(writer, 200, '{"version": "0.99"}')
        if path == "/metrics":
            return await self._plain(writer, 200 if b.metrics_page else 404, self._metrics())
        if path in ("/reset_prefix_cache", "/flush_cache") and method == "POST":
            self.resets += 1
            return await self._plain(writer, 200, "{}")
        if path in ("/v1/completions", "/v1/chat/completions"):
            return await self._generate(path, headers, json.loads(body), writer)
        return await self._plain(writer, 404, "{}")

    def _metrics(self) -> str:
        return (
            "# HELP x y\n# TYPE vllm:num_requests_running gauge\n"
            f'vllm:num_requests_running{{engine="0",model_name="a b"}} {len(self._active)}.0\n'
            f'vllm:num_requests_waiting{{engine="0"}} {len(self._waiting)}.0\n'
            f"vllm:kv_cache_usage_perc {min(len(self._active) / 64, 1)}\n"
            'vllm:e2e_request_latency_seconds_bucket{le="0.3"} 5.0\nvllm:bad NaN\nnot a line\n'
        )

    @staticmethod
    async def _plain(writer: asyncio.StreamWriter, status: int, text: str) -> bool:
        data = text.encode()
        writer.write(
            b"HTTP/1.1 %d X\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%b"
            % (status, len(data), data)
        )
        await writer.drain()
        return True

    async def _generate(
        self, path: str, headers: dict[str, str], requested: dict[str, Any], writer: asyncio.StreamWriter
    ) -> bool:
        b = self.behaviour
        self.requests.append({**requested, "headers": headers})
        number = len(self.requests)
        if self._first is None:
            self._first = time.monotonic()
        if b.die_after_requests is not None and number > b.die_after_requests:
            os._exit(3)
        if requested.get("model") != b.model:
            return await self._plain(writer, 404, json.dumps({"error": f"no model {requested.get('model')}"}))
        if b.strict and "ignore_eos" in requested:
            return await self._plain(
                writer, 422, '{"detail": "Unexpected fields in the request: ignore_eos"}'
            )
        fault = b.fault if b.fault and number % b.fault_every == 0 else None
        if fault in ("429", "500"):
            return await self._plain(
                writer, int(fault), f'{{"error": "planted {fault}", "key": "{b.api_key}"}}'
            )
        if fault == "reset":
            writer.transport.abort()
            return False
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        if fault is not None:
            return await self._fault(fault, writer)
        text = requested.get("prompt") or " ".join(str(m["content"]) for m in requested.get("messages", []))
        # Clients of the chat route ask by either name (guidellm: max_completion_tokens).
        tokens = int(requested.get("max_completion_tokens") or requested["max_tokens"])
        request = _Request(headers.get("x-request-id", str(number)), tokens, len(text.split()))
        self._waiting.append(request)
        self._work.set()
        try:
            await self._stream(request, chat=path.endswith("chat/completions"), writer=writer)
        except (ConnectionError, asyncio.CancelledError):
            request.cancelled = True
            return False
        return True

    async def _fault(self, fault: str, writer: asyncio.StreamWriter) -> bool:
        """Send a broken stream."""
        token = b'data: {"choices":[{"text":"x","finish_reason":null}]}\n\n'
        broken = {
            "half-chunk": token + b'data: {"choices":[{"te',
            "invalid-json": token + b"data: {not json}\n\n",
            "invalid-sse": token + b"<html>Bad gateway</html>\n\n",
            "error-event": token + b'data: {"error": "planted error"}\n\n',
            "empty": b"",
            "wrong-types": token + b'data: {"choices": 7}\n\n',
            "endless-line": b"data: " + b"x" * (17 << 20),
            "never-ends": token,
        }[fault]
        if broken:
            writer.write(b"%x\r\n%b\r\n" % (len(broken), broken))
            await writer.drain()
        if fault == "never-ends":
            await asyncio.sleep(3600)
        writer.write(b"0\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        return True

    async def _stream(self, request: _Request, *, chat: bool, writer: asyncio.StreamWriter) -> None:
        b = self.behaviour
        # Other clients tell the kind of an answer by "object".
        kind = "chat.completion.chunk" if chat else "text_completion"
        head = {"id": f"cmpl-{request.id}", "object": kind, "created": 0, "model": b.model}
        if chat:
            await self._event(
                writer,
                {**head, "choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
            )
        held = 0
        while (place := await request.queue.get()) is not None:
            held += 1
            if held < b.tokens_per_chunk and place < request.tokens:
                continue
            held = 0
            await self._event(writer, {**head, "choices": [self._choice(place, chat)]})
        last = {"delta": {}} if chat else {"text": ""}
        final: dict[str, Any] = {**head, "choices": [{**last, "finish_reason": "length"}]}
        if b.usage:
            final["usage"] = {"prompt_tokens": request.prompt_tokens, "completion_tokens": request.sent}
            if b.cached_tokens is not None:
                final["usage"]["prompt_tokens_details"] = {"cached_tokens": b.cached_tokens}
        if b.states_times:
            final["metrics"] = {"queue_time_ms": 1.5, "time_to_first_token_ms": 2.5}
        await self._event(writer, final)
        tail = b"data: [DONE]\n\n"
        if b.done_mark:
            writer.write(b"%x\r\n%b\r\n" % (len(tail), tail))
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    def _choice(self, place: int, chat: bool) -> dict[str, Any]:
        b = self.behaviour
        if not chat:
            return {"text": f" {b.word}{place}", "finish_reason": None}
        if place <= b.reasoning_tokens:
            return {"delta": {"reasoning_content": f" r{place}"}, "finish_reason": None}
        if b.tool_call:
            return {
                "delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
                "finish_reason": None,
            }
        return {"delta": {"content": f" t{place}"}, "finish_reason": None}

    @staticmethod
    async def _event(writer: asyncio.StreamWriter, value: dict[str, Any]) -> None:
        if writer.transport.is_closing():
            raise ConnectionResetError
        data = f"data: {json.dumps(value)}\n\n".encode()
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await writer.drain()


class ServingStub:
    """The server in a thread of its own."""

    def __init__(self, behaviour: Behaviour | None = None) -> None:
        self.behaviour = behaviour or Behaviour()
        self.server: StubServer
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> ServingStub:
        self._thread.start()

        async def start() -> None:
            self.server = StubServer(self.behaviour)
            self.port = await self.server.start()

        asyncio.run_coroutine_threadsafe(start(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        async def stop() -> None:
            await self.server.stop()
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


def stub_environment(behaviour: Behaviour) -> dict[str, str]:
    """Return the variables of a stub that is started as a program."""
    return {"SERVING_STUB": json.dumps(asdict(behaviour))}


async def _main(port: int, behaviour: Behaviour) -> None:
    if behaviour.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if behaviour.leave_child:
        subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)", *sys.argv], start_new_session=True
        )
    if behaviour.say:
        print(behaviour.say, file=sys.stderr, flush=True)
    if behaviour.fault == "exits-at-start":
        sys.exit(7)
    await StubServer(behaviour).start(port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    arguments = sys.argv[1:]
    chosen = Behaviour(**json.loads(os.environ.get("SERVING_STUB", "{}")))
    for word in arguments:
        name, _, text = word.partition("=")
        if name.startswith("--planted-"):
            chosen = replace(chosen, **{name.removeprefix("--planted-").replace("-", "_"): json.loads(text)})
    given = dict(itertools.pairwise(arguments)) | dict(
        word.split("=", 1) for word in arguments if "=" in word
    )
    if "--max-num-seqs" in given:
        chosen.max_batch = int(given["--max-num-seqs"])
    if "--max-num-batched-tokens" in given:
        chosen.max_step_tokens = int(given["--max-num-batched-tokens"])
        if chosen.max_step_tokens < 8:
            print("stub serve: error: argument --max-num-batched-tokens: must be at least 8", file=sys.stderr)
            sys.exit(2)
    if chosen.model == "as-started":  # engines answer to the path they were started with
        chosen.model = arguments[1]
    asyncio.run(_main(int(arguments[arguments.index("--port") + 1]), chosen))
