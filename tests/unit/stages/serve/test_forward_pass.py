"""Forward-pass metrics: records as SGLang and Dynamo publish them are received, kept and matched to requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llm_perf_opt.captures.serving.reader import read_serving
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.process.tools import import_optional
from llm_perf_opt.runs.finish import finish_run
from llm_perf_opt.stages.serve.config import EngineName, ServeConfig, check_values
from llm_perf_opt.stages.serve.engines import ServerSettings, make_engine
from llm_perf_opt.stages.serve.forward_pass import ForwardPassReceiver
from tests.serving_stub import Behaviour, ServingStub
from tests.support import read_json
from tests.unit.stages.serve.test_stage import attach, serve

SCHEDULED = {
    "num_prefill_requests": 0, "sum_prefill_tokens": 0, "var_prefill_length": 0.0, "sum_prefill_kv_tokens": 0,
    "num_decode_requests": 0, "sum_decode_kv_tokens": 0, "var_decode_kv_tokens": 0.0,
}  # fmt: skip
QUEUED = {
    "num_prefill_requests": 0, "sum_prefill_tokens": 0, "var_prefill_length": 0.0, "num_decode_requests": 0,
    "sum_decode_kv_tokens": 0, "var_decode_kv_tokens": 0.0,
}  # fmt: skip


def record(
    number: int, wall_s: float, prompts: int = 0, tokens: int = 0, decodes: int = 0, waiting: int = 0
) -> dict[str, Any]:
    """A record of version 1 with the names of the fields, as msgspec encodes it."""
    scheduled = {
        **SCHEDULED,
        "num_prefill_requests": prompts,
        "sum_prefill_tokens": tokens,
        "num_decode_requests": decodes,
    }
    queued = {**QUEUED, "num_prefill_requests": waiting}
    return {
        "version": 1, "worker_id": "w", "dp_rank": 0, "counter_id": number, "wall_time": wall_s,
        "scheduled_requests": scheduled, "queued_requests": queued,
    }  # fmt: skip


def positional(value: Any) -> Any:
    """The same record without names."""
    return [positional(one) for one in value.values()] if isinstance(value, dict) else value


class Publisher:
    """The engine's side."""

    def __init__(self) -> None:
        zmq: Any = import_optional("zmq")
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self.url = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self.sent = 0

    def send(self, value: Any) -> None:
        self.send_frames(b"", self.sent.to_bytes(8, "big"), msgspec.msgpack.encode(value))
        self.sent += 1

    def send_frames(self, *frames: bytes) -> None:
        self._socket.send_multipart(frames)

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    found = Publisher()
    yield found
    found.close()


def wait_for(receiver: ForwardPassReceiver, publisher: Publisher) -> None:
    """Send heartbeats until the subscription is known to the publisher."""
    limit = time.monotonic() + 10
    while not receiver.received and time.monotonic() < limit:
        publisher.send(record(0, 0.0))
        time.sleep(0.02)


@pytest.mark.needs("zmq")
def test_records_are_kept_with_the_time_they_arrived(tmp_path: Path, publisher: Publisher) -> None:
    path, began = tmp_path / "steps.jsonl", time.time()
    with ForwardPassReceiver([publisher.url], path) as receiver:
        wait_for(receiver, publisher)
        publisher.send(record(1, 0.02, prompts=2, tokens=300, waiting=5))
        publisher.send(positional(record(2, 0.01, decodes=2)))
        publisher.sent += 3  # lost on the way
        publisher.send(record(3, 0.01, decodes=2))
        for hostile in (b"\xc1", b"", b"\x93", msgspec.msgpack.encode("text"), b"\x91" * 4000):
            publisher.send_frames(b"", bytes(8), hostile)
        publisher.send(record(4, 0.01, decodes=1))
        limit = time.monotonic() + 10
        while receiver.invalid < 5 and time.monotonic() < limit:
            time.sleep(0.02)
    (steps,) = read_serving([path]).steps
    assert steps.duration_s.tolist() == [0.02, 0.01, 0.01, 0.01]
    assert steps.prefill_tokens.tolist() == [300, 0, 0, 0] and steps.decode_requests.tolist() == [0, 2, 2, 1]
    assert steps.waiting.tolist() == [5, 0, 0, 0]
    assert steps.is_placed and began <= steps.end_s[0] <= steps.end_s[-1] <= time.time()
    assert (receiver.lost, receiver.invalid) == (3, 5)
    assert len(receiver.notes()) == 2


@pytest.mark.needs("zmq")
def test_a_server_that_publishes_nothing_gives_a_note(tmp_path: Path) -> None:
    with ForwardPassReceiver(["tcp://127.0.0.1:1"], tmp_path / "steps.jsonl") as receiver:
        pass
    assert "No forward-pass metrics" in receiver.notes()[0]


@pytest.mark.needs("zmq")
def test_records_that_cannot_be_written_are_a_note_and_no_crash(tmp_path: Path) -> None:
    with ForwardPassReceiver(["tcp://127.0.0.1:9"], tmp_path / "missing" / "records.jsonl") as receiver:
        pass
    (note,) = receiver.notes()
    assert "could not be written" in note and "missing" in note


@pytest.mark.needs("serving", "zmq")
def test_steps_that_a_running_server_publishes_are_matched_to_its_requests(
    tmp_path: Path, publisher: Publisher
) -> None:
    with ServingStub(Behaviour(prefill_s=0.02, decode_s=0.005)) as stub:
        done = threading.Event()

        def publish() -> None:
            sent = 0
            while not done.wait(0.002):
                for step in stub.server.steps[sent:]:
                    tokens = step["prefill"].values()
                    publisher.send(
                        record(
                            sent,
                            step["duration_s"],
                            len(tokens),
                            sum(tokens),
                            len(step["decode"]),
                            step["waiting"],
                        )
                    )
                    sent += 1

        thread = threading.Thread(target=publish)
        thread.start()
        outcome = serve(
            tmp_path / "run",
            *attach(stub, f"pipeline.serve.step_urls=[{publisher.url}]", "pipeline.serve.concurrency=[2]"),
        )
        done.set()
        thread.join()
    assert finish_run(outcome, quiet=True, as_json=False) == 0
    serving = read_json(tmp_path / "run" / "summary.json")["serving"]
    assert serving["steps"]["prefill"] + serving["steps"]["mixed"] >= 3
    assert serving["coverage_ratio"] == 1.0
    point = serving["load"][0]
    parts = [value for value in point["ttft_parts_s"].values() if value is not None]
    assert sum(parts) == pytest.approx(point["ttft_s"]["mean"], rel=1e-6)
    assert point["ttft_parts_s"]["own_prefill"] > 0.01


@pytest.mark.parametrize(
    "url", ["tcp://192.0.2.1:20380", "http://127.0.0.1:20380", "tcp://127.0.0.1", "ipc:///x", "tcp://[::"]
)
def test_addresses_that_are_not_of_this_machine_or_not_zeromq_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="step_urls"):
        check_values(ServeConfig(engine=EngineName.attach, url="http://127.0.0.1:8000", step_urls=[url]))


def test_a_started_sglang_is_asked_to_publish_its_steps() -> None:
    engine = make_engine(ServeConfig(engine=EngineName.sglang))
    asked = engine.arguments(ServerSettings("/m", 8000, forward_pass_port=20380))
    assert asked[asked.index("--forward-pass-metrics-port") + 1] == "20380"
    assert "--forward-pass-metrics-port" not in engine.arguments(ServerSettings("/m", 8000))
