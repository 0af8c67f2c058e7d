"""Any vision-language model of transformers that encodes its images before the prefill: LLaVA, Qwen-VL, Gemma 3, …"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.workloads.base import Batch, Phase, PhaseShapes, Sample, StaticCall
from llm_perf_opt.workloads.datasets.images import load_image
from llm_perf_opt.workloads.models.caches import state_bytes
from llm_perf_opt.workloads.models.hf_causal_lm import HfCausalLmAdapter
from llm_perf_opt.workloads.models.meta import describe_inputs, described_inputs, nothing_is_padded
from llm_perf_opt.workloads.models.processors import load_processor, processed, with_chat_template

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    from llm_perf_opt.config.schema import InferConfig, ModelConfig

_TYPICAL_PAGE = (1654, 2339)
"""A4 at 200 dpi, in pixels."""
_SEQUENCE_INPUTS = ("input_ids", "attention_mask")


class HfImageTextToTextAdapter(HfCausalLmAdapter):
    """A model of transformers' ``AutoModelForImageTextToText``, with the processor of its checkpoint."""

    name = "hf_image_text_to_text"
    phases: tuple[Phase, ...] = ("vision", "prefill", "decode")
    auto_name = "AutoModelForImageTextToText"
    splits = False

    def __init__(self, model: ModelConfig, infer: InferConfig) -> None:
        super().__init__(model, infer)
        if model.path is None:
            raise ConfigError(
                "a vision-language model needs model.path: its processor converts images to tokens",
                hint="give the checkpoint directory; with model.weights=random its weights need not be there",
                key="model.path",
            )

    def check_class(self, kind: Any, config: Any) -> None:
        """Reject models without a separate image phase."""
        reason = None
        if getattr(config, "is_encoder_decoder", False):
            reason = "is an encoder-decoder that sees: no adapter runs those"
        elif "mm_encoder_outputs" not in inspect.signature(kind.forward).parameters:
            reason = "takes no encoded images: its vision tower runs inside the prefill and cannot be timed by itself"
        if reason is not None:
            raise ConfigError(
                f"a '{config.model_type}' model {reason}",
                hint="choose a model that encodes images first: llava, qwen2_5_vl, qwen3_vl, gemma3, paligemma, internvl, idefics3",
                key="model.path",
            )

    def build(self, device: str, dtype: torch.dtype) -> torch.nn.Module:
        """Make the model; the processor is checked before its weights are read."""
        self._model_class(self._whole_config)
        if device != "meta":
            _ = self._processor
        return super().build(device, dtype)

    @property
    def architecture(self) -> str:
        """Name of the model class."""
        listed = getattr(self._whole_config, "architectures", None)
        return str(listed[0]) if listed else str(self._whole_config.model_type)

    @functools.cached_property
    def _components(self) -> Mapping[str, str]:
        """Map the inner parts of the model by their own names, the language model by the common one."""
        import torch

        model: Any = self.build("meta", torch.bfloat16)
        paths = {id(module): path for path, module in model.named_modules()}
        base = paths[id(model.base_model)]
        decoder = model.get_decoder()
        found = {
            "language_model" if module is decoder else name: f"{base}.{name}" if base else name
            for name, module in model.base_model.named_children()
        }
        head = model.get_output_embeddings()
        if head is not None and id(head) in paths:
            found["lm_head"] = paths[id(head)]
        return found

    def config_document(self) -> Mapping[str, Any]:
        """Return the dimensions of the whole model."""
        document: Mapping[str, Any] = self._whole_config.to_dict()
        return document

    @functools.cached_property
    def _processor(self) -> Any:
        config = self.config
        return load_processor(
            str(config.path),
            model_type=self._whole_config.model_type,
            revision=config.revision,
            remote_code=self._remote_code,
        )

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return self._processor.tokenizer

    def padding_token_id(self) -> int:
        """Return the tokenizer's padding id, which the processor pads with."""
        found = getattr(self._tokenizer, "pad_token_id", None)
        return int(found) if found is not None else super().padding_token_id()

    def prepare(self, samples: Sequence[Sample], device: str, dtype: torch.dtype) -> Batch:
        """Read the images and let the processor make tensors of images and prompts."""
        images = [self._image(sample) for sample in samples]
        texts = [sample.prompt or self.infer.prompt for sample in samples]
        batch = self._batch([sample.id for sample in samples], texts, images)
        self._check_lengths(samples, batch)
        for name, value in batch.inputs["processed"].items():
            moved = value.to(device, dtype) if value.is_floating_point() else value.to(device)
            batch.inputs["processed"][name] = moved
        for name in ("input_ids", "mask"):
            if batch.inputs[name] is not None:
                batch.inputs[name] = batch.inputs[name].to(device)
        return batch

    def _image(self, sample: Sample) -> Image:
        if sample.path is None:
            raise InputError(
                f"sample {sample.id} has no image",
                hint="this model needs a data set of images: dataset=omnidocbench",
            )
        return load_image(sample.path)

    def _batch(self, names: list[str], texts: Sequence[str], images: Sequence[Image]) -> Batch:
        source = str(self.config.path)
        if self.infer.chat_template and getattr(self._processor, "chat_template", None):
            found = with_chat_template(self._processor, texts, images, source)
        else:
            found = processed(self._processor, texts, images, source)
        ids, mask = found["input_ids"], found["attention_mask"]
        counts = (ids == self._image_token_id).sum(-1).tolist()
        lengths = mask.sum(-1).tolist()
        inputs = {
            "input_ids": ids,
            "mask": mask if bool((mask == 0).any()) else None,
            "processed": {name: value for name, value in found.items() if name not in _SEQUENCE_INPUTS},
        }
        facts = {
            "prompt_tokens": lengths,
            "image_tokens": counts,
            "padded": len(set(lengths)) > 1,
            "page_sizes": [[image.width, image.height] for image in images],
        }
        return Batch(names, inputs, int(ids.shape[1]), max(counts), facts)

    @property
    def _image_token_id(self) -> int:
        config = self._whole_config
        found = getattr(config, "image_token_id", None)
        return int(found if found is not None else config.image_token_index)

    def _check_lengths(self, samples: Sequence[Sample], batch: Batch) -> None:
        limit = self.context_tokens
        for sample, length, count in zip(
            samples, batch.facts["prompt_tokens"], batch.facts["image_tokens"], strict=True
        ):
            if count == 0:
                raise InputError(
                    f"the prompt of sample {sample.id} has no place for its image (token {self._image_token_id})",
                    hint="the chat template must write the image token; infer.chat_template=false puts it first",
                )
            if limit is not None and length >= limit:
                raise InputError(
                    f"sample {sample.id} needs {length} positions ({count} of the image), the model has {limit}",
                    hint="use smaller images (dataset.generated.max_side) or a shorter prompt",
                )

    def make_cache(self, model: torch.nn.Module, batch: Batch, max_new_tokens: int) -> Any:
        """Make an empty cache; positions are the model's own, which may count rows and columns of images."""
        batch.inputs["positions"] = self._positions(model, batch)
        return super().make_cache(model, batch, max_new_tokens)

    def _positions(self, model: Any, batch: Batch) -> torch.Tensor:
        """Compute positions as in the model's ``generate()``."""
        ids, mask = batch.inputs["input_ids"], batch.inputs["mask"]
        known = {"attention_mask": ids.new_ones(ids.shape) if mask is None else mask}
        # transformers has no public name for this step of generate().
        positions = model._prepare_position_ids_for_generation(ids, {**known, **batch.inputs["processed"]})
        prepared: torch.Tensor = model.prepare_inputs_for_generation(
            ids, position_ids=positions, is_first_iteration=True, use_cache=True
        )["position_ids"]
        return prepared

    def encoder_inputs(self, model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the processed inputs of the vision tower."""
        taken = inspect.signature(model.base_model.get_image_features).parameters
        return {name: value for name, value in inputs.items() if name in taken}

    def vision(self, model: torch.nn.Module, batch: Batch) -> Any:
        """Run the vision tower and the projector over all images."""
        return self._encode(model, batch.inputs["processed"])

    def _encode(self, model: Any, inputs: Mapping[str, Any]) -> Any:
        return model.base_model.get_image_features(**self.encoder_inputs(model, inputs), return_dict=True)

    def prefill(self, model: torch.nn.Module, batch: Batch, vision: Any, cache: Any) -> torch.Tensor:
        """Run the prompt with the encoded images in their places."""
        taken = self.encoder_inputs(model, batch.inputs["processed"])
        batch.inputs["encoder"] = {
            name: value for name, value in batch.inputs["processed"].items() if name not in taken
        }
        return super().prefill(model, batch, vision, cache)

    def prefill_inputs(self, batch: Batch, vision: Any) -> dict[str, Any]:
        """Pass the image features and other processor outputs (token types)."""
        return {**batch.inputs["encoder"], "mm_encoder_outputs": {"image": vision}}

    def generate_inputs(self, batch: Batch) -> dict[str, Any]:
        """Return the images as ``generate()`` takes them."""
        return dict(batch.inputs["processed"])

    def shapes(self, batch: Batch, context_tokens: int) -> PhaseShapes:
        """Describe a real batch for the static count."""
        like_ids = batch.inputs["input_ids"].shape
        images = {name: value for name, value in batch.inputs["processed"].items() if value.shape != like_ids}
        described = {
            "inputs": describe_inputs(images),
            "image_tokens": batch.facts["image_tokens"],
        }
        return PhaseShapes(
            len(batch.sample_ids), batch.prompt_tokens, batch.image_tokens, context_tokens, described
        )

    def default_shapes(self) -> PhaseShapes:
        """Shapes of an A4 page through the checkpoint's own processor."""
        from PIL import Image as Images

        size = self.infer.batch_size
        page = Images.new("RGB", _TYPICAL_PAGE, "white")
        batch = self._batch(["page"] * size, [self.infer.prompt] * size, [page] * size)
        return self.shapes(batch, batch.prompt_tokens + self.infer.max_new_tokens // 2)

    def static_calls(
        self, model: torch.nn.Module, shapes: PhaseShapes
    ) -> Mapping[Phase, Callable[[], object]]:
        """Return one call per phase on the meta device; image sizes and positions of their tokens have real values."""
        import torch

        from llm_perf_opt.workloads.models.known_values import KnownValues

        dtype = next(model.parameters()).dtype
        text = next(index for index in range(2) if index != self._image_token_id)

        def vision() -> Any:
            with torch.no_grad(), KnownValues():
                return self._encode(model, described_inputs(shapes.vision["inputs"], dtype))

        def language(state: Any, tokens: int, **images: Any) -> object:
            ids = torch.full((shapes.batch_size, tokens), text)
            if images:
                for row, count in zip(ids, shapes.vision["image_tokens"], strict=True):
                    row[:count] = self._image_token_id
            with torch.no_grad(), nothing_is_padded(model), KnownValues():
                return self.forward(model, state, input_ids=ids, logits_to_keep=1, **images)

        def before_prefill() -> tuple[Any, Any]:
            return self.new_state(model), vision()

        def prefill(prepared: tuple[Any, Any]) -> object:
            state, features = prepared
            return language(state, shapes.prompt_tokens, mm_encoder_outputs={"image": features})

        calls = self.calls_on_state(model, language, shapes)
        begin = StaticCall(before_prefill, prefill, lambda prepared: state_bytes(model, prepared[0]))
        return {"vision": vision, "prefill": begin, "decode": calls["decode"]}
