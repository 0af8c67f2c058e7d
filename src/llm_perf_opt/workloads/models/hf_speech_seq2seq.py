"""Encoder-decoders that hear (Whisper and its kin): features of a sound, encode, prefill of the decoder, decode."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.workloads.base import Batch, PhaseShapes, Sample
from llm_perf_opt.workloads.datasets.waveforms import clip_of, resampled
from llm_perf_opt.workloads.models.checkpoints.processors import load_part
from llm_perf_opt.workloads.models.hf_seq2seq import HfSeq2SeqAdapter
from llm_perf_opt.workloads.models.meta.image_inputs import describe_inputs, described_inputs

if TYPE_CHECKING:
    import torch

_FEATURES = "input_features"
_DEFAULT_RATE_HZ = 16_000


class HfSpeechSeq2SeqAdapter(HfSeq2SeqAdapter):
    """A model of transformers' ``AutoModelForSpeechSeq2Seq`` that reads log-mel features."""

    name = "hf_speech_seq2seq"
    auto_name = "AutoModelForSpeechSeq2Seq"

    def check_class(self, kind: Any, config: Any) -> None:
        """Refuse models that read something else than mel features."""
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
            # Two positions of features become one of the encoder's; whisper's own hop of 10 ms stays.
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
        """Make features of the sounds, each filled up to the length the encoder reads."""
        clips = [clip_of(sample) for sample in samples]
        rate = int(getattr(self._extractor, "sampling_rate", _DEFAULT_RATE_HZ))
        waves = [resampled(clip, rate) for clip in clips]
        features = self._extractor(waves, sampling_rate=rate, return_tensors="pt")[_FEATURES]
        facts = {"audio_s": [clip.seconds for clip in clips]}
        inputs = {_FEATURES: features.to(device, dtype)}
        return self.decoder_batch(samples, inputs, self._encoder_positions(features), device, facts)

    def _encoder_positions(self, features: torch.Tensor) -> int:
        """Return the positions after the encoder's convolutions, which it has as many of as it has places for."""
        limit = self.encoder_context_tokens
        return int(features.shape[-1]) // 2 if limit is None else min(int(features.shape[-1]) // 2, limit)

    def generate_function(self, model: Any) -> Callable[..., Any]:
        """Return the plain loop: whisper's own ``generate()`` around it cuts long sounds and retries on bad answers."""
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
        """Shapes of a sound as long as the encoder reads."""
        size, prompt = self.infer.batch_size, len(self.decoder_prompt())
        positions = self.encoder_context_tokens or _DEFAULT_RATE_HZ
        shape = [size, self._whole_config.num_mel_bins, 2 * positions]
        described = {"inputs": {_FEATURES: {"shape": shape}}}
        return PhaseShapes(size, prompt, 0, prompt + self.infer.max_new_tokens // 2, described, positions)

    def described_encoder_inputs(self, shapes: PhaseShapes, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Return features of these shapes, for counting."""
        inputs: Mapping[str, Any] = shapes.vision["inputs"]
        return described_inputs(inputs, dtype)
