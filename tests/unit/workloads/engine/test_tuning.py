"""Settings that change how a model is run: really applied, only where asked, and the answer stays."""

from __future__ import annotations

import dataclasses
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_perf_opt.config.schema import CacheDtype, CacheKind, SdpaBackend
from llm_perf_opt.core.console.progress import LogProgress
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.workloads.base import Sample, WorkloadConfig
from llm_perf_opt.workloads.engine import tuning
from llm_perf_opt.workloads.engine.driver import batches_of, build_engine, run_workload
from llm_perf_opt.workloads.engine.engine import Engine
from llm_perf_opt.workloads.engine.speculation import DraftModel, Proposer
from llm_perf_opt.workloads.engine.verify import verify_tokens
from tests.unit.small_workloads import samples, workload

FEW = 5


def engine_of(chosen: WorkloadConfig) -> Engine:
    return build_engine(chosen, LogProgress())


def tokens(chosen: WorkloadConfig, requested: list[Sample]) -> dict[str, list[int]]:
    done = run_workload(chosen, requested, engine=engine_of(chosen))
    return {each.sample.id: list(each.token_ids) for each in done.samples}


def watched(engine: Engine, look: Callable[[], Any]) -> dict[str, set[Any]]:
    """Look at something inside the adapter's calls."""
    seen: dict[str, set[Any]] = {"prefill": set(), "decode_step": set()}
    adapter: Any = engine.adapter
    for name, found in seen.items():
        plain = getattr(adapter, name)

        def call(*given: Any, plain: Any = plain, found: set[Any] = found) -> Any:
            found.add(look())
            return plain(*given)

        setattr(adapter, name, call)
    return seen


@pytest.fixture
def two_threads() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_decode_has_threads_of_its_own(tmp_path: Path) -> None:
    requested = samples("llama", tmp_path, 1)
    plain = workload("llama", max_new_tokens=FEW)
    chosen = dataclasses.replace(plain, phase_threads={"decode": 1})
    engine = engine_of(chosen)
    seen = watched(engine, torch.get_num_threads)
    _, done = engine.run_sample(requested)
    assert seen == {"prefill": {2}, "decode_step": {1}}
    assert torch.get_num_threads() == 2
    assert done.token_ids == engine_of(plain).run_sample(requested)[1].token_ids


@pytest.mark.usefixtures("two_threads")
def test_threads_come_back_when_a_phase_fails(tmp_path: Path) -> None:
    engine = engine_of(
        dataclasses.replace(workload("llama", max_new_tokens=FEW), phase_threads={"prefill": 1})
    )

    def broken(*_: Any) -> Any:
        raise ValueError("no")

    adapter: Any = engine.adapter
    adapter.prefill = broken
    with pytest.raises(ValueError, match="no"):
        engine.run_sample(samples("llama", tmp_path, 1))
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_experts_are_chosen_for_one_phase(phase: str, tmp_path: Path) -> None:
    requested = samples("qwen_moe", tmp_path, 1)
    plain = workload("qwen_moe", max_new_tokens=FEW)
    chosen = workload("qwen_moe", max_new_tokens=FEW, model={f"{phase}_experts_implementation": "eager"})
    engine = engine_of(chosen)
    model: Any = engine.model
    before = str(model.get_experts_implementation())
    seen = watched(engine, lambda: str(model.get_experts_implementation()))
    _, done = engine.run_sample(requested)
    call = {"prefill": "prefill", "decode": "decode_step"}[phase]
    (other,) = set(seen) - {call}
    assert all("eager" in name for name in seen[call])
    assert not any("eager" in name for name in seen[other])
    assert str(model.get_experts_implementation()) == before
    assert done.token_ids == engine_of(plain).run_sample(requested)[1].token_ids


@pytest.mark.parametrize("cache", list(CacheKind))
@pytest.mark.parametrize("kind", [CacheDtype.bfloat16, CacheDtype.float8])
def test_keys_and_values_are_kept_in_fewer_bits(cache: CacheKind, kind: CacheDtype, tmp_path: Path) -> None:
    requested = samples("llama", tmp_path, 2)
    chosen = workload("llama", cache=cache, max_new_tokens=FEW, batch_size=2, model={"cache_dtype": kind})
    engine = engine_of(chosen)
    kept: list[Any] = []
    adapter: Any = engine.adapter
    make = adapter.make_cache
    adapter.make_cache = lambda *given: kept.append(make(*given)) or kept[-1]
    _, done = engine.run_sample(requested)
    layer = kept[-1].layers[0]
    assert (
        layer.keys.element_size() == layer.values.element_size() == {"bfloat16": 2, "float8": 1}[kind.value]
    )
    # The same cache in transformers' own generate() gives the same tokens.
    assert verify_tokens(engine, requested, done.token_ids).verified


def test_a_narrow_cache_changes_the_logits_and_only_a_little(tmp_path: Path) -> None:
    requested = samples("llama", tmp_path, 1)
    found = []
    for kind in (None, CacheDtype.bfloat16, CacheDtype.float8):
        engine = engine_of(workload("llama", max_new_tokens=2, model={"cache_dtype": kind}))
        batch, logits = engine.prepare(requested), list[torch.Tensor]()
        engine.run_prepared(batch, observe=lambda row, logits=logits: logits.append(row.clone()))
        found.append(logits[0])
    scale = float(found[0].abs().max())
    half, eight = (float((found[0] - other).abs().max()) / scale for other in found[1:])
    assert 0 < half < eight < 0.2


def test_requests_of_similar_length_share_a_batch() -> None:
    requested = [Sample(f"of{length}", synthetic_tokens=length) for length in (40, 8, 41, 9)]
    plain = workload("llama", max_new_tokens=FEW, batch_size=2)
    sorted_ = workload("llama", max_new_tokens=FEW, batch_size=2, bucket_by_length=True)
    engine = engine_of(sorted_)
    assert [[each.id for each in group] for group in batches_of(engine, requested, sorted_.infer)] == [
        ["of8", "of9"],
        ["of40", "of41"],
    ]
    assert tokens(sorted_, requested) == tokens(plain, requested)
    assert [sample.id for sample in requested] == ["of40", "of8", "of41", "of9"]


def test_prompts_are_filled_up_to_common_lengths() -> None:
    requested = [Sample(f"of{length}", synthetic_tokens=length) for length in (9, 17)]
    padded = workload("llama", max_new_tokens=FEW, pad_to_multiple=8)
    engine = engine_of(padded)
    assert [engine.prepare([sample]).prompt_tokens for sample in requested] == [16, 24]
    assert tokens(padded, requested) == tokens(workload("llama", max_new_tokens=FEW), requested)


def test_modes_and_layouts_are_applied_and_keep_the_answer(tmp_path: Path) -> None:
    requested = samples("v1", tmp_path, 1)
    chosen = workload("v1", max_new_tokens=FEW, model={"channels_last": True}, inference_mode=True)
    engine = engine_of(chosen)
    convolutions = [
        m for m in engine.model.modules() if isinstance(m, torch.nn.Conv2d) and m.kernel_size != (1, 1)
    ]
    assert convolutions
    assert all(m.weight.is_contiguous(memory_format=torch.channels_last) for m in convolutions)
    seen = watched(engine, torch.is_inference_mode_enabled)
    _, done = engine.run_sample(requested)
    assert seen == {"prefill": {True}, "decode_step": {True}}
    assert done.token_ids == engine_of(workload("v1", max_new_tokens=FEW)).run_sample(requested)[1].token_ids


@pytest.mark.parametrize(
    ("model", "infer", "key"),
    [
        ({"channels_last": True}, {}, "model.channels_last"),
        ({"compile_vision": True}, {}, "model.compile_vision"),
        ({}, {"pinned_inputs": True}, "infer.pinned_inputs"),
    ],
)
def test_impossible_splits_are_reported(model: dict[str, Any], infer: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        engine_of(workload("llama", model=model, **infer))
    assert caught.value.data["key"] == key


def test_inputs_within_others_are_copied_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    locked: list[torch.Size] = []

    def pin_memory(tensor: torch.Tensor) -> torch.Tensor:
        locked.append(tensor.shape)
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    processed = UserDict(pixel_values=torch.ones(2), sizes=[torch.ones(3), 4])
    copied = tuning._copied({"input_ids": torch.ones(1), "processed": processed, "mask": None}, "meta")
    assert copied["input_ids"].device.type == "meta"
    assert copied["processed"] is processed, "a processor's own kind stays that"
    assert processed["pixel_values"].device.type == processed["sizes"][0].device.type == "meta"
    assert (processed["sizes"][1], copied["mask"]) == (4, None)
    assert sorted(shape.numel() for shape in locked) == [1, 2, 3]


# Guessed tokens.


def repeating(length: int = 48) -> Sample:
    """A prompt in which the same words follow each other again and again."""
    return Sample("again", "one two three four five six " * (length // 6))


class Oracle(Proposer):
    """Guesses the known answer: every guess is right."""

    def __init__(self, most: int, answer: list[int], prompt: int) -> None:
        super().__init__(most)
        self.answer, self.prompt = answer, prompt

    def propose(self, tokens: Any, count: int) -> list[int]:
        done = len(tokens) - self.prompt
        return self.answer[done : done + count]


@pytest.mark.parametrize("cache", [CacheKind.dynamic, CacheKind.preallocated])
def test_prompt_lookup_gives_the_same_tokens_in_fewer_passes(cache: CacheKind) -> None:
    plain = engine_of(workload("llama", cache=cache, max_new_tokens=32)).run_sample([repeating()])[1]
    engine = engine_of(workload("llama", cache=cache, max_new_tokens=32, prompt_lookup_tokens=6))
    guided = engine.run_sample([repeating()])[1]
    assert guided.token_ids == plain.token_ids
    assert plain.decode_passes == 31
    # The greedy answer of this model falls into a loop: after its first round every guess is right.
    assert guided.decode_passes < 24
    assert len(guided.timings.token_s) == 31
    assert verify_tokens(engine, [repeating()], guided.token_ids).verified


def test_right_guesses_save_the_most_passes_and_wrong_ones_none() -> None:
    asked = [Sample("x", synthetic_tokens=12)]
    plain = engine_of(workload("llama", max_new_tokens=21)).run_sample(asked)[1]
    engine = engine_of(workload("llama", max_new_tokens=21))
    (answer,) = plain.token_ids
    engine.proposer = Oracle(4, answer, 12)
    right = engine.run_sample(asked)[1]
    assert (right.token_ids, right.decode_passes) == (plain.token_ids, 4)
    engine.proposer = Oracle(4, [(token + 1) % 500 for token in answer], 12)
    wrong = engine.run_sample(asked)[1]
    assert (wrong.token_ids, wrong.decode_passes) == (plain.token_ids, 20)


def test_a_page_is_answered_the_same_with_prompt_lookup(tmp_path: Path) -> None:
    asked = samples("v1", tmp_path, 1)
    plain = engine_of(workload("v1", max_new_tokens=16)).run_sample(asked)[1]
    guided = engine_of(workload("v1", max_new_tokens=16, prompt_lookup_tokens=4)).run_sample(asked)[1]
    assert guided.token_ids == plain.token_ids


def test_banned_ngrams_and_ends_hold_with_guesses() -> None:
    asked = [repeating()]
    for more in ({"no_repeat_ngram_size": 3}, {"ignore_eos": False}):
        plain = engine_of(workload("llama", max_new_tokens=24, **more)).run_sample(asked)[1]
        guided = engine_of(workload("llama", max_new_tokens=24, prompt_lookup_tokens=4, **more)).run_sample(
            asked
        )[1]
        assert guided.token_ids == plain.token_ids


def test_a_draft_model_guesses_and_its_cache_follows(tmp_path: Path) -> None:
    """The draft is the model itself: all its guesses are right, whatever was cut from its cache before."""
    torch.manual_seed(0)
    chosen = workload("llama", max_new_tokens=21)
    engine_of(chosen).model.save_pretrained(tmp_path / "draft")  # type: ignore[operator]
    asked = [Sample("x", synthetic_tokens=12)]
    plain = engine_of(chosen).run_sample(asked)[1]
    engine = engine_of(
        workload("llama", max_new_tokens=21, draft_tokens=4, model={"draft_path": str(tmp_path / "draft")})
    )
    assert isinstance(engine.proposer, DraftModel)
    for _ in range(2):
        guided = engine.run_sample(asked)[1]
        assert (guided.token_ids, guided.decode_passes) == (plain.token_ids, 4)


def test_a_run_notes_how_many_passes_the_guesses_saved() -> None:
    chosen = workload("llama", max_new_tokens=32, prompt_lookup_tokens=6)
    done = run_workload(chosen, [repeating()], engine=engine_of(chosen))
    assert any("forward passes gave 31 tokens" in note for note in done.notes)


def test_a_window_cannot_be_cut_back() -> None:
    engine = engine_of(workload("llama", max_new_tokens=4, prompt_lookup_tokens=2))
    adapter: Any = engine.adapter
    from transformers.cache_utils import DynamicSlidingWindowLayer

    make = adapter.make_cache

    def windows(*given: Any) -> Any:
        cache = make(*given)
        cache.layers = [DynamicSlidingWindowLayer(sliding_window=8) for _ in cache.layers]
        return cache

    adapter.make_cache = windows
    with pytest.raises(ConfigError, match="cut back"):
        engine.run_sample([repeating()])


# Attention kernels, compiled prefill, memory of one node.


def test_the_chosen_attention_kernel_is_the_only_one_allowed(tmp_path: Path) -> None:
    from torch.backends import cuda

    asked = samples("llama", tmp_path, 1)
    engine = engine_of(workload("llama", max_new_tokens=FEW, model={"sdpa_backend": SdpaBackend.math}))
    seen = watched(engine, lambda: (cuda.math_sdp_enabled(), cuda.flash_sdp_enabled()))
    _, done = engine.run_sample(asked)
    assert seen == {"prefill": {(True, False)}, "decode_step": {(True, False)}}
    assert cuda.flash_sdp_enabled()
    assert done.token_ids == engine_of(workload("llama", max_new_tokens=FEW)).run_sample(asked)[1].token_ids
    missing = engine_of(workload("llama", max_new_tokens=FEW, model={"sdpa_backend": SdpaBackend.cudnn}))
    with pytest.raises(ConfigError, match="no kernel"):
        missing.run_sample(asked)


def test_only_the_prefill_runs_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled without code generation, to be quick: what matters is which calls go through it, and for which lengths."""
    calls: list[int] = []

    def compile(function: Any, **_: Any) -> Any:
        def run(*given: Any, **named: Any) -> Any:
            calls.append(named["input_ids"].shape[1])
            return function(*given, **named)

        return run

    monkeypatch.setattr(torch, "compile", compile)
    asked = samples("llama", tmp_path, 2)
    chosen = workload("llama", max_new_tokens=FEW, model={"compile_prefill": True})
    engine = engine_of(chosen)
    assert engine.settles_per_shape
    first, second = (engine.settled_shape(engine.prepare([each])) for each in asked)
    assert first != second  # every length is warmed up
    got = [engine.run_sample([each])[1].token_ids for each in asked]
    assert calls == [engine.prepare([each]).prompt_tokens for each in asked]
    plain = engine_of(workload("llama", max_new_tokens=FEW))
    assert got == [plain.run_sample([each])[1].token_ids for each in asked]
