"""Any encoder-decoder of text that transformers has: T5, BART, Marian, …: encode, prefill of the decoder, decode."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.config.schema import CacheKind
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.workloads.base import Batch, ModelAdapter, Phase, PhaseShapes, Sample, StaticCall
from llm_perf_opt.workloads.datasets.audio import clip_of, resampled
from llm_perf_opt.workloads.models.caches import state_bytes
from llm_perf_opt.workloads.models.hf_causal_lm import HfCausalLmAdapter
from llm_perf_opt.workloads.models.loading import read_json
from llm_perf_opt.workloads.models.meta import describe_inputs, described_inputs, nothing_is_padded
from llm_perf_opt.workloads.models.processors import load_part

if TYPE_CHECKING:
    import torch

_TYPICAL_ENCODER_TOKENS = 512
_NEEDED_ARGUMENTS = ("decoder_input_ids", "encoder_outputs", "past_key_values")


class HfSeq2SeqAdapter(HfCausalLmAdapter):
    """A model of transformers' ``AutoModelForSeq2SeqLM``. The prompt a user gives is the encoder's.

    ``input_ids`` of a batch are the decoder's prompt, which the answer continues; what the encoder reads is next to them.
    """

    name = "hf_seq2seq"
    phases: tuple[Phase, ...] = ("encode", "prefill", "decode")
    auto_name = "AutoModelForSeq2SeqLM"
    splits = False

    def check_class(self, kind: Any, config: Any) -> None:
        """Reject models without a separate encoder, and caches that do not fit two kinds of attention."""
        accepted = inspect.signature(kind.forward).parameters
        missing = [name for name in _NEEDED_ARGUMENTS if name not in accepted]
        if not getattr(config, "is_encoder_decoder", False) or missing:
            why = f"its forward takes no {missing[0]}" if missing else "it has no encoder"
            raise ConfigError(
                f"a '{config.model_type}' model cannot be run in the phases of an encoder-decoder: {why}",
                hint="choose a model such as t5, bart or whisper",
                key="model.adapter",
            )
        if self.config.cache is CacheKind.static:
            raise ConfigError(
                "model.cache=static: encoder-decoders are run with a cache that grows",
                hint="use model.cache=dynamic or model.cache=preallocated",
                key="model.cache",
            )

    def text_config(self) -> Any:
        """Return the decoder's configuration."""
        return self._whole_config.get_text_config(decoder=True)

    def config_document(self) -> Mapping[str, Any]:
        """Return the dimensions of the whole model."""
        document: Mapping[str, Any] = self._whole_config.to_dict()
        return document

    @property
    def context_tokens(self) -> int | None:
        """Most positions of the decoder."""
        return _first_number(self.text_config(), ("max_target_positions", "max_position_embeddings"))

    @property
    def encoder_context_tokens(self) -> int | None:
        """Most positions of the encoder; ``None``: no limit (relative positions)."""
        names = ("max_encoder_position_embeddings", "max_source_positions", "max_position_embeddings")
        return _first_number(self._whole_config, names)

    @functools.cached_property
    def _components(self) -> Mapping[str, str]:
        import torch

        model: Any = self.build("meta", torch.bfloat16)
        paths = {id(module): path for path, module in model.named_modules()}
        parts = {
            "encoder": model.get_encoder(),
            "decoder": model.get_decoder(),
            "lm_head": model.get_output_embeddings(),
        }
        return {
            label: paths[id(part)] for label, part in parts.items() if part is not None and id(part) in paths
        }

    def _generation_setting(self, name: str) -> Any:
        """Return a setting of generation_config.json, or of the configuration, as in ``generate()``."""
        if self.config.path is not None:
            file = Path(self.config.path).expanduser() / "generation_config.json"
            found = read_json(file).get(name) if file.is_file() else None
            if found is not None:
                return found
        return getattr(self._whole_config, name, None)

    def decoder_prompt(self) -> list[int]:
        """Return the start of the decoder's prompt: its start token, and the token a checkpoint forces to be first."""
        config = self._whole_config
        # T5-like models start with padding, which is set in their checkpoints but not in their configuration class.
        names = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
        start = next((found for name in names if (found := self._generation_setting(name)) is not None), None)
        if start is None:
            raise ConfigError(
                f"a '{config.model_type}' checkpoint without decoder_start_token_id cannot generate",
                hint="set it in generation_config.json or model.arch.decoder_start_token_id",
                key="model.arch.decoder_start_token_id",
            )
        forced = self._generation_setting("forced_bos_token_id")
        return [int(start)] if forced is None else [int(start), int(forced)]

    def _length_within_context(self, wanted: int) -> int:
        limit = self.encoder_context_tokens
        return wanted if limit is None else min(wanted, limit)

    def prepare(self, samples: Sequence[Sample], device: str, dtype: torch.dtype) -> Batch:
        """Tokenise the encoder's inputs, padded on the right, and lay out the decoder's prompt."""
        import torch

        sequences = [self.prompt_ids(sample) for sample in samples]
        self._check_encoder_inputs(samples, sequences)
        lengths = [len(sequence) for sequence in sequences]
        longest, pad = max(lengths), self.padding_token_id()
        ids = torch.tensor([[*sequence, *[pad] * (longest - len(sequence))] for sequence in sequences])
        mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
        encoder = {"input_ids": ids.to(device)}
        if len(set(lengths)) > 1:
            encoder["attention_mask"] = mask.long().to(device)
        return self.decoder_batch(
            samples, encoder, longest, device, {"encoder_tokens": lengths, "padded": len(set(lengths)) > 1}
        )

    def decoder_batch(
        self,
        samples: Sequence[Sample],
        encoder: Mapping[str, Any],
        encoder_tokens: int,
        device: str,
        facts: Mapping[str, Any],
    ) -> Batch:
        """Combine the decoder's prompt with the encoder's inputs."""
        import torch

        prompt = self.decoder_prompt()
        ids = torch.tensor([prompt] * len(samples), device=device)
        inputs = {"input_ids": ids, "mask": None, "encoder": dict(encoder)}
        names = [sample.id for sample in samples]
        return Batch(names, inputs, len(prompt), 0, dict(facts), encoder_tokens)

    def _check_encoder_inputs(self, samples: Sequence[Sample], sequences: Sequence[Sequence[int]]) -> None:
        limit, vocabulary = self.encoder_context_tokens, self.text_config().vocab_size
        for sample, sequence in zip(samples, sequences, strict=True):
            if limit is not None and len(sequence) > limit:
                raise InputError(
                    f"sample {sample.id} has {len(sequence)} tokens, the encoder reads {limit}",
                    hint="shorten the prompt or dataset.synthetic_tokens",
                )
            if max(sequence) >= vocabulary:
                raise InputError(
                    f"sample {sample.id} has token {max(sequence)}, the model knows {vocabulary}",
                    hint="the tokenizer does not belong to this model",
                )

    def make_cache(self, model: torch.nn.Module, batch: Batch, max_new_tokens: int) -> Any:
        """Make an empty cache of both attentions: the decoder's own, and that to the encoder."""
        return self._new_cache(batch.prompt_tokens + max_new_tokens)

    def new_state(self, model: torch.nn.Module) -> Any:
        """Make an empty growing cache."""
        return self._new_cache(None)

    def _new_cache(self, capacity_tokens: int | None) -> Any:
        from transformers import DynamicCache, EncoderDecoderCache

        config, cross = self.text_config(), DynamicCache()
        cross.is_cross_attention = True  # marks this part as not growing for static counts
        own = DynamicCache(config=config)
        if capacity_tokens is not None and self.config.cache is CacheKind.preallocated:
            from llm_perf_opt.workloads.models.cache_layers import preallocated_cache

            own = preallocated_cache(config, capacity_tokens)
        return EncoderDecoderCache(self.narrowed(own), cross)

    def encode(self, model: torch.nn.Module, batch: Batch) -> Any:
        """Run the encoder over the whole input."""
        return self._encode(model, batch.inputs["encoder"])

    def _encode(self, model: Any, inputs: Mapping[str, Any]) -> Any:
        return model.get_encoder()(**inputs, return_dict=True)

    def prefill(self, model: torch.nn.Module, batch: Batch, vision: Any, cache: Any) -> torch.Tensor:
        """Run the decoder's prompt with the encoder's output; return logits of its last position."""
        batch.inputs["encoded"] = vision
        return self._decoder(model, batch, batch.inputs["input_ids"], cache)

    def decode_step(
        self, model: torch.nn.Module, batch: Batch, tokens: torch.Tensor, step: int, cache: Any
    ) -> torch.Tensor:
        """Run one more token per sequence."""
        return self._decoder(model, batch, tokens, cache)

    def decode_several(
        self, model: torch.nn.Module, batch: Batch, tokens: torch.Tensor, step: int, cache: Any
    ) -> torch.Tensor:
        """Refuse speculative decoding: the caches of both attentions cannot be cropped here."""
        return ModelAdapter.decode_several(self, model, batch, tokens, step, cache)

    def compile_prefill(self, model: torch.nn.Module) -> None:
        """Reject a compiled prefill: the decoder's prompt is one token, the work is the encoder's."""
        ModelAdapter.compile_prefill(self, model)

    def _decoder(self, model: torch.nn.Module, batch: Batch, ids: torch.Tensor, cache: Any) -> torch.Tensor:
        logits: torch.Tensor = self.forward(
            model,
            cache,
            decoder_input_ids=ids,
            encoder_outputs=batch.inputs["encoded"],
            attention_mask=batch.inputs["encoder"].get("attention_mask"),
        ).logits
        return logits[:, -1]

    def generate(self, model: Any, batch: Batch, chosen: Any) -> Any:
        """Run the model's own ``generate()`` from the same decoder prompt."""
        ids = batch.inputs["input_ids"]
        chosen.decoder_start_token_id = int(ids[0, 0])
        inputs = self.generate_encoder_inputs(batch)
        return self.generate_function(model)(**inputs, decoder_input_ids=ids, generation_config=chosen)

    def generate_function(self, model: Any) -> Callable[..., Any]:
        """Return the generation loop to compare with."""
        found: Callable[..., Any] = model.generate
        return found

    def generate_encoder_inputs(self, batch: Batch) -> dict[str, Any]:
        """Return the encoder's inputs as ``generate()`` takes them: always with a mask, to avoid guessing."""
        ids = batch.inputs["encoder"]["input_ids"]
        return {"attention_mask": ids.new_ones(ids.shape), **batch.inputs["encoder"]}

    def shapes(self, batch: Batch, context_tokens: int) -> PhaseShapes:
        """Describe a real batch for the static count."""
        return PhaseShapes(
            len(batch.sample_ids),
            batch.prompt_tokens,
            0,
            context_tokens,
            encoder_tokens=batch.encoder_tokens,
        )

    def default_shapes(self) -> PhaseShapes:
        """Shapes of a typical request."""
        prompt, encoder = len(self.decoder_prompt()), self._length_within_context(_TYPICAL_ENCODER_TOKENS)
        context = prompt + self.infer.max_new_tokens // 2
        return PhaseShapes(self.infer.batch_size, prompt, 0, context, encoder_tokens=encoder)

    def described_encoder_inputs(self, shapes: PhaseShapes, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Return encoder inputs of these shapes, for counting."""
        import torch

        return {"input_ids": torch.full((shapes.batch_size, shapes.encoder_tokens), 1)}

    def static_calls(
        self, model: torch.nn.Module, shapes: PhaseShapes
    ) -> Mapping[Phase, Callable[[], object]]:
        """Return one call per phase on the meta device; decode starts from the state after encoder and prefill."""
        import torch

        from llm_perf_opt.workloads.models.known_values import KnownValues

        dtype = next(model.parameters()).dtype

        def encode() -> Any:
            with torch.no_grad(), nothing_is_padded(model), KnownValues():
                return self._encode(model, self.described_encoder_inputs(shapes, dtype))

        def decoder(prepared: tuple[Any, Any], tokens: int) -> object:
            state, encoded = prepared
            ids = torch.full((shapes.batch_size, tokens), 1)
            with torch.no_grad(), nothing_is_padded(model), KnownValues():
                return self.forward(model, state, decoder_input_ids=ids, encoder_outputs=encoded)

        def begin() -> tuple[Any, Any]:
            return self.new_state(model), encode()

        def after_prefill() -> tuple[Any, Any]:
            prepared = begin()
            decoder(prepared, shapes.context_tokens)
            return prepared

        def held(prepared: tuple[Any, Any]) -> Mapping[str, float]:
            return state_bytes(model, prepared[0])

        return {
            "encode": encode,
            "prefill": StaticCall(begin, lambda prepared: decoder(prepared, shapes.prompt_tokens), held),
            "decode": StaticCall(after_prefill, lambda prepared: decoder(prepared, 1), held),
        }


def _first_number(config: Any, names: Sequence[str]) -> int | None:
    found = (getattr(config, name, None) for name in names)
    return next((int(value) for value in found if isinstance(value, int)), None)


# Speech encoder-decoders (Whisper and similar): audio features, encode, prefill of the decoder, decode.


_FEATURES = "input_features"
_DEFAULT_RATE_HZ = 16_000


class HfSpeechSeq2SeqAdapter(HfSeq2SeqAdapter):
    """A model of transformers' ``AutoModelForSpeechSeq2Seq`` that reads log-mel features."""

    name = "hf_speech_seq2seq"
    auto_name = "AutoModelForSpeechSeq2Seq"

    def check_class(self, kind: Any, config: Any) -> None:
        """Reject models that do not read mel features."""
        super().check_class(kind, config)
        if getattr(kind, "main_input_name", None) != _FEATURES or not hasattr(config, "num_mel_bins"):
            raise ConfigError(
                f"a '{config.model_type}' model does not read log-mel features: no adapter runs it",
                hint="choose a model such as whisper",
                key="model.adapter",
            )

    @functools.cached_property
    def _extractor(self) -> Any:
        from transformers import AutoFeatureExtractor, WhisperFeatureExtractor

        if self.config.path is None:
            config = self._whole_config
            # Two positions of features become one encoder position; whisper's hop of 10 ms is kept.
            seconds = config.max_source_positions * 2 // 100
            return WhisperFeatureExtractor(feature_size=config.num_mel_bins, chunk_length=max(1, seconds))
        return load_part(
            AutoFeatureExtractor,
            self.config,
            remote_code=self._remote_code,
            what="feature extractor",
            files="preprocessor_config.json",
        )

    def decoder_prompt(self) -> list[int]:
        """Return start, language, task and "no timestamps" as the tokenizer has them; else the start token."""
        prefix = getattr(self._tokenizer, "prefix_tokens", None)
        return [int(token) for token in prefix] if prefix else super().decoder_prompt()

    def prepare(self, samples: Sequence[Sample], device: str, dtype: torch.dtype) -> Batch:
        """Compute features of the clips, padded to the length of the encoder."""
        clips = [clip_of(sample) for sample in samples]
        rate = int(getattr(self._extractor, "sampling_rate", _DEFAULT_RATE_HZ))
        waves = [resampled(clip, rate) for clip in clips]
        features = self._extractor(waves, sampling_rate=rate, return_tensors="pt")[_FEATURES]
        facts = {"audio_s": [clip.seconds for clip in clips]}
        inputs = {_FEATURES: features.to(device, dtype)}
        return self.decoder_batch(samples, inputs, self._encoder_positions(features), device, facts)

    def _encoder_positions(self, features: torch.Tensor) -> int:
        """Return the positions after the encoder's convolutions, the size of its position table."""
        limit = self.encoder_context_tokens
        return int(features.shape[-1]) // 2 if limit is None else min(int(features.shape[-1]) // 2, limit)

    def generate_function(self, model: Any) -> Callable[..., Any]:
        """Return the plain loop: whisper's own ``generate()`` splits long audio and retries on bad answers."""
        from transformers.generation import GenerationMixin

        return functools.partial(GenerationMixin.generate, model)

    def generate_encoder_inputs(self, batch: Batch) -> dict[str, Any]:
        """Return the features."""
        return dict(batch.inputs["encoder"])

    def shapes(self, batch: Batch, context_tokens: int) -> PhaseShapes:
        """Describe a real batch for the static count."""
        return PhaseShapes(
            len(batch.sample_ids),
            batch.prompt_tokens,
            0,
            context_tokens,
            {"inputs": describe_inputs(batch.inputs["encoder"])},
            batch.encoder_tokens,
        )

    def default_shapes(self) -> PhaseShapes:
        """Shapes of a clip of the encoder's length."""
        size, prompt = self.infer.batch_size, len(self.decoder_prompt())
        positions = self.encoder_context_tokens or _DEFAULT_RATE_HZ
        shape = [size, self._whole_config.num_mel_bins, 2 * positions]
        described = {"inputs": {_FEATURES: {"shape": shape}}}
        return PhaseShapes(size, prompt, 0, prompt + self.infer.max_new_tokens // 2, described, positions)

    def described_encoder_inputs(self, shapes: PhaseShapes, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Return features of these shapes, for counting."""
        inputs: Mapping[str, Any] = shapes.vision["inputs"]
        return described_inputs(inputs, dtype)
