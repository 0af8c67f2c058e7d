"""Vision-language models and encoder-decoders: tokens, parameters, FLOPs of every phase and cache bytes are exact.

All families: ``python scripts/family-matrix.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from llm_perf_opt.config.schema import (
    CacheKind,
    DatasetConfig,
    Dtype,
    GeneratedAudioConfig,
    InferConfig,
    ModelConfig,
    Weights,
)
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.workloads.base import Sample, WorkloadConfig
from llm_perf_opt.workloads.datasets.audio import made_up_samples
from llm_perf_opt.workloads.engine.engine import Engine
from llm_perf_opt.workloads.engine.verify import verify_tokens
from llm_perf_opt.workloads.models.hf_image_text_to_text import HfImageTextToTextAdapter
from llm_perf_opt.workloads.models.hf_seq2seq import HfSeq2SeqAdapter, HfSpeechSeq2SeqAdapter
from llm_perf_opt.workloads.models.processors import load_processor
from tests.families.check_towers import (
    check_encoder_decoder,
    check_vision_family,
    encoder_decoder_arch,
    pages,
)
from tests.families.tiny import tiny_arch
from tests.families.vision import make_checkpoint
from tests.text_facts import mentions

SEEING = ("llava", "qwen2_5_vl", "qwen3_vl", "idefics3", "smolvlm", "gemma3", "paligemma", "internvl")


@pytest.mark.parametrize("family", SEEING)
def test_a_family_that_sees_is_exact(family: str, tmp_path: Path) -> None:
    row = check_vision_family(family, tmp_path)
    assert row.exact(), row


@pytest.mark.parametrize("family", ["t5", "bart", "whisper"])
def test_an_encoder_decoder_is_exact(family: str) -> None:
    row = check_encoder_decoder(family)
    assert row.exact(), row


def vision_config(path: Path, **changes: Any) -> ModelConfig:
    given = {"weights": Weights.random, "dtype": Dtype.float32, **changes}
    return ModelConfig(adapter="hf_image_text_to_text", path=str(path), name="tiny", **given)


def engine_of(model: ModelConfig, **infer: Any) -> Engine:
    chosen = InferConfig(
        **{"max_new_tokens": 4, "warmup_rounds": 0, "ignore_eos": True, "prompt": "<image>\nOCR.", **infer}
    )
    return Engine(WorkloadConfig(model, chosen, DatasetConfig(), "cpu", 1, 4))


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llava", tmp_path_factory.mktemp("llava"))


def test_phases_are_timed_by_themselves(llava: Path, tmp_path: Path) -> None:
    _, done = engine_of(vision_config(llava)).run_sample(pages(tmp_path)[:1])
    times = done.timings
    assert times.encode_s is None
    assert times.vision_s and times.prefill_s and times.decode_s
    assert times.first_token_s() == times.vision_s + times.prefill_s
    assert {"vision_tower_s", "multi_modal_projector_s", "language_model_prefill_s"} <= set(times.components)


def test_an_encoder_is_timed_by_itself() -> None:
    model = ModelConfig(adapter="hf_speech_seq2seq", arch=encoder_decoder_arch("whisper"), name="tiny")
    batch, done = engine_of(model).run_sample(made_up_samples(GeneratedAudioConfig(clips=2, seconds=0.5)))
    times = done.timings
    assert times.vision_s is None
    assert times.encode_s and times.prefill_s and times.decode_s
    assert times.first_token_s() == times.encode_s + times.prefill_s
    assert {"encoder_encode_s", "decoder_prefill_s", "lm_head_prefill_s"} == set(times.components)
    assert (batch.prompt_tokens, batch.encoder_tokens) == (1, 100)


def test_the_image_is_seen(llava: Path, tmp_path: Path) -> None:
    engine = engine_of(vision_config(llava))
    logits = []
    for colour in ("white", "black"):
        Image.new("RGB", (80, 60), colour).save(tmp_path / f"{colour}.png")
        batch = engine.prepare([Sample(colour, path=tmp_path / f"{colour}.png")])
        with torch.no_grad():
            cache = engine.adapter.make_cache(engine.model, batch, 2)
            features = engine.adapter.vision(engine.model, batch)
            logits.append(engine.adapter.prefill(engine.model, batch, features, cache))
    assert not torch.allclose(*logits)


@pytest.mark.parametrize("cache", [CacheKind.static, CacheKind.preallocated])
def test_other_caches_give_the_same_tokens(cache: CacheKind, llava: Path, tmp_path: Path) -> None:
    requests = pages(tmp_path)
    answers = engine_of(vision_config(llava, cache=cache)).run_sample(requests)[1].token_ids
    assert answers == engine_of(vision_config(llava)).run_sample(requests)[1].token_ids


def test_a_preallocated_cache_serves_an_encoder_decoder() -> None:
    requests = [Sample("a", synthetic_tokens=9), Sample("b", synthetic_tokens=5)]
    given = {"adapter": "hf_seq2seq", "arch": encoder_decoder_arch("bart"), "name": "tiny"}
    answers = [
        engine_of(ModelConfig(**given, cache=cache)).run_sample(requests)[1].token_ids
        for cache in (CacheKind.dynamic, CacheKind.preallocated)
    ]
    assert answers[0] == answers[1]


def test_a_static_cache_is_refused_for_an_encoder_decoder() -> None:
    model = ModelConfig(adapter="hf_seq2seq", arch=encoder_decoder_arch("t5"), cache=CacheKind.static)
    with pytest.raises(ConfigError, match=r"model\.cache=static"):
        HfSeq2SeqAdapter(model, InferConfig()).build("meta", torch.float32)


def test_real_weights_are_loaded_and_verified(llava: Path, tmp_path: Path) -> None:
    random = engine_of(vision_config(llava))
    folder = make_checkpoint("llava", tmp_path / "real")
    random.model.save_pretrained(folder)
    engine, requests = engine_of(vision_config(folder, weights=Weights.auto)), pages(tmp_path)
    assert engine.info().weights == "real"
    assert engine.info().architecture == "LlavaForConditionalGeneration"
    answers = engine.run_sample(requests)[1].token_ids
    assert answers == random.run_sample(requests)[1].token_ids
    assert verify_tokens(engine, requests, answers).verified is True


def test_without_a_template_the_mark_is_where_the_image_is(tmp_path: Path) -> None:
    path = make_checkpoint("paligemma", tmp_path / "bare", chat_template=False)
    request = pages(tmp_path)[0].path
    adapter = HfImageTextToTextAdapter(vision_config(path), InferConfig())
    marked, bare = (
        adapter.prepare([Sample("a", text, request)], "cpu", torch.float32).inputs["input_ids"]
        for text in ("<image>Free OCR.", "Free OCR.")
    )
    assert marked.tolist() == bare.tolist()
    assert (marked == 3).sum() == 16


def test_a_sample_without_an_image_is_left_out_by_name(llava: Path) -> None:
    adapter = HfImageTextToTextAdapter(vision_config(llava), InferConfig())
    with pytest.raises(InputError) as caught:
        adapter.prepare([Sample("words", "hello")], "cpu", torch.float32)
    assert mentions(caught.value.message, "words") and mentions(caught.value.hint, "dataset=omnidocbench")


def test_a_template_that_forgets_the_image_is_an_input_error(tmp_path: Path) -> None:
    path = make_checkpoint("llava", tmp_path / "odd")
    (path / "chat_template.jinja").write_text("{{ messages[0]['content'][1]['text'] }}")
    adapter = HfImageTextToTextAdapter(vision_config(path), InferConfig())
    with pytest.raises(InputError):
        adapter.prepare(pages(tmp_path)[:1], "cpu", torch.float32)


def test_a_page_that_does_not_fit_is_reported(llava: Path, tmp_path: Path) -> None:
    model = vision_config(llava, arch={"text_config": {"model_type": "llama", "max_position_embeddings": 8}})
    adapter = HfImageTextToTextAdapter(model, InferConfig())
    with pytest.raises(InputError) as caught:
        adapter.prepare(pages(tmp_path)[:1], "cpu", torch.float32)
    assert mentions(caught.value.message, "16", "8") and mentions(
        caught.value.hint, "dataset.generated.max_side"
    )


def test_a_vision_language_model_needs_its_processor() -> None:
    with pytest.raises(ConfigError, match=r"needs model\.path"):
        HfImageTextToTextAdapter(
            ModelConfig(adapter="hf_image_text_to_text", arch=tiny_arch("gemma3")), InferConfig()
        )


def test_a_directory_without_a_processor_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    import transformers

    transformers.CONFIG_MAPPING["llava"]().save_pretrained(tmp_path)
    adapter = HfImageTextToTextAdapter(vision_config(tmp_path), InferConfig())
    with pytest.raises(InputError) as caught:
        adapter.build("cpu", torch.float32)
    assert caught.value.data["path"] == str(tmp_path) and mentions(caught.value.hint, "processor_config.json")


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.smolvlm import processing_smolvlm

    path = make_checkpoint("smolvlm", tmp_path / "smolvlm")
    (path / "processor_config.json").write_text('{"processor_class": "SmolVLMProcessor"}')
    monkeypatch.setattr(processing_smolvlm, "num2words", None)
    with pytest.raises(ConfigError, match="num2words"):
        load_processor(str(path), model_type="smolvlm", revision=None, remote_code=False)


def test_a_model_whose_images_are_no_phase_is_refused(tmp_path: Path) -> None:
    import transformers

    transformers.CONFIG_MAPPING["mllama"]().save_pretrained(tmp_path)
    adapter = HfImageTextToTextAdapter(vision_config(tmp_path), InferConfig())
    with pytest.raises(ConfigError) as caught:
        adapter.build("meta", torch.float32)
    assert caught.value.data["key"] == "model.path" and mentions(caught.value.message, "'mllama'")


def test_what_the_decoder_must_begin_with_is_its_prompt(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(encoder_decoder_arch("bart")))
    (tmp_path / "generation_config.json").write_text(
        '{"decoder_start_token_id": 4, "forced_bos_token_id": 0}'
    )
    model = ModelConfig(adapter="hf_seq2seq", path=str(tmp_path), weights=Weights.random)
    assert HfSeq2SeqAdapter(model, InferConfig()).decoder_prompt() == [4, 0]


def test_a_prompt_longer_than_the_encoder_is_an_input_error() -> None:
    arch = {**encoder_decoder_arch("bart"), "max_position_embeddings": 16}
    adapter = HfSeq2SeqAdapter(ModelConfig(adapter="hf_seq2seq", arch=arch), InferConfig())
    with pytest.raises(InputError) as caught:
        adapter.prepare([Sample("long", synthetic_tokens=17)], "cpu", torch.float32)
    assert mentions(caught.value.message, "long", "17", "16")
    made_up = Sample("default", synthetic_tokens=128, extra={"default_length": True})
    assert adapter.prepare([made_up], "cpu", torch.float32).encoder_tokens == 16


def test_a_speech_model_that_reads_no_features_is_refused() -> None:
    model = ModelConfig(adapter="hf_speech_seq2seq", arch={"model_type": "moonshine"})
    with pytest.raises(ConfigError) as caught:
        HfSpeechSeq2SeqAdapter(model, InferConfig()).build("meta", torch.float32)
    assert caught.value.data["key"] == "model.adapter" and mentions(caught.value.message, "'moonshine'")
