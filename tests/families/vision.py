"""Tiny checkpoints of vision-language families: configuration, tokenizer, image processor and chat template, no weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_perf_opt.workloads.models.processors import images_only, small_tokenizer

VOCABULARY = 512
SIDE, PATCH = 56, 14
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
_TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": PATCH,
}
_CLIP = {"model_type": "clip_vision_model", "projection_dim": 32, **_TOWER}
_SIGLIP = {"model_type": "siglip_vision_model", "vision_use_head": False, **_TOWER}
_SQUARE = {"height": SIDE, "width": SIDE}
_PINPOINTS = [[SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE]]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What one family needs besides the sizes above."""

    config: dict[str, Any]
    processor: str
    image_processor: str
    image_processor_options: dict[str, Any]
    placeholder: str
    """What the chat template writes for an image."""
    tokens: tuple[str, ...]
    """Special tokens from id 3 on."""
    named_tokens: dict[str, str] = field(default_factory=dict)
    processor_options: dict[str, Any] = field(default_factory=dict)


def _llava(pinpoints: bool) -> Recipe:
    grid = {"image_grid_pinpoints": _PINPOINTS} if pinpoints else {}
    kind = "LlavaNext" if pinpoints else "Llava"
    text = {"model_type": "llama", **TEXT}
    return Recipe(
        {"vision_config": _CLIP, "text_config": text, "image_token_index": 3, **grid},
        f"{kind}Processor",
        f"{kind}ImageProcessorPil",
        {"size": {"shortest_edge": SIDE}, "crop_size": _SQUARE, **grid},
        "<image>",
        ("<image>",),
        processor_options={
            "patch_size": PATCH,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
    )


def _qwen(kind: str, vision: dict[str, Any], rope: dict[str, Any] | None = None) -> Recipe:
    rotary = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0, **(rope or {})}
    tokens = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    ids = {
        "vision_start_token_id": 3,
        "vision_end_token_id": 4,
        "image_token_id": 5,
        "video_token_id": 6,
    }
    shared = {"depth": 2, "num_heads": 2, "patch_size": PATCH}
    return Recipe(
        {"vision_config": {**shared, **vision}, "text_config": {**TEXT, "rope_parameters": rotary}, **ids},
        f"{kind}Processor",
        "Qwen2VLImageProcessorPil",
        {
            "patch_size": PATCH,
            "merge_size": 2,
            "size": {"shortest_edge": SIDE**2, "longest_edge": (2 * SIDE) ** 2},
        },
        "<|vision_start|><|image_pad|><|vision_end|>",
        tokens,
    )


def _idefics(kind: str, processor: str) -> Recipe:
    rows = tuple(f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4))
    return Recipe(
        {
            "vision_config": _TOWER,
            "text_config": {"model_type": "llama", **TEXT},
            "image_token_id": 3,
            "scale_factor": 2,
            "pad_token_id": 2,
        },
        processor,
        f"{kind}ImageProcessorPil",
        {"size": {"longest_edge": 2 * SIDE}, "max_image_size": {"longest_edge": SIDE}},
        "<image>",
        ("<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", *rows),
        processor_options={"image_seq_len": 4},
    )


_GEMMA3_TOKENS = {
    "image_token": "<image_soft_token>",
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
}
_INTERNVL_TOKENS = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
RECIPES: dict[str, Callable[[], Recipe]] = {
    "llava": lambda: _llava(False),
    "llava_next": lambda: _llava(True),
    "qwen2_vl": lambda: _qwen("Qwen2VL", {"embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}),
    "qwen2_5_vl": lambda: _qwen(
        "Qwen2_5_VL",
        {
            "hidden_size": 32,
            "intermediate_size": 64,
            "out_hidden_size": 64,
            "window_size": SIDE,
            "fullatt_block_indexes": [1],
        },
    ),
    "qwen3_vl": lambda: _qwen(
        "Qwen3VL",
        {
            "hidden_size": 32,
            "intermediate_size": 64,
            "out_hidden_size": 64,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0],
        },
        {"mrope_interleaved": True},
    ),
    "idefics3": lambda: _idefics("Idefics3", "Idefics3Processor"),
    # Its own processor needs num2words (for videos); published checkpoints of it also name this one.
    "smolvlm": lambda: _idefics("SmolVLM", "Idefics3Processor"),
    "gemma3": lambda: Recipe(
        {
            "vision_config": _SIGLIP,
            "text_config": {"model_type": "gemma3_text", **TEXT, "sliding_window": 16},
            "image_token_index": 3,
            "boi_token_index": 4,
            "eoi_token_index": 5,
            "mm_tokens_per_image": 4,
        },
        "Gemma3Processor",
        "Gemma3ImageProcessorPil",
        {"size": _SQUARE},
        "<start_of_image>",
        tuple(_GEMMA3_TOKENS.values()),
        _GEMMA3_TOKENS,
        {"image_seq_length": 4},
    ),
    "paligemma": lambda: Recipe(
        {
            "vision_config": {**_SIGLIP, "projection_dim": 64},
            "text_config": {"model_type": "gemma", **TEXT},
            "image_token_index": 3,
            "projection_dim": 64,
        },
        "PaliGemmaProcessor",
        "SiglipImageProcessorPil",
        {"size": _SQUARE, "image_seq_length": (SIDE // PATCH) ** 2},
        "<image>",
        ("<image>",),
        {"image_token": "<image>"},
    ),
    "internvl": lambda: Recipe(
        {
            "vision_config": {**_TOWER, "image_size": [SIDE, SIDE], "patch_size": [PATCH, PATCH]},
            "text_config": {"model_type": "qwen2", **TEXT},
            "image_token_id": 5,
            "downsample_ratio": 0.5,
        },
        "InternVLProcessor",
        "GotOcr2ImageProcessorPil",
        {"size": _SQUARE, "crop_to_patches": True, "min_patches": 1, "max_patches": 4},
        "<IMG_CONTEXT>",
        tuple(_INTERNVL_TOKENS.values()),
        _INTERNVL_TOKENS,
        {"image_seq_length": 4},
    ),
}
"""Family → how to make a checkpoint of it."""

_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: "
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def make_checkpoint(family: str, folder: Path, *, chat_template: bool = True) -> Path:
    """Write everything of a tiny checkpoint but its weights; use it with ``model.weights=random``."""
    import transformers

    recipe = RECIPES[family]()
    tokenizer = tiny_tokenizer(recipe.tokens, recipe.named_tokens)
    images = getattr(transformers, recipe.image_processor)(**recipe.image_processor_options)
    kind = getattr(transformers, recipe.processor)
    options = dict(recipe.processor_options)
    if chat_template:
        options["chat_template"] = _TEMPLATE.replace("IMAGE", recipe.placeholder)
    videos = (None,) if "video_processor" in kind.get_attributes() else ()
    processor = images_only(kind)(images, tokenizer, *videos, **options)

    transformers.CONFIG_MAPPING[family].from_dict(recipe.config).save_pretrained(folder)
    for part in (images, tokenizer):
        part.save_pretrained(folder)
    if chat_template:
        (folder / "chat_template.jinja").write_text(options["chat_template"], encoding="utf-8")
    parts = set(kind.get_attributes())
    document = {name: value for name, value in processor.to_dict().items() if name not in parts}
    (folder / "processor_config.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def tiny_tokenizer(tokens: tuple[str, ...], named: dict[str, str]) -> Any:
    """Return a small tokenizer of transformers with these special tokens."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    placed = (("<bos>", 0), ("<eos>", 1), ("<pad>", 2), *((t, 3 + n) for n, t in enumerate(tokens)))
    # A copy: processors add tokens, and the small tokenizer is shared by all who ask for it.
    copied = Tokenizer.from_str(small_tokenizer(VOCABULARY, placed).backend.to_str())
    return PreTrainedTokenizerFast(
        tokenizer_object=copied,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        extra_special_tokens=named,
    )
