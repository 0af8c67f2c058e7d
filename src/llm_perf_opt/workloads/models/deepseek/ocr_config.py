"""The transformers configuration of DeepSeek-OCR v1, and what its vision encoders must be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_perf_opt.workloads.models.checkpoints.arch import make_config, require
from llm_perf_opt.workloads.models.checkpoints.tokenizer import PUBLISHED_IMAGE_TOKEN_ID

_SMALL_VOCAB_IMAGE_TOKEN_ID = 3


def ocr_config(arch: Mapping[str, Any]) -> Any:
    """Build the v1 configuration of ``model.arch``; what is not given has the published value."""
    from transformers import UnlimitedOcrConfig

    plain = dict(arch)
    text = dict(plain.get("text_config") or {})
    layers = text.get("num_hidden_layers", 12)
    # The library's default is sliding attention over 128 tokens, which DeepSeek-OCR does not have.
    text["layer_types"] = ["full_attention"] * int(layers)
    text.setdefault("max_position_embeddings", 8192)
    plain["text_config"] = text
    vocab = int(text.get("vocab_size", 129280))
    plain.setdefault(
        "image_token_id",
        PUBLISHED_IMAGE_TOKEN_ID if vocab > PUBLISHED_IMAGE_TOKEN_ID else _SMALL_VOCAB_IMAGE_TOKEN_ID,
    )
    config = make_config(UnlimitedOcrConfig, plain)
    check_vision(config)
    return config


def check_vision(config: Any) -> None:
    """Check what transformers does not: that the two encoders fit together."""
    sam, clip = config.vision_config.sam_config, config.vision_config.encoder_config
    key = "model.arch.vision_config"
    require(
        sam.downsample_channels[-1] == clip.hidden_size,
        f"SAM gives {sam.downsample_channels[-1]} channels, CLIP takes {clip.hidden_size}",
        key=key,
        hint="make sam_config.downsample_channels[-1] equal encoder_config.hidden_size",
    )
    require(
        sam.hidden_size % sam.num_attention_heads == 0,
        f"SAM's hidden_size {sam.hidden_size} does not divide by its {sam.num_attention_heads} heads",
        key=f"{key}.sam_config",
        hint="choose a multiple",
    )
    require(
        max(sam.global_attn_indexes, default=-1) < sam.num_hidden_layers,
        f"SAM has {sam.num_hidden_layers} layers, but global attention at {list(sam.global_attn_indexes)}",
        key=f"{key}.sam_config.global_attn_indexes",
        hint="name existing layers",
    )
