"""DeepSeek-OCR v1 on transformers' own classes.

``transformers`` carries the architecture as ``unlimited_ocr`` (SAM-B, CLIP-L, linear projector, 3B mixture of
experts); with full attention in every layer it computes what the published remote code computes, on any
transformers 5.x. The published code itself runs only up to 4.47.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llm_perf_opt.workloads import loading
from llm_perf_opt.workloads.models.arch import make_config, require
from llm_perf_opt.workloads.models.ocr_base import OcrAdapter
from llm_perf_opt.workloads.preprocess import Grid, ViewSpec, image_token_count, view_spec
from llm_perf_opt.workloads.tokenizer import (
    PUBLISHED_IMAGE_TOKEN_ID,
    TextTokenizer,
    ocr_special_ids,
    small_tokenizer,
)

if TYPE_CHECKING:
    import torch

    from llm_perf_opt.config.schema import InferConfig

LOGGER = logging.getLogger("llm_perf_opt")
_SMALL_VOCAB_IMAGE_TOKEN_ID = 3
"""Right after begin, end and padding, when the vocabulary is too small for the published id."""


class DeepseekOcrAdapter(OcrAdapter):
    """DeepSeek-OCR v1: any size with random weights, or the original checkpoint directory."""

    name = "deepseek_ocr"
    architecture = "DeepSeek-OCR"

    def view_spec(self, infer: InferConfig) -> ViewSpec:
        """Return the sizes of ``infer.mode``."""
        return view_spec(infer)

    def components(self) -> Mapping[str, str]:
        """Map component labels to module paths."""
        return {
            "sam": "model.vision_tower.sam_encoder",
            "clip": "model.vision_tower.vision_encoder",
            "projector": "model.multi_modal_projector",
            "language_model": "model.language_model",
            "lm_head": "lm_head",
        }

    @functools.cached_property
    def _config(self) -> Any:
        if self.weights() == "real":
            from llm_perf_opt.workloads.models.vendor_checkpoint import config_of_checkpoint

            if self.config.arch:
                LOGGER.info(
                    "model.arch is not used: the dimensions come from the checkpoint %s", self.config.path
                )
            return config_of_checkpoint(str(self.config.path))
        return ocr_config(self.config.arch)

    def model_config(self) -> Any:
        """Return the whole transformers configuration."""
        return self._config

    def tokenizer(self) -> TextTokenizer:
        """Return the checkpoint's tokenizer, or a small one for random weights."""
        return self._tokenizer

    @functools.cached_property
    def _tokenizer(self) -> TextTokenizer:
        if self.weights() == "real":
            return self.checkpoint_tokenizer()
        text = self._config.text_config
        placed = ocr_special_ids(
            text.vocab_size, self._config.image_token_id, text.bos_token_id, self.eos_token_ids()[0]
        )
        return small_tokenizer(text.vocab_size, placed)

    def image_tokens(self, grid: Grid | None) -> int:
        """Return how many positions a page with this tile grid takes."""
        return image_token_count(self.views, grid)

    def image_inputs(self, pixels: Any, local: Any, grids: Sequence[Grid | None]) -> dict[str, Any]:
        """Add the tile grids, which decide where row ends go."""
        inputs = super().image_inputs(pixels, local, grids)
        if local is not None:
            inputs["patches_grid"] = [list(grid) if grid else [1, 1] for grid in grids]
        return inputs

    def build(self, device: str, dtype: torch.dtype) -> torch.nn.Module:
        """Make the model: real weights, random weights, or (``device='meta'``) none."""
        from transformers import UnlimitedOcrForConditionalGeneration as Kind

        if device == "meta":
            return loading.build_meta(Kind, self._config, dtype, self.options())
        if self.weights() == "random":
            return loading.build_random(Kind, self._config, dtype, device, self.config.seed, self.options())
        self.tokenizer()  # settles the image token's id, which the model compares with
        directory = loading.checkpoint_dir(str(self.config.path))
        loading.tensor_shapes(directory)
        return loading.load_pretrained(Kind, str(directory), self._config, dtype, device, self.options())

    def static_mask(self) -> Any:
        """Name a mask per layer type: without one the model would build masks by reading values."""
        return {"full_attention": None, "reference_sliding_attention": None}


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
