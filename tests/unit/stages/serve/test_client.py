"""The load client against a server whose behaviour is planted."""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
from collections.abc import Callable, Iterator

import pytest

from llm_perf_opt.stages.serve.client import (
    EventSplitter,
    LoadClient,
    LoadResult,
    MetricsSampler,
    RequestRecord,
    StreamFault,
    Target,
    parse_metrics,
)
from llm_perf_opt.stages.serve.config import Endpoint
from llm_perf_opt.stages.serve.load import LoadLevel, PlannedRequest
from tests.serving_stub import Behaviour, ServingStub

pytestmark = pytest.mark.needs("serving")


def planned(
    count: int, *, tokens: int = 8, rate: float | None = None, **keys: object
) -> Iterator[PlannedRequest]:
    for number in range(count):
        offset = number / rate if rate is not None else None
        yield PlannedRequest(f"r-{number}", "one two three", tokens, offset, **keys)  # type: ignore[arg-type]


def send(
    stub: ServingStub,
    level: LoadLevel,
    requests: Iterator[PlannedRequest],
    *,
    target: Callable[[str], Target] | None = None,
    **keys: object,
) -> LoadResult:
    async def run() -> LoadResult:
        async with LoadClient(target(stub.url) if target else Target(stub.url, "stub")) as client:
            return await client.run(level, requests, **keys)  # type: ignore[arg-type]

    return asyncio.run(run())


def one(
    behaviour: Behaviour,
    *,
    endpoint: Endpoint = Endpoint.completions,
    timeout_s: float = 10.0,
    **keys: object,
) -> RequestRecord:
    with ServingStub(behaviour) as stub:
        result = send(
            stub, LoadLevel("closed", concurrency=1), planned(1, **keys),
            target=lambda url: Target(url, "stub", endpoint, api_key=behaviour.api_key, timeout_s=timeout_s),
        )  # fmt: skip
    (record,) = result.records
    return record


def test_tokens_are_timed_and_counted() -> None:
    record = one(Behaviour(decode_s=0.02, cached_tokens=2, states_times=True), tokens=5)
    assert (record.status, record.output_tokens, record.prompt_tokens, record.cached_tokens) == (
        "ok",
        5,
        3,
        2,
    )
    assert len(record.token_s) == 5
    gaps = [b - a for a, b in zip(record.token_s, record.token_s[1:], strict=False)]
    assert 0.018 <= statistics.median(gaps) < 0.2
    assert record.end_s == record.token_s[-1]
    assert record.server == {"queue_s": 0.0015, "prefill_s": 0.0025}


def test_tokens_are_counted_by_usage_and_not_by_chunks() -> None:
    record = one(Behaviour(tokens_per_chunk=3), tokens=9)
    assert (record.output_tokens, len(record.token_s), record.counted_by) == (9, 3, "usage")


def test_without_usage_chunks_are_counted_with_a_note() -> None:
    record = one(Behaviour(usage=False, done_mark=False), tokens=4)
    assert (record.status, record.output_tokens, record.to_json()["counted_by"]) == ("ok", 4, "chunks")


def test_reasoning_and_tool_calls_are_tokens_and_the_first_answer_is_apart() -> None:
    record = one(Behaviour(decode_s=0.01, reasoning_tokens=3), endpoint=Endpoint.chat, tokens=6)
    assert len(record.token_s) == 6
    assert record.first_answer_s == record.token_s[3]
    called = one(Behaviour(tool_call=True), endpoint=Endpoint.chat, tokens=4)
    assert len(called.token_s) == 4
    assert called.first_answer_s == called.token_s[0]


@pytest.mark.parametrize(
    ("fault", "status", "expected"),
    [
        ("429", "rejected", "HTTP 429"),
        ("500", "error", "HTTP 500"),
        ("half-chunk", "error", "ends within an event"),
        ("invalid-json", "error", "invalid stream"),
        ("invalid-sse", "error", "not an event"),
        ("wrong-types", "error", "invalid stream"),
        ("error-event", "error", "planted error"),
        ("empty", "disconnected", "without a finish reason"),
        ("reset", "disconnected", ""),
        ("never-ends", "timeout", "within 0.3 s"),
        ("endless-line", "error", "an event of more than"),
    ],
)
def test_every_fault_has_its_own_status_and_a_reason(fault: str, status: str, expected: str) -> None:
    record = one(Behaviour(fault=fault), timeout_s=0.3 if fault == "never-ends" else 20.0)
    assert record.status == status
    assert expected in (record.reason or "")
    assert len(record.reason or "") <= 300


def test_faults_do_not_touch_other_requests() -> None:
    with ServingStub(Behaviour(fault="reset", fault_every=3)) as stub:
        result = send(stub, LoadLevel("closed", concurrency=4), planned(12))
    assert sum(record.status == "disconnected" for record in result.records) == 4
    assert sum(record.status == "ok" for record in result.records) == 8


def test_a_wrong_model_name_is_an_error_with_the_answer_of_the_server() -> None:
    with ServingStub() as stub:
        result = send(
            stub, LoadLevel("closed", concurrency=1), planned(1), target=lambda url: Target(url, "other")
        )
    assert result.records[0].status == "error"
    assert "no model other" in (result.records[0].reason or "")


def test_the_api_key_is_sent_and_appears_nowhere() -> None:
    key = "plain-key-without-a-known-shape"
    with ServingStub(Behaviour(api_key=key, fault="500")) as stub:
        made = Target(stub.url, "stub", api_key=key)
        result = send(stub, LoadLevel("closed", concurrency=1), planned(1), target=lambda _: made)
        assert stub.server.requests[0]["headers"]["authorization"] == f"Bearer {key}"
    assert key not in repr(made)
    assert key not in str(result.records[0].to_json())
    assert "***" in (result.records[0].reason or "")


def test_a_closed_loop_keeps_the_number_in_flight() -> None:
    with ServingStub(Behaviour(decode_s=0.005)) as stub:
        result = send(stub, LoadLevel("closed", concurrency=3), planned(12, tokens=6))
        most = max(step["running"] + len(step["finished"]) for step in stub.server.steps)
    assert len(result.records) == 12
    assert most == 3


def test_a_stall_of_the_server_shows_in_every_request_that_was_due() -> None:
    """No coordinated omission: requests are sent during the stall, and their latency holds the wait."""
    with ServingStub(Behaviour(decode_s=0.001, stall_at_s=0.3, stall_s=0.6)) as stub:
        result = send(stub, LoadLevel("open", rate_per_s=50), planned(50, tokens=1, rate=50))
    assert all(record.status == "ok" for record in result.records)
    answered = sorted(record.token_s[0] for record in result.records)
    began, ended = max(itertools.pairwise(answered), key=lambda pair: pair[1] - pair[0])
    assert sum(began < record.sent_s < ended for record in result.records) >= 5
    ttft = [record.token_s[0] - record.scheduled_s for record in result.records]
    # About 30 requests are due while the server stands still; a client that waits for answers would record one.
    assert sum(value > 0.1 for value in ttft) >= 15
    assert max(ttft) > 0.4


def test_a_late_client_is_marked_and_latency_begins_at_the_schedule() -> None:
    result = LoadResult(LoadLevel("open", rate_per_s=10), seconds=1.0, events=100, lag_p99_s=0.05)
    assert "50 ms late" in (result.bound_by_client(None) or "")
    result.lag_p99_s = 0.001
    assert result.bound_by_client(1000.0) is None
    assert "capacity" in (result.bound_by_client(150.0) or "")


def test_a_cancelled_request_frees_its_slot() -> None:
    with ServingStub(Behaviour(decode_s=0.01)) as stub:
        result = send(stub, LoadLevel("closed", concurrency=1), planned(1, tokens=400, cancel_after=5))
        running = stub.server.steps[-1]["running"]
    assert result.records[0].status == "cancelled"
    assert 5 <= len(result.records[0].token_s) < 100
    assert running in (0, 1)


def test_a_conversation_has_its_history() -> None:
    def talk() -> Iterator[PlannedRequest]:
        for number in range(6):
            yield PlannedRequest(f"c-{number}", f"question {number}", 2, conversation=number // 3)

    with ServingStub() as stub:
        send(
            stub,
            LoadLevel("closed", concurrency=2),
            talk(),
            target=lambda url: Target(url, "stub", Endpoint.chat),
        )
        sent = {request["headers"]["x-request-id"]: request["messages"] for request in stub.server.requests}
    assert [len(sent[f"c-{number}"]) for number in range(6)] == [1, 3, 5, 1, 3, 5]
    assert sent["c-2"][1] == {"role": "assistant", "content": " t1 t2"}


def test_a_server_that_ends_stops_the_load() -> None:
    alive = iter([True, True, False])
    with ServingStub() as stub:
        result = send(
            stub, LoadLevel("closed", concurrency=1), planned(100), is_alive=lambda: next(alive, False)
        )
    assert result.stopped == "the server ended during the load"
    assert len(result.records) == 2


@pytest.mark.parametrize("seed", range(20))
def test_events_are_found_wherever_the_network_cuts(seed: int) -> None:
    draw = random.Random(seed)
    events = [b'{"n":%d}' % number for number in range(30)] + [b"[DONE]"]
    stream = b"".join(
        b": comment\r\n" * draw.randint(0, 1) + b"data: " + event + b"\r\n\r\n" for event in events
    )
    splitter, found = EventSplitter(), []
    while stream:
        size = draw.randint(1, 40)
        found += splitter.feed(stream[:size])
        stream = stream[size:]
    assert found == events
    assert splitter.rest == b""


def test_text_that_is_no_stream_is_a_fault() -> None:
    with pytest.raises(StreamFault):
        EventSplitter().feed(b"<html>\n")


def test_metrics_are_sampled_on_the_clock_of_the_load() -> None:
    async def run(stub: ServingStub) -> tuple[MetricsSampler, LoadResult]:
        async with LoadClient(Target(stub.url, "stub")) as client:
            urls = [f"{stub.url}/metrics", f"{stub.url}/metrics", f"{stub.url}/nothing"]
            sampler = MetricsSampler(client.session, client.clock, urls, 0.05)
            async with sampler.sampling():
                result = await client.run(LoadLevel("closed", concurrency=8), planned(8, tokens=30))
            return sampler, result

    with ServingStub(Behaviour(decode_s=0.01)) as stub:
        sampler, result = asyncio.run(run(stub))
    assert len(sampler.samples) >= 3
    first, last = sampler.samples[0], sampler.samples[-1]
    # The same clock: the first sample was taken before the load ended, however busy the machine was.
    assert first["time_s"] < max(record.end_s or 0 for record in result.records)
    assert last["time_s"] >= max(record.end_s or 0 for record in result.records)
    most = max(sample["metrics"]["vllm:num_requests_running"] for sample in sampler.samples)
    assert most == 16  # two workers, summed
    assert max(sample["metrics"]["vllm:kv_cache_usage_perc"] for sample in sampler.samples) == 8 / 64
    assert "HTTP 404" in sampler.failures[f"{stub.url}/nothing"]


def test_hostile_metrics_are_left_out() -> None:
    text = (
        'a 1\na{x="}"} 2\nb{le="1"\nc NaN\nd +Inf\ne\n \n# f 3\ng_bucket{le="1"} 4\n' + "h" * 100_000 + " 1\n"
    )
    found = parse_metrics(text)
    assert found["a"] == 3
    assert not {"b", "c", "d", "e", "g_bucket"} & found.keys()
