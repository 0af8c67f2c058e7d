"""The engine's loop gives token for token what ``generate()`` gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from llm_perf_opt.config.schema import CacheKind
from llm_perf_opt.workloads.base import Batch
from llm_perf_opt.workloads.engine.engine import Engine
from tests.unit.small_workloads import samples, workload

KINDS = ("v1", "v2", "llama", "qwen_moe")


def generated(engine: Engine, batch: Batch, **options: Any) -> list[list[int]]:
    """What transformers' own generation gives on the same inputs."""
    ids = batch.inputs["input_ids"]
    mask = batch.inputs["mask"] if batch.inputs["mask"] is not None else torch.ones_like(ids)
    images: dict[str, Any] = {}
    if "pixel_values" in batch.inputs:
        images = engine.adapter.image_inputs(
            batch.inputs["pixel_values"], batch.inputs["pixel_values_local"], batch.inputs["grids"]
        )  # type: ignore[attr-defined]
    with torch.no_grad():
        out = engine.model.generate(
            input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=engine.workload.max_new_tokens,
            pad_token_id=engine.adapter.padding_token_id(), disable_compile=True, **images, **options,
        )  # fmt: skip
    rows: list[list[int]] = out[:, ids.shape[1] :].tolist()
    return rows


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_equal_generate(kind: str, count: int, static: bool, tmp_path: Path) -> None:
    """Greedy decoding, padded batches included, with either cache."""
    engine = Engine(workload(kind, static=static, no_repeat_ngram_size=0, ignore_eos=True))
    batch, ours = engine.run_sample(samples(kind, tmp_path, count))
    options = {"cache_implementation": "static"} if static else {}
    engine.model.generation_config.eos_token_id = None
    assert ours.token_ids == generated(engine, batch, **options)
    assert len(set(ours.token_ids[0])) > 3, "degenerate output would make this comparison empty"
    if count > 1:
        assert batch.inputs["mask"] is not None, "the batch must be padded for this test to mean something"
        assert len({tuple(row) for row in ours.token_ids}) == count


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_preallocated_cache_gives_the_same_tokens(kind: str, count: int, tmp_path: Path) -> None:
    engine = Engine(workload(kind, cache=CacheKind.preallocated, no_repeat_ngram_size=0, ignore_eos=True))
    batch, ours = engine.run_sample(samples(kind, tmp_path, count))
    engine.model.generation_config.eos_token_id = None
    assert ours.token_ids == generated(engine, batch)
    assert len(set(ours.token_ids[0])) > 3, "degenerate output would make this comparison empty"


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_no_repeat_ngram_equals_generate(kind: str, size: int, tmp_path: Path) -> None:
    """The ban counts prompt, image positions and padding, as transformers does."""
    engine = Engine(workload(kind, max_new_tokens=48, no_repeat_ngram_size=size, ignore_eos=True))
    batch, ours = engine.run_sample(samples(kind, tmp_path, 2))
    engine.model.generation_config.eos_token_id = None
    assert ours.token_ids == generated(engine, batch, no_repeat_ngram_size=size)
    for row in ours.token_ids:
        grams = [tuple(row[place : place + size]) for place in range(len(row) - size + 1)]
        assert len(grams) == len(set(grams))


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("kind", ["v1", "llama"])
def test_end_of_sequence_equals_generate(
    kind: str, lag: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sequence ends at its own end token; noticing the end one step late changes nothing."""
    from llm_perf_opt.workloads.engine import engine as module

    real = module.StopCheck
    monkeypatch.setattr(module, "StopCheck", lambda accelerator: real(accelerator, lag=lag))
    requests = samples(kind, tmp_path, 2)
    free = Engine(workload(kind, ignore_eos=True, no_repeat_ngram_size=2))
    _, unbounded = free.run_sample(requests)
    # Tokens that the two sequences really produce, at different steps, are declared to be the end.
    stops = (unbounded.token_ids[0][5], unbounded.token_ids[1][9])
    engine = Engine(workload(kind, ignore_eos=False, no_repeat_ngram_size=2))
    monkeypatch.setattr(engine, "_stop_ids", stops)
    batch, ours = engine.run_sample(requests)
    expected = generated(engine, batch, eos_token_id=list(stops), no_repeat_ngram_size=2)
    cut = [row[: next(place + 1 for place, token in enumerate(row) if token in stops)] for row in expected]
    assert ours.token_ids == cut
    assert ours.new_tokens == max(len(row) for row in cut)
    assert len(ours.timings.token_s) == ours.new_tokens - 1


def test_first_token_can_be_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then there is no decode phase: it is missing, not zero."""
    requests = samples("llama", tmp_path, 1)
    engine = Engine(workload("llama", ignore_eos=True))
    _, free = engine.run_sample(requests)
    monkeypatch.setattr(engine, "_stop_ids", (free.token_ids[0][0],))
    _, ours = engine.run_sample(requests)
    assert ours.token_ids == [free.token_ids[0][:1]]
    assert ours.timings.decode_s is None
    assert ours.timings.token_s == []


def test_padding_does_not_change_an_answer(tmp_path: Path) -> None:
    """A request answers the same alone and padded in a batch."""
    engine = Engine(workload("v1", ignore_eos=True))
    requests = samples("v1", tmp_path, 3)
    _, together = engine.run_sample(requests)
    alone = [engine.run_sample([request])[1].token_ids[0] for request in requests]
    assert together.token_ids == alone


def test_one_token_has_no_decode_phase(tmp_path: Path) -> None:
    engine = Engine(workload("llama", max_new_tokens=1))
    _, ours = engine.run_sample(samples("llama", tmp_path, 1))
    assert ours.new_tokens == 1
    assert ours.timings.decode_s is None
