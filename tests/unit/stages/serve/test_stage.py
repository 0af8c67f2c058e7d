"""The stage with a stub in place of an engine: start, load, stop, files, and every way a server can fail."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.config.compose import compose_config
from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.core.console.progress import SilentProgress
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.core.stage import stage_types
from llm_perf_opt.runs.execute import Outcome, execute
from llm_perf_opt.runs.finish import finish_run
from llm_perf_opt.stages.serve.config import ServeConfig, check_values
from llm_perf_opt.stages.serve.load import Vocabulary, plan_loads
from llm_perf_opt.stages.serve.stage import ServeStage
from tests.serving_stub import Behaviour, ServingStub, stub_environment
from tests.support import read_json

pytestmark = pytest.mark.needs("serving")
REPOSITORY = Path(__file__).resolve().parents[4]
SMALL = (
    "model=llama_tiny",
    "hardware.probe=false",
    "pipeline.serve.requests=6",
    "pipeline.serve.new_tokens=4",
    "pipeline.serve.certify=false",
)


def serve(root: Path, *overrides: str) -> Outcome:
    """Run the stage alone."""
    toggles = [f"pipeline.{name}.enable={'true' if name == 'serve' else 'false'}" for name in stage_types()]
    config = compose_config([*SMALL, *toggles, f"artifacts.runs_dir={root}", *overrides], cwd=root.parent)
    return execute(
        config,
        Artifacts.for_run(root),
        SilentProgress(),
        command=["test"],
        overrides=overrides,
        resolved_yaml="",
    )


Start = Callable[..., list[str]]


@pytest.fixture
def as_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Overrides that start the stub in place of an engine."""
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()

    def overrides(behaviour: Behaviour, engine: str = "vllm") -> list[str]:
        behaviour.model = "as-started"
        for name, value in {**stub_environment(behaviour), "PYTHONPATH": str(REPOSITORY)}.items():
            monkeypatch.setenv(name, value)
        return [
            f"pipeline.serve.engine={engine}",
            f"pipeline.serve.executable=[{sys.executable},-m,tests.serving_stub]",
            f"pipeline.serve.model={checkpoint}",
        ]

    return overrides


def attach(stub: ServingStub, *overrides: str) -> list[str]:
    return ["pipeline.serve.engine=attach", f"pipeline.serve.url={stub.url}", *overrides]


def lines(root: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / "serve" / name).read_text().splitlines()]


def left_running(folder: Path) -> list[str]:
    """Command lines of processes that were started with a path below the folder and are left."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder / "checkpoint") in command and int(file.parent.name) != os.getpid():
                found.append(command)
    return found


def test_a_running_server_is_measured_and_reported(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with ServingStub(Behaviour(prefill_s=0.005)) as stub:
        outcome = serve(
            root,
            *attach(
                stub,
                "pipeline.serve.rate=[40]",
                "pipeline.serve.concurrency=[2]",
                "pipeline.serve.slo=[ttft:10s]",
                "pipeline.serve.certify=true",
            ),
        )
    record = outcome.manifest.stages["serve"]
    assert (record.status, record.reason) == ("ok", None)
    header, *requests = lines(root, "requests.jsonl")
    assert [load["kind"] for load in header["loads"]] == ["open", "closed"]
    assert header["client_capacity_per_s"] > 100
    assert len(requests) == 12
    assert all(request["status"] == "ok" and len(request["token_s"]) == 4 for request in requests)
    assert lines(root, "metrics.jsonl")[0]["format"] == "llm-perf-opt.serve.metrics"
    assert finish_run(outcome, quiet=True, as_json=False) == 0
    serving = read_json(root / "summary.json")["serving"]
    assert [point["completed"] for point in serving["load"]] == [6, 6]
    assert all(point["goodput_per_s"] > 0 and point["ttft_s"]["p50"] >= 0.005 for point in serving["load"])
    assert serving["client"]["capacity_per_s"] == header["client_capacity_per_s"]
    assert len(serving["occupancy"]) >= 2


def test_a_started_engine_is_stopped_with_all_it_started(tmp_path: Path, as_engine: Start) -> None:
    root = tmp_path / "run"
    behaviour = Behaviour(say="vLLM API server version 0.32.0", leave_child=True)
    outcome = serve(root, *as_engine(behaviour), "pipeline.serve.concurrency=[2]")
    record = outcome.manifest.stages["serve"]
    assert record.status in ("ok", "degraded"), record
    assert not left_running(tmp_path)
    document = read_json(root / "serve" / "server.json")
    assert document["version"] == "0.32.0"
    assert document["ready_s"] > 0
    assert document["prefix_cache_resets"] == 1
    assert "--max-model-len" in document["command"]
    assert "0.32.0" in (root / "serve" / "server.stderr.log").read_text()


def test_a_server_that_ends_at_its_start_is_reported_with_the_reason(
    tmp_path: Path, as_engine: Start
) -> None:
    outcome = serve(
        tmp_path / "run", *as_engine(Behaviour(fault="exits-at-start", say="CUDA is not available: planted"))
    )
    record = outcome.manifest.stages["serve"]
    assert record.status == "failed"
    assert "ended before it was healthy" in (record.reason or "")
    assert "CUDA is not available: planted" in (record.reason or "")
    assert "server.stderr.log" in (record.fix or "")
    assert outcome.exit_code in (1, 4)


def test_a_server_that_is_never_healthy_is_stopped_at_the_limit(tmp_path: Path, as_engine: Start) -> None:
    outcome = serve(
        tmp_path / "run",
        *as_engine(Behaviour(healthy_after_s=1e6, say="loading for ever")),
        "pipeline.serve.start_timeout_s=4",
    )
    record = outcome.manifest.stages["serve"]
    assert record.status == "failed"
    assert "not healthy after 4 s (/health: HTTP 503)" in (record.reason or "")
    assert "loading for ever" in (record.reason or "")
    assert "start_timeout_s" in (record.fix or "")
    assert not left_running(tmp_path)


def test_a_server_that_dies_under_load_keeps_what_was_measured(tmp_path: Path, as_engine: Start) -> None:
    root = tmp_path / "run"
    outcome = serve(
        root,
        *as_engine(Behaviour(die_after_requests=14)),
        "pipeline.serve.concurrency=[1,2]",
        "pipeline.serve.requests=8",
    )  # 4 of the warm-up, 8 of the first point, then the second is cut off
    record = outcome.manifest.stages["serve"]
    assert record.status == "failed"
    assert "the server ended during the load (at 2 in flight)" in (record.reason or "")
    _, *requests = lines(root, "requests.jsonl")
    assert [request["status"] for request in requests if request["load"] == 0] == ["ok"] * 8
    assert any(request["status"] == "disconnected" for request in requests if request["load"] == 1)
    assert finish_run(outcome, quiet=True, as_json=False) == 1
    assert read_json(root / "summary.json")["serving"]["load"][0]["completed"] == 8


def test_a_server_that_hangs_on_stop_is_killed(tmp_path: Path, as_engine: Start) -> None:
    outcome = serve(
        tmp_path / "run",
        *as_engine(Behaviour(ignore_sigterm=True)),
        "pipeline.serve.stop_timeout_s=1",
        "pipeline.serve.concurrency=[1]",
    )
    record = outcome.manifest.stages["serve"]
    assert record.status == "degraded"
    assert "did not end within 1 s" in (record.reason or "")
    assert not left_running(tmp_path)


def test_a_port_that_is_taken_is_named(tmp_path: Path, as_engine: Start) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        outcome = serve(tmp_path / "run", *as_engine(Behaviour()), f"pipeline.serve.port={port}")
    record = outcome.manifest.stages["serve"]
    assert record.status == "failed"
    assert f"port {port} of 127.0.0.1 cannot be used" in (record.reason or "")


@pytest.mark.parametrize("fault", ["500", "429", "half-chunk", "invalid-json"])
def test_faults_of_requests_are_counted_apart(fault: str, tmp_path: Path) -> None:
    root = tmp_path / "run"
    with ServingStub(Behaviour(fault=fault, fault_every=5)) as stub:
        outcome = serve(root, *attach(stub, "pipeline.serve.concurrency=[2]", "pipeline.serve.requests=20"))
    record = outcome.manifest.stages["serve"]
    assert record.status == "degraded"
    assert "of 20 requests failed" in (record.reason or "")
    finish_run(outcome, quiet=True, as_json=False)
    (point,) = read_json(root / "summary.json")["serving"]["load"]
    kind = "rejected" if fault == "429" else "error"
    assert point["failures"] == {kind: point["failed"]}
    assert point["completed"] + point["failed"] == 20
    assert point["ttft_s"]["n"] == point["completed"]


def test_a_wrong_model_name_is_refused_with_the_names_that_there_are(tmp_path: Path) -> None:
    with ServingStub(Behaviour(model="real-name")) as stub:
        outcome = serve(tmp_path / "run", *attach(stub, "pipeline.serve.model=wrong-name"))
    record = outcome.manifest.stages["serve"]
    assert record.status == "failed"
    assert "'wrong-name'; it lists: real-name" in (record.reason or "")


def test_the_name_is_taken_from_the_server_where_none_is_given(tmp_path: Path) -> None:
    with ServingStub(Behaviour(model="the-only-one")) as stub:
        outcome = serve(tmp_path / "run", *attach(stub, "pipeline.serve.concurrency=[1]"))
        assert {request["model"] for request in stub.server.requests} == {"the-only-one"}
    assert outcome.manifest.stages["serve"].status == "ok"


def test_a_running_server_is_identified_and_fields_it_refuses_are_left_out(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with ServingStub(Behaviour(model="org/name", owner="vllm", strict=True)) as stub:
        outcome = serve(root, *attach(stub, "pipeline.serve.concurrency=[1]"))
    assert outcome.manifest.stages["serve"].status == "ok"
    finish_run(outcome, quiet=True, as_json=False)
    summary = read_json(root / "summary.json")
    assert (summary["serving"]["engine"], summary["serving"]["version"]) == ("vllm", "0.99")
    assert any("refuses ignore_eos" in note for note in summary["notes"])


def test_images_and_turns_of_chat(tmp_path: Path) -> None:
    with ServingStub() as stub:
        outcome = serve(
            tmp_path / "run", *attach(stub, "pipeline.serve.endpoint=chat", "pipeline.serve.turns=3", "pipeline.serve.image_side=32", "pipeline.serve.concurrency=[2]"),
        )  # fmt: skip
        messages = [
            request["messages"]
            for request in stub.server.requests
            if "load0" in request["headers"]["x-request-id"]
        ]
    assert outcome.manifest.stages["serve"].status == "ok"
    assert sorted(map(len, messages)) == [1, 1, 3, 3, 5, 5]
    image, text = messages[0][-1]["content"]
    assert image["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert len(text["text"].split()) == 64


def test_cancelled_requests_are_apart_and_their_slots_are_watched(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with ServingStub(Behaviour(decode_s=0.01, owner="vllm")) as stub:
        outcome = serve(
            root, *attach(stub, "pipeline.serve.cancel_ratio=0.5", "pipeline.serve.new_tokens=40", "pipeline.serve.concurrency=[4]", "pipeline.serve.requests=16"),
        )  # fmt: skip
    assert outcome.manifest.stages["serve"].status == "ok"
    header, *requests = lines(root, "requests.jsonl")
    cancelled = [request for request in requests if request["status"] == "cancelled"]
    assert 2 <= len(cancelled) <= 14
    assert all(20 <= len(request["token_s"]) < 40 for request in cancelled)
    assert 0 <= header["loads"][0]["slots_freed_s"] < 10
    finish_run(outcome, quiet=True, as_json=False)
    (point,) = read_json(root / "summary.json")["serving"]["load"]
    assert (point["failed"], point["failures"]["cancelled"]) == (0, len(cancelled))


@pytest.mark.parametrize("preset", ["serve.default", "serve.rates", "serve.chat"])
def test_presets_compose_and_are_in_range(preset: str) -> None:
    config = compose_config([f"profiling/serve@pipeline.serve={preset}"]).pipeline["serve"]
    assert isinstance(config, ServeConfig)
    check_values(config)
    assert not config.enable


def test_no_server_at_the_url(tmp_path: Path) -> None:
    with ServingStub() as stub:
        url = stub.url
    outcome = serve(
        tmp_path / "run",
        "pipeline.serve.engine=attach",
        f"pipeline.serve.url={url}",
        "pipeline.serve.start_timeout_s=1",
    )
    record = outcome.manifest.stages["serve"]
    assert record.status == "failed"
    assert "does not answer" in (record.reason or "")


def test_the_api_key_is_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "plain-key-without-a-known-shape"
    monkeypatch.setenv("SERVING_KEY", key)
    root = tmp_path / "run"
    with ServingStub(Behaviour(api_key=key, fault="500", fault_every=3)) as stub:
        outcome = serve(
            root, *attach(stub, "pipeline.serve.api_key_env=SERVING_KEY", "pipeline.serve.concurrency=[1]")
        )
        finish_run(outcome, quiet=True, as_json=False)
        assert len(stub.server.requests) == 10
    assert outcome.manifest.stages["serve"].status == "degraded"
    for path in root.rglob("*"):
        if path.is_file():
            assert key.encode() not in path.read_bytes(), path


def test_a_key_that_is_not_set_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SERVING_KEY", raising=False)
    with pytest.raises(ConfigError, match="SERVING_KEY is not set"):
        serve(
            tmp_path / "run",
            "pipeline.serve.engine=attach",
            "pipeline.serve.url=http://127.0.0.1:9",
            "pipeline.serve.api_key_env=SERVING_KEY",
        )


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["pipeline.serve.engine=attach", "pipeline.serve.url=http://example.com"], "is not this machine"),
        (["pipeline.serve.engine=attach", "pipeline.serve.url=http://10.0.0.1:8000"], "allow_remote=true"),
        (["pipeline.serve.engine=attach", "pipeline.serve.url=http://127.0.0.1.example.com"], "is not this machine"),
        (["pipeline.serve.engine=attach", "pipeline.serve.url=http://user:pw@127.0.0.1"], "user name or password"),
        (["pipeline.serve.engine=attach", "pipeline.serve.url=ftp://127.0.0.1"], "not an http or https URL"),
        (["pipeline.serve.engine=attach"], "url: missing"),
        (["pipeline.serve.url=http://127.0.0.1:1"], "is started by the stage"),
        (["pipeline.serve.rate=[0]"], "rate: 0.0 is out of range"),
        (["pipeline.serve.rate=[nan]"], "out of range"),
        (["pipeline.serve.concurrency=[0]"], "out of range"),
        (["pipeline.serve.requests=null"], "the load must end"),
        (["pipeline.serve.slo=[ttft]"], "NAME:TIME"),
        (["pipeline.serve.prefix_tokens=64"], "prefix_tokens"),
        (["pipeline.serve.prompt_tokens_max=2"], "is less than"),
        (["pipeline.serve.turns=3"], "chat endpoint"),
        (["pipeline.serve.image_side=64"], "need the chat endpoint"),
        (["pipeline.serve.trace=/nowhere.jsonl"], "is not a file"),
        (["pipeline.serve.api_key_env=sk-0123456789abcdef0123"], "not its value"),
        (["model=whisper_tiny"], "none can be written"),
    ],
)  # fmt: skip
def test_mistakes_are_refused_before_any_work(overrides: list[str], expected: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, InputError)) as refused:
        serve(tmp_path / "run", *overrides)
    assert expected in str(refused.value)
    assert "sk-0123456789abcdef0123" not in str(refused.value)
    assert not (tmp_path / "run" / "serve").exists()


@pytest.mark.parametrize(
    "override", ["pipeline.serve.env={OMP_NUM_THREADS:1}", "+pipeline.serve.env.OMP_NUM_THREADS=1"]
)
def test_variables_of_the_server_are_free_names(override: str, tmp_path: Path) -> None:
    found = compose_config([override], cwd=tmp_path).pipeline["serve"]
    assert isinstance(found, ServeConfig) and found.env == {"OMP_NUM_THREADS": "1"}


def test_the_same_configuration_sends_the_same_requests(tmp_path: Path) -> None:
    sent = []
    for name in ("a", "b"):
        with ServingStub() as stub:
            serve(
                tmp_path / name, *attach(stub, "pipeline.serve.rate=[100]", "pipeline.serve.prefix_tokens=8", "pipeline.serve.prefixes=2",
                "pipeline.serve.prompt_tokens=16", "pipeline.serve.prompt_tokens_max=32"),
            )  # fmt: skip
            sent.append(
                sorted(
                    (r["headers"]["x-request-id"], r["prompt"])
                    for r in stub.server.requests
                    if "warmup" not in r["headers"]["x-request-id"]
                )
            )
    assert sent[0] == sent[1]
    starts = {" ".join(prompt.split()[:8]) for _, prompt in sent[0]}
    assert len(starts) <= 2
    assert all(16 <= len(prompt.split()) <= 32 for _, prompt in sent[0])


def test_a_mooncake_trace_is_replayed(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [
        {
            "timestamp": 1000 + 20 * number,
            "input_length": 600 + number,
            "output_length": 3,
            "hash_ids": [1, 10 + number],
        }
        for number in range(5)
    ]
    trace.write_text("\n".join(map(json.dumps, rows)))
    root = tmp_path / "run"
    with ServingStub() as stub:
        outcome = serve(
            root, *attach(stub, f"pipeline.serve.trace={trace}", "pipeline.serve.trace_speed=0.5")
        )
        prompts = [
            r["prompt"].split() for r in stub.server.requests if "load0" in r["headers"]["x-request-id"]
        ]
    assert outcome.manifest.stages["serve"].status == "ok"
    assert sorted(map(len, prompts)) == [600, 601, 602, 603, 604]
    assert len({tuple(prompt[:512]) for prompt in prompts}) == 1
    assert len({tuple(prompt[512:600]) for prompt in prompts}) == 5
    _, *requests = lines(root, "requests.jsonl")
    offsets = [request["scheduled_s"] - requests[0]["scheduled_s"] for request in requests]
    assert offsets == pytest.approx([0.0, 0.04, 0.08, 0.12, 0.16], abs=1e-5)


def test_the_parts_of_ttft_sum_to_what_was_planted(tmp_path: Path) -> None:
    """Steps of the stub next to the requests: own and others' prefills are found where they were planted."""
    root = tmp_path / "run"
    with ServingStub(Behaviour(prefill_s=0.03, decode_s=0.01, max_batch=2)) as stub:
        outcome = serve(root, *attach(stub, "pipeline.serve.concurrency=[4]", "pipeline.serve.requests=24"))
        header = {"format": "llm-perf-opt.serve.steps", "engine": "stub"}
        steps = [header, *stub.server.steps]
    path = root / "serve" / "steps.jsonl"
    path.write_text("\n".join(map(json.dumps, steps)) + "\n")
    assert outcome.manifest.stages["serve"].status == "ok"
    (root / "manifest.json").unlink()
    facts = ServeStage().facts(root)
    assert facts.serving is not None
    (point,) = facts.serving.load
    assert point.ttft_parts_s is not None
    assert point.ttft_s is not None
    parts = point.ttft_parts_s
    total = sum(
        value
        for value in (
            parts.client,
            parts.network,
            parts.queue,
            parts.own_prefill,
            parts.other_prefill,
            parts.decode,
            parts.other,
        )
        if value is not None
    )
    assert total == pytest.approx(point.ttft_s.mean, rel=0.05)
    assert parts.own_prefill is not None
    assert 0.02 < parts.own_prefill < 0.05
    assert (parts.queue or 0) > 0.02


def test_damaged_steps_cost_a_note_and_not_the_requests(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with ServingStub() as stub:
        serve(root, *attach(stub, "pipeline.serve.concurrency=[1]"))
    (root / "manifest.json").unlink()
    (root / "serve" / "steps.jsonl").write_bytes(os.urandom(100))
    (root / "serve" / "metrics.jsonl").write_text(
        '{"format": "llm-perf-opt.serve.metrics"}\n{"time_s": 1, "met'
    )
    facts = ServeStage().facts(root)
    assert facts.serving is not None
    assert facts.serving.load[0].completed == 6
    assert any("steps.jsonl could not be read" in note for note in facts.notes)


def test_random_arrivals_have_the_requested_rate() -> None:
    config = ServeConfig(rate=[4.0], requests=24)
    (planned,) = plan_loads(config, Vocabulary())
    offsets = [one.offset_s for one in planned.requests]
    gaps = [after - before for before, after in itertools.pairwise(offsets)]
    assert offsets[0] == 0.0
    assert offsets[-1] == pytest.approx(23 / 4)
    assert max(gaps) > 2 * min(gaps) > 0
    (again,) = plan_loads(config, Vocabulary())
    assert [one.offset_s for one in again.requests] == offsets
