"""DeepSeek-OCR v1 on transformers' own classes.

``transformers`` carries the architecture as ``unlimited_ocr`` (SAM-B, CLIP-L, linear projector, 3B mixture of
experts); with full attention in every layer it computes what the published remote code computes, on any
transformers 5.x. The published code itself runs only up to 4.47.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llm_perf_opt.workloads.models.deepseek.ocr_base import OcrAdapter
from llm_perf_opt.workloads.models.deepseek.ocr_config import ocr_config
from llm_perf_opt.workloads.models.deepseek.page_views import (
    Grid,
    ViewSpec,
    image_token_count,
    view_spec,
)

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import InferConfig


class DeepseekOcrAdapter(OcrAdapter):
    """DeepSeek-OCR v1: any size with random weights, or the original checkpoint directory."""

    name = "deepseek_ocr"
    architecture = "DeepSeek-OCR"
    encoder_label = "clip"

    def view_spec(self, infer: InferConfig) -> ViewSpec:
        """Return the sizes of ``infer.mode``."""
        return view_spec(infer)

    @functools.cached_property
    def _config(self) -> Any:
        if self.weights() == "real":
            from llm_perf_opt.workloads.models.deepseek.vendor_checkpoint import config_of_checkpoint

            self.say_arch_is_not_used()
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

    def model_class(self) -> Any:
        """Return transformers' class."""
        from transformers import UnlimitedOcrForConditionalGeneration

        return UnlimitedOcrForConditionalGeneration

    def static_mask(self) -> Any:
        """Name a mask per layer type: without one the model would build masks by reading values."""
        return {"full_attention": None, "reference_sliding_attention": None}
