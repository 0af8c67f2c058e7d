"""What DeepSeek-OCR v1 and v2 share: one image per request, placeholders in the prompt, vision before prefill."""

from __future__ import annotations

import functools
import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.errors import CheckpointError, ConfigError, InputError
from llm_perf_opt.workloads.base import (
    Batch,
    Phase,
    PhaseShapes,
    Sample,
    StaticCall,
    Tiling,
)
from llm_perf_opt.workloads.images import load_image
from llm_perf_opt.workloads.models.checkpoints import loading
from llm_perf_opt.workloads.models.checkpoints.tokenizer import (
    IMAGE,
    TextTokenizer,
    load_tokenizer,
    ocr_special_ids,
    small_tokenizer,
)
from llm_perf_opt.workloads.models.decoding.transformers_base import TransformersAdapter
from llm_perf_opt.workloads.models.deepseek.page_views import (
    Grid,
    Views,
    ViewSpec,
    choose_grid,
    make_views,
    to_pixels,
)

if TYPE_CHECKING:
    import torch

    from llm_perf_opt.config.schema import InferConfig, ModelConfig

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
        """What the encoder behind SAM is called in reports."""

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

    def say_arch_is_not_used(self) -> None:
        """Tell a user who gave dimensions and a checkpoint which of them count."""
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
        """Say how pages are cut at the configured mode."""
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
        from llm_perf_opt.workloads.models.checkpoints.tokenizer import PAD

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
        """Load and cut the page of one request."""
        if sample.path is None:
            raise InputError(
                f"sample {sample.id} has no image",
                hint="this model needs a data set of images: dataset=omnidocbench",
            )
        return make_views(load_image(sample.path), self.views)

    def prepare(self, samples: Sequence[Sample], device: str, dtype: torch.dtype) -> Batch:
        """Read, cut and normalise the pages; lay out the prompts."""
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
        """Hand the image features over."""
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
        """Return the attention mask for a count: none is needed where the model can go without reading values."""
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
