"""A tiny configuration of any decoder family, from its own configuration class."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

_SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "sliding_window": 8,
    "use_sliding_window": True,
    "max_window_layers": 1,
    "attention_window_size": 8,
    "window_size": 8,
    "attention_chunk_size": 8,
    "local_attention": 8,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "index_topk": 8,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_d_ssm": 128,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
    "state_size": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "lru_width": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
"""Dimensions by the names configurations give them; each family takes those it knows."""

_LATENT = {"num_key_value_heads": 4, "head_dim": None}
_FOUR_LAYERS = {"num_hidden_layers": 4}
_SPECIAL: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        [
            "axk1",
            "axk2",
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_v32",
            "glm4_moe_lite",
            "glm_moe_dsa",
            "minicpm3",
            "youtu",
            "kimi_linear",
            "bailing_hybrid",
            "hy_v4",
            "mistral_large4",
        ],
        _LATENT,
    ),
    **dict.fromkeys(
        [
            "qwen3_next",
            "qwen3_5_text",
            "qwen3_5_moe_text",
            "olmo_hybrid",
            "granitemoehybrid",
            "zamba2",
            "zamba",
        ],
        _FOUR_LAYERS,
    ),
    "bamba": {"attn_layer_indices": [1]},
    "xlstm": {"hidden_size": 128, "embedding_dim": 128, "num_heads": 4},
    "codegen": {"rotary_dim": 8},
    "gptj": {"rotary_dim": 8},
    "mamba2": {"num_heads": 8, "n_groups": 1, "head_dim": 16, "chunk_size": 8},
    "bailing_hybrid": {"num_hidden_layers": 4, "layer_group_size": 2, **_LATENT},
    "granitemoehybrid": {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"]},
    "jamba": {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 8},
    "kimi_linear": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], **_LATENT},
    "zamba2": {
        "num_hidden_layers": 2,
        "layers_block_type": ["mamba", "hybrid"],
        "n_mamba_heads": 8,
        "num_mem_blocks": 1,
    },
    "zamba": {"num_hidden_layers": 6, "attn_layer_period": 3, "attn_layer_offset": 2, "n_mamba_heads": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "gemma4_text": {"vocab_size_per_layer_input": 512, "hidden_size_per_layer_input": 16},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "vocab_size_per_layer_input": 512,
        "hidden_size_per_layer_input": 16,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": [0.0] * 4,
        "laurel_rank": 8,
    },
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10000.0}
            for kind in ("sliding_attention", "full_attention")
        },
    },
    "dbrx": {
        "hidden_size": None,
        "d_model": 64,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "longcat_flash": {
        "num_layers": 1,
        "ffn_hidden_size": 128,
        "expert_ffn_hidden_size": 32,
        "moe_topk": 2,
        "zero_expert_num": 2,
        "num_key_value_heads": 4,
    },
    "qwen4_exp_text": {
        "num_hidden_layers": 4,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
        "ngram_vocab_size_base": 1000,
        "split_ngram_parts": 4,
        "hc_lowrank": 16,
        "hc_count": 2,
    },
    "cpmant": {"dim_head": 16},
    "zaya": {"num_experts_per_tok": 1},
    "xlnet": {"d_head": 16},
    "recurrent_gemma": {"num_hidden_layers": 3},
}
"""What single families need besides, or must not get (``None``: leave its own value)."""


def tiny_arch(family: str, special: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return ``model.arch`` of a family."""
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[family]
    text = str(getattr(getattr(kind, "sub_configs", {}).get("text_config"), "model_type", None))
    if text in CONFIG_MAPPING:
        return {"model_type": family, "text_config": tiny_arch(text)}
    known = {field.name for field in dataclasses.fields(kind)} | set(getattr(kind, "attribute_map", {}))
    arch = {name: value for name, value in _SIZES.items() if name in known}
    for name, value in {**_SPECIAL.get(family, {}), **(special or {})}.items():
        if value is None:
            arch.pop(name, None)
        else:
            arch[name] = value
    return {"model_type": family, **arch}
