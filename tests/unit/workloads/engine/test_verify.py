"""The first tokens of a run are checked against ``generate()``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.core.console.progress import LogProgress
from llm_perf_opt.workloads.engine.driver import run_workload
from llm_perf_opt.workloads.engine.engine import Engine
from llm_perf_opt.workloads.engine.verify import verify_tokens
from llm_perf_opt.workloads.measure import EngineRun, check_tokens
from tests.unit.small_workloads import samples, workload


def checked(engine: Engine, requests: list[Any]) -> EngineRun:
    run = EngineRun(engine, run_workload(engine.workload, requests, engine=engine))
    check_tokens(run, engine.workload, LogProgress())
    return run


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("kind", ["v1", "v2", "llama", "qwen_moe"])
def test_right_tokens_are_verified(kind: str, static: bool, tmp_path: Path) -> None:
    engine = Engine(workload(kind, static=static, max_new_tokens=6, batch_size=2))
    run = checked(engine, samples(kind, tmp_path, 2))
    assert run.result.workload().tokens_verified is True
    assert not any("generate()" in note for note in run.result.notes)


def test_a_model_that_forgets_its_past_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(workload("llama", max_new_tokens=6))
    adapter: Any = engine.adapter
    step = adapter.decode_step
    monkeypatch.setattr(
        adapter,
        "decode_step",
        lambda model, batch, tokens, place, cache: step(
            model, batch, tokens, place, adapter.new_state(model)
        ),
    )
    run = checked(engine, samples("llama", tmp_path, 1))
    assert run.result.workload().tokens_verified is False
    (note,) = [note for note in run.result.notes if "DIFFER" in note]
    assert "prompt0" in note


def test_settings_of_the_checkpoint_do_not_change_the_reference(tmp_path: Path) -> None:
    engine = Engine(workload("llama", max_new_tokens=6))
    model: Any = engine.model
    model.generation_config.repetition_penalty = 5.0
    model.generation_config.do_sample = True
    assert checked(engine, samples("llama", tmp_path, 1)).result.tokens_verified is True
    assert model.generation_config.repetition_penalty == 5.0


def test_a_shorter_answer_is_compared_as_far_as_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = samples("llama", tmp_path, 1)
    engine = Engine(workload("llama", max_new_tokens=6))
    _, free = engine.run_sample(requests)
    monkeypatch.setattr(engine, "_stop_ids", (free.token_ids[0][1],))
    assert checked(engine, requests).result.tokens_verified is True


def test_switched_off_it_is_unknown_and_says_so(tmp_path: Path) -> None:
    engine = Engine(workload("llama", max_new_tokens=3, verify_tokens=False))
    result = checked(engine, samples("llama", tmp_path, 1)).result
    assert result.tokens_verified is None
    assert any("infer.verify_tokens=false" in note for note in result.notes)


@pytest.mark.parametrize("answer", [None, RuntimeError("no kernel")], ids=["none", "fails"])
def test_without_a_reference_it_is_unknown_and_says_why(
    answer: Exception | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(workload("llama", max_new_tokens=3))

    def reference(*_: Any, **__: Any) -> None:
        if answer is not None:
            raise answer

    monkeypatch.setattr(engine.adapter, "reference_tokens", reference)
    found = verify_tokens(engine, samples("llama", tmp_path, 1), [[1, 2, 3]])
    assert found.verified is None
    assert found.note is not None
    assert ("no kernel" if answer is not None else "no generate()") in found.note


def test_the_word_travels_with_the_timings(tmp_path: Path) -> None:
    engine = Engine(workload("llama", max_new_tokens=3))
    result = checked(engine, samples("llama", tmp_path, 1)).result
    assert result.to_dict()["workload"]["tokens_verified"] is True
    assert dataclasses.asdict(result.workload())["tokens_verified"] is True
