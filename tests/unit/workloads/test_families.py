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

SPREAD = (
    "bamba",
    "deepseek_v32",
    "falcon",
    "falcon_h1",
    "gemma3n_text",
    "gpt2",
    "gpt_neox",
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
    ("family", "reason"),
    [
        ("bart", "encoder-decoder"),
        ("whisper", "encoder-decoder"),
        ("bert", "is an encoder"),
        ("bert-generation", "is an encoder"),
        ("openai-gpt", "takes no cache"),
        ("cpmant", "wants all tokens so far at every step"),
    ],
)
def test_what_does_not_decode_is_refused_with_the_reason(family: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        adapter(family).build("meta", torch.float32)


def test_an_encoder_made_a_decoder_is_accepted() -> None:
    made = ModelConfig(adapter="hf_causal_lm", arch={**tiny_arch("bert"), "is_decoder": True})
    assert HfCausalLmAdapter(made, InferConfig()).build("meta", torch.float32) is not None


def test_a_batch_that_the_model_mixes_up_is_refused() -> None:
    with pytest.raises(ConfigError, match="one sequence only"):
        adapter("rwkv", batch_size=2).build("meta", torch.float32)


def test_padding_that_a_model_would_read_is_refused() -> None:
    requests = [Sample("a", synthetic_tokens=4), Sample("b", synthetic_tokens=6)]
    with pytest.raises(InputError, match="takes no mask"):
        adapter("xlstm", batch_size=2).prepare(requests, "cpu", torch.float32)


def test_a_static_cache_is_refused_where_the_model_makes_its_own() -> None:
    with pytest.raises(ConfigError, match="makes its own state"):
        adapter("xlstm", cache=CacheKind.static).build("meta", torch.float32)


def test_the_table_shows_what_is_wrong() -> None:
    rows = [
        Row("good", True, True, True, True, True),
        Row("bad", True, True, True, False, True, "FLOPs 1 for 2"),
    ]
    assert [row.verdict() for row in rows] == ["exact", "wrong"]
    assert "| `bad` | yes | yes | yes | **no** | yes | FLOPs 1 for 2 |" in table(rows)
