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

from llm_perf_opt.workloads.models import loading
from llm_perf_opt.workloads.models.ocr_base import OcrAdapter
from llm_perf_opt.workloads.models.ocr_config import ocr_config
from llm_perf_opt.workloads.models.preprocess import (
    Grid,
    ViewSpec,
    image_token_count,
    view_spec,
)

if TYPE_CHECKING:
    import torch

    from llm_perf_opt.config.schema import InferConfig

LOGGER = logging.getLogger("llm_perf_opt")


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
