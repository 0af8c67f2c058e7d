"""Small transformers models on the meta device, and how to count them without an adapter."""

from __future__ import annotations

from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, DynamicCache

from llm_perf_opt.analysis.static.counts import ModelTree, PhaseCount
from llm_perf_opt.workloads.counting.counter import count_phase, model_tree

BATCH, PROMPT, CONTEXT = 2, 24, 40

SMALL = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def small_config(model_type: str, **changes: Any) -> Any:
    return CONFIG_MAPPING[model_type](**{**SMALL, **changes})


def meta_model(config: Any, **options: Any) -> torch.nn.Module:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, **options).eval()


def filled_cache(config: Any, batch: int, tokens: int) -> DynamicCache:
    cache = DynamicCache(config=config)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shapes = [(heads, size)] * 2
    if getattr(config, "kv_lora_rank", None):
        shapes = [(1, config.kv_lora_rank), (1, config.qk_rope_head_dim)]
    if tokens:
        for layer in range(config.num_hidden_layers):
            cache.update(
                *(torch.empty(batch, h, tokens, s, device="meta", dtype=torch.bfloat16) for h, s in shapes),
                layer,
            )
    return cache


def count_text(
    model: torch.nn.Module, tree: ModelTree, *, tokens: int, cached: int, batch: int = BATCH
) -> PhaseCount:
    config: Any = model.config
    ids = torch.zeros(batch, tokens, dtype=torch.long, device="meta")
    cache = filled_cache(config, batch, cached)

    def call() -> object:
        return model(input_ids=ids, position_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)

    return count_phase(model, call, tree, positions=tokens, batch_size=batch)


def count_both(model: torch.nn.Module) -> tuple[ModelTree, dict[str, PhaseCount]]:
    tree = model_tree(model)
    return tree, {
        "prefill": count_text(model, tree, tokens=PROMPT, cached=0),
        "decode": count_text(model, tree, tokens=1, cached=CONTEXT),
    }
