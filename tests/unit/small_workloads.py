"""Small models and pages for the tests of adapters and engine: real components, a few milliseconds each."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from llm_perf_opt.config.schema import CacheKind, DatasetConfig, ImageMode, InferConfig, ModelConfig
from llm_perf_opt.workloads.base import Sample, WorkloadConfig

TEXT: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
SAM: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "mlp_dim": 64,
    "global_attn_indexes": [1],
    "window_size": 14,
    "output_channels": 16,
    "downsample_channels": [16, 32],
    "image_size": 1024,
    "patch_size": 16,
}
CLIP = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
ENCODER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 64,
}
ARCH_V1 = {"vision_config": {"sam_config": SAM, "encoder_config": CLIP}, "text_config": TEXT}
ARCH_V2 = {"vision_config": {"sam_config": SAM, "encoder_config": ENCODER}, "text_config": TEXT}


def model_config(kind: str, **changes: Any) -> ModelConfig:
    """Return the configuration of one of the test models: v1, v2, llama, qwen_moe."""
    if kind == "v1":
        return ModelConfig(adapter="deepseek_ocr", arch=copy.deepcopy(ARCH_V1), **changes)
    if kind == "v2":
        return ModelConfig(adapter="deepseek_ocr2", arch=copy.deepcopy(ARCH_V2), **changes)
    preset = {"llama": "llama_tiny", "qwen_moe": "qwen_moe_tiny"}[kind]
    return ModelConfig(adapter="hf_causal_lm", config_name=preset, arch={"num_hidden_layers": 2}, **changes)


def infer_config(kind: str, **changes: Any) -> InferConfig:
    """Return small views for v1 (v2 has learnt queries for its two sizes only)."""
    views: dict[str, Any] = {}
    if kind == "v1":
        views = {"mode": ImageMode.custom, "base_size": 192, "image_size": 128, "crop_mode": True}
    elif kind == "v2":
        views = {"mode": ImageMode.custom, "base_size": 768, "image_size": 768, "crop_mode": False}
    return InferConfig(**{**views, "warmup_rounds": 0, **changes})


def workload(
    kind: str,
    *,
    static: bool = False,
    cache: CacheKind = CacheKind.dynamic,
    max_new_tokens: int = 24,
    repeats: int = 1,
    model: dict[str, Any] | None = None,
    **infer: Any,
) -> WorkloadConfig:
    """Return a whole workload on the CPU."""
    cache = CacheKind.static if static else cache
    return WorkloadConfig(
        model=model_config(kind, cache=cache, **(model or {})),
        infer=infer_config(kind, max_new_tokens=max_new_tokens, **infer),
        dataset=DatasetConfig(),
        device="cpu",
        repeats=repeats,
        max_new_tokens=max_new_tokens,
    )


def page(path: Path, size: tuple[int, int], seed: int = 0) -> Path:
    """Write a noisy page: random weights then give tokens that differ from page to page."""
    import numpy as np
    from PIL import Image

    values = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(values).save(path)
    return path


def samples(kind: str, folder: Path, count: int) -> list[Sample]:
    """Return requests of different lengths, so that a batch of them needs padding."""
    if kind in {"v1", "v2"}:
        sizes = [(300, 200), (100, 90), (150, 400)]
        prompts = [
            "<image>\nFree OCR.",
            "<image>\n<|grounding|>Convert the document to markdown.",
            "Look: <image>\nParse the figure.",
        ]
        return [
            Sample(f"page{n}", prompts[n % 3], page(folder / f"page{n}.png", sizes[n % 3], n))
            for n in range(count)
        ]
    texts = [
        "What limits the speed of a large language model?",
        "Free OCR.",
        "Write a short story about a quick brown fox, please.",
    ]
    return [Sample(f"prompt{n}", texts[n % 3]) for n in range(count)]
