"""The load client: OpenAI-compatible streams, sent by schedule, with the arrival of every token.

Requests of an open loop are sent at times that are fixed before the load begins, independent of the server, and latencies
start at that time: a stall of the server shows in the latency of every request that was due meanwhile (no coordinated
omission).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import math
import re
import resource
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from llm_perf_opt.captures.serving.records import is_late
from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.core.secrets import MASK, mask_text
from llm_perf_opt.process.tools import import_optional
from llm_perf_opt.stages.serve.config import Endpoint
from llm_perf_opt.stages.serve.load import LoadLevel, PlannedRequest
from llm_perf_opt.summary.statistics import percentile

if TYPE_CHECKING:
    import aiohttp

OK, ERROR, TIMEOUT, DISCONNECTED, REJECTED, CANCELLED = (
    "ok",
    "error",
    "timeout",
    "disconnected",
    "rejected",
    "cancelled",
)
_LONGEST_LINE = 16 << 20
_MOST_REASON = 300
_MOST_ANSWER_BYTES = 256 << 20
_MOST_NAME = 200
_MOST_STATED_MS = 1e9
_MOST_TOKENS = 1 << 40
_MOST_METRICS = 5000
_METRICS_BYTES = 8 << 20
_METRICS_S = 5.0
_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,199}", re.ASCII)
_PAUSE_AFTER_FAILURE_S = 0.1
_CAPACITY_SHARE = 0.5
"""A load point that needs more than this share of the client's capacity is limited by it."""


class Clock:
    """Wall-clock times that are monotonic: the time of day at the start, plus a monotonic counter."""

    def __init__(self) -> None:
        # The narrowest of several readings: a process that is interrupted between the two would be off by milliseconds.
        readings = [(time.perf_counter(), time.time(), time.perf_counter()) for _ in range(9)]
        before, at, after = min(readings, key=lambda one: one[2] - one[0])
        self._base = at - (before + after) / 2

    def now(self) -> float:
        """Return seconds since 1970."""
        return self._base + time.perf_counter()


# Stream events. Unknown fields are ignored; a field of another type makes the event invalid.


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    metrics: dict[str, Any] | None = None
    error: Any = None
    id: str | None = None
    sent_s: float | None = None
    """Time of sending, which the stub of the certification adds."""


_DECODER = msgspec.json.Decoder(_Chunk)


class StreamFault(Exception):
    """The server's response is not a valid stream."""


class EventSplitter:
    """Splits bytes into the data of server-sent events, independent of packet boundaries."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of all events that are complete now; comments and other fields are left out."""
        *lines, self._rest = (self._rest + data if self._rest else data).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            raise StreamFault(f"an event of more than {_LONGEST_LINE} bytes")
        found = []
        for line in lines:
            if line.startswith(b"data:"):
                found.append(line[5:].strip())
            elif line.strip() and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                raise StreamFault(f"not an event: {_excerpt(line)}")
        return found

    @property
    def rest(self) -> bytes:
        """The data after the last complete line."""
        return self._rest.strip()


def _excerpt(data: bytes) -> str:
    text = data[:80].decode("utf-8", errors="replace")
    return repr(text + ("…" if len(data) > 80 else ""))


@dataclass(slots=True)
class RequestRecord:
    """Record of one request; times are seconds since 1970."""

    id: str
    load: int
    scheduled_s: float
    sent_s: float = 0.0
    status: str = OK
    reason: str | None = None
    http_status: int | None = None
    end_s: float | None = None
    token_s: list[float] = field(default_factory=list)
    """Arrival of every chunk that carries tokens."""
    first_answer_s: float | None = None
    """First token that is not reasoning."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    counted_by: str = "usage"
    """``chunks`` where the server sent no usage."""
    requested_tokens: int = 0
    finish_reason: str | None = None
    server: dict[str, float] = field(default_factory=dict)
    """``queue_s``, ``prefill_s`` as the server states them."""
    server_id: str | None = None
    text: str = ""
    """The answer, kept for conversations only."""

    def to_json(self) -> dict[str, Any]:
        """Return the line of ``serve/requests.jsonl``."""
        found: dict[str, Any] = {
            "id": self.id,
            "load": self.load,
            "scheduled_s": round(self.scheduled_s, 7),
            "sent_s": round(self.sent_s, 7),
            "first_token_s": round(self.token_s[0], 7) if self.token_s else None,
            "first_answer_s": round(self.first_answer_s, 7) if self.first_answer_s is not None else None,
            "end_s": round(self.end_s, 7) if self.end_s is not None else None,
            "status": self.status,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "requested_tokens": self.requested_tokens,
            "token_s": [round(value, 7) for value in self.token_s],
        }
        optional = {
            "cached_tokens": self.cached_tokens,
            "reason": self.reason,
            "http_status": self.http_status if self.http_status != 200 else None,
            "finish_reason": self.finish_reason,
            "server": self.server or None,
            "server_id": self.server_id,
            "counted_by": self.counted_by if self.counted_by != "usage" else None,
        }
        return found | {name: value for name, value in optional.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Target:
    """Destination and common fields of requests."""

    url: str
    model: str
    endpoint: Endpoint = Endpoint.completions
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of every request (``ignore_eos``, ``stream_options``)."""
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 300.0
    image_url: str | None = field(default=None, repr=False)
    """Image of every request (chat)."""

    @property
    def authorization(self) -> dict[str, str]:
        """Headers that carry the API key."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    @property
    def address(self) -> str:
        """URL of the route."""
        route = "completions" if self.endpoint is Endpoint.completions else "chat/completions"
        return f"{self.url.rstrip('/')}/v1/{route}"

    def masked(self, text: str) -> str:
        """Return a text without the API key and without anything that looks like a secret."""
        if self.api_key:
            text = text.replace(self.api_key, MASK)
        return mask_text(text)

    def body(self, planned: PlannedRequest, history: Sequence[Mapping[str, str]]) -> bytes:
        """Return a request as JSON."""
        held: dict[str, Any] = {
            "model": self.model,
            "max_tokens": planned.new_tokens,
            "stream": True,
            **self.fields,
        }
        if self.endpoint is Endpoint.completions:
            held["prompt"] = planned.prompt
        else:
            content: Any = planned.prompt
            if self.image_url is not None:
                image = {"type": "image_url", "image_url": {"url": self.image_url}}
                content = [image, {"type": "text", "text": planned.prompt}]
            held["messages"] = [*history, {"role": "user", "content": content}]
        return json.dumps(held).encode()


@dataclass(slots=True)
class LoadResult:
    """Result of a load point."""

    level: LoadLevel
    records: list[RequestRecord] = field(default_factory=list)
    seconds: float = 0.0
    events: int = 0
    cpu_s: float = 0.0
    """Processor time of this process during the load."""
    lag_p99_s: float | None = None
    planned_prompt_tokens: float | None = None
    """Mean tokens of the texts that were sent, where they are known."""
    slots_freed_s: float | None = None
    """Time from the last cancellation until the server had no running request."""
    stopped: str | None = None
    """Why the load ended early."""

    def bound_by_client(self, capacity_per_s: float | None) -> str | None:
        """Return why the client limited this load point; ``None``: not limited."""
        first = sorted(
            one.token_s[0] - one.scheduled_s for one in self.records if one.status == OK and one.token_s
        )
        if (
            self.level.kind == "open"
            and self.lag_p99_s is not None
            and is_late(self.lag_p99_s, percentile(first, 0.99) if first else None)
        ):
            return f"requests were sent up to {self.lag_p99_s * 1e3:.0f} ms late (99th percentile)"
        rate = self.events / self.seconds if self.seconds > 0 else 0.0
        if capacity_per_s and rate > _CAPACITY_SHARE * capacity_per_s:
            return f"{rate:.0f} events/s are more than half of the client's capacity ({capacity_per_s:.0f} events/s)"
        return None


class LoadClient:
    """Sends load points to one server; used inside ``async with``."""

    def __init__(self, target: Target, clock: Clock | None = None) -> None:
        self.target = target
        self.clock = clock or Clock()
        self.stamp_errors_s: list[float] = []
        """Differences between arrival and the time of sending in the event, where the server adds it."""
        self._http: Any = import_optional("aiohttp")
        self._session: aiohttp.ClientSession | None = None
        self._events = 0

    async def __aenter__(self) -> LoadClient:
        _raise_file_limit()
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        self._session = self._http.ClientSession(
            # Servers close idle connections after 5 s (uvicorn): reusing one at that moment would fail the request.
            connector=self._http.TCPConnector(limit=0, keepalive_timeout=2, ttl_dns_cache=300),
            timeout=self._http.ClientTimeout(total=None, sock_connect=30),
            headers=headers,
            cookie_jar=self._http.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            read_bufsize=1 << 20,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        """The open connections."""
        if self._session is None:
            raise ToolError("the load client is not open", hint="use it inside async with")
        return self._session

    async def run(
        self,
        level: LoadLevel,
        requests: Iterator[PlannedRequest],
        number: int = 0,
        *,
        duration_s: float | None = None,
        is_alive: Callable[[], bool] = lambda: True,
        on_done: Callable[[RequestRecord], None] = lambda _: None,
    ) -> LoadResult:
        """Send one load point and wait for every answer; records are in the order of their schedule."""
        result = LoadResult(level)
        self._events = 0
        began, cpu = time.perf_counter(), time.process_time()
        load = _Load(self, result, number, is_alive, on_done)
        with _without_collector():
            if level.kind == "open":
                await load.open_loop(requests)
            else:
                await load.closed_loop(requests, level.concurrency or 1, duration_s)
        result.seconds, result.cpu_s = time.perf_counter() - began, time.process_time() - cpu
        result.events = self._events
        result.records.sort(key=lambda one: one.scheduled_s)
        lags = sorted(one.sent_s - one.scheduled_s for one in result.records)
        if lags and level.kind == "open":
            result.lag_p99_s = lags[min(len(lags) - 1, int(0.99 * len(lags)))]
        return result

    async def send(
        self, planned: PlannedRequest, record: RequestRecord, history: Sequence[Mapping[str, str]] = ()
    ) -> RequestRecord:
        """Send one request and read its stream; errors are recorded."""
        record.requested_tokens = planned.new_tokens
        body = self.target.body(planned, history)
        headers = {"X-Request-Id": planned.id, **self.target.authorization}
        record.sent_s = self.clock.now()
        http = self._http
        try:
            async with asyncio.timeout(self.target.timeout_s):
                # Redirects would send prompts and API key to another server.
                async with self.session.post(
                    self.target.address, data=body, headers=headers, allow_redirects=False
                ) as response:
                    record.http_status = response.status
                    if response.status != 200:
                        await self._refused(response, record)
                    else:
                        await self._read(
                            response, planned, record, keep_text=planned.conversation is not None
                        )
        except TimeoutError:
            self._fail(record, TIMEOUT, f"no complete answer within {self.target.timeout_s:g} s")
        except StreamFault as error:
            self._fail(record, ERROR, f"invalid stream: {error}")
        except (
            http.ServerDisconnectedError,
            http.ClientPayloadError,
            http.ClientOSError,
            ConnectionError,
        ) as error:
            self._fail(record, DISCONNECTED, f"{type(error).__name__}: {error}")
        except (http.ClientError, OSError, ValueError) as error:
            self._fail(record, ERROR, f"{type(error).__name__}: {error}")
        if record.end_s is None:
            record.end_s = self.clock.now()
        record.server_id = self._short(record.server_id)
        record.finish_reason = self._short(record.finish_reason)
        return record

    def _short(self, text: str | None) -> str | None:
        """Return an identifier that the server chose, bounded and without the API key."""
        if text is None:
            return None
        key = self.target.api_key
        return (text.replace(key, MASK) if key else text)[:_MOST_NAME]

    def _fail(self, record: RequestRecord, status: str, reason: str) -> None:
        record.status = status
        record.reason = self.target.masked(reason)[:_MOST_REASON]

    async def _refused(self, response: Any, record: RequestRecord) -> None:
        answer = (await _read_bounded(response, 4096)).decode("utf-8", errors="replace")
        status = REJECTED if response.status == 429 else ERROR
        if 300 <= response.status < 400:
            answer = "redirects are not followed"
        self._fail(record, status, f"HTTP {response.status}: {' '.join(answer.split())}")

    async def _read(
        self, response: Any, planned: PlannedRequest, record: RequestRecord, *, keep_text: bool
    ) -> None:
        splitter, stream = EventSplitter(), _Stream(record, keep_text)
        now, content = self.clock.now, response.content
        # Some servers send a chunk per character; an endless stream must not fill the memory.
        most_chunks, size = 64 * planned.new_tokens + 4096, 0
        while not stream.done:
            data = await content.readany()
            at = now()
            if not data:
                break
            size += len(data)
            if size > _MOST_ANSWER_BYTES or len(record.token_s) > most_chunks:
                raise StreamFault(
                    f"the answer does not end: {len(record.token_s)} chunks and {size} bytes for {planned.new_tokens} tokens"
                )
            for event in splitter.feed(data):
                self._events += 1
                stream.take(event, at)
                if stream.sent_s is not None:
                    self.stamp_errors_s.append(at - stream.sent_s)
            if (
                planned.cancel_after is not None
                and len(record.token_s) >= planned.cancel_after
                and not stream.done
            ):
                response.close()
                record.status, record.end_s = CANCELLED, now()
                return
        if splitter.rest and not stream.done:
            raise StreamFault(f"the stream ends within an event: {_excerpt(splitter.rest)}")
        stream.end()


class _Stream:
    """The events of one answer."""

    __slots__ = ("done", "finished", "keep_text", "record", "sent_s", "usage")

    def __init__(self, record: RequestRecord, keep_text: bool) -> None:
        self.record, self.keep_text = record, keep_text
        self.done = self.finished = False
        self.usage: _Usage | None = None
        self.sent_s: float | None = None

    def take(self, event: bytes, at: float) -> None:
        """Read one event that arrived at a time."""
        if event == b"[DONE]":
            self.done = True
            return
        try:
            chunk = _DECODER.decode(event)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise StreamFault(f"{error} in {_excerpt(event)}") from error
        if chunk.error is not None:
            raise StreamFault(f"the server reports an error: {str(chunk.error)[:200]}")
        record = self.record
        for choice in chunk.choices:
            self._choice(choice, at)
        if chunk.usage is not None:
            self.usage = chunk.usage
        if chunk.metrics is not None:
            record.server = _stated_times(chunk.metrics)
        if record.server_id is None:
            record.server_id = chunk.id
        self.sent_s = chunk.sent_s

    def _choice(self, choice: _Choice, at: float) -> None:
        record, delta = self.record, choice.delta
        if choice.finish_reason is not None:
            self.finished = True
            record.finish_reason = choice.finish_reason
        if delta is None:
            # An empty text may be a token that is not yet a whole character.
            is_token, is_answer, text = bool(choice.text) or choice.finish_reason is None, True, choice.text
        else:
            text = delta.content
            is_answer = bool(text or delta.tool_calls)
            is_reasoning = bool(delta.reasoning_content or delta.reasoning)
            is_empty = delta.role is None and choice.finish_reason is None
            is_token = is_answer or is_reasoning or is_empty
            is_answer = is_answer or (is_empty and not is_reasoning and record.first_answer_s is not None)
        if not is_token:
            return
        record.token_s.append(at)
        if is_answer and record.first_answer_s is None:
            record.first_answer_s = at
        if self.keep_text and text:
            record.text += text

    def end(self) -> None:
        """Count tokens, and detect a truncated answer."""
        record, usage = self.record, self.usage
        if usage is not None:
            record.prompt_tokens = _count(usage.prompt_tokens)
            record.output_tokens = _count(usage.completion_tokens)
            if usage.prompt_tokens_details is not None:
                record.cached_tokens = _count(usage.prompt_tokens_details.cached_tokens)
        if record.output_tokens is None:
            record.output_tokens, record.counted_by = len(record.token_s), "chunks"
        if not self.done and not self.finished:
            record.status, record.reason = DISCONNECTED, "the stream ended without a finish reason"
        elif not record.token_s:
            record.status, record.reason = ERROR, "the answer contains no token"
        else:
            record.end_s = record.token_s[-1]


def _count(value: int | None) -> int | None:
    """Return a valid number of tokens; ``None`` otherwise."""
    return value if value is not None and 0 <= value <= _MOST_TOKENS else None


async def _read_bounded(response: Any, most: int) -> bytes:
    """Return the start of a body, with bounded length."""
    data = b""
    while len(data) < most and (piece := await response.content.readany()):
        data += piece
    return data[:most]


def _stated_times(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return vLLM's metrics of a request. Its time to first token begins when the request is scheduled."""
    named = {"queue_s": "queue_time_ms", "prefill_s": "time_to_first_token_ms"}
    return {
        ours: metrics[theirs] / 1e3
        for ours, theirs in named.items()
        if isinstance(metrics.get(theirs), int | float) and 0 <= metrics[theirs] < _MOST_STATED_MS
    }


class _Load:
    """The state of one load point."""

    def __init__(
        self,
        client: LoadClient,
        result: LoadResult,
        number: int,
        is_alive: Callable[[], bool],
        on_done: Callable[[RequestRecord], None],
    ) -> None:
        self._client, self._result, self._number = client, result, number
        self._is_alive, self._on_done = is_alive, on_done

    def _record(self, planned: PlannedRequest, scheduled_s: float) -> RequestRecord:
        record = RequestRecord(planned.id, self._number, scheduled_s)
        self._result.records.append(record)
        return record

    def _goes_on(self) -> bool:
        if self._result.stopped is None and not self._is_alive():
            self._result.stopped = "the server ended during the load"
        return self._result.stopped is None

    async def open_loop(self, requests: Iterator[PlannedRequest]) -> None:
        """Send every request at its time, independent of the others."""
        loop, clock = asyncio.get_running_loop(), self._client.clock
        start_loop, start_clock = loop.time() + 0.01, clock.now() + 0.01
        tasks: set[asyncio.Task[None]] = set()
        try:
            for planned in requests:
                wait = start_loop + (planned.offset_s or 0.0) - loop.time()
                # A yield even when late: available answers must be read without delay.
                await asyncio.sleep(max(wait, 0.0))
                if not self._goes_on():
                    break
                record = self._record(planned, start_clock + (planned.offset_s or 0.0))
                task = asyncio.create_task(self._one(planned, record))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            while tasks:
                await asyncio.wait(tasks, timeout=1.0)
        finally:
            for task in tasks:
                task.cancel()

    async def _one(
        self, planned: PlannedRequest, record: RequestRecord, history: Sequence[Mapping[str, str]] = ()
    ) -> None:
        self._on_done(await self._client.send(planned, record, history))

    async def closed_loop(
        self, requests: Iterator[PlannedRequest], concurrency: int, duration_s: float | None
    ) -> None:
        """Keep so many requests in flight until all are sent, or the time is over."""
        end = time.monotonic() + duration_s if duration_s is not None else None
        groups = (list(group) for _, group in itertools.groupby(requests, _conversation_of()))

        async def worker() -> None:
            for group in groups:
                history: list[Mapping[str, str]] = []
                for planned in group:
                    if (end is not None and time.monotonic() >= end) or not self._goes_on():
                        return
                    record = self._record(planned, self._client.clock.now())
                    await self._one(planned, record, history)
                    if record.status != OK:
                        # A server that rejects everything immediately must not get a million requests.
                        await asyncio.sleep(_PAUSE_AFTER_FAILURE_S if record.status != CANCELLED else 0)
                        break
                    history += [
                        {"role": "user", "content": planned.prompt},
                        {"role": "assistant", "content": record.text},
                    ]

        workers = [asyncio.create_task(worker()) for _ in range(concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            for task in workers:
                task.cancel()


def _conversation_of() -> Callable[[PlannedRequest], object]:
    """Return the conversation; requests without one are separate."""
    single = itertools.count()
    return lambda planned: (
        ("c", planned.conversation) if planned.conversation is not None else ("s", next(single))
    )


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Disable the garbage collector to avoid pauses; a load point creates few reference cycles."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _raise_file_limit() -> None:
    """Allow as many connections as the hard limit does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# Metrics of the server, on the clock of the load.


def parse_metrics(text: str) -> dict[str, float]:
    """Read Prometheus text: name → value, summed over label sets; buckets of histograms are left out.

    Of a page with more than 5,000 names the first are kept: samples of a whole load stay in memory.
    """
    values: dict[str, float] = {}
    for line in text.splitlines():
        if not line or line[0] == "#" or "_bucket{" in line or "_created" in line:
            continue
        name, _, rest = line.partition("{")
        number = rest.rpartition("}")[2] if rest else ""
        if not rest:
            name, _, number = line.partition(" ")
        parts = number.split()
        try:
            value = float(parts[0]) if parts else float("nan")
        except ValueError:
            continue
        total = values.get(name, 0.0) + value
        if not math.isfinite(total) or (name not in values and len(values) >= _MOST_METRICS):
            continue
        if name in values or _METRIC_NAME.fullmatch(name):
            values[name] = total
    return values


@dataclass(slots=True)
class MetricsSampler:
    """Samples ``/metrics`` of every worker while requests run."""

    session: aiohttp.ClientSession
    clock: Clock
    urls: Sequence[str]
    interval_s: float
    target: Target | None = None
    """Pages of this server are asked with its API key; other pages without."""
    samples: list[dict[str, Any]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    """URL → why its last sample could not be taken."""

    @contextlib.asynccontextmanager
    async def sampling(self) -> AsyncIterator[None]:
        """Sample for as long as the block runs, and once at each end."""
        if not self.urls or not self.interval_s:
            yield
            return
        task = asyncio.create_task(self._loop())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await self.sample()

    async def _loop(self) -> None:
        while True:
            await self.sample()
            await asyncio.sleep(self.interval_s)

    async def sample(self) -> dict[str, float]:
        """Take one sample of every worker; ratios are averaged, everything else is summed."""
        http: Any = import_optional("aiohttp")
        found: list[dict[str, float]] = []
        for url in self.urls:
            try:
                own = self.target is not None and url.startswith(f"{self.target.url.rstrip('/')}/")
                headers = self.target.authorization if self.target is not None and own else {}
                async with (
                    asyncio.timeout(_METRICS_S),
                    self.session.get(url, headers=headers, allow_redirects=False) as response,
                ):
                    if response.status != 200:
                        raise ValueError(f"HTTP {response.status}")
                    data = await _read_bounded(response, _METRICS_BYTES)
                    values = parse_metrics(data.decode("utf-8", errors="replace"))
                if not values:
                    raise ValueError("no metrics in the answer")
                found.append(values)
            except (http.ClientError, OSError, ValueError, TimeoutError) as error:
                self.failures[url] = f"{type(error).__name__}: {error}"
        merged: dict[str, float] = {}
        for name in dict.fromkeys(name for values in found for name in values):
            known = [values[name] for values in found if name in values]
            is_ratio = name.endswith(("_perc", "_ratio", "_rate")) or "usage" in name
            merged[name] = sum(known) / len(known) if is_ratio else sum(known)
        if merged:
            self.samples.append({"time_s": round(self.clock.now(), 6), "metrics": merged})
        return merged
