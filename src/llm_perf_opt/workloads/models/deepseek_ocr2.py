"""DeepSeek-OCR-2: SAM, then a small language model as visual encoder, then the same text model as v1."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.workloads.models.checkpoints import loading
from llm_perf_opt.workloads.models.checkpoints.arch import make_config, require
from llm_perf_opt.workloads.models.checkpoints.tokenizer import (
    PUBLISHED_IMAGE_TOKEN_ID,
)
from llm_perf_opt.workloads.models.deepseek.ocr_base import OcrAdapter
from llm_perf_opt.workloads.models.deepseek.page_views import (
    PATCH_STRIDE,
    Grid,
    ViewSpec,
    check_spec,
)

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import InferConfig

_GLOBAL, _TILE = 1024, 768
_VIEW_SIZES = (_TILE, _GLOBAL)
"""The encoder has learnt queries for these two sizes only (144 and 256)."""


class DeepseekOcr2Adapter(OcrAdapter):
    """DeepSeek-OCR-2 on transformers' own classes."""

    name = "deepseek_ocr2"
    architecture = "DeepSeek-OCR-2"
    encoder_label = "vision_encoder"

    def view_spec(self, infer: InferConfig) -> ViewSpec:
        """Return the sizes of ``infer.mode``: ``gundam`` (tiles), ``base`` (one view), or ``custom``."""
        mode = str(infer.mode.value)
        spec = ViewSpec(mode, _GLOBAL, _TILE, True, infer.max_tiles, rounding="floor")
        if mode == "gundam":
            return spec
        if mode == "base":
            return replace(spec, crop=False)
        if mode == "custom":
            base = infer.base_size if infer.crop_mode else infer.image_size
            spec = replace(spec, base_size=base, tile_size=infer.image_size, crop=infer.crop_mode)
            check_spec(spec)
            if spec.base_size in _VIEW_SIZES and (not spec.crop or spec.tile_size in _VIEW_SIZES):
                return spec
        raise ConfigError(
            f"infer.mode={mode} is not a mode of DeepSeek-OCR-2",
            hint=f"use gundam ({_GLOBAL} and tiles of {_TILE}), base ({_GLOBAL}), or custom with sizes {_VIEW_SIZES}",
            key="infer.mode",
        )

    @functools.cached_property
    def _config(self) -> Any:
        if self.weights() == "random":
            return ocr2_config(self.config.arch)
        from transformers import DeepseekOcr2Config

        self.say_arch_is_not_used()
        directory = loading.checkpoint_dir(str(self.config.path))
        kind = loading.read_json(directory / "config.json").get("model_type")
        if kind != DeepseekOcr2Config.model_type:
            raise InputError(
                f"{directory} holds a '{kind}' model, not DeepSeek-OCR-2 in transformers' format",
                hint="use the checkpoint deepseek-community/DeepSeek-OCR-2, or the adapter of this one",
                path=str(directory),
            )
        return DeepseekOcr2Config.from_pretrained(str(directory))

    def image_tokens(self, grid: Grid | None) -> int:
        """Return how many positions a page takes: one per query of every view, and a separator; no row ends."""
        tiles = grid[0] * grid[1] if grid else 0
        return (
            (self.views.base_size // PATCH_STRIDE) ** 2
            + tiles * (self.views.tile_size // PATCH_STRIDE) ** 2
            + 1
        )

    def model_class(self) -> Any:
        """Return transformers' class."""
        from transformers import DeepseekOcr2ForConditionalGeneration

        return DeepseekOcr2ForConditionalGeneration


def ocr2_config(arch: Mapping[str, Any]) -> Any:
    """Build the configuration of ``model.arch``; the library's defaults are not the model's, so all must be given."""
    from transformers import DeepseekOcr2Config

    plain = dict(arch)
    text = dict(plain.get("text_config") or {})
    layers = text.get("num_hidden_layers")
    require(
        layers is not None,
        "model.arch.text_config.num_hidden_layers is missing",
        key="model.arch.text_config",
        hint="start from model=deepseek_ocr2 or model=deepseek_ocr2_tiny",
    )
    dense = int(text.pop("first_k_dense_replace", 1))
    text.setdefault(
        "mlp_layer_types", ["dense" if layer < dense else "sparse" for layer in range(int(layers or 0))]
    )
    plain["text_config"] = text
    plain.setdefault(
        "image_token_id",
        PUBLISHED_IMAGE_TOKEN_ID if int(text.get("vocab_size", 0)) > PUBLISHED_IMAGE_TOKEN_ID else 3,
    )
    config = make_config(DeepseekOcr2Config, plain)
    sam, encoder = config.vision_config.sam_config, config.vision_config.encoder_config
    require(
        sam.downsample_channels[-1] == encoder.hidden_size,
        f"SAM gives {sam.downsample_channels[-1]} channels, the encoder takes {encoder.hidden_size}",
        key="model.arch.vision_config", hint="make sam_config.downsample_channels[-1] equal encoder_config.hidden_size",
    )  # fmt: skip
    return config
