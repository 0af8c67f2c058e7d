"""Which adapter fits a model type, and the reason where none does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from llm_perf_opt.config.schema import ModelConfig
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.workloads.models.model_types import adapter_for, auto_tables, refuse_model_type
from llm_perf_opt.workloads.setup import check_model_type
from tests.text_facts import mentions


@pytest.mark.parametrize(
    ("model_type", "adapter"),
    [
        ("llama", "hf_causal_lm"),
        ("gpt2", "hf_causal_lm"),
        ("mamba", "hf_causal_lm"),
        ("llava", "hf_image_text_to_text"),
        ("qwen2_5_vl", "hf_image_text_to_text"),
        ("gemma3", "hf_image_text_to_text"),
        ("t5", "hf_seq2seq"),
        ("bart", "hf_seq2seq"),
        ("whisper", "hf_speech_seq2seq"),
        ("a_type_of_the_checkpoints_own", "hf_causal_lm"),
    ],
)
def test_the_adapter_follows_from_the_model_type(model_type: str, adapter: str) -> None:
    assert adapter_for({"model_type": model_type}) == adapter


def test_models_with_an_adapter_of_their_own_get_it() -> None:
    document = {"model_type": "deepseek_vl_v2", "architectures": ["DeepseekOCRForCausalLM"]}
    assert adapter_for(document) == "deepseek_ocr"


@pytest.mark.parametrize(
    ("model_type", "what"),
    [
        ("bert", "encoder"),
        ("roberta", "encoder"),
        ("vit", "images"),
        ("clip", "encoders"),
        ("wav2vec2", "sound"),
        ("voxtral", "decoder"),
    ],
)
def test_what_no_adapter_runs_is_refused_with_the_reason(model_type: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        adapter_for({"model_type": model_type})
    assert caught.value.data["key"] == "model.arch.model_type"
    assert mentions(caught.value.message, f"'{model_type}'", what)


def test_an_encoder_made_a_decoder_is_accepted() -> None:
    assert adapter_for({"model_type": "bert", "is_decoder": True}) == "hf_causal_lm"
    refuse_model_type("bert", "hf_causal_lm", is_decoder=True)


@pytest.mark.parametrize(
    ("model_type", "given", "fits"),
    [
        ("bart", "hf_causal_lm", "hf_seq2seq"),
        ("whisper", "hf_causal_lm", "hf_speech_seq2seq"),
        ("whisper", "hf_seq2seq", "hf_speech_seq2seq"),
        ("llava", "hf_seq2seq", "hf_image_text_to_text"),
        ("llama", "hf_image_text_to_text", "hf_causal_lm"),
    ],
)
def test_the_error_for_a_wrong_adapter_names_the_right_one(model_type: str, given: str, fits: str) -> None:
    with pytest.raises(ConfigError) as caught:
        refuse_model_type(model_type, given)
    assert caught.value.hint == f"use model={fits}"


def test_the_text_model_inside_one_that_sees_may_be_run_alone() -> None:
    refuse_model_type("gemma3", "hf_causal_lm")


def test_the_tables_are_those_transformers_uses() -> None:
    from transformers.models.auto import modeling_auto

    for name in ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES"):
        assert auto_tables()[name] == frozenset(getattr(modeling_auto, name))


def test_nothing_heavy_is_imported_to_refuse_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    code = (
        "import sys; from llm_perf_opt.__main__ import main; "
        f"code = main(['run', 'model={tmp_path}', '--plan']); "
        "print(code, sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "2 []"
    assert mentions(done.stderr, "'bert'", "is_decoder=true")


def test_a_configuration_is_looked_at_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(ConfigError) as caught:
        check_model_type(ModelConfig(adapter="hf_causal_lm", path=str(tmp_path)))
    assert mentions(caught.value.message, "'t5'") and mentions(caught.value.hint, "model=hf_seq2seq")
    check_model_type(ModelConfig(adapter="hf_seq2seq", path=str(tmp_path)))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError) as missing:
        check_model_type(ModelConfig(adapter="hf_causal_lm", path="organisation/name"))
    assert missing.value.data["key"] == "model.path"
