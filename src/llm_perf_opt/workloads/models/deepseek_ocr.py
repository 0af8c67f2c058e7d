"""DeepSeek-OCR v1 on transformers' own classes.

``transformers`` carries the architecture as ``unlimited_ocr`` (SAM-B, CLIP-L, linear projector, 3B mixture of
experts); with full attention in every layer it computes what the published remote code computes, on any
transformers 5.x. The published code itself runs only up to 4.47.
"""

from __future__ import annotations

import functools
import logging
import math
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.errors import CheckpointError, ConfigError, InputError
from llm_perf_opt.workloads.base import Batch, Phase, PhaseShapes, Sample, StaticCall, Tiling
from llm_perf_opt.workloads.datasets.images import load_image
from llm_perf_opt.workloads.models import loading
from llm_perf_opt.workloads.models.loading import (
    checkpoint_dir,
    make_config,
    read_json,
    require,
    tensor_shapes,
)
from llm_perf_opt.workloads.models.page_views import (
    PATCH_STRIDE,
    Grid,
    Views,
    ViewSpec,
    check_spec,
    choose_grid,
    image_token_count,
    make_views,
    to_pixels,
)
from llm_perf_opt.workloads.models.page_views import view_spec as page_views_view_spec
from llm_perf_opt.workloads.models.processors import (
    IMAGE,
    PUBLISHED_IMAGE_TOKEN_ID,
    TextTokenizer,
    load_tokenizer,
    ocr_special_ids,
    small_tokenizer,
)
from llm_perf_opt.workloads.models.transformers_base import TransformersAdapter

if TYPE_CHECKING:
    import torch

    from llm_perf_opt.config.schema import InferConfig, ModelConfig


# What DeepSeek-OCR v1 and v2 share: one image per request, placeholders in the prompt, vision before prefill.


LOGGER = logging.getLogger("llm_perf_opt")
_TYPICAL_PAGE = (1654, 2339)
"""A4 at 200 dpi."""


class OcrAdapter(TransformersAdapter):
    """Base of the DeepSeek-OCR adapters."""

    phases: tuple[Phase, ...] = ("vision", "prefill", "decode")

    @property
    @abstractmethod
    def architecture(self) -> str:
        """Published name, for reports and messages."""

    @property
    @abstractmethod
    def encoder_label(self) -> str:
        """Name of the encoder after SAM in reports."""

    @abstractmethod
    def model_class(self) -> Any:
        """Return transformers' class."""

    def __init__(self, model: ModelConfig, infer: InferConfig) -> None:
        super().__init__(model, infer)
        self.views: ViewSpec = self.view_spec(infer)
        count = infer.prompt.count(IMAGE)
        if count != 1:
            problem = (
                "has no <image>" if count == 0 else f"has {count} <image>, but a request carries one page"
            )
            raise ConfigError(
                f"infer.prompt {problem}",
                hint=f"put {IMAGE} once where the page belongs, usually first: '{IMAGE}\\nFree OCR.'",
                key="infer.prompt",
            )
        if model.config_name is not None:
            raise ConfigError(
                "model.config_name is for text models",
                hint="give dimensions in model.arch, or a checkpoint in model.path",
                key="model.config_name",
            )
        if model.trust_remote_code:
            LOGGER.info(
                "model.trust_remote_code is not needed: %s runs on transformers' own classes",
                self.architecture,
            )

    @property
    @abstractmethod
    def _config(self) -> Any:
        """Dimensions: the checkpoint's, or those of ``model.arch``."""

    def note_unused_arch(self) -> None:
        """Log which is used if both dimensions and a checkpoint are given."""
        if self.config.arch:
            LOGGER.info(
                "model.arch is not used: the dimensions come from the checkpoint %s", self.config.path
            )

    def components(self) -> Mapping[str, str]:
        """Map component labels to module paths."""
        return {
            "sam": "model.vision_tower.sam_encoder",
            self.encoder_label: "model.vision_tower.vision_encoder",
            "projector": "model.multi_modal_projector",
            "language_model": "model.language_model",
            "lm_head": "lm_head",
        }

    def build(self, device: str, dtype: torch.dtype) -> torch.nn.Module:
        """Make the model: real weights, random weights, or (``device='meta'``) none."""
        kind = self.model_class()
        if device == "meta":
            return loading.build_meta(kind, self._config, dtype, self.options())
        if self.weights() == "random":
            return loading.build_random(kind, self._config, dtype, device, self.config.seed, self.options())
        self.tokenizer()  # settles the image token's id, which the model compares with
        directory = loading.checkpoint_dir(str(self.config.path))
        loading.tensor_shapes(directory)
        return loading.load_pretrained(kind, str(directory), self._config, dtype, device, self.options())

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

    @abstractmethod
    def view_spec(self, infer: InferConfig) -> ViewSpec:
        """Return the sizes of ``infer.mode``."""

    def checkpoint_tokenizer(self) -> TextTokenizer:
        """Read the checkpoint's tokenizer and take the image token's id from it."""
        directory = loading.checkpoint_dir(str(self.config.path))
        tokenizer = load_tokenizer(directory)
        found = tokenizer.token_id(IMAGE)
        if found is None:
            raise CheckpointError(
                f"the tokenizer in {directory} has no {IMAGE} token",
                hint="use the tokenizer that came with the checkpoint",
                path=str(directory),
            )
        self.model_config().image_token_id = found
        return tokenizer

    @abstractmethod
    def image_tokens(self, grid: Grid | None) -> int:
        """Return how many positions a page with this tile grid takes."""

    def tiling(self) -> Tiling:
        """Return how pages are split in the configured mode."""
        return Tiling(self.views.mode, self.views.max_tiles if self.views.crop else 0)

    def config_document(self) -> Mapping[str, Any]:
        """Return the dimensions of the whole model, vision encoders included."""
        document: Mapping[str, Any] = self.model_config().to_dict()
        return document

    def text_config(self) -> Any:
        """Return the language model's configuration."""
        return self.model_config().text_config

    def padding_token_id(self) -> int:
        """Return the id of the padding token, or of end-of-sequence when there is none."""
        from llm_perf_opt.workloads.models.processors import PAD

        found = self.tokenizer().token_id(PAD)
        return found if found is not None else next(iter(self.eos_token_ids()), 0)

    def text(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Decode generated tokens."""
        return self.tokenizer().decode(token_ids, skip_special_tokens=skip_special_tokens)

    def prompt_ids(self, prompt: str, image_tokens: int) -> list[int]:
        """Return begin-of-sequence, text and image positions; the text is stripped, as the published code does."""
        pieces = prompt.strip().split(IMAGE)
        if len(pieces) != 2:
            raise InputError(
                f"a prompt needs {IMAGE} exactly once: {prompt[:80]!r}",
                hint=f"write '{IMAGE}\\n' and then the request",
            )
        tokenizer = self.tokenizer()
        before, after = (tokenizer.encode(piece) if piece else [] for piece in pieces)
        begin = self.text_config().bos_token_id
        return (
            ([] if begin is None else [int(begin)])
            + before
            + [self.model_config().image_token_id] * image_tokens
            + after
        )

    def read_views(self, sample: Sample) -> Views:
        """Load and split the page of one request."""
        if sample.path is None:
            raise InputError(
                f"sample {sample.id} has no image",
                hint="this model needs a data set of images: dataset=omnidocbench",
            )
        return make_views(load_image(sample.path), self.views)

    def prepare(self, samples: Sequence[Sample], device: str, dtype: torch.dtype) -> Batch:
        """Read, split and normalise the pages; lay out the prompts."""
        pages = [self.read_views(sample) for sample in samples]
        counts = [self.image_tokens(page.grid) for page in pages]
        sequences = [
            self.prompt_ids(sample.prompt or self.infer.prompt, count)
            for sample, count in zip(samples, counts, strict=True)
        ]
        limit = self.context_tokens
        for sample, sequence, count in zip(samples, sequences, counts, strict=True):
            if limit is not None and len(sequence) >= limit:
                raise InputError(
                    f"sample {sample.id} needs {len(sequence)} positions ({count} of the image), the model has {limit}",
                    hint="use a smaller infer.mode or infer.max_tiles",
                )
        inputs = self.left_pad(sequences, device)
        tiles = [tile for page in pages for tile in page.tiles]
        inputs["pixel_values"] = to_pixels([page.global_view for page in pages], device, dtype)
        inputs["pixel_values_local"] = to_pixels(tiles, device, dtype) if tiles else None
        inputs["grids"] = [page.grid for page in pages]
        return Batch(
            sample_ids=[sample.id for sample in samples],
            inputs=inputs,
            prompt_tokens=int(inputs["input_ids"].shape[1]),
            image_tokens=max(counts),
            facts={
                "mode": self.views.mode,
                "grids": [list(page.grid) if page.grid else None for page in pages],
                "page_sizes": [[page.width, page.height] for page in pages],
                "image_tokens": counts,
                "prompt_tokens": [len(sequence) for sequence in sequences],
            },
        )

    def generate_inputs(self, batch: Batch) -> dict[str, Any]:
        """Return the page as ``generate()`` takes it."""
        inputs = batch.inputs
        return self.image_inputs(inputs["pixel_values"], inputs["pixel_values_local"], inputs["grids"])

    def image_inputs(self, pixels: Any, local: Any, grids: Sequence[Grid | None]) -> dict[str, Any]:
        """Return the keyword arguments of ``get_image_features``."""
        inputs: dict[str, Any] = {"pixel_values": pixels}
        if local is not None:
            inputs["pixel_values_local"] = local
            inputs["num_local_patches"] = [grid[0] * grid[1] if grid else 0 for grid in grids]
        return inputs

    def vision(self, model: torch.nn.Module, batch: Batch) -> Any:
        """Run both vision encoders and the projector over all views."""
        inputs = batch.inputs
        call: Any = model.get_image_features
        return call(
            **self.image_inputs(inputs["pixel_values"], inputs["pixel_values_local"], inputs["grids"])
        )

    def prefill_inputs(self, batch: Batch, vision: Any) -> dict[str, Any]:
        """Pass the image features."""
        return {"mm_encoder_outputs": {"image": vision}}

    def shapes(self, batch: Batch, context_tokens: int) -> PhaseShapes:
        """Describe a real batch for the static count."""
        return self._shapes(
            len(batch.sample_ids),
            batch.prompt_tokens,
            batch.image_tokens,
            context_tokens,
            batch.inputs["grids"],
        )

    def default_shapes(self) -> PhaseShapes:
        """Shapes of an A4 page at the configured mode."""
        grid = choose_grid(*_TYPICAL_PAGE, self.views)
        image = self.image_tokens(grid)
        prompt = len(self.prompt_ids(self.infer.prompt, image))
        size = self.infer.batch_size
        return self._shapes(size, prompt, image, prompt + self.infer.max_new_tokens // 2, [grid] * size)

    def _shapes(
        self, size: int, prompt: int, image: int, context: int, grids: Sequence[Grid | None]
    ) -> PhaseShapes:
        listed = [list(grid) if grid else None for grid in grids]
        views = {
            "mode": self.views.mode,
            "base_size": self.views.base_size,
            "tile_size": self.views.tile_size,
        }
        return PhaseShapes(size, prompt, image, context, {**views, "grid": listed[0], "grids": listed})

    def static_calls(
        self, model: torch.nn.Module, shapes: PhaseShapes
    ) -> Mapping[Phase, Callable[[], object]]:
        """Return one call per phase on the meta device; the image placeholder check, which reads values, is bypassed."""
        import torch

        config = self.model_config()
        dtype = next(model.parameters()).dtype
        size = shapes.batch_size
        grids = _grids(shapes)
        tiles = sum(grid[0] * grid[1] for grid in grids if grid)

        def pixels(count: int, side: int) -> torch.Tensor:
            return torch.empty(count, 3, side, side, dtype=dtype, device="meta")

        base = int(shapes.vision.get("base_size", self.views.base_size))
        tile = int(shapes.vision.get("tile_size", self.views.tile_size))
        features = torch.empty(
            size * shapes.image_tokens, config.text_config.hidden_size, dtype=dtype, device="meta"
        )

        def placeholder_mask(
            input_ids: torch.Tensor, inputs_embeds: torch.Tensor, image_features: torch.Tensor
        ) -> torch.Tensor:
            return (input_ids == config.image_token_id).unsqueeze(-1).expand_as(inputs_embeds)

        inner: Any = model.model
        inner.get_placeholder_mask = placeholder_mask

        def vision() -> object:
            call: Any = model.get_image_features
            with torch.no_grad():
                return call(
                    **self.image_inputs(pixels(size, base), pixels(tiles, tile) if tiles else None, grids)
                )

        def language(state: Any, tokens: int, **images: Any) -> object:
            with torch.no_grad():
                return self.forward(
                    model,
                    state,
                    input_ids=torch.zeros(size, tokens, dtype=torch.long, device="meta"),
                    attention_mask=self.static_mask(),
                    position_ids=torch.zeros(size, tokens, dtype=torch.long, device="meta"),
                    logits_to_keep=1,
                    **images,
                )

        def prefill(state: Any) -> object:
            output: Any = _Features([features])
            return language(state, shapes.prompt_tokens, mm_encoder_outputs={"image": output})

        calls = self.calls_on_state(model, language, shapes)
        begin = StaticCall(lambda: self.new_state(model), prefill)
        return {"vision": vision, "prefill": begin, "decode": calls["decode"]}

    def static_mask(self) -> Any:
        """Return the attention mask for a count: none if the model does not read values."""
        return None


class _Features:
    """Image features as the model's forward expects them."""

    def __init__(self, pooler_output: list[Any]) -> None:
        self.pooler_output = pooler_output


def _grids(shapes: PhaseShapes) -> list[Grid | None]:
    """Read the tile grids of all sequences, or repeat the one given."""
    listed = shapes.vision.get("grids")
    if listed is None:
        listed = [shapes.vision.get("grid")] * shapes.batch_size
    grids: list[Grid | None] = [(int(grid[0]), int(grid[1])) if grid else None for grid in listed]
    if len(grids) != shapes.batch_size:
        raise ValueError(f"{len(grids)} tile grids for {shapes.batch_size} sequences")
    return grids


# DeepSeek-OCR-2: SAM, then a small language model as visual encoder, then the same text model as v1.


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
            return _ocr2_config(self.config.arch)
        from transformers import DeepseekOcr2Config

        self.note_unused_arch()
        directory = loading.checkpoint_dir(str(self.config.path))
        kind = loading.read_json(directory / "config.json").get("model_type")
        if kind != DeepseekOcr2Config.model_type:
            raise InputError(
                f"{directory} contains a '{kind}' model, not DeepSeek-OCR-2 in transformers' format",
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


def _ocr2_config(arch: Mapping[str, Any]) -> Any:
    """Build the configuration of ``model.arch``; the library's defaults differ from the model's, so all must be given."""
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


# The transformers configuration of DeepSeek-OCR v1, and what its vision encoders must be.


_SMALL_VOCAB_IMAGE_TOKEN_ID = 3


def _ocr_config(arch: Mapping[str, Any]) -> Any:
    """Build the v1 configuration of ``model.arch``; other values are the published ones."""
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
    _check_vision(config)
    return config


def _check_vision(config: Any) -> None:
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


class DeepseekOcrAdapter(OcrAdapter):
    """DeepSeek-OCR v1: any size with random weights, or the original checkpoint directory."""

    name = "deepseek_ocr"
    architecture = "DeepSeek-OCR"
    encoder_label = "clip"

    def view_spec(self, infer: InferConfig) -> ViewSpec:
        """Return the sizes of ``infer.mode``."""
        return page_views_view_spec(infer)

    @functools.cached_property
    def _config(self) -> Any:
        if self.weights() == "real":
            self.note_unused_arch()
            return _config_of_checkpoint(str(self.config.path))
        return _ocr_config(self.config.arch)

    def image_tokens(self, grid: Grid | None) -> int:
        """Return how many positions a page with this tile grid takes."""
        return image_token_count(self.views, grid)

    def image_inputs(self, pixels: Any, local: Any, grids: Sequence[Grid | None]) -> dict[str, Any]:
        """Add the tile grids, which determine the positions of row ends."""
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


# Dimensions of an original DeepSeek-OCR v1 checkpoint.
#
# Its ``config.json`` holds the language model's dimensions; the vision encoders' are constants of the published
# code, so they are read off the tensors. The configuration corrections are those of transformers' own classes:
# full attention in every layer, and the context the checkpoint was trained for.


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


def _config_of_checkpoint(path: str) -> Any:
    """Return the transformers configuration for a checkpoint directory, or raise with the reason why it is not DeepSeek-OCR v1."""

    directory = checkpoint_dir(path)
    document = read_json(directory / "config.json")
    kind = document.get("model_type")
    if kind == _NATIVE_TYPE:
        return _native_config(directory, document)
    if kind not in _VENDOR_TYPES:
        raise InputError(
            f"{directory} contains a '{kind}' model, not DeepSeek-OCR v1",
            hint="choose the adapter of this checkpoint: model=hf_causal_lm for text models, model=deepseek_ocr2 for DeepSeek-OCR-2",
            path=str(directory),
        )
    shapes = tensor_shapes(directory)
    text = _text_dims(directory, document)
    config = _ocr_config({"text_config": text, "vision_config": _vision_dims(directory, shapes, document)})
    _check_vision(config)
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
    """Take the language model's dimensions; latent attention, which v1 does not use, is rejected."""
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
    """Return the number of heads, which is not in any tensor shape: from config.json, else 64-wide heads."""
    vision = document.get("vision_config")
    widths = vision.get("width") if isinstance(vision, dict) else None
    for name, entry in widths.items() if isinstance(widths, dict) else ():
        if "clip" in name and isinstance(entry, dict) and entry.get("heads"):
            return int(entry["heads"])
    return max(1, width // _HEAD_DIM)
