"""Dimensions of an original DeepSeek-OCR v1 checkpoint.

Its ``config.json`` holds the language model's dimensions; the vision encoders' are constants of the published
code, so they are read off the tensors. The configuration corrections are those of transformers' own classes:
full attention in every layer, and the context the checkpoint was trained for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.workloads.models.checkpoints.loading import checkpoint_dir, read_json, tensor_shapes

_VENDOR_TYPES = ("deepseek_vl_v2", "deepseek_ocr", "DeepseekOCR")
_NATIVE_TYPE = "unlimited_ocr"
_TEXT_KEYS = (
    "vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "n_routed_experts", "n_shared_experts", "num_experts_per_tok",
    "max_position_embeddings", "bos_token_id", "eos_token_id", "first_k_dense_replace", "rms_norm_eps",
    "n_group", "topk_group", "topk_method", "routed_scaling_factor", "tie_word_embeddings",
)  # fmt: skip
_SAM, _CLIP = "model.sam_model.", "model.vision_model."
_HEAD_DIM = 64
"""Of SAM-B and CLIP-L alike."""

Shapes = Mapping[str, tuple[int, ...]]


def config_of_checkpoint(path: str) -> Any:
    """Return the transformers configuration for a checkpoint directory, or say why it is not DeepSeek-OCR v1."""
    from llm_perf_opt.workloads.models.deepseek.ocr_config import check_vision, ocr_config

    directory = checkpoint_dir(path)
    document = read_json(directory / "config.json")
    kind = document.get("model_type")
    if kind == _NATIVE_TYPE:
        return _native_config(directory, document)
    if kind not in _VENDOR_TYPES:
        raise InputError(
            f"{directory} holds a '{kind}' model, not DeepSeek-OCR v1",
            hint="choose the adapter of this checkpoint: model=hf_causal_lm for text models, model=deepseek_ocr2 for DeepSeek-OCR-2",
            path=str(directory),
        )
    shapes = tensor_shapes(directory)
    text = _text_dims(directory, document)
    config = ocr_config({"text_config": text, "vision_config": _vision_dims(directory, shapes, document)})
    check_vision(config)
    return config


def _native_config(directory: Path, document: Mapping[str, Any]) -> Any:
    """Read what ``save_pretrained`` wrote; a checkpoint with sliding attention is another model."""
    from transformers import UnlimitedOcrConfig

    config = UnlimitedOcrConfig.from_pretrained(str(directory))
    if set(config.text_config.layer_types) != {"full_attention"}:
        raise InputError(
            f"{directory} is an Unlimited-OCR checkpoint (sliding attention), not DeepSeek-OCR v1",
            hint="its attention differs after 128 new tokens; it is not supported",
            path=str(directory),
        )
    return config


def _text_dims(directory: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    """Take the language model's dimensions; latent attention, which v1 does not use, is refused."""
    language = document.get("language_config")
    merged = {**document, **(language if isinstance(language, dict) else {})}
    if merged.get("use_mla"):
        raise InputError(
            f"{directory} uses latent attention (use_mla), which DeepSeek-OCR v1 does not have",
            path=str(directory),
        )
    missing = [
        key
        for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
        if merged.get(key) is None
    ]
    if missing:
        raise InputError(
            f"{directory / 'config.json'} lacks {', '.join(missing)}",
            hint="use the config.json that came with the checkpoint",
            path=str(directory),
        )
    dims = {key: merged[key] for key in _TEXT_KEYS if merged.get(key) is not None}
    if merged.get("rope_theta") is not None:
        dims["rope_parameters"] = {"rope_type": "default", "rope_theta": float(merged["rope_theta"])}
    return dims


def _vision_dims(directory: Path, shapes: Shapes, document: Mapping[str, Any]) -> dict[str, Any]:
    def shape(name: str) -> tuple[int, ...]:
        if name not in shapes:
            raise InputError(
                f"{directory} is not a DeepSeek-OCR v1 checkpoint: it has no tensor {name}",
                hint="choose the adapter of this checkpoint (model.adapter), or another checkpoint",
                path=str(directory),
            )
        return shapes[name]

    return {"sam_config": _sam_dims(shapes, shape), "encoder_config": _clip_dims(shapes, shape, document)}


def _layers(shapes: Shapes, pattern: str) -> int:
    found = {int(match.group(1)) for name in shapes if (match := re.match(pattern, name))}
    return max(found, default=-1) + 1


def _sam_dims(shapes: Shapes, shape: Any) -> dict[str, Any]:
    width, _, _, patch = shape(f"{_SAM}patch_embed.proj.weight")
    layers = _layers(shapes, re.escape(_SAM) + r"blocks\.(\d+)\.")
    tables = [shape(f"{_SAM}blocks.{layer}.attn.rel_pos_h") for layer in range(layers)]
    # Windowed layers have a table of 2 * window - 1 rows, global ones of 2 * grid - 1.
    shortest = min(rows for rows, _ in tables)
    return {
        "hidden_size": width,
        "patch_size": patch,
        "image_size": shape(f"{_SAM}pos_embed")[1] * patch,
        "num_hidden_layers": layers,
        "num_attention_heads": width // tables[0][1],
        "mlp_dim": shape(f"{_SAM}blocks.0.mlp.lin1.weight")[0],
        "window_size": (shortest + 1) // 2,
        "global_attn_indexes": [layer for layer, (rows, _) in enumerate(tables) if rows != shortest],
        "output_channels": shape(f"{_SAM}neck.0.weight")[0],
        "downsample_channels": [shape(f"{_SAM}net_2.weight")[0], shape(f"{_SAM}net_3.weight")[0]],
    }


def _clip_dims(shapes: Shapes, shape: Any, document: Mapping[str, Any]) -> dict[str, Any]:
    positions, width = shape(f"{_CLIP}embeddings.position_embedding.weight")
    patch = shapes.get(f"{_CLIP}embeddings.patch_embedding.weight", (0, 0, 0, 14))[-1]
    return {
        "hidden_size": width,
        "num_hidden_layers": _layers(shapes, re.escape(_CLIP) + r"transformer\.layers\.(\d+)\."),
        "num_attention_heads": _clip_heads(width, document),
        "intermediate_size": shape(f"{_CLIP}transformer.layers.0.mlp.fc1.weight")[0],
        "patch_size": patch,
        "image_size": math.isqrt(positions - 1) * patch,
    }


def _clip_heads(width: int, document: Mapping[str, Any]) -> int:
    """Heads are in no tensor's shape; config.json lists them per encoder, else they are 64 wide."""
    vision = document.get("vision_config")
    widths = vision.get("width") if isinstance(vision, dict) else None
    for name, entry in widths.items() if isinstance(widths, dict) else ():
        if "clip" in name and isinstance(entry, dict) and entry.get("heads"):
            return int(entry["heads"])
    return max(1, width // _HEAD_DIM)
