"""The decode step as a CUDA graph, on a stand-in that captures and replays on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from llm_perf_opt.cli import main
from llm_perf_opt.config.schema import CacheKind, InferConfig
from llm_perf_opt.core.errors import ConfigError, ToolError
from llm_perf_opt.workloads.base import Sample
from llm_perf_opt.workloads.engine.driver import run_workload
from llm_perf_opt.workloads.engine.engine import Engine
from llm_perf_opt.workloads.engine.verify import verify_tokens
from llm_perf_opt.workloads.models.decode_step import CudaGraphs, fingerprint
from llm_perf_opt.workloads.registry import load_adapter
from tests.text_facts import mentions
from tests.unit.small_workloads import model_config, samples, workload
from tests.unit.workloads.graph_stand_in import StandIn

SIDE, MAIN = "side of cuda:1", "main of cuda:1"


def captured(
    kind: str, monkeypatch: pytest.MonkeyPatch, *, new_tokens: int = 6, **infer: Any
) -> tuple[Engine, StandIn]:
    """An engine on the CPU whose graphs are the stand-in's."""
    stand_in = StandIn()

    def graph_decode(adapter: Any, model: Any, device: str) -> None:
        adapter._graphs = CudaGraphs("cuda:1", stand_in)

    monkeypatch.setattr(
        "llm_perf_opt.workloads.models.transformers_base.TransformersAdapter.graph_decode",
        graph_decode,
    )
    chosen = workload(kind, static=True, model={"cuda_graphs": True}, max_new_tokens=new_tokens, **infer)
    return Engine(chosen), stand_in


@pytest.mark.parametrize("kind", ["llama", "qwen_moe", "v1"])
def test_tokens_of_replayed_steps_are_those_without_a_graph(
    kind: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of several lengths, padded batches, a smaller last batch; the graph is made in the warm-up alone."""
    requested = samples(kind, tmp_path, 3)
    plain = run_workload(workload(kind, static=True, max_new_tokens=6, batch_size=2), requested)
    engine, stand_in = captured(kind, monkeypatch, batch_size=2)
    before_measuring: list[int] = []
    warm_up = engine.warm_up

    def counted(group: Any) -> float:
        seconds = warm_up(group)
        before_measuring.append(stand_in.names().count("capture"))
        return seconds

    monkeypatch.setattr(engine, "warm_up", counted)
    result = run_workload(engine.workload, requested, engine=engine)
    assert [each.token_ids for each in result.samples] == [each.token_ids for each in plain.samples]
    assert before_measuring == [1, 2], "one graph for each shape"
    assert stand_in.names().count("capture") == 2, "nothing is captured while measuring"
    assert result.workload().cuda_graphs is True
    first = [answer.token_ids for answer in result.samples[:2]]
    assert verify_tokens(engine, requested[:2], first).verified is True


def test_order_warm_up_on_a_side_stream_then_capture_then_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, stand_in = captured("llama", monkeypatch, new_tokens=4)
    requested = [Sample("x", synthetic_tokens=9)]
    engine.run_sample(requested)
    assert stand_in.calls == [], "the first pass lets the model allocate its cache"
    (step,) = engine.adapter._captured.values()  # type: ignore[attr-defined]
    stand_in.watched = lambda: (
        int(step.inputs.tokens), int(step.inputs.positions), int(step.inputs.mask.sum()),
    )  # fmt: skip
    addresses = fingerprint(step.inputs.mask), fingerprint(step.cache)
    _, done = engine.run_sample(requested)
    assert stand_in.names() == [
        "device cuda:1", f"{SIDE} waits for {MAIN}", f"on {SIDE}", f"off {SIDE}", f"{MAIN} waits for {SIDE}",
        "capture", "captured", "replay", "replay", "replay",
    ]  # fmt: skip
    replays = [seen for name, seen in stand_in.calls if name == "replay"]
    fed_back = done.token_ids[0][:3]
    assert replays == [(fed_back[0], 9, 10), (fed_back[1], 10, 11), (fed_back[2], 11, 12)]
    assert (fingerprint(step.inputs.mask), fingerprint(step.cache)) == addresses
    engine.run_sample(requested)
    assert stand_in.names().count("capture") == 1
    assert stand_in.names().count("replay") == 6


def test_graphs_share_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, stand_in = captured("llama", monkeypatch, new_tokens=3)
    for length in (9, 9, 200, 200):
        engine.run_sample([Sample("x", synthetic_tokens=length)])
    assert [pool for name, pool in stand_in.calls if name == "capture"] == [None, "pool"]


def test_a_step_that_reads_a_value_is_refused_with_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = captured("llama", monkeypatch, new_tokens=3)
    forward = engine.model.forward

    def reading(**inputs: Any) -> Any:
        if int(inputs["input_ids"].sum()) < 0:
            raise AssertionError
        return forward(**inputs)

    requested = [Sample("x", synthetic_tokens=9)]
    engine.run_sample(requested)
    monkeypatch.setattr(engine.model, "forward", reading)
    with pytest.raises(ToolError, match="operation not permitted") as caught:
        engine.run_sample(requested)
    assert caught.value.data["key"] == "model.cuda_graphs"


@pytest.mark.parametrize("moves", ["address", "count"])
def test_a_state_that_a_graph_would_not_follow_is_refused(moves: str) -> None:
    state: dict[str, Any] = {"keys": torch.zeros(2, 2), "seen": 0}

    def step() -> torch.Tensor:
        if moves == "address":
            state["keys"] = torch.cat([state["keys"], torch.zeros(1, 2)])
        else:
            state["seen"] += 1
        return torch.zeros(1)

    with pytest.raises(ConfigError) as caught:
        CudaGraphs("cuda:0", StandIn()).capture(step, state)
    assert caught.value.data["key"] == "model.cuda_graphs"
    assert ("cache.keys" if moves == "address" else "cache.seen") in caught.value.message


def test_a_cpu_refuses_before_any_work(tmp_path: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["model=llama_tiny", "model.cuda_graphs=true", "model.cache=static", "run.device=cpu"]
    assert main(["run", *arguments]) == 2
    assert mentions(capsys.readouterr().err, "model.cuda_graphs=true", "cpu")
    assert list(tmp_path.iterdir()) == []


def test_without_a_static_cache_or_a_device_the_key_is_named() -> None:
    with pytest.raises(ConfigError, match=r"needs model\.cache=static") as caught:
        load_adapter(model_config("llama", cuda_graphs=True), InferConfig())
    assert caught.value.data["key"] == "model.cuda_graphs"
    adapter = load_adapter(model_config("llama", cuda_graphs=True, cache=CacheKind.static), InferConfig())
    with pytest.raises(ConfigError) as caught:
        adapter.graph_decode(torch.nn.Module(), "cpu")
    assert caught.value.data["key"] == "model.cuda_graphs" and mentions(caught.value.message, "cpu")
