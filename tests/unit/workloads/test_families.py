"""A spread of decoder families: tokens, parameters, FLOPs and cache bytes are exact, or the family is refused.

All families: ``python scripts/family-matrix.py``.
"""

from __future__ import annotations

import pytest
import torch

from llm_perf_opt.config.schema import CacheKind, InferConfig, ModelConfig
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.workloads.base import Sample
from llm_perf_opt.workloads.models.hf_causal_lm import HfCausalLmAdapter
from tests.families.check import Row, check_family
from tests.families.table import table
from tests.families.tiny import tiny_arch
from tests.text_facts import mentions

SPREAD = (
    "bamba",
    "deepseek_v32",
    "falcon",
    "falcon_h1",
    "gemma3n_text",
    "gpt2",
    "gpt_neox",
    "mistral",
    "jetmoe",
    "lfm2",
    "mamba",
    "mamba2",
    "qwen3_next",
    "recurrent_gemma",
    "rwkv",
    "xlstm",
)


@pytest.mark.parametrize("family", SPREAD)
def test_a_family_is_exact(family: str) -> None:
    row = check_family(family)
    assert row.exact(), row


def adapter(family: str, *, batch_size: int = 1, cache: CacheKind = CacheKind.dynamic) -> HfCausalLmAdapter:
    return HfCausalLmAdapter(
        ModelConfig(adapter="hf_causal_lm", arch=tiny_arch(family), cache=cache),
        InferConfig(batch_size=batch_size),
    )


@pytest.mark.parametrize(
    ("family", "key", "what"),
    [
        ("bart", "model.adapter", "encoder-decoder"),
        ("whisper", "model.adapter", "encoder-decoder"),
        ("bert", "model.arch.model_type", "encoder"),
        ("bert-generation", "model.arch.model_type", "encoder"),
        ("openai-gpt", "model.arch.model_type", "cache"),
        ("cpmant", "model.arch.model_type", "forward"),
    ],
)
def test_what_does_not_decode_is_refused_with_the_reason(family: str, key: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        adapter(family).build("meta", torch.float32)
    assert caught.value.data["key"] == key
    assert mentions(caught.value.message, f"'{family}'", what)


def test_an_encoder_made_a_decoder_is_accepted() -> None:
    made = ModelConfig(adapter="hf_causal_lm", arch={**tiny_arch("bert"), "is_decoder": True})
    assert HfCausalLmAdapter(made, InferConfig()).build("meta", torch.float32) is not None


def test_a_batch_that_the_model_mixes_up_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        adapter("rwkv", batch_size=2).build("meta", torch.float32)
    assert caught.value.data["key"] == "infer.batch_size"
    assert mentions(caught.value.message, "infer.batch_size=2", "'rwkv'")


def test_padding_that_a_model_would_read_is_refused() -> None:
    requests = [Sample("a", synthetic_tokens=4), Sample("b", synthetic_tokens=6)]
    with pytest.raises(InputError) as caught:
        adapter("xlstm", batch_size=2).prepare(requests, "cpu", torch.float32)
    assert mentions(caught.value.message, "4", "6", "'xlstm'") and mentions(
        caught.value.hint, "infer.batch_size=1"
    )


def test_a_static_cache_is_refused_where_the_model_makes_its_own() -> None:
    with pytest.raises(ConfigError) as caught:
        adapter("xlstm", cache=CacheKind.static).build("meta", torch.float32)
    assert caught.value.data["key"] == "model.cache"
    assert mentions(caught.value.message, "model.cache=static", "'xlstm'") and mentions(
        caught.value.hint, "model.cache=dynamic"
    )


def test_the_table_shows_what_is_wrong() -> None:
    rows = [
        Row("good", True, True, True, True, True),
        Row("bad", True, True, True, False, True, "FLOPs 1 for 2"),
    ]
    assert [row.verdict() for row in rows] == ["exact", "wrong"]
    (line,) = [line for line in table(rows).splitlines() if "`bad`" in line]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert [number for number, cell in enumerate(cells) if cell == "**no**"] == [4]
    assert cells[-1] == "FLOPs 1 for 2"


@pytest.mark.parametrize(
    "family", ["bloom", "deepseek_v32", "deepseek_v4", "glm_moe_dsa", "gpt_neo", "hy_v4"]
)
def test_a_static_cache_is_refused_where_the_model_does_not_run_right_with_it(family: str) -> None:
    """Before anything is built; with the others a difference from generate() degrades the stage."""
    with pytest.raises(ConfigError) as caught:
        adapter(family, cache=CacheKind.static).build("meta", torch.float32)
    assert caught.value.data["key"] == "model.cache"
    adapter(family).build("meta", torch.float32)
