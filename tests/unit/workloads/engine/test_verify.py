"""The first tokens of a run are checked against ``generate()``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_perf_opt.core.console.progress import LogProgress
from llm_perf_opt.workloads.base import Reference
from llm_perf_opt.workloads.engine.driver import run_workload
from llm_perf_opt.workloads.engine.engine import Engine
from llm_perf_opt.workloads.engine.verify import verify_tokens
from llm_perf_opt.workloads.measure import EngineRun, Measurement, check_tokens
from tests.text_facts import mentions
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
    (note,) = [note for note in run.result.notes if "generate()" in note]
    assert mentions(note, "4")


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
    result = Measurement(run, samples("llama", tmp_path, 1), [], []).stage_result()
    assert result.status == "degraded" and result.fix, "timings of a model that is not run as it should"


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


def test_switched_off_it_is_unknown_with_a_note(tmp_path: Path) -> None:
    engine = Engine(workload("llama", max_new_tokens=3, verify_tokens=False))
    result = checked(engine, samples("llama", tmp_path, 1)).result
    assert result.tokens_verified is None
    assert any("infer.verify_tokens=false" in note for note in result.notes)


@pytest.mark.parametrize("answer", [None, RuntimeError("no kernel")], ids=["none", "fails"])
def test_without_a_reference_it_is_unknown_with_the_reason(
    answer: Exception | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(workload("llama", max_new_tokens=3))

    def reference(*_: Any, **__: Any) -> None:
        if answer is not None:
            raise answer

    monkeypatch.setattr(engine.adapter, "reference", reference)
    found = verify_tokens(engine, samples("llama", tmp_path, 1), [[1, 2, 3]])
    assert found.verified is None
    assert ("no kernel" if answer is not None else "no generate()") in found.note


def test_the_word_travels_with_the_timings(tmp_path: Path) -> None:
    engine = Engine(workload("llama", max_new_tokens=3))
    result = checked(engine, samples("llama", tmp_path, 1)).result
    assert result.to_dict()["workload"]["tokens_verified"] is True
    assert dataclasses.asdict(result.workload())["tokens_verified"] is True


def test_equal_tokens_for_unequal_reasons_are_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits that are wrong but have their largest in the right place, as random weights may give."""
    engine = Engine(workload("llama", max_new_tokens=6))
    adapter: Any = engine.adapter
    step = adapter.decode_step

    def flattened(*args: Any) -> Any:
        logits = step(*args)
        return logits.clamp(min=logits.median())

    monkeypatch.setattr(adapter, "decode_step", flattened)
    run = checked(engine, samples("llama", tmp_path, 2))
    assert run.result.tokens_verified is False
    assert any("LOGITS DIFFER" in note and "sample prompt0" in note for note in run.result.notes)


@pytest.mark.parametrize(("gap", "verified"), [(0.0, True), (1e-5, True), (0.1, False)])
def test_a_tie_within_rounding_is_no_difference(
    gap: float, verified: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(workload("llama", max_new_tokens=3))
    logits = torch.linspace(-1.0, 0.0, 10).repeat(1, 1)
    logits[0, 4], logits[0, 7] = 0.0, -gap
    monkeypatch.setattr(engine, "reference", lambda *_: Reference([[5, 4, 1]], [logits] * 3))
    found = verify_tokens(engine, samples("llama", tmp_path, 1), [[5, 7, 2]])
    assert found.verified is verified
    assert ("up to a tie" if verified else "TOKENS DIFFER") in found.note


def test_a_reference_without_logits_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(workload("llama", max_new_tokens=3))
    monkeypatch.setattr(engine, "reference", lambda *_: Reference([[5, 4, 1]]))
    found = verify_tokens(engine, samples("llama", tmp_path, 1), [[5, 4, 1]])
    assert found.verified is True
    assert "no logits" in found.note


def test_numbers_that_are_none_are_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(workload("llama", max_new_tokens=3))
    requests = samples("llama", tmp_path, 1)
    run = EngineRun(engine, run_workload(engine.workload, requests, engine=engine))
    adapter: Any = engine.adapter
    step = adapter.decode_step
    monkeypatch.setattr(adapter, "decode_step", lambda *args: step(*args) * float("nan"))
    check_tokens(run, engine.workload, LogProgress())
    assert run.result.tokens_verified is False
