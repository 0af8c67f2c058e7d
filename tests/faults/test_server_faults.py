"""Servers that mislead, flood, stall and lie: a request ends with a reason, in bounded time and memory, and the API key stays here."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from llm_perf_opt.captures.serving.reader import read_serving
from llm_perf_opt.stages.serve import client as client_module
from llm_perf_opt.stages.serve.client import LoadClient, MetricsSampler, RequestRecord, Target, parse_metrics
from llm_perf_opt.stages.serve.config import EngineName, ServeConfig, is_local, parse_url
from llm_perf_opt.stages.serve.engines import make_engine
from llm_perf_opt.stages.serve.load import PlannedRequest
from llm_perf_opt.stages.serve.server import Server
from tests.faults.hostile_server import Answer, HostileServer, plain, redirect, stream, without_end
from tests.support import cli

pytestmark = pytest.mark.needs("serving")

KEY = "q9Zkey-of-the-test-7731"
OK = b"HTTP/1.1 200 OK\r\n"
EVENTS = OK + b"Content-Type: text/event-stream\r\n\r\n"
TOKEN = {"id": "x", "choices": [{"text": "a ", "finish_reason": None}]}
LAST = {"choices": [{"text": "a ", "finish_reason": "length"}]}
GOOD = stream(
    TOKEN, TOKEN, LAST, {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 3}}, b"[DONE]"
)

STALLED: dict[str, Answer] = {
    "a header byte by byte": without_end(OK + b"X: ", b"a", 0.02),
    "100 Continue without end": without_end(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 50),
    "a body byte by byte": without_end(OK + b"\r\n", b"b", 0.02),
    "nothing": without_end(b"", b"", 0.02),
}
"""Each packet arrives in time; the answer never does."""
BROKEN: dict[str, Answer] = {
    "headers without end": without_end(OK, b"X-A: " + b"b" * 1000 + b"\r\n"),
    "a header line without end": without_end(OK + b"X: ", b"b" * 10000),
    "a chunk that is cut off": OK + b"Transfer-Encoding: chunked\r\n\r\nffffff\r\ndata: {",
    "a chunk without a size": OK + b"Transfer-Encoding: chunked\r\n\r\nZZZZ\r\ndata: {",
    "a chunk of 10^120000 bytes": OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 100_000 + b"\r\n",
    "not HTTP": b"\0" * 10_000,
    "a status that is no number": b"HTTP/9.9 abc def\r\n\r\n",
    "a negative length": OK + b"Content-Length: -5\r\n\r\n",
    "a length of 26 digits": OK + b"Content-Length: " + b"9" * 26 + b"\r\n\r\ndata: {}",
    "closed at once": b"",
}


def get(answer: Answer, *, api_key: str | None = None, limit_s: float = 5.0) -> tuple[int | None, str]:
    with HostileServer({"/health": answer}) as server:
        engine = make_engine(ServeConfig(engine=EngineName.attach, url=server.url))
        return Server(engine, server.url, api_key=api_key).get("/health", timeout_s=limit_s)


def send(answer: Answer, *, limit_s: float = 20.0, conversation: int | None = None) -> RequestRecord:
    with HostileServer({"/v1/completions": answer}) as server:

        async def run() -> RequestRecord:
            async with LoadClient(Target(server.url, "m", api_key=KEY, timeout_s=limit_s)) as client:
                planned = PlannedRequest("r-0", "one two", 3, None, conversation=conversation)
                return await client.send(planned, RequestRecord("r-0", 0, 0.0))

        return asyncio.run(run())


def sample(answer: Answer) -> MetricsSampler:
    with HostileServer({"/metrics": answer}) as server:

        async def run() -> MetricsSampler:
            target = Target(server.url, "m", api_key=KEY)
            async with LoadClient(target) as client:
                sampler = MetricsSampler(client.session, client.clock, [f"{server.url}/metrics"], 1.0, target)
                await sampler.sample()
                return sampler

        return asyncio.run(run())


def kept(record: RequestRecord, folder: Path) -> None:
    """The record is small, can be written, and is read again."""
    line = json.dumps(record.to_json(), allow_nan=False)
    assert len(line) < 20_000
    assert KEY not in line
    header = {
        "format": "llm-perf-opt.serve.requests",
        "version": 1,
        "loads": [{"kind": "closed", "concurrency": 1}],
    }
    path = folder / "requests.jsonl"
    path.write_text(json.dumps(header) + "\n" + line + "\n")
    assert len(read_serving([path]).requests or ()) == 1


# Redirects: prompts and the API key go to the server that was named, and to no other.


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(status: int) -> None:
    answers = {path: plain(b"{}") for path in ("/health", "/metrics")} | {"/v1/completions": GOOD}
    with HostileServer(answers) as other:
        health = get(redirect(f"{other.url}/health", status), api_key=KEY)
        record = send(redirect(f"{other.url}/v1/completions", status))
        sampler = sample(redirect(f"{other.url}/metrics", status))
        assert other.seen == []
    assert health[0] == status
    assert (record.status, record.http_status) == ("error", status)
    assert not sampler.samples
    assert len(sampler.failures) == 1


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1/x", "//", "http://[", "\\", ""])
def test_a_redirect_to_something_else_is_a_status_too(place: str) -> None:
    assert get(redirect(place, 302))[0] == 302
    assert send(redirect(place, 302)).http_status == 302


def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with HostileServer({}) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        assert get(plain(b"{}"))[0] == 200
        assert send(GOOD).status == "ok"
        assert sample(plain(b"a 1\n")).samples
        assert proxy.seen == []


def test_the_api_key_is_for_the_server_and_not_for_other_pages_of_metrics() -> None:
    page = plain(b"a 1\n")
    with HostileServer({"/metrics": page}) as server, HostileServer({"/metrics": page}) as other:

        async def run() -> None:
            target = Target(server.url, "m", api_key=KEY)
            async with LoadClient(target) as client:
                urls = [f"{server.url}/metrics", f"{other.url}/metrics"]
                await MetricsSampler(client.session, client.clock, urls, 1.0, target).sample()

        asyncio.run(run())
        assert KEY in server.seen[0]
        assert KEY not in other.seen[0]


def test_cookies_of_a_server_are_not_kept() -> None:
    with HostileServer({"/v1/completions": GOOD.replace(b"\r\n", b"\r\nSet-Cookie: a=b\r\n", 1)}) as server:

        async def run() -> None:
            async with LoadClient(Target(server.url, "m")) as client:
                for number in range(2):
                    planned = PlannedRequest(f"r-{number}", "one", 3, None)
                    await client.send(planned, RequestRecord(planned.id, 0, 0.0))

        asyncio.run(run())
        assert "cookie:" not in server.seen[1].lower()


# Time: the limit is one of the whole answer.


@pytest.mark.parametrize("answer", STALLED.values(), ids=STALLED)
def test_an_answer_that_never_ends_is_given_up(answer: Answer) -> None:
    assert get(answer, limit_s=0.3)[0] is None
    assert send(answer, limit_s=0.3).status in ("timeout", "error", "disconnected")


def test_metrics_that_never_end_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_METRICS_S", 0.2)
    for answer in STALLED.values():
        assert not sample(answer).samples


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
def test_an_answer_that_is_not_http_has_a_reason(answer: Answer, tmp_path: Path) -> None:
    status, reason = get(answer, limit_s=3.0)
    assert status is None or status == 200 or reason is not None
    record = send(answer, limit_s=3.0)
    assert record.status in ("error", "disconnected", "timeout")
    assert record.reason
    kept(record, tmp_path)
    assert not sample(answer).samples


# Size.


@pytest.mark.parametrize(
    "answer",
    [
        without_end(EVENTS, (b"data: " + json.dumps(TOKEN).encode() + b"\n\n") * 500),
        without_end(EVENTS, b": ping\n\n" * 5000),
        without_end(EVENTS, b"data: " + b'{"choices":[{"text":"' + b"x" * 100_000 + b'"}]}\n\n'),
    ],
    ids=["tokens", "comments", "text"],
)
def test_a_stream_without_end_does_not_fill_the_memory(
    answer: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_MOST_ANSWER_BYTES", 1 << 20)
    record = send(answer, conversation=1)
    assert record.status == "error"
    assert "does not end" in str(record.reason)
    assert len(record.token_s) < 30_000
    record.token_s.clear()
    kept(record, tmp_path)


@pytest.mark.parametrize(
    "events",
    [
        (LAST, b'{"choices":[],"usage":{"prompt_tokens":1' + b"0" * 4000 + b',"completion_tokens":1' + b"0" * 5000 + b"}}"),
        (LAST, {"choices": [], "usage": {"prompt_tokens": 10**30, "completion_tokens": 2**64}}),
        (LAST, {"choices": [], "usage": {"prompt_tokens": -5, "completion_tokens": -7, "prompt_tokens_details": {"cached_tokens": -9}}}),
        (LAST, b'{"choices":[],"metrics":{"queue_time_ms":1' + b"0" * 400 + b',"time_to_first_token_ms":1e308}}'),
        (LAST, b'{"choices":[],"metrics":{"queue_time_ms":1e400,"time_to_first_token_ms":true}}'),
        (b'{"error":' + b"[" * 100_000 + b"]" * 100_000 + b"}",),
        (b'{"choices":[{"delta":{"tool_calls":' + b"[" * 100_000 + b"]" * 100_000 + b"}}]}",),
        (b'{"id":"\\ud800","choices":[{"text":"\\udc00","finish_reason":"\\ud800"}]}',),
        ({"id": "i" * 500_000, "choices": [{"text": "a", "finish_reason": "f" * 500_000}]},),
        ({"id": KEY, "choices": [{"text": KEY, "finish_reason": KEY}]},),
        ({"error": f"\x1b]0;pwned\x07\x1b[2J denied: {KEY}"},),
        (b'{"choices":[{"text":"\xff\xfe"}]}',),
        (b'{"choices":[{"text":"a","finish_reason":"stop"}],"sent_s":1e308}',),
        (b'{"choices":{"a":1}}',),
        (b"null",),
        (b"",),
    ],
)  # fmt: skip
def test_events_that_cannot_be(events: tuple[bytes | dict[str, object], ...], tmp_path: Path) -> None:
    record = send(stream(*events, b"[DONE]"))
    kept(record, tmp_path)
    for count in (record.prompt_tokens, record.output_tokens, record.cached_tokens):
        assert count is None or 0 <= count <= 1 << 40


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
def test_a_packed_answer_is_not_unpacked(encoding: str, tmp_path: Path) -> None:
    import gzip

    bomb = gzip.compress(b"data: {}\n" * 1_000_000)
    record = send(stream(rest=bomb, headers=f"Content-Encoding: {encoding}\r\n"))
    assert record.status in ("error", "disconnected")
    kept(record, tmp_path)
    assert not sample(plain(bomb, headers=f"Content-Encoding: {encoding}\r\n")).samples


# What servers call themselves.


@pytest.mark.parametrize(
    "listed",
    [
        b"null", b"[", b"[" * 100_000, b'{"data":' + b"[" * 5000 + b"]" * 5000 + b"}", b'{"data":[{"id":{}}]}', b'{"data":{"id":"m"}}',
        b'{"data":[{"id":"\\ud800"}]}', b'{"data":[{"id":"\\u001b[2J"}]}', b'{"data":[{"id":"a\\nb"}]}', b'{"data":[{"id":""}]}',
        b'{"data":[{"id":"' + b"m" * 500_000 + b'"}]}', b'{"data":[{"id":1' + b"0" * 5000 + b"}]}", b'{"data":[{"id":"--config=/x"}]}',
    ],
)  # fmt: skip
def test_a_model_name_that_cannot_be_one_is_not_taken(listed: bytes) -> None:
    with HostileServer({"/v1/models": plain(listed), "/version": plain(listed)}) as server:
        found = Server(make_engine(ServeConfig(engine=EngineName.attach, url=server.url)), server.url)
        assert found.models() == []
        assert found.identify() == (None, None)


@pytest.mark.parametrize("version", ["\ud800", "v" * 900_000, "\x1b[2J", 3, None, ["1"]])
def test_a_version_that_cannot_be_one_is_not_taken(version: object) -> None:
    models = json.dumps({"data": [{"id": "m", "owned_by": "vllm"}]}).encode()
    answers = {"/v1/models": plain(models), "/version": plain(json.dumps({"version": version}).encode())}
    with HostileServer(answers) as server:
        found = Server(make_engine(ServeConfig(engine=EngineName.attach, url=server.url)), server.url)
        assert found.identify() == ("vllm", None)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('a 1e308\na{x="y"} 1e308\n', {"a": 1e308}),
        ("a NaN\nb +Inf\nc -Inf\nd 1\n", {"d": 1.0}),
        ("a" * 100_000 + " 1\nb 2\n", {"b": 2.0}),
        ("\ud800 1\n\x1b[2J 1\n<script> 1\nb 2\n", {"b": 2.0}),
        ("a{" + "{" * 100_000 + "} 1\n", {"a": 1.0}),
        ("a 1_0\na 0x10\n", {"a": 10.0}),
        ("a\n{}\n{\n} 1\n a 1\n", {}),
    ],
)
def test_pages_of_metrics_that_cannot_be(text: str, values: dict[str, float]) -> None:
    assert parse_metrics(text) == values


def test_a_page_of_metrics_with_any_number_of_names_is_bounded() -> None:
    assert len(parse_metrics("".join(f"n{number} 1\n" for number in range(20_000)))) == 5000


# The verb.


@pytest.mark.parametrize(
    "url",
    [
        "http://example.invalid:1", "http://localhost.example.org", "http://2130706433", "http://0.0.0.0", "http://127.0.0.1@10.1.2.3/",
        "http://[::ffff:10.0.0.1]/", "http://10.0.0.1#@127.0.0.1", "http://127.1", "http://localhost\\@example.org", "http://127。0。0。1",
        "http://[fe80::1]", "http://0x7f000001", "http://127.0.0.1.", "http://xn--localhost-.org",
    ],
)  # fmt: skip
def test_only_names_of_this_machine_count_as_local(url: str) -> None:
    from llm_perf_opt.core.errors import ConfigError

    for name in ("url", "metrics_urls"):
        try:
            host = parse_url(url, name).hostname or ""
        except ConfigError:
            continue
        assert not is_local(host)


def test_serve_ends_with_a_reason_and_without_the_key_in_any_file(tmp_path: Path) -> None:
    models = json.dumps({"data": [{"id": f"m-{KEY}", "owned_by": "vllm"}]}).encode()
    answers: dict[str, Answer] = {
        "/health": plain(b"{}"),
        "/v1/models": plain(models),
        "/version": plain(json.dumps({"version": KEY}).encode()),
        "/metrics": plain(f'a{{k="{KEY}"}} 1\nvllm:num_requests_running 1\n'.encode()),
        "/v1/completions": stream({"id": KEY, "choices": [{"text": KEY, "finish_reason": KEY}]}, b"[DONE]"),
    }
    with HostileServer(answers) as server:
        done = cli(
            "serve", "--url", server.url, "--requests", "1", "--concurrency", "1", "--warmup-requests", "1", "--api-key-env", "THE_KEY",
            "--out", str(tmp_path / "run"), "pipeline.serve.certify=false", "hardware.probe=false", "run.exclusive=false",
            env={"THE_KEY": KEY}, cwd=tmp_path,
        )  # fmt: skip
        assert KEY in server.seen[-1]
    assert done.returncode == 0, done.stderr
    assert KEY not in done.stdout + done.stderr
    assert [
        path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()
    ] == []
